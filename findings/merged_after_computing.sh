#!/usr/bin/env bash
# A metric that was computed keeps its value when another is merged into it.
#
# Versions:  torch 2.13.0, torchmetrics 1.9.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `compute` keeps its result until the next update. `merge_state`, which adds the counts of another metric,
#            of another shard or process, is no update: the counts are new, and `compute` returns the value from before,
#            without a message.
# Seen:      a mean of 1 merged with a mean of 3: 2.0 if nothing was computed before, 1.0 after a `compute`, although
#            its sum and its weight are those of both.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 torchmetrics==1.9.0 numpy==2.4.6
run <<'PYTHON'
from torchmetrics import MeanMetric


def merged(computed):
    one, other = MeanMetric(), MeanMetric()
    one.update(1.0), other.update(3.0)
    if computed:
        print("  one alone:", one.compute().item())
    one.merge_state(other)
    return one.compute().item(), (one.mean_value / one.weight).item()


for computed in (False, True):
    value, counts = merged(computed)
    print(f"computed before the merge: {computed}; the merged metric computes {value}, its counts say {counts}")
    assert counts == 2.0
    assert value == (1.0 if computed else 2.0)
PYTHON
