"""Copies of a checkpoint in host memory."""

from __future__ import annotations

import pickle
from collections import OrderedDict

import torch
from torch import nn

from hf_compat.checkpoint.background import HostBuffers, clones_on_host, to_host


def test_copy_in_host_memory():
    """A copy shares nothing with its source, and within it what shared memory still does, in the same shapes."""
    base = torch.arange(12.0).reshape(3, 4)
    state = OrderedDict(
        whole=base,
        part=base[1:, ::2],
        turned=base.T,
        parameter=nn.Parameter(base),
        empty=torch.empty(0),
        none=torch.sparse_coo_tensor([[0]], [1.0], (2,), check_invariants=True),
        nested=[{"step": torch.tensor(3), "betas": (0.9, 0.99)}, "text"],
    )
    state._metadata = {"version": 1}
    expected = {name: value.clone() for name, value in state.items() if isinstance(value, torch.Tensor)}
    twin = to_host(state)
    base.add_(1)
    assert type(twin) is OrderedDict
    assert twin._metadata == {"version": 1}
    for name, value in expected.items():
        assert torch.equal(twin[name].to_dense() if name == "none" else twin[name], value.to_dense())
    assert twin["part"].stride() == state["part"].stride()
    assert twin["part"].untyped_storage().data_ptr() == twin["whole"].untyped_storage().data_ptr()
    assert type(twin["parameter"]) is nn.Parameter
    assert twin["nested"][0]["betas"] == (0.9, 0.99)
    assert twin["nested"] is not state["nested"]


def test_memory_of_a_snapshot_is_used_again():
    """The next snapshot is written into the memory of the last one, once that is given back; a shared one once."""
    buffers = HostBuffers()
    state = {"weight": torch.arange(4.0), "counts": torch.arange(3)}
    state["tied"] = state["weight"]

    def places(copies):
        return {name: copy.data_ptr() for name, copy in copies.items()}

    first = to_host(state, buffers=buffers)
    second = to_host(state, buffers=buffers)
    assert not {*places(first).values()} & {*places(second).values()}
    kept = places(first)
    buffers.give_back()
    state["weight"] += 1
    third, fourth = to_host(state, buffers=buffers), to_host(state, buffers=buffers)
    assert {*places(third).values(), *places(fourth).values()} == {*kept.values(), *places(second).values()}
    assert all(torch.equal(copies[name], value) for copies in (third, fourth) for name, value in state.items())
    assert third["tied"].data_ptr() == third["weight"].data_ptr()


def test_clones_of_parts_of_a_buffer():
    """Each has memory of its own, that of the last snapshot too, with the strides of torch's clone."""
    memory = torch.arange(12.0)
    state = {"one": memory[:6].view(2, 3), "turned": memory[6:].view(2, 3).T, "tied": memory[:6].view(2, 3)}
    expected = {name: value.clone() for name, value in state.items()}
    buffers, places = HostBuffers(), []
    for _ in range(2):
        twins = clones_on_host({**state, "extra": {"step": 1}}, buffers=buffers)
        assert twins.pop("extra") == {"step": 1}
        for name, twin in twins.items():
            assert torch.equal(twin, expected[name])
            assert twin.stride() == expected[name].stride()
            assert twin.untyped_storage().nbytes() == 24
        places.append({twin.data_ptr() for twin in twins.values()})
        buffers.give_back()
    assert len(places[0]) == 3
    assert places[0] == places[1]


def test_memory_belongs_to_one_process():
    """What is kept for the next snapshot does not go to another process with the Trainer."""
    buffers = HostBuffers()
    to_host(torch.zeros(1000), buffers=buffers)
    buffers.give_back()
    twin = pickle.loads(pickle.dumps(buffers))
    assert buffers._free
    assert not twin._free
