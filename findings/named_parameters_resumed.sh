#!/usr/bin/env bash
# Names of parameters are saved with an optimizer, and do not decide what is restored.
#
# Versions:  torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: an optimizer made from named parameters writes their names to its state dict; `load_state_dict` goes by
#            position all the same, and gives a parameter the averages of another where the order differs, without a
#            message.
# Seen:      the averages of `a`, 10, went to `b`.
# Date:      2026-11-27
. "$(dirname "$0")/common.sh"
install torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch

a, b = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))


def adam(named):
    return torch.optim.Adam(named, lr=0.1)


saved = adam([("a", a), ("b", b)])
(100 * a + 0 * b).sum().backward()
saved.step()
state = saved.state_dict()
print("names in the file:", state["param_groups"][0]["param_names"])

resumed = adam([("b", b), ("a", a)])
resumed.load_state_dict(state)
averages = {name: resumed.state[p]["exp_avg"].item() for name, p in (("a", a), ("b", b))}
print("gradients were 100 of a and 0 of b; the resumed optimizer's averages:", averages)
assert averages["a"] == 0 and averages["b"] > 0
PYTHON
