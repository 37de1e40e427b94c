"""No file of a checkpoint can make hf_compat run code."""

from __future__ import annotations

import contextlib
import enum
import io
import json
import pickle
import zipfile

import numpy as np
import pytest
import torch

from hf_compat.checkpoint import names
from hf_compat.checkpoint.completeness import incomplete_reason
from hf_compat.checkpoint.states import load_rng_state, load_state_file
from hf_compat.checkpoint.unpickle import Unread, load_known, load_trusted
from hf_compat.checkpoint.weights import load_weights
from hf_compat.errors import CheckpointError
from tests.support.checkpoints import Trap, small_checkpoint
from tests.support.helpers import PlainModel


def torch_file(content):
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def legacy_torch_file(content):
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def numpy_file(content):
    return torch_file({"array": np.array([content], dtype=object)})


def nested_file(content):
    return torch_file({"state": {0: {"exp_avg": torch.zeros(2), "hidden": [content]}}, "param_groups": []})


FORMS = [
    pytest.param(torch_file, id="zip"),
    pytest.param(legacy_torch_file, id="legacy"),
    pytest.param(pickle.dumps, id="bare pickle"),
    pytest.param(numpy_file, id="inside a numpy array"),
    pytest.param(nested_file, id="inside a state"),
]


def load_adapter(folder):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(PlainModel(), peft.LoraConfig(target_modules=["body.0"]))
    model.save_pretrained(folder)
    (folder / "adapter_model.safetensors").unlink()
    load_weights(model, folder)


def load_shard(folder):
    (folder / "pytorch_model.bin.index.json").write_text('{"weight_map": {"weight": "pytorch_model-1.bin"}}')
    load_weights(PlainModel(), folder)


def load_optimizer(folder):
    load_state_file(torch.optim.AdamW(PlainModel().parameters()), folder, "optimizer.pt")


def load_scheduler(folder):
    optimizer = torch.optim.AdamW(PlainModel().parameters())
    load_state_file(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0), folder, "scheduler.pt")


def load_scaler(folder):
    load_state_file(torch.amp.GradScaler("cpu"), folder, "scaler.pt")


