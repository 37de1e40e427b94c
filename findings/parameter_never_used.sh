#!/usr/bin/env bash
# A distributed checkpoint of a model with a parameter that had no gradient yet cannot be loaded.
#
# Versions:  torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: an optimizer has no state for a parameter without a gradient, such as an expert that no token was sent to, and
#            `get_state_dict` saves none. Before it is loaded `get_state_dict` of the new optimizer steps it on zeros, so that
#            there is a state for each parameter, and `load` asks for all of it. Saving says nothing; the documented way to
#            resume ends in an error.
# Seen:      after a step of the first of two layers the checkpoint is written, and loading it says that
#            `optim.state.1.weight.step` is missing. With `DefaultLoadPlanner(allow_partial_load=True)` it is loaded, and the
#            second layer has a state of zeros after one step.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def new():
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    return model, torch.optim.AdamW(model.parameters())


def save(folder, uses_all):
    model, optimizer = new()
    (model if uses_all else model[0])(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": states}, checkpoint_id=folder)


def load(folder, planner=None):
    model, optimizer = new()
    weights, states = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optim": states}, checkpoint_id=folder, planner=planner)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)
    return {name: optimizer.state[parameter]["step"].item() for name, parameter in model.named_parameters()}


save("all", True)
save("first", False)
everything = load("all")
try:
    load("first")
    error = ""
except BaseException as raised:
    error = str(raised)
part = load("first", dcp.default_planner.DefaultLoadPlanner(allow_partial_load=True))
missing = [line for line in error.splitlines() if "Missing key" in line][-1:]
print(f"all used: {everything}; one never: {missing}; a part: {part}")
assert set(everything.values()) == {1.0}
assert missing and "optim.state.1." in missing[0]
PYTHON
