"""Each entry of the two pages of differences has tests that fail when it is no longer true; some of them are here."""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import functools
import json
import logging
import pickle
import re
import warnings
import zipfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from packaging.version import Version
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import hf_compat
from tests.support.helpers import ListDataset, PlainModel, Stream, gpt2, vector_rows
from tests.support.paths import FACTS_FOLDER, ROOT
from tests.support.processes import forked_ranks, torchrun

PAGES = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("differences.md", "differences_reference.md")]
TESTS: dict[str, list[str]] = json.loads((FACTS_FOLDER / "differences.json").read_text(encoding="utf-8"))
"""The first words of each entry of the pages, to the tests that it is true."""
IS_5 = Version(transformers.__version__) >= Version("5")
FIELDS: dict[str, Any] = {
    "use_cpu": True,
    "report_to": [],
    "disable_tqdm": True,
    "max_steps": 2,
    "save_strategy": "no",
    "per_device_train_batch_size": 2,
    "dataloader_pin_memory": False,
}

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::hf_compat.errors.HFCompatWarning"),
]


def entries() -> list[str]:
    """Return the pages' entries, each a bullet or a paragraph, in one line; not introductions and headings."""
    bodies = "\n\n".join("## " + page.partition("\n## ")[2] for page in PAGES)
    parts = re.split(r"\n\n|\n(?=- )", bodies)
    texts = (" ".join(part.split()).removeprefix("- ") for part in parts)
    return [text for text in texts if text and not text.startswith("#")]


def sentences(entry: str) -> int:
    """Return the number of sentences of an entry of the page, without a last one that names another page."""
    found = re.split(r"(?<=\.) (?=[A-Z`])", entry)
    return len(found) - (len(found) > 1 and "](" in found[-1])


@functools.cache
def functions_in(file: str) -> frozenset[str]:
    """Return the names of the test functions in a file of the tests."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry[:40])
def test_every_entry_has_tests(entry):
    """Each entry begins with the first words of exactly one row of the table, with an existing test per sentence."""
    rows = [first for first in TESTS if entry.startswith(first)]
    assert len(rows) == 1, f"tests/facts/differences.json needs one row with the first words of: {entry}"
    assert len(TESTS[rows[0]]) >= sentences(entry), entry
    for test in TESTS[rows[0]]:
        file, _, name = test.partition("::")
        assert name in functions_in(file), test


def test_every_row_has_an_entry():
    """No row is left of an entry that is gone."""
    assert [first for first in TESTS if not any(entry.startswith(first) for entry in entries())] == []


def short_arguments(library: Any, folder: Any, **fields: Any) -> Any:
    """Return the arguments of a short run of ``library``."""
    return library.TrainingArguments(str(folder / "out"), **{**FIELDS, **fields})


def short_trainer(library: Any, folder: Any, kind: Any = None, model: Any = None, rows: int = 8, **given: Any) -> Any:
    """Return a Trainer of ``library`` for rows of vectors; keywords are fields, callbacks or functions."""
    own = {name: given.pop(name) for name in ("callbacks", "model_init", "compute_metrics") if name in given}
    data = ListDataset(vector_rows(rows))
    if "model_init" not in own:
        own["model"] = PlainModel() if model is None else model
    args = short_arguments(library, folder, **given)
    return (kind or library.Trainer)(args=args, train_dataset=data, eval_dataset=data, **own)


def launched(text: str, library: Any, folder: Any, *, processes: int = 2) -> str:
    """Return what the processes of a script print, whose words are the name of ``library`` and an output folder."""
    script = folder / "script.py"
    script.write_text(text)
    ended = forked_ranks(script, library.__name__, folder / library.__name__, processes=processes)
    assert ended.code == 0, ended.output
    return ended.output


# ---- what transformers refuses, and works here ----


@pytest.mark.parametrize("which", ["compute_loss", "log", "sampler"])
def test_overrides_of_older_releases(which, tmp_path):
    """Overrides without the newest parameters are called without them; transformers raises a TypeError."""

    def classes(library):
        class OldLoss(library.Trainer):
            def compute_loss(self, model, inputs, return_outputs=False):
                outputs = model(**inputs)
                return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

        class OldLog(library.Trainer):
            def log(self, logs):
                super().log(logs)

        class OldSampler(library.Trainer):
            def _get_train_sampler(self):
                return torch.utils.data.SequentialSampler(self.train_dataset)

        return {"compute_loss": OldLoss, "log": OldLog, "sampler": OldSampler}[which]

    with pytest.raises(TypeError):
        short_trainer(transformers, tmp_path, classes(transformers), logging_steps=1).train()
    trainer = short_trainer(hf_compat, tmp_path, classes(hf_compat), logging_steps=1)
    assert trainer.train().global_step == 2


def changed(trainer: Any) -> bool:
    """Return whether training changes the model of ``trainer``."""
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.train()
    after = list(trainer.model.parameters())
    return any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_a_copy_of_a_trained_trainer(tmp_path):
    """It learns; a copy of transformers' own 5.24 does not."""
    for library, learns in ((transformers, not IS_5), (hf_compat, True)):
        trainer = short_trainer(library, tmp_path)
        trainer.train()
        assert changed(copy.deepcopy(trainer)) is learns


def test_a_pickled_trainer(tmp_path):
    """One that has trained can be pickled, and its twin learns; transformers' schedule refers to what cannot be."""
    trainer = short_trainer(transformers, tmp_path)
    trainer.train()
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(trainer)
    trainer = short_trainer(hf_compat, tmp_path)
    trainer.train()
    assert changed(pickle.loads(pickle.dumps(trainer)))


def test_a_loss_scale_that_nothing_uses(tmp_path):
    """A checkpoint of a run with fp16 resumes where losses are not scaled; transformers looks for a scaler."""
    for library, fails in ((transformers, True), (hf_compat, False)):
        folder = tmp_path / library.__name__
        short_trainer(library, folder, save_strategy="steps", save_steps=1).train()
        checkpoint = folder / "out" / "checkpoint-1"
        torch.save(torch.amp.GradScaler("cpu").state_dict(), checkpoint / "scaler.pt")
        again = short_trainer(library, folder)
        with pytest.raises(AttributeError) if fails else nullcontext():
            assert again.train(resume_from_checkpoint=str(checkpoint)).global_step == 2


