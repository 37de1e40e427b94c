#!/usr/bin/env bash
# An optimizer that keeps its averages in float32 for weights in bfloat16 has them in bfloat16 after a resume.
#
# Versions:  torch 2.13.0, numpy 2.4.6, transformers 5.24.0, accelerate 1.15.0, heavyball 3.2.1; Python 3.11 on a CPU
# Behaviour: `load_state_dict` casts each tensor of a state, but `step`, to the dtype of its parameter. The averages of
#            transformers' Adafactor and of heavyball's optimizers, `mu_product` of torch's NAdam and `eta` of its ASGD are
#            in float32 whatever the parameters are, and come back rounded, without a message. The models of today are
#            loaded in bfloat16 by default.
# Seen:      seven steps after a save and a load the weights are others than without them with Adafactor, NAdam, ASGD and
#            heavyball's AdamW, and the same to the bit with torch's AdamW; with float32 they are the same with all five.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0 heavyball==3.2.1
TORCHDYNAMO_DISABLE=1 run <<'PYTHON'
import copy

import heavyball
import torch
from transformers.optimization import Adafactor


def after(dtype, make, load):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64)).to(dtype)
    optimizer = make(model.parameters())
    for number in range(12):
        if number == 5 and load:
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = make(model.parameters())
            optimizer.load_state_dict(saved)
        x = torch.randn(16, 64, generator=torch.Generator().manual_seed(number)).to(dtype)
        optimizer.zero_grad()
        (model(x) - 1).float().square().mean().backward()
        torch.manual_seed(number)  # for what is rounded by chance
        optimizer.step()
    return list(model.parameters())


makers = {
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=0.01),
    "NAdam": lambda weights: torch.optim.NAdam(weights, lr=0.01),
    "ASGD": lambda weights: torch.optim.ASGD(weights, lr=0.1, lambd=0.1, t0=0),
    "transformers' Adafactor": lambda weights: Adafactor(weights, lr=0.01, relative_step=False, scale_parameter=False),
    "heavyball's AdamW": lambda weights: heavyball.AdamW(weights, lr=0.01),
}
for name, make in makers.items():
    others = {}
    for dtype in (torch.float32, torch.bfloat16):
        pairs = zip(after(dtype, make, False), after(dtype, make, True), strict=True)
        others[dtype] = sum(int((one != other).sum()) for one, other in pairs)
    print(f"{name}: {others[torch.bfloat16]} of 8320 weights in bfloat16 are others, {others[torch.float32]} in float32")
    assert others[torch.float32] == 0
    assert (others[torch.bfloat16] > 100) == (name != "AdamW"), others
PYTHON
