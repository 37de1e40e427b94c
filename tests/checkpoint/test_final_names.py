"""While a checkpoint lies in a hidden folder, log lines and errors name the folder that it becomes."""

from __future__ import annotations

import errno
import json
import logging
import re
import threading

import pytest
import transformers
from safetensors import SafetensorError

import hf_compat
from hf_compat.checkpoint import publish
from hf_compat.checkpoint.final_names import naming_final_folders, with_final_names
from hf_compat.errors import CheckpointWriteError
from tests.support.helpers import ListDataset, PadCollator, gpt2, token_rows, tokenizer

HIDDEN = ".checkpoint-1.partial-host.name_1-42-0a1b2c3d"


@pytest.fixture
def lines():
    """What is logged in this test, by any library at any level: logger and text."""
    seen = []

    class Collect(logging.Handler):
        def emit(self, record):
            seen.append((record.name, record.getMessage()))

    loggers, handler = [logging.getLogger(), logging.getLogger("transformers")], Collect()
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    yield seen
    for logger, level in zip(loggers, before, strict=True):
        logger.removeHandler(handler)
        logger.setLevel(level)


def new_trainer(library, folder, kind=None, **fields):
    settings = {"max_steps": 2, "save_steps": 1, "per_device_train_batch_size": 2, "report_to": "none"}
    settings |= {"use_cpu": True, "disable_tqdm": True}
    args = library.TrainingArguments(str(folder), **settings | fields)
    data = ListDataset(token_rows(4))
    words = {"data_collator": PadCollator(), "processing_class": tokenizer()}
    return (kind or library.Trainer)(gpt2(), args, train_dataset=data, **words)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"saved in out/{HIDDEN}/config.json", "saved in out/checkpoint-1/config.json"),
        (f"'/a.b/{HIDDEN}'", "'/a.b/checkpoint-1'"),
        (f"Done. Left {HIDDEN}, and {HIDDEN}", "Done. Left checkpoint-1, and checkpoint-1"),
        ("out/.my model.v2.deleted--7-00000000/x", "out/my model.v2/x"),
        ("a file .partial-x, and out/checkpoint-1", "a file .partial-x, and out/checkpoint-1"),
        (f"saving ... {HIDDEN}/config.json", "saving ... checkpoint-1/config.json"),
        (f"[.gitignore] and (.env) are left out of {HIDDEN}", "[.gitignore] and (.env) are left out of checkpoint-1"),
        (" .a b.partial-x" * 5000, " .a b.partial-x" * 5000),
    ],
    ids=str.split("path quoted sentence spaces none ellipsis dotfiles long"),
)
def test_hidden_folders_in_a_text(text, expected):
    """Names that ``publish`` gives are replaced wherever they stand; all else stays."""
    assert with_final_names(text) == expected


def test_a_name_made_by_publish_is_replaced(tmp_path):
    """Every kind of hidden folder, of whatever final name."""
    for kind in ("partial", "replaced", "deleted", "pushed"):
        for name in ("checkpoint-10", "epoch=1-step=2.ckpt"):
            assert with_final_names(str(publish.hidden_sibling(tmp_path / name, kind))) == str(tmp_path / name)


@pytest.mark.filterwarnings("ignore:mtime may not be reliable")  # transformers 4.57, of checkpoints this close
@pytest.mark.parametrize("save_async", [False, True], ids=["synchronously", "in the background"])
def test_no_line_of_a_run_names_a_hidden_folder(save_async, lines, tmp_path):
    """A run that saves, replaces and deletes checkpoints logs final names alone, those that transformers logs."""
    named = []
    for name, library in (("ours", hf_compat), ("transformers", transformers)):
        lines.clear()
        fields = {"save_async": save_async} if library is hf_compat else {}
        trainer = new_trainer(library, tmp_path / name, save_total_limit=1, log_level="debug", **fields)
        trainer.train()
        trainer.train(resume_from_checkpoint=str(tmp_path / name / "checkpoint-2"))
        assert not [line for line in lines if "partial-" in line[1] or ".deleted-" in line[1]]
        saved = [text.replace(str(tmp_path / name), "") for of, text in lines if of.startswith("transformers.")]
        named.append(sorted({text for text in saved if " saved in /checkpoint-" in text}))
    assert named[0] == named[1]
    assert any(text.endswith("/checkpoint-2/config.json") for text in named[0])


