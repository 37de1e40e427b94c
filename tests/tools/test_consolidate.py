"""``hf-compat consolidate`` makes one model of what several processes wrote."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hf_compat import cli
from hf_compat.checkpoint import distributed_files, names, weights
from hf_compat.errors import CheckpointError, CheckpointWriteError
from hf_compat.tools.consolidate import consolidate
from hf_compat.tools.safetensors_files import Entry, write_tensors
from tests.support import helpers
from tests.support.processes import clean_environment

DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2)

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def written(folder: Path, state: dict) -> Path:
    """Write sharded weights from one process; return the checkpoint."""
    folder.mkdir(parents=True)
    distributed_files.save({"model": state}, folder / names.SHARDED_WEIGHTS_NAME)
    return folder


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint of a GPT-2 whose embeddings are tied, with a tokenizer's and the run's files."""
    torch.manual_seed(0)
    model = helpers.gpt2()
    model.config.architectures = ["GPT2LMHeadModel"]
    folder = written(tmp_path / "checkpoint-3", model.state_dict())
    model.config.save_pretrained(folder)
    for name in ("tokenizer.json", "optimizer.pt", "rng_state_0.pth", "trainer_state.json", "lightning.json"):
        (folder / name).write_text("{}")
    return folder


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_whole_weights_are_those_of_save_pretrained(checkpoint, tmp_path, capsys):
    """In place, one file is added, which holds what the model itself would have written; a second time nothing."""
    from transformers import AutoModelForCausalLM

    before = everything(checkpoint)
    assert cli.main(["consolidate", str(checkpoint)]) == 0
    assert capsys.readouterr().out == f"{checkpoint / 'model.safetensors'}\n"
    after = everything(checkpoint)
    assert set(after) - set(before) == {"model.safetensors"}
    assert {name: after[name] for name in before} == before
    torch.manual_seed(0)
    weights.save_weights(helpers.gpt2(), tmp_path)
    found, expected = load_file(checkpoint / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert sorted(found) == sorted(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    loaded = AutoModelForCausalLM.from_pretrained(checkpoint)
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    assert cli.main(["consolidate", str(checkpoint)]) == 0
    assert "already has full weights" in capsys.readouterr().out
    assert everything(checkpoint) == after


def test_another_folder_gets_the_model_alone(checkpoint, tmp_path):
    """``--output`` gets weights, configuration and tokenizer, nothing of the run; the checkpoint stays as it is."""
    before = everything(checkpoint)
    target = tmp_path / "new" / "model"
    assert cli.main(["consolidate", str(checkpoint), "--output", str(target)]) == 0
    assert {path.name for path in target.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}
    assert everything(checkpoint) == before
    assert [path.name for path in target.parent.iterdir()] == ["model"]


def test_a_large_model_is_divided(checkpoint):
    """Beyond the limit there are several files and an index, which transformers and this package both read."""
    from transformers import AutoModelForCausalLM

    files = consolidate(checkpoint, limit=8000)
    assert len(files) > 2
    assert files[-1].name == "model.safetensors.index.json"
    assert all(path.stat().st_size < 10_000 for path in files)
    expected = AutoModelForCausalLM.from_pretrained(checkpoint).state_dict()
    model = helpers.gpt2()
    assert weights.load_weights(model, checkpoint) == ([], [])
    torch.manual_seed(0)
    for name, value in helpers.gpt2().state_dict().items():
        assert torch.equal(value, expected[name])
        assert torch.equal(value, model.state_dict()[name])


def test_every_dtype_is_written(tmp_path):
    """A file holds tensors of any dtype and shape, single numbers and empty ones too, as safetensors reads them."""
    state = {f"of {dtype}": torch.arange(6).reshape(2, 3).to(dtype) for dtype in (*DTYPES, *FLOATS)}
    state |= {"one": torch.tensor(3.0), "none": torch.empty(0, 4)}
    entries = [Entry(name, value.dtype, tuple(value.shape)) for name, value in state.items()]
    write_tensors(tmp_path / "all.safetensors", entries, lambda entry: state[entry.name])
    found = load_file(tmp_path / "all.safetensors")
    assert sorted(found) == sorted(state)
    for name, value in state.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name].double(), value.double())
    with pytest.raises(CheckpointError, match=r"`z` is of torch.complex64"):
        write_tensors(tmp_path / "no.safetensors", [Entry("z", torch.complex64, (1,))], lambda _: torch.zeros(1))


