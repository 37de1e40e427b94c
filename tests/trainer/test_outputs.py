"""Results of all batches as one array, bit for bit as transformers' container gives them."""

from __future__ import annotations

import collections
import sys
import tracemalloc
import weakref

import numpy as np
import pytest
import torch
from transformers import trainer_pt_utils as upstream
from transformers.modeling_outputs import SequenceClassifierOutput

from hf_compat.errors import DataError, LossError
from hf_compat.nested import find_batch_size
from hf_compat.trainer import outputs as ours
from tests.support.processes import forked

Point = collections.namedtuple("Point", "x y")


def _draw(*shape, dtype=torch.float32):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + 1)) * 10
    return values.to(dtype)


# Each row: what the batches give, in order.
BATCHES = {
    "one batch": [_draw(3, 4)],
    "one scalar": [torch.tensor(1.5)],
    "scalars": [torch.tensor(1.5), torch.tensor(2.5), torch.tensor(3.5)],
    "a scalar among vectors": [torch.tensor(1.5), _draw(2), torch.tensor(3.5)],
    "losses": [_draw(4), _draw(4), _draw(1)],
    "equal widths": [_draw(3, 4), _draw(3, 4), _draw(1, 4)],
    "ragged, growing": [_draw(2, 3), _draw(2, 4), _draw(2, 5)],
    "ragged, shrinking": [_draw(2, 5), _draw(2, 4), _draw(2, 3)],
    "ragged, up and down": [_draw(2, 3), _draw(2, 6), _draw(1, 2), _draw(2, 6)],
    "ragged, three dimensions": [_draw(2, 3, 5), _draw(2, 4, 5), _draw(2, 1, 5)],
    "ragged, four dimensions": [_draw(2, 3, 5, 2), _draw(1, 7, 5, 2)],
    "a batch of none": [_draw(2, 3), _draw(0, 3), _draw(1, 4)],
    "integers": [_draw(2, 3, dtype=torch.int64), _draw(2, 5, dtype=torch.int64)],
    "small integers": [_draw(2, 3, dtype=torch.int8), _draw(2, 5, dtype=torch.int8)],
    "truth values": [_draw(2, 3, dtype=torch.bool), _draw(2, 5, dtype=torch.bool)],
    "bfloat16": [_draw(2, 3, dtype=torch.bfloat16), _draw(2, 5, dtype=torch.bfloat16)],
    "float16": [_draw(2, 3, dtype=torch.float16), _draw(2, 3, dtype=torch.float16)],
    "float64": [_draw(2, 3, dtype=torch.float64), _draw(2, 5, dtype=torch.float64)],
    "dtypes that change, equal widths": [_draw(2, 3, dtype=torch.int64), _draw(2, 3), _draw(2, 3, dtype=torch.float16)],
    "dtypes that change, ragged": [_draw(2, 3, dtype=torch.int64), _draw(2, 5), _draw(2, 4, dtype=torch.float64)],
    "tuples": [(_draw(2, 3), _draw(2)), (_draw(2, 4), _draw(2)), (_draw(1, 2), _draw(1))],
    "lists": [[_draw(2, 3)], [_draw(1, 4)]],
    "dicts": [{"a": _draw(2, 3), "b": {"c": _draw(2)}}, {"b": {"c": _draw(1)}, "a": _draw(1, 4), "d": _draw(1)}],
    "model outputs": [SequenceClassifierOutput(loss=_draw(2), logits=_draw(2, 3))] * 3,
    "nested": [(_draw(2, 3), (_draw(2, 4, 2), [_draw(2)])), (_draw(1, 5), (_draw(1, 2, 2), [_draw(1)]))],
    "tuples of different lengths": [(_draw(2), _draw(2)), (_draw(2),), (_draw(2), _draw(2))],
    "transposed": [_draw(4, 3).T, _draw(5, 3).T],
    "slices of larger tensors": [_draw(4, 9, 5)[:, -1], _draw(4, 7, 5)[:, -1], _draw(6, 5)[::2]],
    "repeated": [_draw(1).expand(4), _draw(1).expand(3)],
}
TABLE = [pytest.param(batches, id=name) for name, batches in BATCHES.items()]


