#!/usr/bin/env bash
# A module that two parts of a Hydra configuration refer to is made twice: its weights are not shared.
#
# Versions:  hydra-core 1.3.8, omegaconf 2.3.1, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `encoder: ${encoder}` in two places is text that is filled in, and `instantiate` makes a module of each. Weights
#            that were to be tied, or frozen in one place, are two; an optimizer that is given one of them trains that one.
#            No message says so.
# Seen:      an encoder and two heads that refer to it: three modules with different weights, and three times the parameters.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install hydra-core==1.3.8 omegaconf==2.3.1 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

config = OmegaConf.create("""
encoder: {_target_: torch.nn.Linear, in_features: 4, out_features: 4}
policy: {_target_: torch.nn.Sequential, _args_: ["${encoder}", {_target_: torch.nn.Linear, in_features: 4, out_features: 2}]}
value: {_target_: torch.nn.Sequential, _args_: ["${encoder}", {_target_: torch.nn.Linear, in_features: 4, out_features: 1}]}
""")
made = instantiate(config)
encoders = [made.encoder, made.policy[0], made.value[0]]
model = torch.nn.ModuleList(encoders)
print("modules:", len({id(encoder) for encoder in encoders}), "parameters:", len(list(model.parameters())))
assert len({id(encoder) for encoder in encoders}) == 3 and len(list(model.parameters())) == 6
assert not torch.equal(encoders[0].weight, encoders[1].weight) and not torch.equal(encoders[1].weight, encoders[2].weight)
PYTHON
