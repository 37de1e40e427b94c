#!/usr/bin/env bash
# A parameter that gets its first gradient late makes a first step of another size.
#
# Versions:  torch 2.13.0, pytorch-optimizer 4.1.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: torch's optimizers count steps for each parameter, those of pytorch-optimizer for a group. Averages of a
#            parameter that had no gradient until then, such as an expert that is used late, begin at zero, and are
#            corrected as if they were old: its first step is longer, or shorter, than the first step of the others was.
# Seen:      with a gradient of one, a parameter that is first used at step 1001 makes a first step as long as one that
#            is used at step 1 with torch's AdamW and NAdam; 2.5 times as long with AdaBelief and AdamP, 25 times with
#            LaProp, a tenth with StableAdamW.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 pytorch-optimizer==4.1.0 numpy==2.4.6
run <<'PYTHON'
import pytorch_optimizer
import torch


def first_steps(make):
    """Return the step of a parameter at the first update, and of one whose first gradient comes at the 1001st."""
    early, late = torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(4))
    optimizer = make([early, late])
    taken = []
    for step in range(1001):
        now = late if step == 1000 else early
        before = now.detach().clone()
        early.grad = torch.ones(4)
        late.grad = torch.ones(4) if step == 1000 else None
        optimizer.step()
        if step in (0, 1000):
            taken.append((before - now.detach()).abs().mean().item())
    return taken


MAKERS = {
    "torch.optim.AdamW": torch.optim.AdamW,
    "torch.optim.NAdam": torch.optim.NAdam,
    **{f"pytorch_optimizer.{name}": getattr(pytorch_optimizer, name)
       for name in ("AdaBelief", "AdamP", "LaProp", "StableAdamW")},
}
ratios = {}
for name, maker in MAKERS.items():
    first, late = first_steps(lambda parameters, maker=maker: maker(parameters, lr=1e-3, weight_decay=0.0))
    ratios[name] = round(late / first, 1)
    print(f"{name}: the first step of a late parameter is {ratios[name]} times that of an early one")
assert list(ratios.values()) == [1.0, 1.0, 2.5, 2.5, 25.2, 0.1], ratios
PYTHON
