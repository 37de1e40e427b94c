"""What several processes wrote is read without trusting it."""

from __future__ import annotations

import enum
import os
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from hf_compat.checkpoint import distributed_files, names, states, weights
from hf_compat.errors import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Harmful:
    """A pickle of this makes a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def after_a_step(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a layer and its optimizer after an update step."""
    torch.manual_seed(seed)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint with sharded weights and optimizer, and the optimizer's state as whole checkpoints have it."""
    model, optimizer = after_a_step()
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    state = states.optimizer_state_by_name(optimizer, model)
    distributed_files.save({"model": model.state_dict()}, folder / names.SHARDED_WEIGHTS_NAME)
    distributed_files.save({"optimizer": state}, folder / names.SHARDED_OPTIMIZER_NAME)
    return folder


def load(checkpoint: Path) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Go on from ``checkpoint`` with another model and optimizer."""
    model, optimizer = after_a_step(1)
    weights.load_weights(model, checkpoint)
    states.load_optimizer_state(optimizer, model, checkpoint)
    return model, optimizer


class AsEarlyPython311(pickle.Pickler):
    """Pickles the members of enums as early releases of Python 3.11 do, such as that of Debian 12."""

    def reducer_override(self, value):
        return (getattr, (type(value), value.name)) if isinstance(value, enum.Enum) else NotImplemented


def test_written_by_another_python(checkpoint):
    """Members of enums are found whichever way a Python has written them; no other attribute of anything is."""
    file = checkpoint / names.SHARDED_WEIGHTS_NAME / names.SHARDED_METADATA_NAME
    metadata = distributed_files.read_metadata(file.parent)
    with file.open("wb") as target:
        AsEarlyPython311(target).dump(metadata)
    assert b"getattr" in file.read_bytes()
    assert distributed_files.read_metadata(file.parent) == metadata
    model, _ = load(checkpoint)
    assert torch.equal(model.weight, after_a_step()[0].weight)
    file.write_bytes(pickle.dumps(Attribute(torch.Size, "__init__")))
    with pytest.raises(CheckpointError, match="is refused"):
        distributed_files.read_metadata(file.parent)


class Attribute:
    """A pickle of this is an attribute of ``kind``."""

    def __init__(self, kind: type, name: str) -> None:
        self.kind, self.name = kind, name

    def __reduce__(self):
        return getattr, (self.kind, self.name)


def test_states_come_back(checkpoint):
    """Weights and the optimizer's state are read as they were written, whichever form the latter has."""
    model, optimizer = after_a_step()
    for form in ("sharded", "whole"):
        if form == "whole":
            torch.save(states.optimizer_state_by_name(optimizer, model), checkpoint / names.FULL_OPTIMIZER_NAME)
        found, its_optimizer = load(checkpoint)
        assert torch.equal(found.weight, model.weight)
        for entry, other in zip(optimizer.state.values(), its_optimizer.state.values(), strict=True):
            assert all(torch.equal(entry[key], other[key]) for key in entry)
        assert its_optimizer.param_groups[0]["betas"] == (0.9, 0.999)


def in_metadata(part: str):
    def spoil(checkpoint: Path, payload: bytes) -> None:
        (checkpoint / part / ".metadata").write_bytes(payload)

    return spoil


def in_shards(part: str):
    def spoil(checkpoint: Path, payload: bytes) -> None:
        metadata = distributed_files.read_metadata(checkpoint / part)
        for info in metadata.storage_data.values():
            assert len(payload) < info.length
            path = checkpoint / part / info.relative_path
            content = bytearray(path.read_bytes())
            content[info.offset : info.offset + len(payload)] = payload
            path.write_bytes(content)

    return spoil


def in_file(name: str):
    def spoil(checkpoint: Path, payload: bytes) -> None:
        (checkpoint / name).write_bytes(payload)

    return spoil


@pytest.mark.parametrize("legacy", [pytest.param(False, id="pickle"), pytest.param(True, id="torch's old format")])
@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        pytest.param(in_metadata("pytorch_model_fsdp_0"), "pytorch_model_fsdp_0/.metadata", id="contents of weights"),
        pytest.param(in_metadata("optimizer_0"), "optimizer_0/.metadata", id="contents of the optimizer"),
        pytest.param(in_shards("pytorch_model_fsdp_0"), "pytorch_model_fsdp_0", id="weights"),
        pytest.param(in_shards("optimizer_0"), "optimizer_0", id="optimizer"),
        pytest.param(in_file("optimizer.bin"), "optimizer.bin", id="whole optimizer"),
    ],
)
def test_code_is_refused(checkpoint, tmp_path, spoil, named, legacy):
    """A file that would run code when unpickled is refused by name, and nothing of it runs."""
    harm = tmp_path / "harm"
    payload = pickle.dumps(Harmful(harm), protocol=2)
    if legacy:
        torch.save(Harmful(harm), tmp_path / "old", _use_new_zipfile_serialization=False)
        payload = (tmp_path / "old").read_bytes()
    spoil(checkpoint, payload)
    with pytest.raises(CheckpointError) as refused:
        load(checkpoint)
    assert f"{named}`" in str(refused.value)
    assert not harm.exists()


def test_paths_stay_in_their_folder(checkpoint):
    """A list of contents that leads elsewhere, or to a file that is not there, is refused."""
    folder = checkpoint / names.SHARDED_WEIGHTS_NAME
    content = (folder / ".metadata").read_bytes()
    name = distributed_files.read_metadata(folder).storage_data.popitem()[1].relative_path
    for other, told in (("../" + name[3:], "outside its folder"), ("x" * len(name), "The file .* is missing")):
        (folder / ".metadata").write_bytes(content.replace(name.encode(), other.encode()))
        with pytest.raises(CheckpointError, match=told):
            distributed_files.read_metadata(folder)


def test_shards_of_one_node_alone(checkpoint):
    """Without the metadata file, which the first node has, or a shard, which another has: what to copy is said."""
    weights_folder, optimizer_folder = (
        checkpoint / name for name in (names.SHARDED_WEIGHTS_NAME, names.SHARDED_OPTIMIZER_NAME)
    )
    for folder in (weights_folder, optimizer_folder):
        (folder / names.SHARDED_METADATA_NAME).rename(folder / "elsewhere")
    told = r"`\.metadata` is missing in .*copy the files of all nodes into this folder, on every node"
    with pytest.raises(CheckpointError, match=told):
        weights.load_weights(nn.Linear(3, 2), checkpoint)
    with pytest.raises(CheckpointError, match=told):
        states.has_optimizer_state(checkpoint)
    (weights_folder / "elsewhere").rename(weights_folder / names.SHARDED_METADATA_NAME)
    (shard,) = weights_folder.glob("*.distcp")
    shard.unlink()
    with pytest.raises(CheckpointError, match=r"The file .* is missing in .*copy the files of all nodes"):
        weights.load_weights(nn.Linear(3, 2), checkpoint)
