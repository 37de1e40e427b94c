#!/usr/bin/env bash
# Weights that are changed after an evaluation under FSDP 2 are not those of the next batch.
#
# Versions:  torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: The outermost unit of `fully_shard` keeps its parameters gathered after a forward pass, for the backward
#            pass. An evaluation has none, so they stay gathered until that of the next batch. What changes the shards in
#            between, such as `train()` of a schedule-free optimizer or an average that is swapped out, is not seen by
#            the forward pass of that batch; units inside see it.
# Seen:      of two layers whose weights were halved after an evaluation the next output was half of the former; with
#            `model.reshard()` before it, a quarter.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
import torch.distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))


def next_output(reshards):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 1, bias=False))
    for weight in model.parameters():
        torch.nn.init.ones_(weight)
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # it has the shards
    rows = torch.ones(1, 2)
    with torch.no_grad():
        model.eval()
        evaluated = model(rows).item()
        for shard in optimizer.param_groups[0]["params"]:
            shard.mul_(0.5)
    if reshards:
        model.reshard()
    model.train()
    return model(rows).item() / evaluated


found = {reshards: next_output(reshards) for reshards in (False, True)}
print("next output, to the evaluated one:", found)
assert found == {False: 0.5, True: 0.25}
torch.distributed.destroy_process_group()
PYTHON
