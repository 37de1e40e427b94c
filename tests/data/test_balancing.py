"""Batches of equal cost: those of transformers on every rank, and what they cost."""

import random

import pytest
import torch

from hf_compat.data.samplers import BatchRebalanceSampler, balanced_sampler, is_balanced
from hf_compat.errors import DataError
from tests.support.helpers import ListDataset

theirs = pytest.importorskip("transformers.trainer_pt_utils")
needs_theirs = pytest.mark.skipif(not hasattr(theirs, "BatchRebalanceSampler"), reason="transformers before 5.17")

LENGTHS = {
    "alike": lambda draw: draw.randint(1, 20),
    "tailed": lambda draw: int(draw.lognormvariate(4, 1.2)) + 1,
    "a few long ones": lambda draw: draw.choice([1, 1, 1, 500]),
    "far apart": lambda draw: draw.randint(1, 4000),
    "tensors": lambda draw: torch.tensor(draw.randint(1, 4000)),
}


@needs_theirs
@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("case", range(12))
def test_batches_are_upstreams(case, kind):
    """Every batch of every rank is transformers', in each epoch, ties, repeated and left-over samples included."""
    draw = random.Random(case)
    ranks, accumulate = draw.randint(1, 9), draw.randint(1, 4)
    samples = ranks * accumulate * draw.randint(1, 5)
    lengths = [LENGTHS[kind](draw) for _ in range(draw.randint(1, 3 * samples))]
    settings = {"dp_size": ranks, "grad_accum": accumulate, "drop_last": case % 2 == 0, "shuffle": case % 3 > 0}
    for rank in range(ranks):
        pair = [
            kind(lengths, samples, **settings, seed=case, rank=rank)
            for kind in (BatchRebalanceSampler, theirs.BatchRebalanceSampler)
        ]
        for epoch in (0, 2):
            for sampler in pair:
                sampler.set_epoch(epoch)
            own, upstream = map(list, pair)
            assert own == upstream
        assert len(pair[0]) == len(pair[1]) == len(own)
        assert all(map(is_balanced, pair))


def test_batches_of_two_ranks():
    """One sample of nine tokens costs 9.081, three of three cost 9.027; in pairs they would cost 18.162 and 6.018."""
    found = [list(BatchRebalanceSampler([3, 9, 3, 3], 4, 2, 1, shuffle=False, rank=rank)) for rank in (0, 1)]
    assert found == [[[1]], [[0, 2, 3]]]


def test_lengths_that_nobody_knows():
    """Data with neither a column of lengths nor the model's input is refused; so are more batches than samples."""
    options = {"length_column_name": "length", "model_input_name": None, "ranks": (0, 2), "drop_last": True}
    with pytest.raises(DataError, match=r"'input_ids'.*`length_column_name`.*`train_sampling_strategy='random'`"):
        balanced_sampler(ListDataset([{"features": [1.0]}]), 2, 1, **options)
    with pytest.raises(DataError, match="`effective_batch_size=2`"):
        BatchRebalanceSampler([1, 2], 2, dp_size=2, grad_accum=2)
