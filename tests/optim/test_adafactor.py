"""Our Adafactor equals transformers', number for number and state for state."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers.optimization import Adafactor as UpstreamAdafactor, AdafactorSchedule

from hf_compat.errors import ArgumentsError
from hf_compat.optim.adafactor import Adafactor

SHAPES = [(), (5,), (4, 3), (1, 6), (2, 3, 4), (3, 1, 2, 2)]

SETTINGS = [
    pytest.param({"lr": 1e-2, "scale_parameter": False, "relative_step": False}, id="as the Trainer sets it"),
    pytest.param({}, id="defaults"),
    pytest.param({"warmup_init": True}, id="warm-up"),
    pytest.param({"lr": 1e-2, "relative_step": False, "beta1": 0.9}, id="first moment"),
    pytest.param(
        {"lr": 1e-2, "relative_step": False, "weight_decay": 0.1, "clip_threshold": 0.3}, id="decay, clipping"
    ),
    pytest.param({"beta1": 0.8, "weight_decay": 0.1, "eps": (1e-20, 1e-2), "decay_rate": -0.5}, id="everything"),
]


def parameters(dtype):
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def take_steps(optimizer, steps, first_step=0):
    for step in range(first_step, first_step + steps):
        generator = torch.Generator().manual_seed(step)
        for index, item in enumerate(optimizer.param_groups[0]["params"]):
            gradient = torch.randn(item.shape, generator=generator).to(item.dtype)
            item.grad = None if (step + index) % 5 == 4 else gradient
        optimizer.step()


def same(one, other):
    """Return whether two nested states are equal to the last bit, the order of their keys included."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(left, right) for left, right in zip(one, other, strict=True))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and one == other


def values(optimizer):
    return [item.detach() for item in optimizer.param_groups[0]["params"]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("settings", SETTINGS)
def test_updates_and_state_are_upstreams(settings, dtype):
    """Parameters of every rank and their state are equal after seven updates, some without a gradient."""
    mine, theirs = Adafactor(parameters(dtype), **settings), UpstreamAdafactor(parameters(dtype), **settings)
    take_steps(mine, 7)
    take_steps(theirs, 7)
    assert same(values(mine), values(theirs))
    assert same(mine.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("settings", SETTINGS)
def test_states_are_interchangeable(settings, dtype):
    """Either library goes on from the other's state as if it were its own."""
    ends = []
    for first, second in ((Adafactor, UpstreamAdafactor), (UpstreamAdafactor, Adafactor)):
        start = first(parameters(dtype), **settings)
        take_steps(start, 4)
        resumed = second([nn.Parameter(value.clone()) for value in values(start)], **settings)
        resumed.load_state_dict(copy.deepcopy(start.state_dict()))
        take_steps(resumed, 3, first_step=4)
        ends.append(resumed)
    assert same(values(ends[0]), values(ends[1]))
    assert same(ends[0].state_dict(), ends[1].state_dict())


def test_transformers_schedule_reads_its_rates():
    """``AdafactorSchedule`` of transformers reports the rates that our optimizer used: 1e-2 at first."""
    optimizer = Adafactor(parameters(torch.float32), scale_parameter=False)
    schedule = AdafactorSchedule(optimizer)
    take_steps(optimizer, 1)
    assert schedule.get_lr() == [1e-2]


def test_closure_is_differentiated():
    """A closure may run a backward pass; its loss is returned."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = Adafactor([weight], lr=0.1, relative_step=False)

    def closure():
        optimizer.zero_grad()
        loss = (weight**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert (weight < 1).all()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        pytest.param({"lr": 0.1}, "relative_step=True", id="two rates"),
        pytest.param({"relative_step": False, "lr": 0.1, "warmup_init": True}, "warmup_init=True", id="warm-up alone"),
    ],
)
def test_contradictions(settings, text):
    """Arguments that contradict each other are a ValueError that names them."""
    with pytest.raises(ArgumentsError, match=text):
        Adafactor(parameters(torch.float32), **settings)


def test_sparse_gradients_are_refused():
    """A sparse gradient is an error that says where it comes from."""
    embedding = nn.Embedding(3, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse=False"):
        Adafactor(embedding.parameters()).step()