def test_memory_holds_one_tensor_at_a_time(tmp_path):
    """A model of 96 MB in 24 tensors is made whole with less than a third of it in memory."""
    folder = written(
        tmp_path / "large", {f"layer{index}": torch.full((1024, 1024), index) * 1.0 for index in range(24)}
    )
    measured = (
        "import resource, sys; from hf_compat.tools.consolidate import consolidate\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak(); consolidate(sys.argv[1]); print(peak() - before)"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", measured, str(folder)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (folder / "model.safetensors").stat().st_size > 24 * 2**22
    assert int(ended.stdout) < 32 * 2**10


def only_whole(folder):
    shutil.rmtree(folder / names.SHARDED_WEIGHTS_NAME)
    (folder / "model.safetensors").write_bytes(b"")


def deepspeed(folder):
    shutil.rmtree(folder / names.SHARDED_WEIGHTS_NAME)
    (folder / "global_step3").mkdir()


def other_state(folder):
    shutil.rmtree(folder / names.SHARDED_WEIGHTS_NAME)
    distributed_files.save({"model": {"a": torch.zeros(1), "extra": "text"}}, folder / names.SHARDED_WEIGHTS_NAME)


@pytest.mark.parametrize(
    ("spoil", "output", "told"),
    [
        pytest.param(
            lambda folder: (folder / "model.safetensors").touch(), "new", None, id="both: a new folder is fine"
        ),
        pytest.param(only_whole, "new", "its weights are already full", id="whole, elsewhere"),
        pytest.param(deepspeed, None, "zero_to_fp32.py", id="DeepSpeed"),
        pytest.param(lambda folder: shutil.rmtree(folder), None, "does not exist", id="nothing there"),
        pytest.param(lambda folder: None, ".", "not empty", id="output in use"),
        pytest.param(other_state, None, "not a tensor of the model", id="more than tensors"),
        pytest.param(
            lambda folder: (folder / names.SHARDED_WEIGHTS_NAME / ".metadata").write_bytes(b"c"),
            None,
            ".metadata",
            id="damaged",
        ),
    ],
)
def test_what_cannot_be_made_whole(checkpoint, tmp_path, capsys, spoil, output, told):
    """The command says what is in the way, changes no file and exits with 2."""
    spoil(checkpoint)
    before = everything(tmp_path)
    words = [] if output is None else ["--output", str(tmp_path / output)]
    if told is None:
        assert cli.main(["consolidate", str(checkpoint), *words]) == 0
        return
    with pytest.raises(SystemExit) as ended:
        cli.main(["consolidate", str(checkpoint), *words])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err
    assert everything(tmp_path) == before


def test_a_folder_of_checkpoints_is_told_to_name_one(checkpoint):
    """Given a run's folder, the error names a checkpoint in it."""
    with pytest.raises(CheckpointError, match=r"such as `.*checkpoint-3`"):
        consolidate(checkpoint.parent)


def test_a_failing_write_leaves_nothing(checkpoint, monkeypatch):
    """A file that cannot be written to the end is taken away, and nothing else has changed."""
    before = everything(checkpoint)

    def fails(self, entry):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hf_compat.tools.consolidate._Shards.read", fails)
    monkeypatch.setattr("hf_compat.tools.consolidate._tied_names", lambda folder: {})
    with pytest.raises(CheckpointWriteError, match=r"cannot be written: .*No space left") as caught:
        consolidate(checkpoint)
    assert (caught.value.errno, caught.value.filename) == (28, str(checkpoint))
    assert everything(checkpoint) == before