def test_the_group_of_a_parameter(tmp_path):
    """It is found by identity; transformers compares it with parameters of other shapes."""
    for library in (transformers, hf_compat):
        trainer = short_trainer(library, tmp_path, learning_rate=0.5)
        trainer.create_optimizer()
        last = list(trainer.model.parameters())[-1]
        if library is transformers:
            with pytest.raises(RuntimeError, match="must match the size"):
                trainer.get_optimizer_group(last)
        else:
            group = trainer.get_optimizer_group(last)
            assert any(parameter is last for parameter in group["params"])


class Pair(NamedTuple):
    """Two inputs under one name."""

    one: torch.Tensor
    other: torch.Tensor


class OfPairs(nn.Module):
    """A model whose input is a pair."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, pair: Pair, labels: Any = None) -> dict[str, Any]:
        assert isinstance(pair, Pair)
        logits = self.layer(pair.one) + self.layer(pair.other)
        return {"loss": logits.mean(), "logits": logits}


def pairs(rows: Any) -> dict[str, Any]:
    """Collate to a batch with a pair."""
    return {"pair": Pair(torch.ones(len(rows), 2), torch.ones(len(rows), 2)), "labels": torch.ones(len(rows))}


def test_a_namedtuple_in_a_batch(tmp_path):
    """The model gets it, in training and in an evaluation; transformers makes it of one argument."""
    for library in (transformers, hf_compat):
        trainer = short_trainer(library, tmp_path, model=OfPairs(), remove_unused_columns=False)
        trainer.data_collator = pairs
        if library is transformers:
            with pytest.raises(TypeError, match="missing 1 required positional argument"):
                trainer.train()
        else:
            assert trainer.train().global_step == 2
            assert "eval_loss" in trainer.evaluate()


class Strided(nn.Module):
    """A plain model whose weight is not contiguous, as a convolution's in ``channels_last``; it stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(16.0).view(2, 2, 2, 2).contiguous(memory_format=torch.channels_last))

    def forward(self, features: torch.Tensor, labels: Any = None) -> dict[str, Any]:
        return {"loss": self.weight.sum() * 0}


def test_weights_that_are_not_contiguous(tmp_path):
    """They are saved with their values, and resume; safetensors refuses them in transformers."""
    for library in (transformers, hf_compat):
        trainer = short_trainer(
            library, tmp_path / library.__name__, model=Strided(), save_strategy="steps", save_steps=1
        )
        if library is transformers:
            with pytest.raises(ValueError, match="non contiguous"):
                trainer.train()
        else:
            trainer.train()
            checkpoint = f"{trainer.args.output_dir}/checkpoint-1"
            saved = load_file(f"{checkpoint}/model.safetensors")
            assert torch.equal(saved["weight"], Strided().weight)
            assert trainer.train(resume_from_checkpoint=checkpoint).global_step == 2


def test_weights_of_a_model_in_data_parallel(tmp_path):
    """They have the names of the model in it; in transformers those of what is around it."""
    for library, prefix in ((transformers, "module."), (hf_compat, "")):
        model = nn.DataParallel(gpt2())
        trainer = short_trainer(library, tmp_path / library.__name__, model=model, remove_unused_columns=False)
        trainer.save_model()
        saved = load_file(f"{trainer.args.output_dir}/model.safetensors")
        assert {f"{prefix}{name}" for name in gpt2().state_dict()} >= saved.keys() != set()


class TakesKeywords(PlainModel):
    """A module to compile: transformers passes to a compiled one what it counts."""

    def forward(self, features, labels=None, **given):
        return super().forward(features, labels)


def test_weights_of_a_compiled_module(tmp_path):
    """They have the names of the module in it; a run resumes with those of transformers too, to the same weights."""

    def compiled(library, name, **fields):
        model = torch.compile(TakesKeywords(), backend="eager")
        return short_trainer(library, tmp_path / name, model=model, remove_unused_columns=False, **fields)

    for library, prefix in ((transformers, "_orig_mod."), (hf_compat, "")):
        trainer = compiled(library, library.__name__, save_strategy="steps", save_steps=1)
        trainer.train()
        checkpoint = f"{trainer.args.output_dir}/checkpoint-1"
        saved = load_file(f"{checkpoint}/model.safetensors")
        assert saved.keys() == {f"{prefix}{name}" for name in PlainModel().state_dict()}
        again = compiled(hf_compat, f"{library.__name__} again")
        again.train(resume_from_checkpoint=checkpoint)
        expected, resumed = trainer.model.state_dict(), again.model.state_dict()
        assert all(torch.equal(value, resumed[name]) for name, value in expected.items())


