#!/usr/bin/env bash
# Tokens of the last batch are lost where they are gathered, in one process too.
#
# Versions:  accelerate 1.15.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `gather_for_metrics` cuts the last batch to as many rows as it has samples. If its argument has another
#            number of rows, such as one for each token, the rest is lost, without a message; also in a single process,
#            where nothing is gathered. The Trainer of transformers evaluates with it: a `preprocess_logits_for_metrics`
#            that flattens loses tokens, too.
# Seen:      of 5 samples of 3 tokens, in batches of 4, 13 of 15 tokens were left; tensors and lists alike.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True)
loader = accelerator.prepare(DataLoader(torch.arange(15).reshape(5, 3), batch_size=4))
rows = [accelerator.gather_for_metrics(batch).flatten() for batch in loader]
tokens = [accelerator.gather_for_metrics(batch.flatten()) for batch in loader]
lists = [accelerator.gather_for_metrics(batch.flatten().tolist(), use_gather_object=True) for batch in loader]
print("the last batch, gathered by sample, by token, and as a list of tokens:", rows[-1], tokens[-1], lists[-1])
assert rows[-1].tolist() == [12, 13, 14]
assert tokens[-1].tolist() == lists[-1] == [12]
PYTHON
