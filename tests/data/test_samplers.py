"""Samples are drawn in accelerate's and transformers' order."""

from __future__ import annotations

import random

import datasets
import pytest
import torch
from accelerate.data_loader import SeedableRandomSampler as AccelerateSampler
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler
from transformers.trainer_pt_utils import LengthGroupedSampler as UpstreamSampler, get_length_grouped_indices

from hf_compat.data.samplers import (
    LengthGroupedSampler,
    SeedableRandomSampler,
    column_lengths,
    eval_sampler,
    length_grouped_indices,
)
from hf_compat.errors import DataError

SETTINGS = [
    pytest.param({}, id="seed of torch"),
    pytest.param({"data_seed": 7}, id="data_seed"),
    pytest.param({"data_seed": 0}, id="data_seed 0"),
    pytest.param({"num_samples": 25}, id="more than there are"),
    pytest.param({"replacement": True, "num_samples": 70}, id="with replacement"),
    pytest.param({"generator": True}, id="a generator"),
]


def sampler(cls, settings):
    settings = dict(settings)
    if "generator" in settings:
        settings["generator"] = torch.Generator().manual_seed(99)
    torch.manual_seed(42)
    return cls(range(10), **settings)


@pytest.mark.parametrize("settings", SETTINGS)
def test_orders_are_accelerates(settings):
    """The orders of three epochs, of an epoch set by hand and the global generator's state are equal."""
    seen = []
    for cls in (SeedableRandomSampler, AccelerateSampler):
        it = sampler(cls, settings)
        orders = [list(it) for _ in range(3)]
        it.set_epoch(1)
        torch.rand(3)
        orders += [list(it), [it.epoch, it.initial_seed, len(it)]]
        seen.append((orders, torch.get_rng_state().tolist()))
    assert seen[0] == seen[1]


def test_epoch_advances_only_when_it_ends():
    """An epoch left half-way is drawn again in the same order."""
    it = sampler(SeedableRandomSampler, {})
    half = [index for index, _ in zip(it, range(5), strict=False)]
    assert it.epoch == 0
    assert list(it)[:5] == half
    assert it.epoch == 1


def test_epoch_is_the_seed():
    """Epoch e is a permutation from the seed plus e."""
    it = SeedableRandomSampler(range(6), data_seed=3)
    for epoch in range(3):
        assert list(it) == torch.randperm(6, generator=torch.Generator().manual_seed(3 + epoch)).tolist()


def test_is_a_random_sampler():
    """Code that looks for a ``RandomSampler`` finds one, and a loader takes it."""
    it = SeedableRandomSampler(range(6), data_seed=3)
    assert isinstance(it, RandomSampler)
    assert torch.cat(list(DataLoader(range(6), sampler=it, batch_size=4))).sort().values.tolist() == list(range(6))


def lengths(count, kind=int):
    draw = random.Random(count)
    return [kind(draw.randint(1, 9)) if kind is int else 1 + 1e-9 * draw.randint(0, 9) for _ in range(count)]


@pytest.mark.parametrize("kind", [int, float], ids=["whole", "nearly equal fractions"])
@pytest.mark.parametrize("mega_batch_mult", [None, 3])
@pytest.mark.parametrize("batch_size", [1, 4, 64])
@pytest.mark.parametrize("count", [1, 7, 33, 500])
def test_length_groups_are_upstreams(count, batch_size, mega_batch_mult, kind):
    """The order is equal, from the global generator and from one's own, ties and the last cut included."""
    own = lengths(count, kind)
    for generator in (lambda: None, lambda: torch.Generator().manual_seed(5)):
        torch.manual_seed(1)
        mine = length_grouped_indices(own, batch_size, mega_batch_mult, generator())
        torch.manual_seed(1)
        assert mine == get_length_grouped_indices(own, batch_size, mega_batch_mult, generator())
        assert sorted(mine) == list(range(count))


def test_longest_sample_comes_first():
    """The first sample is the longest of all, so that memory runs out at once if at all."""
    own = lengths(100)
    assert own[length_grouped_indices(own, 4)[0]] == max(own)


ROWS = [{"input_ids": [1] * length, "input_values": [0.0] * (12 - length)} for length in lengths(30)]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"dataset": ROWS}, id="measured"),
        pytest.param({"dataset": ROWS, "model_input_name": "input_values"}, id="another input"),
        pytest.param({"lengths": lengths(30)}, id="lengths"),
        pytest.param({"lengths": torch.tensor(lengths(30))}, id="tensor of lengths"),
        pytest.param({"dataset": ROWS, "lengths": list(range(30))}, id="both"),
    ],
)
def test_length_grouped_sampler_is_upstreams(settings):
    """Two epochs and the lengths are equal, however the lengths are known."""
    seen = []
    for cls in (LengthGroupedSampler, UpstreamSampler):
        torch.manual_seed(3)
        it = cls(4, **settings)
        seen.append((list(it), list(it), len(it), it.lengths))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        pytest.param({}, "pass the data set", id="nothing"),
        pytest.param({"dataset": [{"pixels": [1]}]}, "'input_ids'.*length_column_name", id="no such input"),
        pytest.param({"dataset": [[1, 2]]}, "'input_ids'", id="no mappings"),
    ],
)
def test_lengths_that_cannot_be_known(settings, text):
    """What cannot be measured is a ValueError that says what to do."""
    with pytest.raises(DataError, match=text):
        LengthGroupedSampler(2, **settings)


def test_lengths_of_a_column():
    """Lengths come from the data set's own column, as plain numbers also if it gives tensors."""
    data = datasets.Dataset.from_dict({"length": [3, 1, 2], "input_ids": [[0], [0], [0]]})
    for form in (None, "numpy", "torch"):
        found = column_lengths(data.with_format(form), "length")
        assert found == [3, 1, 2]
        assert [type(value) for value in found] == [int] * 3
    assert column_lengths(data, "size") is None
    assert column_lengths(ROWS, "length") is None


def test_several_ranks_leave_the_order_to_the_loader():
    """An evaluation in order has a sampler in one process alone, one by length on each rank, as in transformers."""
    rows = [{"input_ids": [4] * length} for length in (1, 3, 2)]
    kinds = {
        (strategy, ranks): type(eval_sampler(rows, strategy, 2, length_column_name="length", world_size=ranks))
        for strategy in ("random", "group_by_length")
        for ranks in (1, 2)
    }
    assert kinds == {
        ("random", 1): SequentialSampler,
        ("random", 2): type(None),
        ("group_by_length", 1): LengthGroupedSampler,
        ("group_by_length", 2): LengthGroupedSampler,
    }