def test_random_states_of_numpy_1(tmp_path):
    """A checkpoint that names numpy's package as numpy 1 does: transformers does not read it with numpy 2."""
    trainer = short_trainer(transformers, tmp_path, save_strategy="steps", save_steps=1)
    trainer.train()
    checkpoint = f"{trainer.args.output_dir}/checkpoint-1"
    name = f"{checkpoint}/rng_state.pth"
    with zipfile.ZipFile(name) as source:
        entries = {entry: source.read(entry) for entry in source.namelist()}
    with zipfile.ZipFile(name, "w") as target:
        for entry, content in entries.items():
            target.writestr(entry, content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    with pytest.raises(pickle.UnpicklingError, match=r"numpy\.core\.multiarray"):
        short_trainer(transformers, tmp_path).train(resume_from_checkpoint=checkpoint)
    assert short_trainer(hf_compat, tmp_path).train(resume_from_checkpoint=checkpoint).global_step == 2


DROPPED = {
    "warmup_ratio": (0.1, ["0.1"]),
    "group_by_length": (True, []),
    "no_cuda": (True, []),
    "logging_dir": ("logs", ["logs"]),
    "save_safetensors": (True, []),
    "overwrite_output_dir": (True, []),
    "push_to_hub_token": ("t", ["t"]),
}


@pytest.mark.skipif(not IS_5, reason="transformers 4 has the fields")
@pytest.mark.parametrize("name", DROPPED)
def test_dropped_fields(name):
    """A field that transformers 5 has dropped is taken, as a keyword and as an option."""
    value, words = DROPPED[name]
    command = ["--output_dir", "out", f"--{name}", *words]
    with pytest.raises(TypeError):
        transformers.TrainingArguments("out", **{name: value})
    with pytest.raises(ValueError, match=name):
        transformers.HfArgumentParser(transformers.TrainingArguments).parse_args_into_dataclasses(
            command, look_for_args_file=False
        )
    hf_compat.TrainingArguments("out", **{name: value})
    parser = hf_compat.HfArgumentParser(hf_compat.TrainingArguments)
    assert len(parser.parse_args_into_dataclasses(command, look_for_args_file=False)) == 1


@dataclasses.dataclass
class Bare:
    """A script's options of types without what is in them."""

    names: list = dataclasses.field(default_factory=list)
    settings: dict = dataclasses.field(default_factory=dict)


def test_bare_types_on_a_command_line():
    """``list`` takes words, ``dict`` an object of JSON; transformers' parser raises an AttributeError."""
    with pytest.raises(AttributeError):
        transformers.HfArgumentParser(Bare)
    words = ["--names", "a", "b", "--settings", '{"c": 1}']
    (found,) = hf_compat.HfArgumentParser(Bare).parse_args_into_dataclasses(words, look_for_args_file=False)
    assert found == Bare(["a", "b"], {"c": 1})


def test_tensors_in_logs(tmp_path):
    """A tensor of one number is a number to TensorBoard; transformers' callback leaves it out."""
    pytest.importorskip("tensorboard")
    from transformers.integrations import TensorBoardCallback

    from hf_compat.engine.loggers.contents import numbers

    written = {}

    class Writer:
        def add_scalar(self, name, value, step):
            written[name] = value

        def flush(self):
            pass

    logs = {"a": torch.tensor(2.5), "b": 1.0}
    state = transformers.TrainerState(is_world_process_zero=True)
    TensorBoardCallback(Writer()).on_log(short_arguments(transformers, tmp_path), state, None, logs=dict(logs))
    assert written == {"train/b": 1.0}
    assert numbers(logs) == {"a": 2.5, "b": 1.0}


def test_the_token_is_not_saved(tmp_path):
    """``training_args.bin`` has no ``hub_token``; transformers' has."""
    found = {}
    for library in (transformers, hf_compat):
        folder = tmp_path / library.__name__
        short_trainer(library, folder, hub_token="t0p-secret").save_model(str(folder / "model"))
        found[library] = b"t0p-secret" in (folder / "model" / "training_args.bin").read_bytes()
    assert found == {transformers: True, hf_compat: False}


def test_evaluating_with_patience_and_no_metric(tmp_path):
    """``evaluate`` returns its metrics although ``EarlyStoppingCallback`` has no metric to watch."""
    with pytest.raises(AttributeError):
        short_trainer(transformers, tmp_path, callbacks=[transformers.EarlyStoppingCallback()]).evaluate()
    trainer = short_trainer(hf_compat, tmp_path, callbacks=[hf_compat.EarlyStoppingCallback()])
    assert "eval_loss" in trainer.evaluate()
    with pytest.raises(AssertionError):
        trainer.train()


def test_a_group_added_in_a_callback(tmp_path):
    """The new group keeps its rate; in transformers the schedule has too few rates for the groups."""

    def run(library):
        class Adds(library.TrainerCallback):
            def on_step_end(self, args, state, control, optimizer=None, **given):
                if state.global_step == 1:
                    optimizer = getattr(optimizer, "optimizer", optimizer)
                    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 0.5})

        trainer = short_trainer(library, tmp_path, callbacks=[Adds()], max_steps=3)
        trainer.train()
        return trainer

    with pytest.raises(ValueError, match="zip"):
        run(transformers)
    assert run(hf_compat).optimizer.param_groups[-1]["lr"] == 0.5


def test_a_step_set_by_a_callback(tmp_path):
    """The run counts its update steps itself."""

    class Sets(hf_compat.TrainerCallback):
        def on_step_begin(self, args, state, control, **given):
            state.global_step = 100

    trainer = short_trainer(hf_compat, tmp_path, callbacks=[Sets()], max_steps=3)
    assert trainer.train().global_step == 3


class BareLoss(PlainModel):
    """Returns its loss as a bare tensor."""

    def forward(self, features, labels=None):
        return super().forward(features, labels)["loss"]


class Tied(PlainModel):
    """Has one tensor under two names."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(1, 1)
        self.other.weight = self.body[1].weight


@pytest.mark.parametrize("which", ["bare loss", "smoothing", "tied weights", "card"])
def test_models_that_transformers_cannot_take(which, tmp_path):
    """A bare loss, label smoothing and a card without ``config``, tied weights of a plain module: all train."""
    model, fields = {
        "bare loss": (BareLoss, {}),
        "smoothing": (PlainModel, {"label_smoothing_factor": 0.1}),
        "tied weights": (Tied, {"save_strategy": "steps", "save_steps": 1}),
        "card": (PlainModel, {}),
    }[which]

    def steps(library, folder):
        trainer = short_trainer(library, folder, model=model(), **fields)
        trainer.train()
        if which == "card":
            trainer.create_model_card()
        return trainer.state.global_step

    with pytest.raises((AttributeError, IndexError, RuntimeError, TypeError, ValueError)):
        steps(transformers, tmp_path / "theirs")
    assert steps(hf_compat, tmp_path / "ours") == 2


def test_arguments_without_generation(tmp_path):
    """``Seq2SeqTrainer`` takes ``TrainingArguments``; transformers' looks for ``generation_config`` in them."""
    with pytest.raises(AttributeError):
        short_trainer(transformers, tmp_path, transformers.Seq2SeqTrainer).evaluate()
    assert "eval_loss" in short_trainer(hf_compat, tmp_path, hf_compat.Seq2SeqTrainer).evaluate()


