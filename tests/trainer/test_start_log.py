"""What is logged under ``set_verbosity_info``: transformers' facts, on loggers that its settings reach."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys

import pytest
import torch
import transformers
from packaging.version import Version
from transformers.utils import logging as library_logging

import hf_compat
from hf_compat.errors import CheckpointError
from tests.support.helpers import ListDataset, PadCollator, PlainModel, Stream, gpt2, token_rows, tokenizer, vector_rows
from tests.support.trainers import arguments
from tests.trainer.test_plain_module import HIDE

LIBRARIES = {"ours": hf_compat, "transformers": transformers}
IS_OLD = Version(transformers.__version__).major < 5

FACTS = [
    r"Running (training)",
    r"Num examples(?: =|:) (\S+)",
    r"Num Epochs = (\S+)",
    r"Instantaneous batch size per device = (\S+)",
    r"(?i)batch size has been (adjusted to: \S+)",
    r"Total train batch size \(w\. parallel, distributed & accumulation\) = (\S+)",
    r"Gradient Accumulation steps = (\S+)",
    r"Total optimization steps = (\S+)",
    r"Number of trainable parameters = (\S+)",
    r"Running (Evaluation|Prediction)",
    r"  Batch size = (\S+)",
    r"Saving model checkpoint to (\S+)",
    r"(Training completed)",
    r"Loading best model from (\S+) \(score: (\S+)\)",
    r"Loading model from (\S+)\.",
    r"max_steps is given.*, it will override any value given in (num_train_epochs)",
    r"(PyTorch: setting up devices)",
    r"using `logging_steps` to initialize `eval_steps` to (\S+)",
    r"do not match the ones in the (`trainer_state.json`)",
    r"(\w+): (\S+) \(from args\) != (\S+) \(from trainer_state.json\)",
    r"Continuing training from checkpoint, (restoring)",
    r"(?:not included in current configuration)\D*(Lonely)",
    r"(only saving its state dict)",
    r"(Saving Trainer.data_collator.tokenizer by default as Trainer.processing_class is `None`)",
    r"No `TrainingArguments` passed, using `output_dir=(\w+)`",
    r"Using (\w+) half precision backend",
    r"Using EarlyStoppingCallback without (load_best_model_at_end=True)",
    r"You are resuming training from a checkpoint trained with (\S+)",
    r"(ignored when using an `IterableDataset`)",
    r"The best checkpoint (\S+)",
]
"""What both libraries log, by their key phrases; the groups are compared."""

RESUMING = {
    "transformers": [r"with epoch (\d+) and global step (\d+)", r"past (\d+) epochs and (\d+) batches"],
    "ours": [r"from epoch (\d+)", r"from global step (\d+)", r"first (\d+) epochs then the first (\d+) batches"],
}
"""Where a resumed run goes on: epoch, update step, and what is skipped. 4.57 says it in the words that we use."""
if IS_OLD:
    RESUMING["transformers"] = RESUMING["ours"]


@pytest.fixture
def lines():
    """What reaches the handlers of transformers' logger, at level info as a script sets it."""
    seen, handler, before = [], logging.Handler(), library_logging.get_verbosity()
    handler.emit = lambda record: seen.append(record.getMessage())
    library_logging.set_verbosity_info()
    library_logging.add_handler(handler)
    yield seen
    logging.getLogger("transformers").removeHandler(handler)  # `remove_handler` of 4.57 refuses one that is there
    library_logging.set_verbosity(before)


def facts_in(lines, kind, folder):
    """Return phrase → what is told with it, each time."""
    text = "\n".join(lines).replace(str(folder), "")
    found = {pattern: re.findall(pattern, text) for pattern in FACTS}
    found["resuming"] = [number for pattern in RESUMING[kind] for number in re.findall(pattern, text)]
    flat = [part for each in found["resuming"] for part in ([each] if isinstance(each, str) else each)]
    return {**found, "resuming": [int(part) for part in flat]}


class Lonely:
    def state(self):
        return {"args": {}, "attributes": {}}


def language_model(library, folder, callbacks=(), **fields):
    torch.manual_seed(0)
    rows = ListDataset(token_rows(10))
    steps = {"max_steps": 6, "save_steps": 2, "eval_strategy": "steps", "logging_steps": 2}
    sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    args = arguments(folder, library, **sizes | steps | fields)
    collator = PadCollator()
    collator.tokenizer = tokenizer()
    given = {"train_dataset": rows, "eval_dataset": rows, "data_collator": collator, "callbacks": list(callbacks)}
    return library.Trainer(gpt2(), args, **given)


def fresh(library, folder):
    """Train, evaluate, save and load the best model."""
    language_model(library, folder, load_best_model_at_end=True).train()


def resume_changed(library, folder):
    """Resume in the middle of an epoch, with other arguments, a missing callback and another release's checkpoint."""
    bases = (library.TrainerCallback, transformers.trainer_callback.ExportableState)
    language_model(library, folder, [type("Lonely", (Lonely, *bases), {})()], max_steps=4).train()
    config = folder / "checkpoint-4" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"transformers_version": "4.40.0"}))
    fields = {"logging_steps": 3, "save_steps": 5, "eval_steps": 2, "restore_callback_states_from_checkpoint": True}
    language_model(library, folder, **fields).train(resume_from_checkpoint=str(folder / "checkpoint-4"))


def without_skipping(library, folder):
    """Resume without skipping data, by another batch size."""
    language_model(library, folder, max_steps=2).train()
    fields = {"ignore_data_skip": True, "per_device_train_batch_size": 1}
    language_model(library, folder, **fields).train(resume_from_checkpoint=str(folder / "checkpoint-2"))


