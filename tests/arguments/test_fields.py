"""The declarations of fields: an effect each, what it names exists, and what is refused."""

import dataclasses
import inspect
import json
import typing
import warnings
from pathlib import Path

import pytest

from hf_compat.arguments import AcceleratorConfig, Seq2SeqTrainingArguments, TrainingArguments, checks
from hf_compat.arguments.fields import ALIASES, DeclaredField, declared
from hf_compat.errors import UnknownArgumentError, UnsupportedArgumentsError
from tests.support.helpers import RELEASE_4, RELEASE_5
from tests.support.paths import FACTS_FOLDER

FACTS = json.loads((FACTS_FOLDER / "training_arguments.json").read_text(encoding="utf-8"))
PACKAGE = Path(inspect.getfile(TrainingArguments)).parents[1]


def names_of(kind):
    return [item.name for item in dataclasses.fields(kind)]


def fields_that_are(handling):
    return [item for item in declared(Seq2SeqTrainingArguments).values() if item.effect.handling == handling]


def test_every_field_says_what_becomes_of_it():
    """Every field is declared with ``option`` and its effect; the enum that it names is that of its type."""
    types = typing.get_type_hints(Seq2SeqTrainingArguments)
    for item in dataclasses.fields(Seq2SeqTrainingArguments):
        assert isinstance(item, DeclaredField)
        assert item.effect.sentence, item.name
        assert item.enum is None or item.enum in typing.get_args(types[item.name]), item.name


def test_targets_exist():
    """An effect names a keyword of Lightning's Trainer, a module of ours or a field."""
    lightning = pytest.importorskip("lightning.pytorch")
    keywords = inspect.signature(lightning.Trainer).parameters
    assert {item.effect.target for item in fields_that_are("trainer")} <= set(keywords)
    assert {item.effect.target for item in fields_that_are("alias")} <= set(names_of(TrainingArguments))
    assert [item.name for item in fields_that_are("plan") if not (PACKAGE / item.effect.target).exists()] == []


def test_aliases_are_declared_so():
    """The table of older names and the declarations say the same."""
    by_release = {"gradient_checkpointing", "gradient_checkpointing_kwargs", "warmup_ratio"}
    by_release |= {"include_tokens_per_second", "fsdp_min_num_params", "fsdp_transformer_layer_cls_to_wrap"}
    told = {(item.name, item.effect.target) for item in fields_that_are("alias") if item.name not in by_release}
    assert {(alias.old, alias.new) for alias in ALIASES} == told


def test_every_field_has_help():
    """The command line explains every field in one line."""
    for item in dataclasses.fields(Seq2SeqTrainingArguments):
        if item.init:
            assert item.metadata["help"].endswith("."), item.name
            assert "%" not in item.metadata["help"], "argparse would read it as a format"


def off_default(name):
    """Return a value that asks for something."""
    default = declared(TrainingArguments)[name].default
    special = {"hub_strategy": "end", "debug": "underflow_overflow", "tp_size": 2}
    if name in special:
        return special[name]
    return (not default) if isinstance(default, bool) else 3 if isinstance(default, int) else "x"


@pytest.mark.parametrize("field", fields_that_are("unsupported"), ids=lambda field: field.name)
def test_unsupported_fields(field):
    """A field that cannot be carried out is refused off its default, with advice; at its default it is not."""
    value = off_default(field.name)
    with pytest.raises(UnsupportedArgumentsError) as caught:
        TrainingArguments("out", **{field.name: value})
    (problem,) = caught.value.problems
    assert problem.startswith(f"`{field.name}=")
    assert problem.endswith(f"{field.effect.target}.")
    for harmless in (field.default, *field.effect.harmless):
        TrainingArguments("out", **{field.name: harmless})


@pytest.mark.parametrize("name", sorted(set(names_of(Seq2SeqTrainingArguments)) - set(names_of(TrainingArguments))))
def test_fields_of_generation_name_their_class(name):
    """A field that only the arguments for generation have is answered with their name."""
    with pytest.raises(UnknownArgumentError, match=f"`{name}` is not an argument .*: use `Seq2SeqTrainingArguments`"):
        TrainingArguments("out", **{name: 1})


@pytest.mark.parametrize(("name", "nearest"), [("learning_rat", "learning_rate"), ("eval_strategie", "eval_strategy")])
def test_unknown_keyword(name, nearest):
    """A keyword that no release knows is refused with the nearest one, as a ``TypeError``."""
    with pytest.raises(UnknownArgumentError, match=f"`{name}` is not an argument .* `{nearest}`") as caught:
        TrainingArguments("out", **{name: 1})
    assert isinstance(caught.value, TypeError)


