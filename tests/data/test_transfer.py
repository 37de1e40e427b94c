"""Batches on their way to a GPU: which are copied on a stream of their own, and that nothing reads them too early."""

from collections import UserDict, namedtuple
from contextlib import contextmanager

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils.data import DataLoader
from transformers import BatchEncoding

from hf_compat.data import transfer
from hf_compat.data.prepare_loader import prepare_dataloader
from hf_compat.data.transfer import move_batch, move_to_device
from tests.support.helpers import ListDataset, vector_rows

GPU = torch.device("cuda", 0)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
Pair = namedtuple("Pair", "first second")


class Movable(UserDict):
    """A mapping that moves itself, perhaps with tensors that are not its values."""

    def to(self, device):
        return type(self)({name: value.to(device) for name, value in self.items()})


class Marked(torch.Tensor):
    """A tensor of a library's own."""


def test_moving_keeps_containers():
    """Nested lists, tuples, dicts and named tuples keep their types on the way to a device."""
    data = {"a": [torch.ones(1)], "b": (torch.ones(1), "text"), "c": Pair(torch.ones(1), None)}
    moved = move_to_device(data, torch.device("meta"))
    assert moved["a"][0].device.type == moved["c"].first.device.type == "meta"
    assert moved["b"][1] == "text"
    assert isinstance(moved["b"], tuple)
    assert isinstance(moved["c"], Pair)


@pytest.fixture
def streams(monkeypatch):
    """A machine with a GPU, as far as its streams go: tensors there have no content; what is asked of the streams."""
    asked, gpu = [], FakeTensorMode()

    class Stream:
        def __init__(self, name):
            self.name = name

        def wait_stream(self, other):
            asked.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def on(stream):
        asked.append(f"on {stream.name}")
        yield
        asked.append(f"no longer on {stream.name}")

    def to(tensor, device, **kwargs):
        asked.append("copy")
        return on_gpu(tensor)

    def on_gpu(tensor):
        with gpu:
            return torch.empty(tensor.shape, device=GPU)

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: asked.append(f"used on {stream.name}"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("computation"))
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(transfer, "_copy_stream", lambda device: Stream("copies"))
    return asked


def test_a_batch_encoding_is_moved_as_asked():
    """Its own ``to`` is told not to wait; one of another class that cannot be told is moved all the same."""
    seen = []

    class Tells(BatchEncoding):
        def to(self, device, *, non_blocking=False):
            seen.append((device.type, non_blocking))
            return self

    class Waits(BatchEncoding):
        def to(self, device):
            seen.append((device.type, None))
            return self

    for kind in (Tells, Waits):
        move_to_device(kind({"x": torch.ones(1)}), torch.device("cpu"), non_blocking=True)
    assert seen == [("cpu", True), ("cpu", None)]


@pytest.mark.parametrize("container", [dict, BatchEncoding, lambda batch: list(batch.values())])
def test_a_batch_is_copied_on_a_stream_of_its_own(container, streams):
    """The computation waits for the copies, and the memory of each is kept as long as the computation uses it."""
    batch = container({"input_ids": torch.ones(2, 3), "labels": [torch.ones(2), "text"], "count": 2})
    moved = move_batch(batch, GPU)
    assert type(moved) is type(batch)
    ids, labels, _ = moved.values() if hasattr(moved, "values") else moved
    assert ids.device == GPU
    moves_lists = container is not BatchEncoding
    assert (labels[0].device == GPU) == moves_lists
    count = 1 + moves_lists
    assert streams == [
        *("on copies", *["copy"] * count, "no longer on copies", "computation waits for copies"),
        *["used on computation"] * count,
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda: [torch.ones(2), torch.ones(2, device="meta")],
        lambda: {
            "values": torch.sparse_coo_tensor(
                torch.zeros(1, 1, dtype=torch.long), torch.ones(1), (2,), check_invariants=True
            )
        },
        lambda: {"values": torch.ones(2).as_subclass(Marked)},
        lambda: Movable(values=torch.ones(2)),
    ],
    ids=["on a device already", "sparse", "of a subclass", "moves itself"],
)
def test_other_batches_are_moved_on_the_computing_stream(make, streams):
    """What may need the computing stream, or holds tensors that cannot be found, is moved as ever."""
    batch = make()
    streams.clear()
    move_batch(batch, GPU)
    assert set(streams) == {"copy"}


def test_without_a_gpu_there_is_no_stream(streams):
    """To the device of another kind a batch is moved as it is."""
    move_batch({"values": torch.ones(2)}, torch.device("meta"))
    assert streams == ["copy"]


@needs_gpu
def test_a_loader_does_not_wait_for_the_computation():
    """A batch is on the GPU while what was launched before it has not ended."""
    rows = torch.arange(64 * 1024.0).reshape(64, 1024)
    loader = prepare_dataloader(DataLoader(rows, batch_size=8, pin_memory=True), device=GPU)
    batches = iter(loader)
    next(batches)
    torch.cuda.synchronize()
    ended = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)
    ended.record()
    batch = next(batches)
    assert not ended.query()
    assert torch.equal(batch.cpu(), rows[8:16])
    assert ended.query()  # what reads the batch comes after what was launched before


@needs_gpu
@pytest.mark.parametrize("non_blocking", [False, True])
def test_no_batch_is_overwritten_while_it_is_read(non_blocking):
    """Batches that are dropped at once, with a computation far behind the host, are all read whole."""
    rows = torch.randint(0, 1 << 20, (256, 4096))
    loader = prepare_dataloader(DataLoader(rows, batch_size=4, pin_memory=True), device=GPU, non_blocking=non_blocking)
    sums = []
    for batch in loader:
        torch.cuda._sleep(1_000_000)
        sums.append(batch.sum())
        del batch
    assert torch.stack(sums).tolist() == [int(part.sum()) for part in rows.split(4)]


@needs_gpu
def test_batches_from_pinned_memory():
    """The batches of a pass equal those on the CPU."""
    data = ListDataset(vector_rows(16))
    expected = list(prepare_dataloader(DataLoader(data, batch_size=4)))
    found = list(prepare_dataloader(DataLoader(data, batch_size=4, pin_memory=True), device=GPU))
    for one, other in zip(expected, found, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name].cpu()) for name in one)
