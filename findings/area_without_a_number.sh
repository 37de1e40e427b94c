#!/usr/bin/env bash
# AUROC of predictions that are all NaN is 1 if the positive rows come first, and 0 if they come last.
#
# Versions:  torchmetrics 1.9.0, torch 2.13.0; Python 3.11 on a CPU
# Behaviour: NaN is sorted as it comes, and nothing checks for it. A model that has diverged has an AUROC, an average precision
#            and an accuracy; on a data set that is sorted by its labels it may be the best of all checkpoints. No message
#            says so.
# Seen:      ten predictions of NaN, two of positive rows: AUROC is 1 with these first and 0 with these last, and the accuracy
#            0.8 in both.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install torchmetrics==1.9.0 torch==2.13.0
run <<'PYTHON'
import torch
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, BinaryAveragePrecision

predictions = torch.full((10,), float("nan"))
first = torch.tensor([1] * 2 + [0] * 8)
seen = {}
for metric in (BinaryAUROC(), BinaryAveragePrecision(), BinaryAccuracy()):
    seen[type(metric).__name__] = [round(metric(predictions, target).item(), 4) for target in (first, first.flip(0))]
    print(type(metric).__name__, "positive rows first, last:", seen[type(metric).__name__])
assert seen["BinaryAUROC"] == [1, 0] and seen["BinaryAccuracy"] == [0.8, 0.8]
PYTHON