def _content(value):
    """Return ``value`` with arrays and tensors as type, dtype, shape and bytes."""
    if isinstance(value, torch.Tensor):
        return ("tensor", value.dtype, tuple(value.shape), value.contiguous().view(-1).tolist().__repr__())
    if isinstance(value, np.ndarray):
        return ("array", value.dtype, value.shape, value.tobytes())
    if isinstance(value, dict):
        return type(value).__name__, {key: _content(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value).__name__, [_content(item) for item in value]
    return value


@pytest.mark.parametrize("every", [None, 1, 2], ids=lambda every: f"to the host every {every}")
@pytest.mark.parametrize("concat", [True, False], ids=["joined", "apart"])
@pytest.mark.parametrize("merged_at_once", [1, 2, 512])
@pytest.mark.parametrize("batches", TABLE)
def test_arrays_are_upstreams_bit_for_bit(batches, merged_at_once, concat, every, monkeypatch):
    """Types, dtypes, shapes and bytes are equal, however often the batches are concatenated and moved to the host."""
    monkeypatch.setattr(ours, "_MERGED_AT_ONCE", merged_at_once)
    found = []
    for container in (upstream.EvalLoopContainer(concat, -100), ours.EvalAccumulator(concat, -100)):
        for number, batch in enumerate(batches, 1):
            container.add(batch)
            if every and number % every == 0:
                container.to_cpu_and_numpy()
        found.append(_content(container.get_arrays()))
        assert _content(container.get_arrays()) == found[-1]
    assert found[0] == found[1]


@pytest.mark.parametrize("batches", TABLE)
def test_helpers_are_upstreams(batches):
    """Sizes, arrays and detached tensors of one batch are equal."""
    assert find_batch_size(batches[0]) == upstream.find_batch_size(batches[0])
    assert _content(ours.nested_numpify(batches[0])) == _content(upstream.nested_numpify(batches[0]))
    assert _content(ours.nested_detach(batches[0])) == _content(upstream.nested_detach(batches[0]))


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param({"a": torch.tensor(1), "b": "text", "c": np.zeros((4, 2))}, id="the first with a dimension"),
        pytest.param([], id="nothing"),
        pytest.param({"a": "text"}, id="no tensor"),
        pytest.param(({"a": []}, _draw(0, 3)), id="no rows"),
    ],
)
def test_batch_sizes_are_upstreams(inputs):
    """The first tensor or array that has a first dimension decides; None if there is none."""
    assert find_batch_size(inputs) == upstream.find_batch_size(inputs)


def test_nothing_added_gives_nothing():
    """Without a batch there are no arrays."""
    accumulator = ours.EvalAccumulator()
    accumulator.to_cpu_and_numpy()
    assert accumulator.get_arrays() is None


def test_another_padding_is_used():
    """The padding is the one asked for, at the right places."""
    accumulator = ours.EvalAccumulator(padding_index=7)
    accumulator.add(torch.tensor([[1], [2]]))
    accumulator.add(torch.tensor([[3, 4]]))
    assert accumulator.get_arrays().tolist() == [[1, 7], [2, 7], [3, 4]]


def test_named_tuples_stay_named():
    """A named tuple of results comes back as one, where upstream fails."""
    accumulator = ours.EvalAccumulator()
    for _ in range(2):
        accumulator.add(ours.nested_detach(Point(_draw(2), _draw(2, 3))))
    point = accumulator.get_arrays()
    assert (type(point), point.x.shape, point.y.shape) == (Point, (4,), (4, 3))


def test_detached_results_need_no_gradient():
    """Tensors are cut off from the graph; other things stay as they are."""
    weight = torch.ones(2, requires_grad=True)
    detached = ours.nested_detach({"a": (weight * 2, "text"), "b": None})
    assert not detached["a"][0].requires_grad
    assert (detached["a"][1], detached["b"]) == ("text", None)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        pytest.param([(_draw(2),), [_draw(2)]], "a tuple for one batch and a list", id="nested differently"),
        pytest.param([_draw(2), (_draw(2),)], "a Tensor for one batch and a tuple", id="a tensor, then a tuple"),
        pytest.param([(_draw(2), None)], "holds a NoneType", id="no tensor"),
        pytest.param([("a",), ("b",)], "holds a str", id="texts"),
    ],
)
def test_what_cannot_be_joined_is_said(batches, message):
    """The error names what was found."""
    accumulator = ours.EvalAccumulator()
    with pytest.raises((DataError, LossError), match=message):  # noqa: PT012  # as soon as it is noticed
        for batch in batches:
            accumulator.add(batch)
        accumulator.get_arrays()


