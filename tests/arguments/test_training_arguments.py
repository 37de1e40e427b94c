"""``TrainingArguments``: their fields, what a script does with them, and what they import."""

import dataclasses
import inspect
import json
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from hf_compat.arguments import Seq2SeqTrainingArguments, TrainingArguments
from hf_compat.arguments.fields import declared
from hf_compat.errors import ArgumentsError, UnknownArgumentError, UnsupportedArgumentsError
from tests.support.helpers import RELEASE_4, RELEASE_5
from tests.support.paths import FACTS_FOLDER

OWN_FIELDS = {name for name, item in declared(TrainingArguments).items() if item.is_ours}
FACTS = json.loads((FACTS_FOLDER / "training_arguments.json").read_text(encoding="utf-8"))
PACKAGE = Path(inspect.getfile(TrainingArguments)).parents[1]


def names_of(kind):
    return [item.name for item in dataclasses.fields(kind)]


# The table of fields


def test_every_field_of_every_release():
    """All fields that any release from 4.31 to 5.24 had are there, and those of our own."""
    seq2seq = {row["name"] for row in FACTS["fields"] if row.get("seq2seq")}
    known = {row["name"] for row in FACTS["fields"]}
    assert len(known) == 155
    assert set(names_of(TrainingArguments)) == (known - seq2seq) | OWN_FIELDS
    assert set(names_of(Seq2SeqTrainingArguments)) == known | OWN_FIELDS


def test_order():
    """Positional arguments come in the order of 5.24.0, then the older fields."""
    assert names_of(TrainingArguments)[: len(FACTS["positional"])] == FACTS["positional"]
    assert TrainingArguments("out", 2).per_device_train_batch_size == 2


OTHER_DEFAULTS = {
    "optim": "goes by the installed torch",
    "report_to": "None stands for the release's default, which was 'all' before 5.0",
}


def test_defaults_are_those_of_the_last_release():
    """A field has the default of the last release that had it."""
    known = {row["name"]: row["default"] for row in FACTS["fields"] if row["name"] not in OTHER_DEFAULTS}
    defaults = {
        item.name: item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
        for item in dataclasses.fields(Seq2SeqTrainingArguments)
    }
    assert {name: defaults[name] for name in known} == known


def test_tokens_are_never_shown():
    """No text of the arguments, an error's included, holds a token."""
    with pytest.raises(UnsupportedArgumentsError) as caught:
        TrainingArguments("out", tpu_num_cores=8, hub_token="hf_secret")
    assert "hf_secret" not in str(caught.value)
    for field in ("accelerator_config", "lr_scheduler_kwargs", "report_to"):
        with pytest.raises(ArgumentsError) as caught:
            TrainingArguments("out", **{field: '{"api_key": "hf_secret"'})
        assert "hf_secret" not in str(caught.value)
    args = TrainingArguments("out")
    args.hub_token = "hf_secret"
    assert "hf_secret" not in f"{args} {args!r} {args.to_json_string()} {args.to_sanitized_dict()}"


# Use in scripts


@dataclass
class ScriptArguments(TrainingArguments):
    """As run_mae derives its arguments."""

    base_learning_rate: float = dataclasses.field(default=1e-3, metadata={"help": "Rate for 256 samples."})

    def __post_init__(self):
        super().__post_init__()
        self.learning_rate = self.base_learning_rate * self.train_batch_size / 256


def test_subclass():
    """A script's dataclass adds fields; unknown keywords are still refused and the signature is its own."""
    args = ScriptArguments("out", base_learning_rate=0.5, use_cpu=True)
    assert args.learning_rate == 0.5 * 8 / 256
    assert "base_learning_rate" in inspect.signature(ScriptArguments).parameters
    assert "base_learning_rate" not in inspect.signature(TrainingArguments).parameters
    with pytest.raises(UnknownArgumentError, match="base_learning_rate"):
        ScriptArguments("out", base_learning_rat=1)


def test_mutable_copyable_picklable():
    """Fields are assigned after construction; copies and pickles are equal."""
    args = TrainingArguments("out", use_cpu=True, eval_strategy="epoch")
    args.learning_rate = 0.25
    assert pickle.loads(pickle.dumps(args)) == args
    copied = dataclasses.replace(args, seed=1)
    assert (copied.learning_rate, copied.seed, copied.eval_strategy) == (0.25, 1, "epoch")


def test_release_decides_reports_and_folders():
    """Before 5.0 no ``report_to`` meant everything and logs had a folder; since, neither."""
    older, newer = TrainingArguments("out", semantics=RELEASE_4), TrainingArguments("out", semantics=RELEASE_5)
    assert (older.report_to, newer.report_to) == (["tensorboard"], [])
    assert older.logging_dir.startswith(os.path.join("out", "runs"))
    assert newer.logging_dir is None


def test_nothing_heavy_is_imported():
    """Making arguments loads neither torch nor lightning nor transformers."""
    script = (
        "import sys; from hf_compat.arguments import TrainingArguments; TrainingArguments('out').to_sanitized_dict;"
        "print([name for name in ('torch', 'lightning', 'transformers', 'accelerate') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
