#!/usr/bin/env bash
# With class weights, the same labels as one-hot rows give another loss.
#
# Versions:  torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `cross_entropy(weight=...)` divides the mean by the sum of the weights of the targets if they are indices,
#            and by the number of rows if they are probabilities, as mixup or distillation gives them.
# Seen:      weights of 10: 0.69 with indices, 6.93 with the same labels as one-hot rows; without weights both are 0.69.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from torch.nn.functional import cross_entropy, one_hot

logits, labels = torch.zeros(4, 2), torch.tensor([0, 1, 1, 0])
rows = one_hot(labels, 2).float()
losses = {}
for weight in (None, torch.tensor([10.0, 10.0])):
    losses[weight is not None] = [round(cross_entropy(logits, target, weight).item(), 2) for target in (labels, rows)]
    print(f"weights {weight}: the loss of indices and of one-hot rows:", losses[weight is not None])
assert losses == {False: [0.69, 0.69], True: [0.69, 6.93]}
PYTHON