def plain_module(library, folder):
    """Train a plain module on a stream, evaluate a stream, predict, save; nothing is known of lengths."""
    rows = vector_rows(6)
    best = {"eval_strategy": "epoch", "metric_for_best_model": "loss"}
    args = arguments(folder, library, per_device_train_batch_size=2, max_steps=2, bf16=True, **best)
    stopping = library.EarlyStoppingCallback()
    datasets = {"train_dataset": Stream(rows), "eval_dataset": Stream(rows)}
    trainer = library.Trainer(PlainModel(), args, **datasets, callbacks=[stopping])
    trainer.train()
    trainer.predict(ListDataset(rows))
    trainer.save_model(str(folder / "final"))


def without_arguments(library, folder):
    """Make a Trainer of a model alone."""
    library.Trainer(PlainModel())


@pytest.mark.parametrize("script", [fresh, resume_changed, without_skipping, plain_module, without_arguments])
def test_the_facts_are_upstreams(script, lines, tmp_path, monkeypatch):
    """The same script tells the same numbers, names and phrases as often, in the same order for each phrase."""
    told = {}
    for kind, library in LIBRARIES.items():
        folder = tmp_path / kind
        folder.mkdir()
        monkeypatch.chdir(folder)
        lines.clear()
        script(library, folder)
        told[kind] = facts_in(lines, kind, folder)
    assert told["ours"] == told["transformers"]
    assert any(told["ours"].values())


def test_a_resume_tells_where_it_goes_on(lines, tmp_path):
    """Ten rows are three update steps an epoch, so that update step 4 is the first of the second epoch."""
    language_model(hf_compat, tmp_path, max_steps=4).train()
    language_model(hf_compat, tmp_path).train(resume_from_checkpoint=True)
    assert facts_in(lines, "ours", tmp_path)["resuming"] == [1, 4, 1, 2]


@pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)
def test_a_missing_checkpoint_is_told_in_the_same_phrase(library, tmp_path):
    """The error is a ValueError with the phrase that scripts look for."""
    with pytest.raises(ValueError, match="No valid checkpoint found in output directory") as caught:
        language_model(library, tmp_path).train(resume_from_checkpoint=True)
    assert library is transformers or isinstance(caught.value, CheckpointError)


@pytest.mark.parametrize(
    ("field", "hush", "is_told"),
    [
        pytest.param("passive", lambda: None, True, id="verbosity of the script"),
        pytest.param("error", lambda: None, False, id="--log_level error"),
        pytest.param("passive", library_logging.set_verbosity_error, False, id="set_verbosity_error after it is made"),
        pytest.param(
            "passive",
            lambda: logging.getLogger("transformers.trainer").setLevel(logging.ERROR),
            False,
            id="the level of the Trainer's logger",
        ),
        pytest.param(
            "passive",
            lambda: logging.getLogger("hf_compat").setLevel(logging.ERROR),
            False,
            id="the level of our logger",
        ),
    ],
)
def test_settings_reach_what_is_logged(field, hush, is_told, lines, tmp_path):
    """The arguments' level, transformers' verbosity and loggers' levels decide, also once the Trainer is made."""
    names = ("transformers.trainer", "hf_compat")
    before = [logging.getLogger(name).level for name in names]
    try:
        trainer = language_model(hf_compat, tmp_path, max_steps=1, log_level=field, eval_strategy="no")
        hush()
        lines.clear()
        trainer.train()
        assert ("***** Running training *****" in lines) == is_told
    finally:
        for name, level in zip(names, before, strict=True):
            logging.getLogger(name).setLevel(level)


class Replica(hf_compat.TrainingArguments):
    """The arguments of a process that is not to log."""

    should_log = False


def test_a_replica_has_its_own_level(lines, tmp_path):
    """A process that is not to log tells nothing, unless ``log_level_replica`` says so."""
    for replica, is_told in (("warning", False), ("info", True)):
        args = Replica(str(tmp_path), max_steps=1, report_to="none", use_cpu=True, log_level_replica=replica)
        lines.clear()
        hf_compat.Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(4))).train()
        assert ("***** Running training *****" in lines) == is_told


LATE = """
import logging
from hf_compat.log_files import set_level
set_level(logging.ERROR)
from transformers.utils import logging as library_logging
library_logging.set_verbosity_info()
print(*(logging.getLogger(name).getEffectiveLevel() for name in ("transformers.trainer", "hf_compat.run")))
"""


def test_a_level_set_before_transformers_is_loaded_does_not_stick():
    """Settings of transformers decide once it is loaded, also if arguments set a level before."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["20", "20"]


ALONE = """
import logging, sys
logging.basicConfig(format="%(name)s|%(message)s", stream=sys.stdout)
from hf_compat import Trainer, TrainingArguments
from tests.support.helpers import ListDataset, PlainModel, vector_rows
fields = {"max_steps": 1, "report_to": "none", "use_cpu": True, "log_level": "info", "disable_tqdm": True}
Trainer(PlainModel(), TrainingArguments(sys.argv[1], **fields), train_dataset=ListDataset(vector_rows(4))).train()
"""


def test_without_transformers_it_logs_as_any_package(tmp_path):
    """The facts are on hf_compat's own loggers, which the handlers of the root logger hear."""
    run = [sys.executable, "-c", HIDE + ALONE, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert "hf_compat.trainer.progress|***** Running training *****" in done.stdout
