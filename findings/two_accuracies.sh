#!/usr/bin/env bash
# The two ways to ask for the accuracy of classes give two numbers.
#
# Versions:  torchmetrics 1.9.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `Accuracy(task='multiclass', num_classes=n)` averages over rows, `MulticlassAccuracy(n)` over classes,
#            unless `average` is given. The first makes an object of the second.
# Seen:      0.9 and 0.5 for a model that always says 0, where nine of ten rows are 0; both are of class
#            `MulticlassAccuracy`.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from torchmetrics import Accuracy
from torchmetrics.classification import MulticlassAccuracy

labels = torch.tensor([0] * 9 + [1])
both = [Accuracy(task="multiclass", num_classes=2), MulticlassAccuracy(num_classes=2)]
values = [round(metric(torch.zeros(10, dtype=torch.long), labels).item(), 3) for metric in both]
print([type(metric).__name__ for metric in both], values)
assert type(both[0]) is type(both[1])
assert values == [0.9, 0.5]
PYTHON
