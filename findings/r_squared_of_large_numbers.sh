#!/usr/bin/env bash
# R squared of numbers around 10,000 is 0.97 where it is 0.78.
#
# Versions:  torchmetrics 1.9.0, torch 2.13.0, numpy 2.4.6, scikit-learn 1.9.1; Python 3.11 on a CPU
# Behaviour: `R2Score` and `ExplainedVariance` add up squares of the targets in float32 and subtract the square of their sum.
#            Where the targets lie far from zero, as prices, years or temperatures in Kelvin do, the difference is of rounding
#            errors. Scikit-learn subtracts the mean first.
# Seen:      2,000 targets of 10,000 with a spread of 1, predicted with an error of 0.5: 0.972 and 0.971 by torchmetrics,
#            0.778 and 0.778 by scikit-learn. The same numbers less 10,000: 0.778 by both. In float64, too.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6 scikit-learn==1.9.1
run <<'PYTHON'
import torch
from sklearn.metrics import explained_variance_score, r2_score
from torchmetrics import ExplainedVariance, R2Score

generator = torch.Generator().manual_seed(0)
targets = 10000 + torch.randn(2000, generator=generator)
predictions = targets + 0.5 * torch.randn(2000, generator=generator)


def by_torchmetrics(predictions, targets):
    return [round(metric(predictions, targets).item(), 3) for metric in (R2Score(), ExplainedVariance())]


found = by_torchmetrics(predictions, targets)
expected = [round(float(score(targets, predictions)), 3) for score in (r2_score, explained_variance_score)]
shifted = by_torchmetrics(predictions - 10000, targets - 10000)
doubles = by_torchmetrics(predictions.double(), targets.double())
print(f"torchmetrics: {found}; scikit-learn: {expected}; torchmetrics less 10,000: {shifted}, in float64: {doubles}")
assert all(abs(value - right) > 0.1 for value, right in zip(found, expected))
assert shifted == doubles == expected
PYTHON
