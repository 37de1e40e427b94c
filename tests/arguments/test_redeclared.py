"""A script's subclass declares a field that its transformers release has not: the field is the script's."""

import dataclasses
import json
import pickle
from dataclasses import dataclass

import pytest
import torch
from packaging.version import Version

import hf_compat
from hf_compat import Trainer
from hf_compat.arguments import TrainingArguments, from_transformers
from hf_compat.arguments.fields import declared
from hf_compat.arguments.releases import NEWEST_RELEASE, resolve_semantics
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.paths import FACTS_FOLDER

transformers = pytest.importorskip("transformers")

RELEASE = resolve_semantics().release
FIELDS = declared(hf_compat.Seq2SeqTrainingArguments)
SCRIPTS_OWN = {
    "warmup_ratio": (float, 0.5, 0.25),
    "evaluation_strategy": (str, "epoch", "steps"),
    "logging_dir": (str, "logs", "elsewhere"),
    "no_cuda": (bool, True, True),
    "save_safetensors": (bool, False, False),
    "past_index": (int, 1, 0),
    "adafactor": (bool, True, True),
    "group_by_length": (bool, True, True),
    "use_legacy_prediction_loop": (bool, True, True),
    "use_ipex": (bool, True, True),
    "train_sampling_strategy": (str, "sequential", "group_by_length"),
    "enable_jit_checkpoint": (bool, True, True),
    "activation_checkpointing": (bool, True, True),
    "split_batches": (bool, True, True),
    "per_gpu_train_batch_size": (int, 2, 3),
}
"""Field to its type, a default and another value, each of which would change a run if it were the library's."""


def own_of_the_script(library, name):
    """Return a script's subclass of the arguments of ``library`` that declares ``name`` anew."""
    of, default, _ = SCRIPTS_OWN[name]
    label = f"ScriptArguments_{library.__name__}_{name}"
    kind = dataclasses.make_dataclass(label, [(name, of, default)], bases=(library.TrainingArguments,))
    kind.__module__ = __name__  # so that it can be pickled
    return globals().setdefault(label, kind)


def seen_of_a_run(library, args, folder):
    """Return all that the script's field could change: losses, rates, evaluations and files."""
    torch.manual_seed(0)
    rows = ListDataset(vector_rows(10))
    trainer = library.Trainer(PlainModel(), args, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    timed = ("runtime", "per_second", "preparation_time")
    logs = [{k: v for k, v in row.items() if not k.endswith(timed)} for row in trainer.state.log_history]
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if "tfevents" not in path.name}
    return logs, {path for path in files if not path.rpartition("/")[2].startswith(("lightning.", "runs"))}


SETTINGS = {
    "use_cpu": True,
    "max_steps": 4,
    "per_device_train_batch_size": 4,
    "logging_steps": 1,
    "eval_steps": 2,
    "save_steps": 2,
    "report_to": "none",
    "disable_tqdm": True,
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", [name for name in SCRIPTS_OWN if not FIELDS[name].is_of(RELEASE)])
def test_the_run_is_that_of_transformers(name, tmp_path):
    """Run and script's value are those of the same subclass of transformers' arguments, ours and converted."""
    value = SCRIPTS_OWN[name][2]
    seen = {}
    for which, library, kind in (
        ("upstream", transformers, transformers),
        ("ours", hf_compat, hf_compat),
        ("mixed", hf_compat, transformers),
    ):
        args = own_of_the_script(kind, name)(output_dir=str(tmp_path / which), **SETTINGS, **{name: value})
        seen[which] = seen_of_a_run(library, args, tmp_path / which)
        assert getattr(args, name) == value
    assert seen["ours"] == seen["upstream"] == seen["mixed"]


@pytest.mark.parametrize("name", [name for name in SCRIPTS_OWN if not FIELDS[name].is_of(RELEASE)])
def test_nothing_is_taken_from_it(name, recwarn):
    """The library's other fields are as without it, nothing is warned of, and a copy has the script's value."""
    _, default, value = SCRIPTS_OWN[name]
    kind, plain = own_of_the_script(hf_compat, name), TrainingArguments("out")
    args = kind("out", **{name: value})
    others = {item.name for item in dataclasses.fields(TrainingArguments)} - {name}
    assert {other: getattr(args, other) for other in others} == {other: getattr(plain, other) for other in others}
    assert [getattr(found, name) for found in (kind("out"), args)] == [default, value]
    for copied in (pickle.loads(pickle.dumps(args)), dataclasses.replace(args, seed=args.seed)):
        assert copied == args
        assert getattr(copied, name) == value
    assert len(recwarn) == 0


def test_a_field_of_the_release_stays_the_librarys():
    """A subclass that declares a field which the release has gives it another default."""

    @dataclass
    class ScriptArguments(TrainingArguments):
        warmup_ratio: float | None = 0.5
        learning_rate: float = 1.0

    older, newer = (ScriptArguments("out", semantics=release) for release in ("4.57", "5.23"))
    assert (older.get_warmup_steps(10), newer.get_warmup_steps(10)) == (5, 0)
    assert older.learning_rate == newer.learning_rate == 1.0


def test_setters_leave_it_alone():
    """A method that sets the old name sets the value of the run."""

    @dataclass
    class ScriptArguments(TrainingArguments):
        warmup_ratio: float = 0.5

    args = ScriptArguments("out", semantics="5.23")
    with pytest.warns(FutureWarning, match="warmup_ratio"):
        args.set_lr_scheduler(warmup_ratio=0.1)
    assert (args.warmup_ratio, args.get_warmup_steps(30)) == (0.5, 3)


def test_the_installed_release_has_the_fields():
    """The declarations are right about the installed release."""
    here = {item.name for item in dataclasses.fields(transformers.TrainingArguments)}
    assert {name for name, item in declared(TrainingArguments).items() if item.is_of(RELEASE)} == here


def test_every_release_has_its_fields():
    """They are right about every release from 4.57 on whose fields are known."""
    facts = json.loads((FACTS_FOLDER / "training_arguments.json").read_text(encoding="utf-8"))["fields"]
    known = {Version(row[end]) for row in facts for end in ("first", "last")} | {NEWEST_RELEASE}
    for row in facts:
        for release in (each for each in known if each >= Version("4.57.1")):
            has = Version(row["first"]) <= release <= Version(row["last"])
            assert FIELDS[row["name"]].is_of(release) == has, (row["name"], release)
    named = {str(end) for item in FIELDS.values() for end in (item.since, item.until) if end is not None}
    assert named <= {"4.57", "5.0", "5.2", "5.6", "5.15", "5.23"}


def test_converted_arguments():
    """What a script has attached to transformers' arguments stays, and means nothing to the run."""
    args = transformers.TrainingArguments("out")
    args.tp_size = 7
    converted = from_transformers(args)
    assert converted.tp_size == 7
    assert Trainer(PlainModel(), converted).args is converted
