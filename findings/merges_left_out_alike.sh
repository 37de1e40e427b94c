#!/usr/bin/env bash
# BPE with dropout, which is to split a text another way each time, splits it alike in each worker and each epoch.
#
# Versions:  tokenizers 0.23.3, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: which merges are left out is drawn from a generator of the library's own. Workers of a loader are forked with it
#            as it is, and draw the same; so do the workers of the next epoch. No seed reaches it: `torch.manual_seed`,
#            `random.seed` and `numpy.random.seed` have no effect, so that another process splits another way. No message
#            says so.
# Seen:      eight rows that two workers split: both split alike, and in the second epoch as in the first; one text three
#            times, each after the same seeds: three results.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install tokenizers==0.23.3 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import random

import numpy
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

tokenizer = Tokenizer(models.BPE(dropout=0.5))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
texts = ["abcdefgh ijklmnop qrstuvwx"] * 5
tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=100, show_progress=False))
text = "abcdefgh qrstuvwx ijklmnop abcdefgh"


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.utils.data.get_worker_info().id, tokenizer.encode(text).tokens


def epoch():
    split = {0: [], 1: []}
    for worker, tokens in torch.utils.data.DataLoader(Rows(), batch_size=None, num_workers=2, multiprocessing_context="fork"):
        split[worker].append(tokens)
    return split


def seeded():
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    return tokenizer.encode(text * 4).tokens


tokenizer.encode(text)
first, second = epoch(), epoch()
print("both workers:", first[0] == first[1], "both epochs:", first == second, first[0][0])
assert first[0] == first[1] and first == second
assert first[0][0] != first[0][1]
drawn = [seeded() for _ in range(3)]
print("after one seed:", *(tokens[:6] for tokens in drawn))
assert len({tuple(tokens) for tokens in drawn}) == 3
PYTHON
