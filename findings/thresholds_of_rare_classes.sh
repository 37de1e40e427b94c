#!/usr/bin/env bash
# AUROC with thresholds is a half where it is 0.93, if the class is rare.
#
# Versions:  torchmetrics 1.9.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `thresholds=100`, which saves memory, asks at 0, 1/99, 2/99 and so on, wherever the predictions are. Those for a
#            class that few rows have may all lie below the second of them, so that none is told from another. No
#            message says so; the average precision is then the share of the class.
# Seen:      a class of 0.2 % of the rows, with predictions up to 0.009: an AUROC of 0.93 and an average precision of 0.12;
#            0.5 and 0.002 with 100 thresholds.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision

generator = torch.Generator().manual_seed(0)
labels = (torch.rand(20000, generator=generator) < 0.002).long()
predictions = torch.sigmoid(torch.randn(20000, generator=generator) * 0.5 + labels - 7)
print("largest prediction:", predictions.max().item())
seen = {}
for thresholds in (None, 100):
    metrics = BinaryAUROC(thresholds=thresholds), BinaryAveragePrecision(thresholds=thresholds)
    seen[thresholds] = [round(metric(predictions, labels).item(), 3) for metric in metrics]
print("AUROC and average precision, exact and with 100 thresholds:", seen)
assert seen[None][0] > 0.9 and seen[None][1] > 0.1
assert seen[100][0] == 0.5 and seen[100][1] < 0.003
PYTHON