def test_a_slice_does_not_keep_what_it_was_cut_from():
    """The memory kept for a batch is that of its results, not of the logits they are a view of."""
    accumulator = ours.EvalAccumulator()
    accumulator.add((torch.zeros(4, 100, 8)[:, -1], torch.zeros(4, 8)))
    kept = accumulator._batches[0]
    assert [tensor.untyped_storage().nbytes() for tensor in kept] == [4 * 8 * 4] * 2


def test_many_batches_are_few_tensors():
    """Batches that are alike are concatenated a few hundred at once, others kept as they are."""
    accumulator = ours.EvalAccumulator()
    for _ in range(5_000):
        accumulator.add({"logits": torch.zeros(2, 3), "losses": torch.zeros(2)})
    assert len(accumulator._merged) + len(accumulator._batches) < 600
    for number in range(600):
        dtype = (torch.float32, torch.float64)[number % 2]
        accumulator.add({"logits": torch.zeros(2, 3, dtype=dtype), "losses": torch.zeros(2)})
    assert len(accumulator.get_arrays()["logits"]) == 11_200


def _copied_bytes(make_container, batches):
    """Return the fewest bytes of three tries that ``batches`` take on the host, moved there one by one.

    A thread that an earlier test left allocates some, too.
    """
    return min(_allocated_bytes(make_container(), batches) for _ in range(3))


def _allocated_bytes(container, batches):
    allocated = 0
    for batch in batches:
        container.add(batch)
        tracemalloc.start()
        container.to_cpu_and_numpy()
        allocated += tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    tracemalloc.start()
    container.get_arrays()
    allocated += tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return allocated


def test_copies_grow_with_the_data():
    """100 batches are copied once; upstream's container copies all earlier ones at every batch, 50 times as much."""
    batches = [torch.zeros(1, 4096) for _ in range(100)]
    data = sum(batch.nbytes for batch in batches)
    assert _copied_bytes(ours.EvalAccumulator, batches) < 1.5 * data
    assert _copied_bytes(upstream.EvalLoopContainer, batches) > 40 * data


_PEAK = """
import json, sys
import torch
from hf_compat.trainer.outputs import EvalAccumulator


def held(name):
    return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1]) / 1024


def run(batches):
    accumulator, losses = EvalAccumulator(), EvalAccumulator()
    for number in range(batches):
        width = WIDTHS[number % len(WIDTHS)]
        accumulator.add(({"logits": torch.ones(50, width, 8)}, torch.ones(50, 1)))
        losses.add(torch.ones(50))
        if EVERY and number % EVERY == 0:
            accumulator.to_cpu_and_numpy()
    return accumulator.get_arrays()[0]["logits"].nbytes / 2**20


WIDTHS, EVERY = json.loads(sys.argv[1]), int(sys.argv[2])
run(2)
open("/proc/self/clear_refs", "w").write("5")
before = held("VmRSS")
size = run(200)
print(size, held("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells what a process has held at most")
@pytest.mark.parametrize(("widths", "every"), [([125], 0), ([60, 125, 90, 125], 0), ([125], 3)], ids=str)
def test_there_is_one_copy_of_the_outputs(widths, every, tmp_path):
    """A process never holds much more than the arrays that it returns, here 38 MB."""
    script = tmp_path / "script.py"
    script.write_text(_PEAK)
    size, most = map(float, forked(script, widths, every).output.split())
    assert round(size) == 38
    assert most < 1.4 * size


def test_small_outputs_stay_out_of_the_way():
    """Outputs in host memory are copied as they come, so that no tensor of an earlier batch is held."""
    accumulator, seen = ours.EvalAccumulator(), []
    for number in range(20):
        batch = torch.full((2,), float(number))
        seen.append(weakref.ref(batch))
        accumulator.add(batch)
        del batch
    assert [one() for one in seen] == [None] * 20
    assert accumulator.get_arrays().tolist() == [float(number // 2) for number in range(40)]
