#!/usr/bin/env bash
# The epsilon that Opacus reports after a resume is that of the steps since then.
#
# Versions:  opacus 1.6.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: the steps are counted by the `PrivacyEngine`, and neither in the state of its optimizer nor of its model. A script
#            that saves and loads these two, as training scripts do, reports too small an epsilon. `save_checkpoint` of the
#            engine has the count. No message says so.
# Seen:      an epsilon of about 4 after three epochs; after the states were loaded into a new engine, and one step more, it is
#            less than half as much.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install opacus==1.6.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from opacus import PrivacyEngine


def new():
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(64, 1)), batch_size=16)
    engine = PrivacyEngine()
    made = engine.make_private(module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=loader,
                               noise_multiplier=1.0, max_grad_norm=1.0)
    return engine, *made


def train(model, optimizer, loader, steps):
    for _ in range(steps):
        (batch,) = next(iter(loader))
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()


engine, model, optimizer, loader = new()
train(model, optimizer, loader, 12)
before = engine.get_epsilon(1e-3)
states = model.state_dict(), optimizer.state_dict()
engine, model, optimizer, loader = new()
model.load_state_dict(states[0])
optimizer.load_state_dict(states[1])
train(model, optimizer, loader, 1)
after = engine.get_epsilon(1e-3)
print(f"epsilon before: {before:.2f}, after a resume and one step more: {after:.2f}")
assert after < before / 2
PYTHON
