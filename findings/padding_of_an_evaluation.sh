#!/usr/bin/env bash
# What `TransformerEncoder` gives for padding is zero in an evaluation, and not in training.
#
# Versions:  torch 2.13.0; Python 3.11 on a CPU
# Behaviour: in `eval()` and without gradients the layers take a fast path, which packs the batch, computes nothing for what
#            `src_key_padding_mask` masks, and fills it with zeros. In training there are numbers. A model that takes the mean
#            or the maximum over all positions learns with them, and is evaluated without; its predictions in an evaluation
#            change with `torch.no_grad()`. A mask in the mean makes both equal. No message says so.
# Seen:      a dropout of 0: the maximum over all positions of a row that is padded differs between `train()` and `eval()`
#            under `no_grad`, and is equal with gradients, and for the positions that are not masked.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install torch==2.13.0
run <<'PYTHON'
import torch

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
encoder = torch.nn.TransformerEncoder(layer, 2)
rows = torch.randn(2, 6, 8)
padding = torch.tensor([[False] * 6, [False] * 2 + [True] * 4])
trained = encoder(rows, src_key_padding_mask=padding).detach()
encoder.eval()
with_gradients = encoder(rows, src_key_padding_mask=padding).detach()
with torch.no_grad():
    evaluated = encoder(rows, src_key_padding_mask=padding)
print("maximum over all positions, trained:", trained[1].amax(0), "evaluated:", evaluated[1].amax(0))
assert torch.allclose(trained, with_gradients, atol=1e-5)
assert torch.allclose(trained[~padding], evaluated[~padding], atol=1e-5)
assert (evaluated[padding] == 0).all() and (trained[padding].abs() > 1e-3).any()
assert not torch.allclose(trained[1].amax(0), evaluated[1].amax(0), atol=0.1)
PYTHON
