"""Batches on their way to a GPU: which are copied on a stream of their own, and that nothing reads them too early."""

from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from accelerate.utils import send_to_device
from torch._subclasses import FakeTensorMode
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader
from transformers import BatchEncoding, BatchFeature
from transformers.utils import ModelOutput

from hf_compat import Trainer, TrainingArguments
from hf_compat.data import loader
from hf_compat.data.loader import DispatchingDataLoader, move_batch, move_to_device, prepare_dataloader
from hf_compat.errors import LoaderError
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


class Graph:
    """An object of somebody's that notes how it is moved; its method may not take ``non_blocking``."""

    def __init__(self, *, waits: bool):
        self.asked = []
        self.to = self.to_waiting if waits else self.to_any

    def to_any(self, device, non_blocking=False):
        self.asked.append((device, non_blocking))
        return self

    def to_waiting(self, device):
        self.asked.append((device, None))
        return self


class Table(UserDict):
    """A mapping that notes how it is moved; without its method it would be made anew."""

    def to(self, *given, **named):
        self.asked = (given, named)
        return self


class Rows(list):
    """A list that moves itself."""

    def to(self, device, **named):
        return Rows([*(item.to(device) for item in self), named])


class Noting(torch.Tensor):
    """A tensor of a library's own whose ``to`` says so."""

    def to(self, *given, **named):
        return "moved", given, named


@dataclass
class Output(ModelOutput):
    """What a model returns."""

    logits: torch.Tensor = None


MOVED = {
    "a tensor": lambda: torch.arange(3),
    "a tensor's own method": lambda: [torch.ones(1).as_subclass(Noting)],
    "an object": lambda: Graph(waits=False),
    "an object that waits": lambda: Graph(waits=True),
    "objects in containers": lambda: {"a": [Graph(waits=False)], "b": (Graph(waits=True), 1), "c": {"d": Table()}},
    "a mapping that moves itself": lambda: Table(x=torch.ones(1)),
    "a list that moves itself": lambda: Rows([torch.ones(1)]),
    "a mapping that does not": lambda: UserDict(x=torch.ones(1), y="text"),
    "named": lambda: Pair(torch.ones(1), [None, "text"]),
    "packed": lambda: pack_sequence([torch.ones(3), torch.ones(2)]),
    "encoded": lambda: BatchEncoding({"x": torch.ones(1), "y": [torch.ones(1)], "z": "text"}),
    "features": lambda: BatchFeature({"x": torch.ones(1), "y": 1}),
    "a model's output": lambda: Output(logits=torch.ones(2)),
    "ordered": lambda: OrderedDict(b=torch.ones(1), a=()),
    "a module": lambda: [torch.nn.Linear(1, 1)],
    "no tensors": lambda: [1, None, "text", {"a": 1.5, "b": {2}}, np.ones(2), range(2)],
}
"""Batches that are moved to a device as accelerate moves them."""


def described(data):
    """Return ``data`` in words, and what its objects were asked."""
    if isinstance(data, torch.Tensor):
        return type(data).__name__, str(data.device), tuple(data.shape)
    if isinstance(data, torch.nn.Module):
        return [described(weight) for weight in data.parameters()]
    if isinstance(data, Mapping):
        return type(data).__name__, getattr(data, "asked", None), {key: described(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data).__name__, [described(item) for item in data]
    return type(data).__name__, getattr(data, "asked", str(data))


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("non_blocking", [True, False])
@pytest.mark.parametrize("make", MOVED.values(), ids=MOVED)
def test_batches_are_moved_as_by_accelerate(make, non_blocking, device):
    """What has a method ``to`` moves itself, asked the same, on the device that it is on too; containers are alike."""
    target = torch.device(device)
    found = move_to_device(make(), target, non_blocking=non_blocking)
    expected = send_to_device(make(), target, non_blocking=non_blocking)
    assert described(found) == described(expected)


def test_what_need_not_be_moved_stays_itself():
    """On its device a tensor is the same one, and so is an object whose method returns itself."""
    tensor, graph = torch.ones(1), Graph(waits=False)
    moved = move_to_device({"x": tensor, "y": [graph]}, torch.device("cpu"))
    assert moved["x"] is tensor
    assert moved["y"][0] is graph
    assert graph.asked == [(torch.device("cpu"), False)]


def test_inputs_of_the_training_device(tmp_path, monkeypatch):
    """``_prepare_inputs`` moves tensors, and packed sequences but for what stays on the CPU; other objects stay."""
    trainer = Trainer(torch.nn.Linear(1, 1), TrainingArguments(str(tmp_path), use_cpu=True, report_to="none"))
    graph, packed = Graph(waits=False), pack_sequence([torch.ones(3), torch.ones(2)])
    batch = {"x": Pair(torch.ones(1), [graph]), "packed": packed}
    assert trainer._prepare_inputs(batch)["packed"].data is packed.data
    monkeypatch.setattr(type(trainer.args), "device", torch.device("meta"))
    moved = trainer._prepare_inputs(batch)
    assert described(moved["packed"]) == described(packed.to("meta"))
    assert moved["packed"].batch_sizes.device.type == "cpu"
    assert isinstance(moved["x"], Pair)
    assert moved["x"].first.device.type == "meta"
    assert moved["x"].second[0] is graph
    assert graph.asked == []


def test_objects_cannot_be_dispatched():
    """Rank 0 cannot join objects for the other ranks, of lists of batches or of one that is split."""
    for split in (False, True):
        loader = DispatchingDataLoader(
            [torch.ones(1)] * 2, collate_fn=lambda rows: {"graph": [Graph(waits=False)]}, split=split,
            num_processes=2, process_index=0,
        )  # fmt: skip
        with pytest.raises(
            LoaderError, match=r"dispatch_batches=True .* an object of type Graph.*set dispatch_batches"
        ):
            next(iter(loader))


def test_batches_of_different_shapes_cannot_be_dispatched():
    """Rank 0 cannot join them either, which is a RuntimeError in accelerate."""
    loader = DispatchingDataLoader(
        [torch.ones(1), torch.ones(2)], collate_fn=lambda rows: {"x": rows[0][None]}, num_processes=2, process_index=0
    )
    with pytest.raises(RuntimeError, match=r"dispatch_batches=True .* differ in shape.*Pad all"):
        next(iter(loader))


@pytest.mark.parametrize("raises", [RuntimeError, ValueError])
def test_errors_of_moving_objects(raises):
    """What a method ``to`` raises is raised, but a TypeError of its own is taken for an unknown keyword, as there."""

    class Fails:
        def to(self, device, non_blocking=None):
            if non_blocking is None:
                raise raises("not there")
            raise TypeError("not this")

    for move in (move_to_device, send_to_device):
        with pytest.raises(raises, match="not there"):
            move(Fails(), torch.device("cpu"))


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
    monkeypatch.setattr(loader, "_copy_stream", lambda device: Stream("copies"))
    return asked


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
        lambda: {"ids": torch.ones(2), "graph": Graph(waits=False)},
        lambda: BatchEncoding({"ids": torch.ones(2), "graph": Graph(waits=False)}),
    ],
    ids=[
        *("on a device already", "sparse", "of a subclass", "moves itself"),
        *("an object", "an object of an encoding"),
    ],
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