def test_no_file_of_a_checkpoint_names_a_hidden_folder(tmp_path):
    """What is written into the folder does not mention where it was written."""
    new_trainer(hf_compat, tmp_path).train()
    files = [path for path in (tmp_path / "checkpoint-2").rglob("*") if path.is_file()]
    assert "config.json" in [path.name for path in files]
    assert [path for path in files if b".partial-" in path.read_bytes()] == []


def test_a_users_own_line_has_the_final_name(lines, tmp_path):
    """An override that logs the folder it was given logs the final one."""

    class Tells(hf_compat.Trainer):
        def _save(self, output_dir=None, state_dict=None):
            logging.getLogger("script").info("saving to %s", output_dir)
            logging.getLogger("script").info("%(folder)s it is", {"folder": output_dir})
            super()._save(output_dir, state_dict)

    new_trainer(hf_compat, tmp_path, Tells, max_steps=1).train()
    assert ("script", f"saving to {tmp_path}/checkpoint-1") in lines
    assert ("script", f"{tmp_path}/checkpoint-1 it is") in lines


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda folder: OSError(errno.ENOSPC, "No space left on device", f"{folder}/x.bin"), CheckpointWriteError),
        (lambda folder: SafetensorError(f"I/O error: {folder}/x.bin"), CheckpointWriteError),
        (lambda folder: RuntimeError(f"Parent directory {folder}/x.bin does not exist."), RuntimeError),
        (lambda folder: KeyError(f"{folder}/x.bin"), KeyError),
    ],
    ids=["full disk", "safetensors", "another error", "a user's error"],
)
@pytest.mark.parametrize("save_async", [False, True], ids=["synchronously", "in the background"])
def test_an_error_names_the_final_folder(make, kind, save_async, tmp_path):
    """The error that leaves ``train``, and those that led to it, name ``checkpoint-1``."""

    class Fails(hf_compat.Trainer):
        def _save_rng_state(self, output_dir):
            raise make(output_dir)

    with pytest.raises(kind) as caught:
        new_trainer(hf_compat, tmp_path, Fails, save_async=save_async).train()
    error, texts = caught.value, []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__ or error.__context__
    assert f"{tmp_path}/checkpoint-1/x.bin" in texts[0]
    assert not re.search(r"partial-", json.dumps(texts))


def test_a_record_whose_arguments_do_not_fit_is_left_alone():
    """It is ``logging`` that reports it, when the record is handled."""
    with naming_final_folders():
        record = logging.getLogRecordFactory()("a", logging.INFO, "file", 1, "%s and %s", ("one",), None)
    assert (record.msg, record.args) == ("%s and %s", ("one",))


def test_blocks_of_several_threads_overlap():
    """Names are final until the last block is left; then the former factory of records is back."""
    before, inside, go_on = logging.getLogRecordFactory(), threading.Event(), threading.Event()

    def block():
        with naming_final_folders():
            inside.set()
            go_on.wait()

    def text():
        return logging.getLogRecordFactory()("a", logging.INFO, "file", 1, HIDDEN, (), None).getMessage()

    thread = threading.Thread(target=block)
    with naming_final_folders():
        thread.start()
        inside.wait()
    assert text() == "checkpoint-1"
    go_on.set()
    thread.join()
    assert text() == HIDDEN
    assert logging.getLogRecordFactory() is before


def test_a_factory_set_in_the_meantime_stays():
    """A library that puts its own factory on top keeps it."""
    before = logging.getLogRecordFactory()
    try:
        with naming_final_folders():
            below = logging.getLogRecordFactory()
            logging.setLogRecordFactory(own := lambda *given, **named: below(*given, **named))
        assert logging.getLogRecordFactory() is own
    finally:
        logging.setLogRecordFactory(before)