READERS = {
    "pytorch_model.bin": lambda folder: load_weights(PlainModel(), folder),
    "pytorch_model-1.bin": load_shard,
    "adapter_model.bin": load_adapter,
    "optimizer.pt": load_optimizer,
    "scheduler.pt": load_scheduler,
    "scaler.pt": load_scaler,
    "rng_state.pth": load_rng_state,
    "rng_state_1.pth": lambda folder: load_rng_state(folder, rank=1, world_size=2),
    "lightning.pt": lambda folder: load_trusted(folder / names.LIGHTNING_STATE_NAME),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", READERS)
def test_malicious_file_is_refused(name, form, tmp_path):
    """Every pickle in a checkpoint that holds code is refused with its name, and nothing of it runs."""
    sprung, folder = tmp_path / "sprung", tmp_path / "checkpoint-1"
    folder.mkdir()
    (folder / name).write_bytes(form(Trap(sprung)))
    with pytest.raises(CheckpointError, match=name):
        READERS[name](folder)
    assert not sprung.exists()


@pytest.mark.parametrize("form", FORMS)
def test_the_trap_works(form, tmp_path):
    """The files above do run code when they are read without care."""
    sprung, path = tmp_path / "sprung", tmp_path / "file"
    path.write_bytes(form(Trap(sprung)))
    if form is pickle.dumps:
        pickle.loads(path.read_bytes())
    else:
        torch.load(path, weights_only=False)
    assert sprung.exists()


def test_environment_cannot_switch_care_off(tmp_path, monkeypatch):
    """The environment variable of torch for careless loading changes nothing."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save(Trap(tmp_path / "sprung"), tmp_path / "optimizer.pt")
    with pytest.raises(CheckpointError, match=r"optimizer\.pt"):
        load_trusted(tmp_path / "optimizer.pt")
    assert not (tmp_path / "sprung").exists()


def test_training_args_are_never_read(tmp_path):
    """`training_args.bin` may hold anything: looking at, and loading, the checkpoint does not open it."""
    model = PlainModel()
    folder = small_checkpoint(tmp_path / "checkpoint-1")
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    torch.save(Trap(tmp_path / "sprung"), folder / "training_args.bin")
    assert incomplete_reason(folder) is None
    assert load_weights(model, folder) == ([], [])
    assert not (tmp_path / "sprung").exists()


def test_what_is_allowed(tmp_path):
    """Tensors, numbers, text, containers of them and numpy's arrays and scalars of numbers come back equal."""
    content = {
        "tensor": torch.arange(3, dtype=torch.bfloat16),
        "values": [1, 2.5, None, True, "text", b"bytes", (1, (2,)), {3}],
        "scalars": [np.float64(0.25), np.float32(0.5), np.int64(7), np.bool_(True)],
        "random": np.random.get_state()[1],
    }
    torch.save(content, tmp_path / "file.pt")
    found = load_trusted(tmp_path / "file.pt")
    assert torch.equal(found["tensor"], content["tensor"])
    assert (found["values"], found["scalars"]) == (content["values"], content["scalars"])
    assert np.array_equal(found["random"], content["random"])


class Stage(enum.Enum):
    SECOND = 2


class Attribute:
    """Pickled as an attribute of ``kind``: as early releases of Python 3.11 do with members of enums."""

    def __init__(self, kind, name):
        self.kind, self.name = kind, name

    def __reduce__(self):
        return getattr, (self.kind, self.name)


def test_enums_of_either_python(tmp_path):
    """A member of a known enum is found whichever way a Python has written it, one of another is a placeholder."""
    path = tmp_path / "states.pt"
    for member in (Stage.SECOND, Attribute(Stage, "SECOND")):
        torch.save({"stage": member, "step": 3}, path)
        assert load_trusted(path, allowed=[Stage]) == {"stage": Stage.SECOND, "step": 3}
        content, unknown = load_known(path)
        assert isinstance(content["stage"], Unread)
        assert (content["step"], unknown) == (3, [f"{__name__}.Stage"])


def test_other_attributes_are_refused(tmp_path):
    """Even of classes that may be unpickled: they may be functions."""
    path = tmp_path / "states.pt"
    torch.save({"file": Attribute(np.ndarray, "tofile")}, path)
    with pytest.raises(CheckpointError, match="No code in it was run"):
        load_trusted(path)
    with pytest.raises(CheckpointError):
        load_known(path)


def test_numpy_of_either_name(tmp_path):
    """Pickles name a module that numpy 2 renamed; files of numpy 1 are read too."""
    path, renamed = tmp_path / "file.pt", tmp_path / "renamed.pt"
    torch.save(np.arange(3), path)
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(renamed, "w", zipfile.ZIP_STORED) as target:
        for entry in source.infolist():
            # Protocol 2 names globals in text lines, so that the name's length is free to change.
            target.writestr(entry, source.read(entry).replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert renamed.read_bytes() != path.read_bytes()
    assert np.array_equal(load_trusted(renamed), np.arange(3))


@pytest.mark.parametrize("length", [0, 1, 2, 10, 100, 400, 700])
def test_cut_file(length, tmp_path):
    """A file cut anywhere is a CheckpointError that names it."""
    path = tmp_path / "optimizer.pt"
    torch.save({"state": torch.zeros(50)}, path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"optimizer\.pt"):
        load_trusted(path)


@pytest.mark.parametrize("seed", range(60))
def test_scrambled_file(seed, tmp_path):
    """A file with random bytes overwritten is read, or is a CheckpointError; nothing else comes out."""
    path = tmp_path / "optimizer.pt"
    torch.save({"state": {0: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(5)}}, "name": ["text", 1.5]}, path)
    content = bytearray(path.read_bytes())
    draw = np.random.default_rng(seed)
    for position in draw.integers(0, len(content), size=6):
        content[position] = int(draw.integers(0, 256))
    path.write_bytes(bytes(content))
    with contextlib.suppress(CheckpointError):
        load_trusted(path)


@pytest.mark.parametrize("name", ["../outside/model.safetensors", "{outside}/model.safetensors", "..", "../outside"])
def test_index_cannot_leave_the_folder(name, tmp_path):
    """Weights that an index names outside the checkpoint are not read, though they are there."""
    outside = small_checkpoint(tmp_path / "outside")
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    index = {"weight_map": {"weight": name.format(outside=outside)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="outside its folder"):
        load_weights(PlainModel(), folder)