def test_an_optimizer_class_for_a_seq2seq_trainer(tmp_path):
    """``Seq2SeqTrainer`` takes ``optimizer_cls_and_kwargs`` as ``Trainer`` does."""

    def made(library):
        args = library.Seq2SeqTrainingArguments(tmp_path, **FIELDS)
        return library.Seq2SeqTrainer(PlainModel(), args, optimizer_cls_and_kwargs=(torch.optim.NAdam, {}))

    with pytest.raises(TypeError, match="optimizer_cls_and_kwargs"):
        made(transformers)
    assert isinstance(made(hf_compat).create_optimizer(), torch.optim.NAdam)


def test_overflow_is_looked_for_in_masks(tmp_path):
    """A mask of booleans is read as numbers; transformers asks torch for its absolute value."""

    class Masked(PlainModel):
        def forward(self, features, labels=None):
            self.noted(features > 0)
            return super().forward(features, labels)

        def __init__(self):
            super().__init__()
            self.noted = nn.Identity()

    with pytest.raises(NotImplementedError, match="Bool"):
        short_trainer(transformers, tmp_path, model=Masked(), debug="underflow_overflow").train()
    assert short_trainer(hf_compat, tmp_path, model=Masked(), debug="underflow_overflow").train().global_step == 2


@pytest.mark.parametrize("library", [transformers, hf_compat])
def test_the_best_checkpoint_of_a_run_that_moved(library, tmp_path):
    """It is beside the one that is resumed; transformers 5.24 has none, 4.57 that of the folder that is gone."""
    best = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "learning_rate": 0.0}
    best |= {"load_best_model_at_end": True, "metric_for_best_model": "loss"}  # the first is best, as all are the same
    first = short_trainer(library, tmp_path / "old", **best)
    first.train()
    folder = tmp_path / "new"
    Path(first.args.output_dir).rename(folder)
    trainer = short_trainer(library, tmp_path / "other", max_steps=3, **best)
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    gone = str(Path(first.args.output_dir, "checkpoint-1"))
    expected = [str(folder / "checkpoint-1")] if library is hf_compat else [None, gone]
    assert trainer.state.best_model_checkpoint in expected


SAVES_ONCE = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}


def test_metrics_of_an_overridden_save(tmp_path):
    """``_save_checkpoint`` gets ``metrics`` if it takes them."""
    seen = {}

    class Saves(hf_compat.Trainer):
        def _save_checkpoint(self, model, trial, metrics=None):
            seen["metrics"] = metrics
            super()._save_checkpoint(model, trial)

    short_trainer(hf_compat, tmp_path, Saves, **SAVES_ONCE).train()
    assert "eval_loss" in seen["metrics"]


def test_overrides_write_into_a_hidden_folder(tmp_path):
    """``save_model`` and ``_save`` get a hidden folder, which becomes the checkpoint."""
    seen = {}

    class Saves(hf_compat.Trainer):
        def save_model(self, output_dir=None, _internal_call=False):
            seen["save_model"] = output_dir
            super().save_model(output_dir, _internal_call)

        def _save(self, output_dir=None, state_dict=None):
            seen["_save"] = output_dir
            super()._save(output_dir, state_dict)

    short_trainer(hf_compat, tmp_path, Saves, **SAVES_ONCE).train()
    assert seen["save_model"] == seen["_save"]
    assert ".checkpoint-2.partial-" in str(seen["_save"])
    assert (tmp_path / "out" / "checkpoint-2" / "model.safetensors").is_file()


