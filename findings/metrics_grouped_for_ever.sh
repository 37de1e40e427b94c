#!/usr/bin/env bash
# Two metrics that agree on the first batch are one metric from then on.
#
# Versions:  torchmetrics 1.9.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: a `MetricCollection` computes metrics together whose states are equal after the first batch, whatever they were
#            made with: the others get the states of the first. Two thresholds are equal as long as no prediction is between
#            them, as of a model that is yet untrained, and so are metrics with and without an `ignore_index` if the batch has no
#            such label. `reset` does not separate them.
# Seen:      accuracies at thresholds of 0.5 and 0.9, after a batch with 0.1 and 0.2 and another with 0.7 and 0.7, all of
#            class 1: 0.5 and 0 apart, and 0 and 0 in a collection, which goes by the alphabet. After `reset` they are 0 and 0
#            on the second batch, where apart they are 1 and 0. `compute_groups=False` mends it.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy, MulticlassAccuracy

FIRST = torch.tensor([0.1, 0.2]), torch.tensor([1, 1])
SECOND = torch.tensor([0.7, 0.7]), torch.tensor([1, 1])


def both(**options):
    return MetricCollection({"low": BinaryAccuracy(threshold=0.5), "high": BinaryAccuracy(threshold=0.9)}, **options)


def values(metrics, *batches):
    for batch in batches:
        metrics.update(*batch)
    return {name: value.item() for name, value in metrics.compute().items()}


together, apart = both(), both(compute_groups=False)
whole = values(together, FIRST, SECOND), values(apart, FIRST, SECOND)
together.reset()
apart.reset()
again = values(together, SECOND), values(apart, SECOND)
print(f"in a collection, and apart: {whole}; after reset: {again}; groups: {together.compute_groups}")
assert whole == ({"low": 0.0, "high": 0.0}, {"low": 0.5, "high": 0.0})
assert again == ({"low": 0.0, "high": 0.0}, {"low": 1.0, "high": 0.0})
other_order = values(both(), SECOND, FIRST)
assert other_order == {"low": 0.5, "high": 0.0}

made = {"all": None, "known": 0}
ignoring = MetricCollection({name: MulticlassAccuracy(3, average="micro", ignore_index=index) for name, index in made.items()})
found = values(ignoring, (torch.tensor([1, 2]), torch.tensor([1, 2])), (torch.tensor([1, 2]), torch.tensor([0, 0])))
print(f"accuracy of all labels, and without label 0: {found}, where the second is 1")
assert found == {"all": 0.5, "known": 0.5}
PYTHON
