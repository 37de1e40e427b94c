"""Hidden folders have names that say what they are for, and messages name the folder that they become."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest
from safetensors import SafetensorError

import hf_compat
from hf_compat.checkpoint.publish import HiddenFolder, final_name, hidden_sibling
from hf_compat.errors import CheckpointWriteError
from tests.support.helpers import ListDataset, PadCollator, gpt2, token_rows, tokenizer

HIDDEN = ".checkpoint-1.partial-host.name_1-42-0a1b2c3d"


def new_trainer(folder, kind=hf_compat.Trainer, **fields):
    settings = {"max_steps": 1, "save_steps": 1, "per_device_train_batch_size": 2, "report_to": "none"}
    args = hf_compat.TrainingArguments(str(folder), use_cpu=True, disable_tqdm=True, **settings | fields)
    words = {"data_collator": PadCollator(), "processing_class": tokenizer()}
    return kind(gpt2(), args, train_dataset=ListDataset(token_rows(4)), **words)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"saved in out/{HIDDEN}/config.json", "saved in out/checkpoint-1/config.json"),
        (f"'/a.b/{HIDDEN}'", "'/a.b/checkpoint-1'"),
        (f"Done. Left {HIDDEN}, and {HIDDEN}", "Done. Left checkpoint-1, and checkpoint-1"),
        ("a file .partial-x, and out/checkpoint-1", "a file .partial-x, and out/checkpoint-1"),
        (f"saving ... {HIDDEN}/config.json", "saving ... checkpoint-1/config.json"),
        (f"[.gitignore] and (.env) are left out of {HIDDEN}", "[.gitignore] and (.env) are left out of checkpoint-1"),
        (".a" * 5000, ".a" * 5000),
    ],
    ids=str.split("path quoted sentence none ellipsis dotfiles long"),
)
def test_hidden_folders_in_a_text(text, expected):
    """Names of hidden folders are replaced wherever they stand; all else stays."""
    assert final_name(text) == expected


@pytest.mark.parametrize("kind", ["partial", "replaced", "deleted", "pushed"])
@pytest.mark.parametrize("name", ["checkpoint-10", "epoch=1-step=2.ckpt"])
def test_a_name_says_what_it_is(kind, name, tmp_path):
    """Every kind of hidden folder, of whatever final name, is recognised again."""
    hidden = hidden_sibling(tmp_path / name, kind)
    assert (HiddenFolder.of(hidden).kind, HiddenFolder.of(hidden).final) == (kind, tmp_path / name)
    assert final_name(str(hidden)) == str(tmp_path / name)


def test_another_name_is_none():
    """A path that is not named so is refused."""
    with pytest.raises(ValueError, match="checkpoint-1"):
        HiddenFolder.of(Path("checkpoint-1"))


def test_our_lines_name_the_final_folder(caplog, tmp_path):
    """The line that a Trainer logs for each checkpoint, and each of this package, names the folder that it becomes."""
    with caplog.at_level(logging.DEBUG, "hf_compat"):
        new_trainer(tmp_path, log_level="debug", max_steps=2, save_total_limit=1).train()
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("hf_compat")]
    assert f"Saving model checkpoint to {tmp_path}/checkpoint-1" in lines
    assert not [line for line in lines if "partial-" in line or "deleted-" in line]


def test_no_file_of_a_checkpoint_names_a_hidden_folder(tmp_path):
    """What is written into the folder does not mention where it was written."""
    new_trainer(tmp_path).train()
    files = [path for path in (tmp_path / "checkpoint-1").rglob("*") if path.is_file()]
    assert "config.json" in [path.name for path in files]
    assert [path for path in files if b".partial-" in path.read_bytes()] == []


FAILURES = {
    "full disk": lambda folder: OSError(errno.ENOSPC, "No space left on device", f"{folder}/x.bin"),
    "safetensors": lambda folder: SafetensorError(f"I/O error: {folder}/x.bin: No space left on device (os error 28)"),
    "tokenizers": lambda folder: Exception(f"{folder}/x.bin: No space left on device (os error 28)"),
}


@pytest.mark.parametrize("make", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("save_async", [False, True], ids=["synchronously", "in the background"])
def test_an_error_names_the_final_folder(make, save_async, tmp_path):
    """The error that leaves ``train`` names ``checkpoint-1``, and has the system's number."""

    class Fails(hf_compat.Trainer):
        def _save_rng_state(self, output_dir):
            raise make(output_dir)

    with pytest.raises(CheckpointWriteError) as caught:
        new_trainer(tmp_path, Fails, save_async=save_async).train()
    assert f"{tmp_path}/checkpoint-1/x.bin" in str(caught.value)
    assert "partial-" not in f"{caught.value}{caught.value.filename}"
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("error", [RuntimeError("Parent directory x does not exist."), KeyError("x")])
@pytest.mark.parametrize("save_async", [False, True], ids=["synchronously", "in the background"])
def test_another_error_stays_what_it_is(error, save_async, tmp_path):
    """What is no failure of the file system leaves ``train`` as it was raised."""

    class Fails(hf_compat.Trainer):
        def _save_rng_state(self, output_dir):
            raise error

    with pytest.raises(type(error)) as caught:
        new_trainer(tmp_path, Fails, save_async=save_async).train()
    assert caught.value is error