def test_lines_of_a_save_name_the_hidden_folder(tmp_path, caplog):
    """Lines that transformers logs at INFO level while it writes name the folder that becomes the checkpoint."""
    logger = logging.getLogger("transformers")
    propagates, logger.propagate = logger.propagate, True
    fields = {"save_strategy": "steps", "save_steps": 2}
    rows = ListDataset([{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * 8)
    try:
        args = short_arguments(hf_compat, tmp_path, **fields)
        with caplog.at_level(logging.INFO, logger="transformers"):
            hf_compat.Trainer(GPT2(), args, train_dataset=rows).train()
    finally:
        logger.propagate = propagates
    lines = [text for text in caplog.messages if text.startswith("Configuration saved in")]
    assert lines
    assert all(str(tmp_path / "out" / ".checkpoint-2.partial-") in line for line in lines)


def test_sentences_of_the_model_card(tmp_path):
    """The card says in hf_compat's own words where the model comes from."""
    texts = {}
    for library in (transformers, hf_compat):
        trainer = short_trainer(library, tmp_path / library.__name__, model=GPT2())
        trainer.create_model_card()
        texts[library] = (tmp_path / library.__name__ / "out" / "README.md").read_text()
    assert "This model is a fine-tuned version of" in texts[transformers]
    assert "Trained from scratch on an unknown dataset." in texts[hf_compat]


# ---- what both do, and transformers otherwise ----


@pytest.mark.parametrize("library", [hf_compat, transformers], ids=lambda library: library.__name__)
def test_states_of_callbacks_of_one_class(library, tmp_path):
    """Each of two callbacks of one class goes on with its own state at the checkpoint; transformers' at the start."""
    exportable = hf_compat.ExportableState if library is hf_compat else transformers.trainer_callback.ExportableState

    class Counts(library.TrainerCallback, exportable):
        def __init__(self, count=0):
            self.count = count

        def on_step_end(self, args, state, control, **given):
            self.count += 1

        def state(self):
            return {"args": {"count": self.count}, "attributes": {}}

    def run(steps, first, second, **fields):
        saving = {"save_strategy": "steps", "save_steps": 2, "max_steps": steps, **fields}
        return short_trainer(library, tmp_path, callbacks=[Counts(first), Counts(second)], **saving)

    run(2, 10, 20).train()
    trainer = run(3, 0, 0, restore_callback_states_from_checkpoint=True)
    trainer.train(resume_from_checkpoint=True)
    counts = [each.count for each in trainer.callback_handler.callbacks if isinstance(each, Counts)]
    assert counts == ([13, 23] if library is hf_compat else [11, 21])


@pytest.mark.parametrize("library", [hf_compat, transformers], ids=lambda library: library.__name__)
def test_precision_of_a_later_trainer(library, tmp_path):
    """A Trainer after one with ``bf16`` computes in its own precision; under transformers 4.57 in bf16 too."""
    found = [short_trainer(library, tmp_path, bf16=bf16).accelerator.mixed_precision for bf16 in (True, False)]
    assert found == ["bf16", "no" if library is hf_compat or IS_5 else "bf16"]


@pytest.mark.parametrize("library", [transformers, hf_compat])
def test_an_adapter_beside_the_default_one(library, tmp_path):
    """The default adapter is loaded from a checkpoint that has another one in a folder; not by transformers 4.57."""
    peft = pytest.importorskip("peft")

    def adapted():
        torch.manual_seed(0)
        return peft.get_peft_model(nn.Sequential(nn.Linear(2, 2)), peft.LoraConfig(target_modules=["0"]))

    saved, fresh = adapted(), adapted()
    with torch.no_grad():
        for name, weight in saved.named_parameters():
            if "lora_B" in name:
                weight.fill_(1.0)
    saved.save_pretrained(str(tmp_path / "checkpoint"))
    saved.save_pretrained(str(tmp_path / "checkpoint" / "adapter_model"))
    trainer = library.Trainer(fresh, short_arguments(library, tmp_path / "out"), train_dataset=ListDataset([{}]))
    trainer._load_from_checkpoint(str(tmp_path / "checkpoint"))
    (loaded,) = (weight for name, weight in fresh.named_parameters() if "lora_B.default" in name)
    assert (loaded == 1.0).all() == (library is hf_compat or IS_5)


@pytest.mark.parametrize("library", [transformers, hf_compat])
def test_arguments_made_between_two_runs(library, tmp_path):
    """A Trainer trains again after a copy of its arguments was made, with which transformers resets what it uses."""
    trainer = short_trainer(library, tmp_path)
    trainer.train()
    dataclasses.replace(trainer.args)
    fails = pytest.raises(AttributeError, match="`AcceleratorState` object has no attribute")
    with fails if library is transformers else contextlib.nullcontext():
        assert trainer.train().global_step == 2


def test_noise_with_a_model_init(tmp_path):
    """The model that ``model_init`` makes gets NEFTune's noise while it is trained."""
    from hf_compat import TrainerCallback

    seen = []

    class Looks(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **given):
            seen.append(len(model.get_input_embeddings()._forward_hooks))

    args = short_arguments(hf_compat, tmp_path, neftune_noise_alpha=1.0)
    rows = ListDataset([{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * 8)
    trainer = hf_compat.Trainer(model_init=GPT2, args=args, train_dataset=rows, callbacks=[Looks()])
    trainer.train()
    assert seen == [1, 1]
    assert not trainer.model.get_input_embeddings()._forward_hooks


@pytest.mark.parametrize("library", [transformers, hf_compat])
def test_memory_after_an_error(library, tmp_path):
    """An evaluation after a run that an error ended has metrics of memory; in transformers the run still measures."""

    class Stops(library.TrainerCallback):
        def on_step_begin(self, args, state, control, **given):
            raise KeyboardInterrupt

    trainer = short_trainer(library, tmp_path, callbacks=[Stops()], skip_memory_metrics=False)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert ("eval_mem_cpu_alloc_delta" in trainer.evaluate()) == (library is hf_compat)


def test_texts_at_the_beginning_of_a_batch(tmp_path):
    """A stream's batch may begin with a list of texts, in which accelerate looks for the size of the batch."""

    class Told(PlainModel):
        def forward(self, notes, features, labels=None):
            return super().forward(features, labels)

    def collate(rows):
        return {"notes": ["a text"] * len(rows), **{key: torch.tensor([row[key] for row in rows]) for key in rows[0]}}

    def run(library):
        args = short_arguments(library, tmp_path, remove_unused_columns=False)
        return library.Trainer(Told(), args, collate, train_dataset=Stream(vector_rows(8))).train()

    with pytest.raises(TypeError, match="batch size of tensors"):
        run(transformers)
    assert run(hf_compat).global_step == 2


@pytest.mark.parametrize(("library", "hooks"), [(transformers, [1, 2]), (hf_compat, [1, 1])])
def test_noise_after_an_error(library, hooks, tmp_path):
    """A run that an error ends takes its noise off the embeddings; in transformers a second run has two hooks there."""
    seen = []

    class Stops(library.TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **given):
            seen.append(len(model.get_input_embeddings()._forward_hooks))
            if len(seen) == 1:
                raise KeyboardInterrupt

    args = short_arguments(library, tmp_path, neftune_noise_alpha=1.0, max_steps=1)
    rows = ListDataset([{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * 8)
    trainer = library.Trainer(GPT2(), args, train_dataset=rows, callbacks=[Stops()])
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.train()
    assert seen == hooks


def test_a_collator_assigned_to_the_loader(tmp_path):
    """A callback's new ``collate_fn`` makes the batches of the epochs that follow; transformers' makes none."""
    zeros = {"features": torch.zeros(2, 16), "labels": torch.zeros(2).long()}

    def losses(library):
        class Zeros(library.TrainerCallback):
            def on_epoch_begin(self, args, state, control, train_dataloader=None, **given):
                train_dataloader.collate_fn = lambda rows: zeros

        torch.manual_seed(0)
        args = short_arguments(library, tmp_path / library.__name__, logging_steps=1)
        rows = ListDataset(vector_rows(4))
        trainer = library.Trainer(PlainModel(dropout=0.0), args, train_dataset=rows, callbacks=[Zeros()])
        outputs = trainer.model(**zeros)["loss"].item()
        trainer.train()
        return trainer.state.log_history[0]["loss"], pytest.approx(outputs, abs=1e-4)

    found, of_zeros = losses(hf_compat)
    assert found == of_zeros
    found, of_zeros = losses(transformers)
    assert found != of_zeros


def test_accelerates_number_of_batches(tmp_path, monkeypatch):
    """Gradients are those of the loss; 4.57's are divided by what accelerate reads in the environment."""

    def norm(library, folder):
        torch.manual_seed(0)
        args = short_arguments(library, tmp_path / library.__name__ / folder, logging_steps=1)
        trainer = library.Trainer(PlainModel(dropout=0.0), args, train_dataset=ListDataset(vector_rows(4)))
        trainer.train()
        return trainer.state.log_history[0]["grad_norm"]

    before = norm(hf_compat, "before")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    assert norm(hf_compat, "after") == before
    assert norm(transformers, "after") == pytest.approx(before / (1 if IS_5 else 4))


def test_metrics_in_a_notebook(tmp_path):
    """``evaluate`` returns times too under the notebook's callback."""
    pytest.importorskip("IPython")
    from hf_compat.callbacks.notebook import NotebookProgressCallback

    trainer = short_trainer(hf_compat, tmp_path, callbacks=[NotebookProgressCallback])
    assert "eval_runtime" in trainer.evaluate()


def test_no_callback_saves_on_a_signal(tmp_path):
    """With ``enable_jit_checkpoint`` there is no ``JITCheckpointCallback``: the run itself saves."""
    trainer = short_trainer(hf_compat, tmp_path, enable_jit_checkpoint=True, save_strategy="steps")
    assert not [each for each in trainer.callback_handler.callbacks if "JIT" in type(each).__name__]
    assert not hasattr(hf_compat, "JITCheckpointCallback")


def test_arguments_of_transformers_are_copied(tmp_path):
    """What is assigned to transformers' own arguments after the Trainer was built has no effect."""
    args = short_arguments(transformers, tmp_path)
    trainer = hf_compat.Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(8)))
    args.max_steps = 1
    assert trainer.train().global_step == 2
    trainer.args.max_steps = 1
    assert trainer.train().global_step == 1


LONE = """
import importlib, sys
import torch
from tests.support.helpers import ListDataset, PlainModel, vector_rows

library = importlib.import_module(sys.argv[1])
torch.manual_seed(0)
args = library.TrainingArguments(
    sys.argv[2], max_steps=2, use_cpu=True, save_strategy="no", report_to="none", disable_tqdm=True
)
trainer = library.Trainer(PlainModel(dropout=0.0), args, train_dataset=ListDataset(vector_rows(32)))
group = torch.distributed.get_world_size()
loss = trainer.train().training_loss
print(f"<{group} {type(trainer.model_wrapped).__name__} {args.parallel_mode.value} {loss}>", flush=True)
"""


def test_a_lone_process_of_a_launcher(tmp_path):
    """With ``use_cpu`` it has a process group in both libraries, and DDP's wrapper in transformers alone."""
    found = []
    for library in (transformers, hf_compat):
        output = launched(LONE, library, tmp_path, processes=1)
        found.append(re.search(r"<(\S+) (\S+) (\S+) (\S+)>", output).groups())
    (upstream, ours), numbers = zip(*((each[1:3], (each[0], each[3])) for each in found), strict=True)
    assert numbers[0] == numbers[1]
    assert (upstream, ours) == (("DistributedDataParallel", "distributed"), ("PlainModel", "not_parallel"))


def test_a_backend_in_a_single_process(tmp_path):
    """There is nothing to communicate with; transformers raises an error on the CPU."""
    with pytest.raises(ValueError, match="process group has not been initialized"):
        _ = short_arguments(transformers, tmp_path, ddp_backend="gloo").device
    assert short_trainer(hf_compat, tmp_path, ddp_backend="gloo").train().global_step == 2


@pytest.mark.parametrize("name", ["is_loaded_in_8bit", "is_loaded_in_4bit", "neither"])
def test_weights_in_4_bits_are_not_replicated(name):
    """A model that says that its weights are quantized stays as it is on the GPUs of a process."""
    from hf_compat.engine.strategies.base import replicated

    model = PlainModel()
    setattr(model, name, True)
    assert isinstance(replicated(model), nn.DataParallel) == (name == "neither")


def test_launched_without_a_gpu(tmp_path):
    """What a launcher starts is one run, without ``use_cpu`` too."""
    script = tmp_path / "script.py"
    script.write_text(
        "from hf_compat import TrainingArguments\n"
        "args = TrainingArguments('out')\n"
        "print(f'<{args.process_index} of {args.world_size}, {args.use_cpu}, {args.device.type}>')\n"
    )
    ended = torchrun(script, CUDA_VISIBLE_DEVICES="")
    assert ended.code == 0, ended.output
    for rank in (0, 1):
        assert f"<{rank} of 2, False, cpu>" in ended.output


@pytest.mark.parametrize("steps", [0.0, 1.0, 2.0])
def test_whole_steps_of_warmup_as_a_float(steps, tmp_path):
    """Under 4.57's semantics they are that many update steps; transformers 4.57 takes integers alone."""
    ours = short_arguments(hf_compat, tmp_path, warmup_steps=steps, semantics="4.57")
    assert (type(ours.warmup_steps), ours.get_warmup_steps(40)) == (int, steps)
    if not IS_5:
        with pytest.raises(ValueError, match="warmup_steps must be of type int"):
            short_arguments(transformers, tmp_path, warmup_steps=steps)


class Notes(nn.Module):
    """Notes the rows of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seen: list[list[int]] = []

    def forward(self, row: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return a loss."""
        self.seen.append(row.tolist())
        return {"loss": (self.weight * row).mean()}


@pytest.mark.parametrize("library", [hf_compat, transformers], ids=lambda library: library.__name__)
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3)])
def test_resuming_with_another_accumulation(library, before, after, tmp_path):
    """A run goes on at the first sample not trained on; that of transformers skips as many windows, of the new length.

    After two update steps, in the first of two epochs of seven batches.
    """
    rows = ListDataset([{"row": number} for number in range(13)])

    def seen(folder: Any, accumulation: int, checkpoint: Any = None) -> list[list[int]]:
        fields = {"max_steps": -1, "num_train_epochs": 2, "save_strategy": "steps", "save_steps": 2}
        args = short_arguments(library, folder, gradient_accumulation_steps=accumulation, **fields)
        trainer = library.Trainer(Notes(), args, train_dataset=rows)
        trainer.train(resume_from_checkpoint=checkpoint)
        return trainer.model.seen

    whole = seen(tmp_path / "whole", before)
    rest = seen(tmp_path / "rest", after, str(tmp_path / "whole" / "out" / "checkpoint-2"))
    assert len(whole) == 14
    assert rest == whole[2 * (before if library is hf_compat else after) :]


@pytest.mark.skipif(not IS_5, reason="seen of transformers 5.24")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's, with torch 2.13
@pytest.mark.parametrize("library", [hf_compat, transformers], ids=lambda library: library.__name__)
def test_a_stateful_loader_with_a_generator(library, tmp_path):
    """A resumed epoch goes on in the order of torchdata's loader; in transformers in that of one of torch's."""
    package = pytest.importorskip("torchdata.stateful_dataloader")

    class Own(library.Trainer):
        def get_train_dataloader(self):
            given = {"generator": torch.Generator().manual_seed(7), "collate_fn": self.data_collator}
            return self.accelerator.prepare(package.StatefulDataLoader(self.train_dataset, 2, shuffle=True, **given))

    def seen(folder: Any, checkpoint: Any = None) -> list[list[int]]:
        args = short_arguments(library, folder, max_steps=5, save_strategy="steps", save_steps=2)
        trainer = Own(Notes(), args, train_dataset=ListDataset([{"row": number} for number in range(20)]))
        trainer.train(resume_from_checkpoint=checkpoint)
        return trainer.model.seen

    whole = seen(tmp_path / "whole")
    rest = seen(tmp_path / "rest", str(tmp_path / "whole" / "out" / "checkpoint-2"))
    assert (rest == whole[2:]) is (library is hf_compat)


PARALLEL = """
import importlib, sys
from accelerate.parallelism_config import ParallelismConfig
from tests.support.helpers import ListDataset, PlainModel, vector_rows

library = importlib.import_module(sys.argv[1])
try:
    args = library.TrainingArguments(
        sys.argv[2], use_cpu=True, report_to="none", disable_tqdm=True, max_steps=2, save_strategy="no",
        parallelism_config=ParallelismConfig(dp_replicate_size=2),
    )
    told = library.Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(8))).train().global_step
except ValueError as error:
    told = error
print(f"<{args.process_index}: {told}>", flush=True)
"""


@pytest.mark.parametrize("library", [hf_compat, transformers], ids=lambda library: library.__name__)
def test_parallelism_on_the_cpu(library, tmp_path):
    """Two processes train under a `parallelism_config`; accelerate, and so transformers, has none for the CPU."""
    output = launched(PARALLEL, library, tmp_path)
    for rank in (0, 1):
        told = "2>" if library is hf_compat else "ParallelismConfig is only compatible"
        assert f"<{rank}: {told}" in output


DISPATCHED = """
import importlib, sys
import torch
from tests.support.helpers import WIDTH, ListDataset, PlainModel

library = importlib.import_module(sys.argv[1])
seen = []

class Sees(library.Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        seen.extend(inputs["features"][:, 0].int().tolist())
        return super().training_step(model, inputs, num_items_in_batch)

rows = ListDataset([{"features": [float(number)] * WIDTH, "labels": 0} for number in range(16)])
args = library.TrainingArguments(
    sys.argv[2], use_cpu=True, report_to="none", disable_tqdm=True, num_train_epochs=1, save_strategy="steps",
    save_steps=2, per_device_train_batch_size=2, accelerator_config={"dispatch_batches": True},
    save_only_model=True, dataloader_pin_memory=False,
)
for checkpoint in (None, sys.argv[2] + "/checkpoint-2"):
    seen.clear()
    torch.manual_seed(0)
    Sees(PlainModel(), args, train_dataset=rows).train(resume_from_checkpoint=checkpoint)
    print(f"<{args.process_index}: {'whole' if checkpoint is None else 'rest'} {seen}>", flush=True)
"""


@pytest.mark.parametrize("library", [hf_compat, transformers], ids=lambda library: library.__name__)
def test_dispatched_batches_are_skipped(library, tmp_path):
    """A resumed run trains on what is left of 16 rows; transformers skips 4 of the 8 that two processes have had."""
    found = re.findall(r"<\d: (whole|rest) \[(.*?)\]>", launched(DISPATCHED, library, tmp_path))
    rows = {kind: [int(row) for each, text in found if each == kind for row in text.split(", ")] for kind, _ in found}
    whole = [text.split(", ") for kind, text in found if kind == "whole"]
    left = {int(row) for texts in whole for row in texts[4:]}
    assert sorted(rows["whole"]) == list(range(16))
    assert (set(rows["rest"]) == left) == (library is hf_compat)


class Longer:
    """A batch sampler that yields more batches than it says."""

    def __init__(self, count, said):
        self.count, self.said = count, said

    def __len__(self):
        return self.said

    def __iter__(self):
        return iter([[2 * index, 2 * index + 1] for index in range(self.count)])


@pytest.mark.parametrize("library", [hf_compat, transformers], ids=lambda library: library.__name__)
def test_more_batches_than_said(library, tmp_path):
    """A resumed epoch ends where an uninterrupted one does; that of transformers 4.57 has the extra batches too."""

    class Samples(library.Trainer):
        def get_train_dataloader(self):
            loader = DataLoader(self.train_dataset, batch_sampler=Longer(6, 4), collate_fn=self.data_collator)
            return self.accelerator.prepare(loader)

    class Ends(library.TrainerCallback):
        def __init__(self):
            self.steps = []

        def on_epoch_end(self, args, state, control, **given):
            self.steps.append(state.global_step)

    whole, rest = Ends(), Ends()
    fields = {"max_steps": -1, "num_train_epochs": 2, "save_strategy": "steps", "save_steps": 2}
    short_trainer(library, tmp_path, Samples, rows=12, callbacks=[whole], **fields).train()
    trainer = short_trainer(library, tmp_path, Samples, rows=12, callbacks=[rest], **fields)
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert whole.steps == [4, 8]
    assert rest.steps == ([4, 8] if library is hf_compat or IS_5 else [6, 8])


class Once(IterableDataset):
    """A stream of four rows that can be read once."""

    def __init__(self):
        self.rows = vector_rows(4)

    def __iter__(self):
        rows, self.rows = self.rows, []
        return iter(rows)


@pytest.mark.parametrize("dispatches", [None, True, False], ids=["by default", "dispatched", "not dispatched"])
def test_a_dispatched_stream_that_ends_early(dispatches, tmp_path):
    """Training ends with the stream; in transformers the dispatcher, which it has by default, raises an error."""

    def run(library: Any) -> Any:
        fields = {"max_steps": 10, "accelerator_config": {"dispatch_batches": dispatches}}
        return library.Trainer(PlainModel(), short_arguments(library, tmp_path, **fields), train_dataset=Once()).train()

    assert run(hf_compat).global_step == 2
    if dispatches is False:
        assert run(transformers).global_step == 2
    else:
        with pytest.raises(ValueError, match="Batch does not contain any data"):
            run(transformers)


class WithoutClosure(torch.optim.SGD):
    """An optimizer whose step takes no closure."""

    def step(self) -> None:
        super().step()


def test_a_step_without_a_closure(tmp_path):
    """It is made; accelerate's wrapper passes a closure that the method does not take."""

    def run(library: Any) -> bool:
        trainer = short_trainer(library, tmp_path)
        trainer.optimizer = WithoutClosure(trainer.model.parameters(), lr=0.1)
        return changed(trainer)

    with pytest.raises(TypeError, match="positional argument"):
        run(transformers)
    assert run(hf_compat)


def test_a_checkpoint_of_a_plain_module_without_a_weight(tmp_path, caplog):
    """A run resumes from it, with a warning; transformers asks the module for an attribute that it lacks."""
    short_trainer(hf_compat, tmp_path, save_strategy="steps", save_steps=1).train()
    file = tmp_path / "out" / "checkpoint-1" / "model.safetensors"
    weights = load_file(file)
    missing = sorted(weights)[-1]
    del weights[missing]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(AttributeError, match="_keys_to_ignore_on_save"):
        short_trainer(transformers, tmp_path).train(str(file.parent))
    with caplog.at_level("WARNING"):
        assert short_trainer(hf_compat, tmp_path).train(str(file.parent)).global_step == 2
    assert f"no weights for ['{missing}']" in caplog.text


def test_a_trainer_within_a_trainer(tmp_path):
    """Batches that do not end an update step are not said to; in transformers they are after another Trainer's run."""

    def run(library: Any) -> list[bool]:
        class Trains(library.TrainerCallback):  # type: ignore[misc,name-defined]
            def on_substep_end(self, *given: Any, **named: Any) -> None:
                short_trainer(library, tmp_path / "inner", max_steps=1).train()
                seen.append(bool(trainer.accelerator.sync_gradients))

        seen: list[bool] = []
        trainer = short_trainer(library, tmp_path, callbacks=[Trains()], gradient_accumulation_steps=2)
        trainer.train()
        return seen

    assert run(transformers) == [True, True]
    assert run(hf_compat) == [False, False]


def test_label_smoothing_of_a_model_without_a_config(tmp_path):
    """It trains; transformers looks up the model's class in its `config`, and raises."""
    with pytest.raises(AttributeError, match="config"):
        short_trainer(transformers, tmp_path, label_smoothing_factor=0.1)
    assert short_trainer(hf_compat, tmp_path, label_smoothing_factor=0.1).train().global_step > 0


def test_label_smoothing_of_a_compiled_language_model(tmp_path):
    """It does not shift labels, as in transformers, and warns; corrected, it has the loss of a model that is not."""

    def loss_of(library: Any, **fields: Any) -> float:
        torch.manual_seed(0)
        args = short_arguments(library, tmp_path, label_smoothing_factor=0.1, **fields)
        model, tokens = gpt2(dropout=0.0), torch.arange(3, 9)
        rows = ListDataset([{"input_ids": tokens, "labels": tokens}] * 8)
        return library.Trainer(model, args, train_dataset=rows, eval_dataset=rows).evaluate()["eval_loss"]

    plain, compiled = loss_of(hf_compat), {"torch_compile_backend": "eager"}
    assert plain == loss_of(transformers)
    try:
        with pytest.warns(hf_compat.errors.HFCompatWarning, match="with `torch.compile`: .*its own token"):
            unshifted = loss_of(hf_compat, **compiled)
        assert unshifted == loss_of(transformers, **compiled) != plain
        assert loss_of(hf_compat, semantics="corrected", **compiled) == plain
    finally:
        torch.compiler.reset()


def test_a_plateau_without_a_named_metric(tmp_path):
    """It is told each `eval_loss`; transformers raises once it has evaluated."""

    def run(library: Any) -> tuple[float, float]:
        model, rows = PlainModel(), ListDataset(vector_rows(8))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        args = short_arguments(library, tmp_path, eval_strategy="steps", eval_steps=1)
        given = {"train_dataset": rows, "eval_dataset": rows, "optimizers": (optimizer, plateau)}
        trainer = library.Trainer(model, args, **given)
        trainer.train()
        return plateau.best, min(entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry)

    with pytest.raises(AttributeError, match="startswith"):
        run(transformers)
    best, lowest = run(hf_compat)
    assert best == lowest


class Empty(IterableDataset):
    """A stream that knows that it has no rows."""

    def __len__(self):
        return 0

    def __iter__(self):
        return iter(())


def test_an_empty_stream(tmp_path):
    """Training ends without an update step; in transformers 5 the dispatcher raises an error."""

    def run(library: Any) -> Any:
        return library.Trainer(PlainModel(), short_arguments(library, tmp_path), train_dataset=Empty()).train()

    assert run(hf_compat).global_step == 0
    if IS_5:
        with pytest.raises(ValueError, match="Batch does not contain any data"):
            run(transformers)
    else:
        assert run(transformers).global_step == 0


def test_a_stream_that_ends_early(tmp_path, caplog):
    """A stream that has no more rows before ``max_steps`` ends training, with a warning."""
    args = short_arguments(hf_compat, tmp_path, max_steps=10)
    with caplog.at_level("WARNING"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained = hf_compat.Trainer(PlainModel(), args, train_dataset=Once()).train()
    assert trained.global_step == 2
    assert "max_steps" in caplog.text + " ".join(str(item.message) for item in caught)


def GPT2() -> nn.Module:  # noqa: N802
    """Return a language model of one layer."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    return transformers.GPT2LMHeadModel(config)
