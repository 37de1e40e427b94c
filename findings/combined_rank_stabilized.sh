#!/usr/bin/env bash
# Adapters with rank-stabilized scaling have more effect after they are combined.
#
# Versions:  peft 0.21.2, transformers 5.24.0, accelerate 1.15.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `add_weighted_adapter` puts the scaling of its adapters into the new matrices, and gives the new adapter a
#            `lora_alpha` that is its rank, so that its own scaling is one. With `use_rslora=True` that is divided by
#            the root of the rank, and the scaling is that root: the new adapter has so many times the effect, with
#            every `combination_type`, without a message.
# Seen:      one adapter with a weight of 1, combined: its own change without `use_rslora`; with it twice that at rank
#            4, four times at rank 16.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install peft==0.21.2 transformers==5.24.0 accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from peft import LoraConfig, get_peft_model


def effect(kind, rank, **fields):
    """Return the change of weights by the combined adapter, as a multiple of that of the one that it is made of."""
    torch.manual_seed(0)
    config = LoraConfig(r=rank, lora_alpha=8, target_modules=["0"], init_lora_weights=False, **fields)
    model = get_peft_model(torch.nn.Sequential(torch.nn.Linear(16, 16)), config)
    more = {"density": 1.0} if kind == "ties" else {}
    model.add_weighted_adapter(["default"], [1.0], "combined", combination_type=kind, **more)
    layer = model.base_model.model[0]
    return round((layer.get_delta_weight("combined") / layer.get_delta_weight("default")).median().item(), 3)


KINDS = ("cat", "linear", "svd", "ties")
plain = {kind: effect(kind, 4) for kind in KINDS}
at_4 = {kind: effect(kind, 4, use_rslora=True) for kind in KINDS}
at_16 = {kind: effect(kind, 16, use_rslora=True) for kind in KINDS}
print("the change of the combined adapter, as a multiple of the change of the one it is made of:", plain)
print("with use_rslora=True, rank 4:", at_4)
print("with use_rslora=True, rank 16:", at_16)
assert plain == dict.fromkeys(KINDS, 1.0)
assert at_4 == dict.fromkeys(KINDS, 2.0) and at_16 == dict.fromkeys(KINDS, 4.0)
PYTHON
