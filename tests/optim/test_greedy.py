"""GreedyLR equals transformers', and does what it says where there is none."""

from __future__ import annotations

import copy
import random

import pytest
import torch
import transformers.optimization
from torch import nn

from hf_compat.errors import ArgumentsError, ArgumentTypesError
from hf_compat.optim.greedy import GreedyLR

upstream = getattr(transformers.optimization, "GreedyLR", None)

SETTINGS = [
    {"patience": 1, "min_lr": 1e-6},
    {"patience": 0, "factor": 0.5, "min_lr": 1e-4, "max_lr": 0.02, "reset_start": 3},
    {"patience": 1, "mode": "max", "threshold_mode": "rel", "threshold": 0.01, "cooldown": 1, "warmup": 2},
    {"patience": 0, "threshold_mode": "rel", "smooth": True, "window_size": 3, "min_lr": [1e-4, 1e-3]},
    {"patience": 0, "max_lr": [0.02, 0.005], "min_lr": 0.009, "reset_start": 2, "smooth": True},
    {"patience": 0, "mode": "max", "eps": 1e-3, "min_lr": 0.0},
    {},
]


def optimizer() -> torch.optim.Optimizer:
    first, second = (nn.Parameter(torch.zeros(1)) for _ in range(2))
    return torch.optim.SGD([{"params": [first]}, {"params": [second], "lr": 0.02}], lr=0.01)


def metrics(count=80):
    draw = random.Random(7)
    return [draw.choice([0.9, 1.0, 1.1]) * (count - index if index < 30 else 50 + index) for index in range(count)]


def rates(scheduler):
    return [group["lr"] for group in scheduler.optimizer.param_groups]


@pytest.mark.skipif(upstream is None, reason="this transformers has no GreedyLR")
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_rates_and_state_are_upstreams(settings):
    """Learning rates and state are equal after every value, also when each goes on from the other's state."""
    pair = [GreedyLR(optimizer(), **settings), upstream(optimizer(), **settings)]
    for index, metric in enumerate(metrics()):
        if index == 40:
            states = [copy.deepcopy(scheduler.state_dict()) for scheduler in pair]
            pair = [GreedyLR(optimizer(), **settings), upstream(optimizer(), **settings)]
            for scheduler, state in zip(pair, reversed(states), strict=True):
                scheduler.load_state_dict(state)
        for scheduler in pair:
            scheduler.step(torch.tensor(metric))
        assert rates(pair[0]) == rates(pair[1])
        assert pair[0].get_last_lr() == pair[1].get_last_lr()
        assert pair[0].state_dict() == pair[1].state_dict()
        assert list(pair[0].state_dict()) == list(pair[1].state_dict())


def test_goes_up_and_down():
    """Better values divide the rates by the factor, worse ones multiply them, within the bounds."""
    scheduler = GreedyLR(optimizer(), factor=0.5, patience=0, min_lr=0.005, max_lr=0.03)
    scheduler.step(1.0)
    assert rates(scheduler) == [0.02, 0.03]
    scheduler.step(2.0)
    assert rates(scheduler) == [0.01, 0.015]
    scheduler.step(2.0)
    assert rates(scheduler) == [0.005, 0.0075]


def test_starts_over_at_the_floor():
    """After ``reset_start`` steps down at the floor the first rates are back."""
    scheduler = GreedyLR(optimizer(), factor=0.1, patience=0, min_lr=0.02, max_lr=0.02, reset_start=2)
    scheduler.step(1.0)
    assert rates(scheduler) == [0.02, 0.02]
    scheduler.step(2.0)
    scheduler.step(2.0)
    assert rates(scheduler) == [0.01, 0.02]
    assert scheduler.best == float("inf")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        pytest.param({"factor": 1.0}, "factor=1.0", id="factor"),
        pytest.param({"mode": "up", "threshold_mode": "both"}, "2 problems", id="modes"),
        pytest.param({"min_lr": [0.1]}, "1 values for 2 parameter groups", id="rates per group"),
    ],
)
def test_errors(settings, text):
    """Arguments out of range are named, all at once."""
    with pytest.raises(ArgumentsError, match=text):
        GreedyLR(optimizer(), **settings)


def test_needs_an_optimizer():
    """Anything but an optimizer is a TypeError, as in transformers, among the errors of hf_compat."""
    with pytest.raises(ArgumentTypesError, match="int is not an Optimizer") as caught:
        GreedyLR(3)
    assert isinstance(caught.value, TypeError)
