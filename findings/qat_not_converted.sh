#!/usr/bin/env bash
# Converting a model that was trained for a quantization can leave it as it is.
#
# Versions:  torch 2.13.0, torchao 0.18.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: a model prepared by `QATConfig(..., step='prepare')` has the names of the plain one in its checkpoint, and
#            nothing that says that it was prepared. Loaded into a plain model, it is loaded in full, and
#            `step='convert'` passes over layers that are not prepared, without a message: the weights stay float32,
#            neither small nor rounded as they were in the training. Prepare before, or apply the configuration itself.
# Seen:      after `convert` the weights of the loaded plain model are a Parameter as before, with outputs other than in
#            the training; those of a prepared one, and of a plain one quantized by the configuration, are of torchao's
#            class, with equal outputs.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 torchao==0.18.0 numpy==2.4.6
run <<'PYTHON'
import torch
from torch import nn
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
from torchao.quantization.granularity import PerGroup
from torchao.quantization.qat import QATConfig

config = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32))
prepare, convert = QATConfig(config, step="prepare"), QATConfig(config, step="convert")
rows = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))


def model():
    return nn.Sequential(nn.Linear(64, 8))


trained = model()
quantize_(trained, prepare)
torch.save(trained.state_dict(), "model.pt")
outputs = {"in training": trained(rows)}
kinds = {}
for name, steps in {"converted": [convert], "prepared, converted": [prepare, convert], "quantized": [config]}.items():
    loaded = model()
    print(f"{name}: names that do not fit:", loaded.load_state_dict(torch.load("model.pt")))
    for step in steps:
        quantize_(loaded, step)
    outputs[name], kinds[name] = loaded(rows), type(loaded[0].weight).__name__
off = {name: (values - outputs["in training"]).abs().max().item() for name, values in outputs.items()}
print("types of the weights:", kinds)
print("outputs, off those of the training by up to:", off)
assert kinds["converted"] == "Parameter" and off["converted"] > 1e-3
assert kinds["quantized"] == kinds["prepared, converted"] != "Parameter"
assert off["quantized"] < 1e-5 and off["prepared, converted"] < 1e-5
PYTHON
