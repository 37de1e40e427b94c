#!/usr/bin/env bash
# Perplexity takes the label -100 for a token.
#
# Versions:  torchmetrics 1.9.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `Perplexity()` ignores nothing by default, other than `cross_entropy`, which leaves out labels of -100, as
#            collators write them for padding. It takes them for an index from the end: the token number of tokens - 100.
# Seen:      one position with a probability of a half, three with -100: 2 with `ignore_index=-100` and by `cross_entropy`; with
#            the default the same as with the label 300 - 100 of 300 tokens.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from torchmetrics.text import Perplexity

probabilities = torch.full((1, 4, 300), 0.5 / 299)
probabilities[..., 7] = 0.5
scores, labels = probabilities.log(), torch.tensor([[7, -100, -100, -100]])
default = Perplexity()(scores, labels).item()
as_token = Perplexity()(scores, torch.tensor([[7, 200, 200, 200]])).item()
ignoring = Perplexity(ignore_index=-100)(scores, labels).item()
by_torch = torch.nn.functional.cross_entropy(scores[0], labels[0]).exp().item()
print(f"default: {default:.1f}, as with the label 200: {as_token:.1f}; with ignore_index: {ignoring:.1f}; torch: {by_torch:.1f}")
assert default == as_token > 50 and round(ignoring, 3) == round(by_torch, 3) == 2.0
PYTHON
