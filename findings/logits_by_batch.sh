#!/usr/bin/env bash
# Whether a number is a logit or a probability is decided anew for each batch.
#
# Versions:  torchmetrics 1.9.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: binary metrics of torchmetrics take the sigmoid of a batch's predictions only if one of them lies outside 0
#            to 1. Logits of a batch that all lie inside are taken for probabilities: what a metric says depends on the
#            size of the batches and on which rows are together.
# Seen:      AUROC of the same 400 logits: 0.819 in one batch, 0.763 one by one; the logit 0.3 is class 1 beside a -2,
#            and class 0 alone.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC

torch.manual_seed(0)
logits = torch.randn(400)
labels = (logits + torch.randn(400) > 0).long()


def value(metric, logits, labels, size):
    for part, its_labels in zip(logits.split(size), labels.split(size)):
        metric.update(part, its_labels)
    return round(metric.compute().item(), 3)


accuracy = [value(BinaryAccuracy(), torch.tensor([0.3, -2.0]), torch.tensor([1, 0]), size) for size in (2, 1)]
print("accuracy of the logits 0.3 and -2.0 for the labels 1 and 0, in a batch of two and in two of one:", accuracy)
areas = {size: value(BinaryAUROC(), logits, labels, size) for size in (400, 4, 2, 1)}
print("AUROC of the same 400 logits, by the size of the batches:", areas)
probabilities = {size: value(BinaryAUROC(), logits.sigmoid(), labels, size) for size in (400, 1)}
print("of their sigmoid:", probabilities)
assert accuracy == [1.0, 0.5]
assert len(set(areas.values())) > 1 and len(set(probabilities.values())) == 1
PYTHON
