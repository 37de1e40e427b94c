#!/usr/bin/env bash
# Torch's own Adafactor does not step on what torch's own FSDP shards.
#
# Versions:  torch 2.13.0, pytorch-optimizer 4.1.0, transformers 5.24.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `fully_shard` makes parameters DTensors. An optimizer that takes norms or means of a whole matrix gets
#            partial values, which operations in place do not accept; one that makes its state as plain tensors, or
#            steps with `_foreach_copy_`, is refused too. It is seen at the first step, not when the optimizer is made.
# Seen:      AdamW, Lion and Muon step; `torch.optim.Adafactor`, transformers' Adafactor, and LAMB, LARS, Adan, CAME and
#            StableAdamW of pytorch-optimizer raise an error at the first step.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 pytorch-optimizer==4.1.0 transformers==5.24.0 numpy==2.4.6
run <<'PYTHON'
import pytorch_optimizer
import torch
import torch.distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers.optimization import Adafactor

torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))


def outcome(optimizer):
    model = torch.nn.Linear(4, 6, bias=False)
    fully_shard(model, mesh=mesh)
    optimizer = optimizer(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    try:
        optimizer.step()
    except (NotImplementedError, RuntimeError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:70]}"
    return "steps"


classes = {"torch's AdamW": torch.optim.AdamW, "torch's Muon": torch.optim.Muon}
classes |= {"Lion": pytorch_optimizer.Lion, "torch's Adafactor": torch.optim.Adafactor}
classes |= {"transformers' Adafactor": lambda weights: Adafactor(weights, lr=0.01, relative_step=False)}
classes |= {name: getattr(pytorch_optimizer, name) for name in ("Lamb", "LARS", "Adan", "CAME", "StableAdamW")}
outcomes = {name: outcome(made) for name, made in classes.items()}
for name, what in outcomes.items():
    print(f"{name}: {what}")
assert [name for name, what in outcomes.items() if what == "steps"] == ["torch's AdamW", "torch's Muon", "Lion"]
torch.distributed.destroy_process_group()
PYTHON