OLDER_NAMES = [
    pytest.param({"evaluation_strategy": "epoch"}, {"eval_strategy": "epoch", "do_eval": True}, True, id="eval"),
    pytest.param({"no_cuda": True}, {"use_cpu": True, "dataloader_pin_memory": False}, True, id="cpu"),
    pytest.param({"per_gpu_train_batch_size": 3}, {"per_device_train_batch_size": 3}, True, id="train batch"),
    pytest.param({"per_gpu_eval_batch_size": 3}, {"per_device_eval_batch_size": 3}, True, id="eval batch"),
    pytest.param({"adafactor": True}, {"optim": "adafactor"}, True, id="adafactor"),
    pytest.param({"group_by_length": True}, {"train_sampling_strategy": "group_by_length"}, False, id="lengths"),
    pytest.param({"include_inputs_for_metrics": True}, {"include_for_metrics": ["inputs"]}, True, id="inputs"),
    pytest.param({"include_tokens_per_second": True}, {"include_num_input_tokens_seen": "all"}, False, id="tokens"),
    pytest.param({"fp16_backend": "cpu_amp"}, {"half_precision_backend": "cpu_amp"}, True, id="amp"),
    pytest.param({"torchdynamo": "eager"}, {"torch_compile_backend": "eager"}, True, id="dynamo"),
    pytest.param({"split_batches": False}, {"accelerator_config": AcceleratorConfig()}, True, id="split batches"),
    pytest.param({"gradient_checkpointing": True}, {"activation_checkpointing": True}, True, id="checkpointing"),
    pytest.param({"warmup_ratio": 0.25}, {"warmup_ratio": 0.25, "warmup_steps": 0}, True, id="warmup"),
    pytest.param({"logging_dir": "logs"}, {"logging_dir": "logs"}, True, id="logging"),
    pytest.param(
        {"dispatch_batches": False},
        {"accelerator_config": AcceleratorConfig(dispatch_batches=False)},
        True,
        id="dispatch batches",
    ),
    pytest.param({"push_to_hub_token": "t"}, {"hub_token": "t"}, True, id="token"),
    pytest.param({"push_to_hub_model_id": "m"}, {"hub_model_id": "m"}, True, id="model"),
    pytest.param({"push_to_hub_organization": "o"}, {"hub_model_id": "o/out"}, True, id="organization"),
    pytest.param(
        {"gradient_checkpointing_kwargs": {"a": 1}}, {"activation_checkpointing_kwargs": {"a": 1}}, True, id="keywords"
    ),
    pytest.param({"fsdp_min_num_params": 5, "fsdp": True}, {"fsdp": True}, True, id="size of FSDP's layers"),
    pytest.param(
        {"fsdp_transformer_layer_cls_to_wrap": "Block", "fsdp": True}, {"fsdp": True}, True, id="class of FSDP's layers"
    ),
    pytest.param({"use_mps_device": True}, {"use_mps_device": True}, True, id="mps"),
]  # fmt: skip
"""A field's older name with a value, what it sets, and whether it warns."""


def test_every_deprecated_field_has_a_row():
    """Whatever any release has deprecated is refused, or its row below shows that it works and warns."""
    shown = {name: warned for row in OLDER_NAMES for name, warned in [(next(iter(row.values[0])), row.values[2])]}
    refused = {item.name for item in fields_that_are("unsupported")}
    deprecated = {row["name"] for row in FACTS["fields"] if "deprecated" in row}
    assert deprecated - refused == {name for name, warned in shown.items() if warned}
    assert {item.name for item in fields_that_are("alias")} <= shown.keys() | refused


@pytest.mark.parametrize(("old", "new", "warned"), OLDER_NAMES)
def test_older_names(old, new, warned, monkeypatch):
    """An older name passes its value on; it warns where upstream does, at the line that gave it."""
    monkeypatch.setattr(checks, "accelerator_type", lambda: "mps")  # stands in for a Mac
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        args = TrainingArguments("out", semantics=RELEASE_5, **old)
    assert {name: getattr(args, name) for name in new} == new
    assert [item.category for item in caught] == [FutureWarning] * warned
    assert all(item.filename == __file__ for item in caught)


@pytest.mark.parametrize("semantics", [RELEASE_4, RELEASE_5])
@pytest.mark.parametrize("name", ["gradient_checkpointing", "activation_checkpointing"])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_both_names_of_checkpointing_read_the_same(name, semantics):
    """Whichever name is given, both read the same, keywords too; without either both are False."""
    given = {name: True, f"{name}_kwargs": '{"use_reentrant": "false"}'}
    args = TrainingArguments("out", semantics=semantics, **given)
    assert args.gradient_checkpointing is args.activation_checkpointing is True
    assert args.gradient_checkpointing_kwargs == args.activation_checkpointing_kwargs == {"use_reentrant": False}
    assert TrainingArguments("out").gradient_checkpointing is TrainingArguments("out").activation_checkpointing is False
