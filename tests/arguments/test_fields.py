"""The rules of fields: one each, what it names exists, and what is refused."""

import dataclasses
import inspect
import json
import warnings
from pathlib import Path

import pytest

from hf_compat.arguments import FIELD_RULES, AcceleratorConfig, Seq2SeqTrainingArguments, TrainingArguments, checks
from hf_compat.arguments.fields import ALIASES
from hf_compat.arguments.releases import defaults
from hf_compat.errors import UnknownArgumentError, UnsupportedArgumentsError
from tests.support.helpers import RELEASE_4, RELEASE_5
from tests.support.paths import FACTS_FOLDER

FACTS = json.loads((FACTS_FOLDER / "training_arguments.json").read_text(encoding="utf-8"))
PACKAGE = Path(inspect.getfile(TrainingArguments)).parents[1]
NOT_WRITTEN_YET: set[str] = set()


def names_of(kind):
    return [item.name for item in dataclasses.fields(kind)]


def rules(handling):
    return [rule for rule in FIELD_RULES if rule.handling == handling]


def test_one_rule_per_field():
    """Every field has one rule, in the order of declaration, and no rule is for a field that is none."""
    assert [rule.field for rule in FIELD_RULES] == names_of(Seq2SeqTrainingArguments)


def test_targets_exist():
    """A rule names a keyword of Lightning's Trainer, a module of ours or a field."""
    lightning = pytest.importorskip("lightning.pytorch")
    keywords = inspect.signature(lightning.Trainer).parameters
    assert {rule.target for rule in rules("trainer")} <= set(keywords)
    assert {rule.target for rule in rules("alias")} <= set(names_of(TrainingArguments))
    missing = {rule.target for rule in rules("plan") if not (PACKAGE / rule.target).exists()}
    assert missing <= NOT_WRITTEN_YET


def test_aliases_have_rules():
    """The table of older names and the table of fields say the same."""
    by_release = {"gradient_checkpointing", "gradient_checkpointing_kwargs", "warmup_ratio"}
    by_release |= {"include_tokens_per_second", "fsdp_min_num_params", "fsdp_transformer_layer_cls_to_wrap"}
    told = {(rule.field, rule.target) for rule in rules("alias") if rule.field not in by_release}
    assert {(alias.old, alias.new) for alias in ALIASES} == told


def test_every_field_has_help():
    """The command line explains every field in one line."""
    for item in dataclasses.fields(Seq2SeqTrainingArguments):
        if item.init:
            assert item.metadata["help"].endswith("."), item.name
            assert "%" not in item.metadata["help"], "argparse would read it as a format"


def off_default(name):
    """Return a value that asks for something."""
    default = defaults()[name]
    special = {"hub_strategy": "end", "debug": "underflow_overflow", "tp_size": 2}
    if name in special:
        return special[name]
    return (not default) if isinstance(default, bool) else 3 if isinstance(default, int) else "x"


@pytest.mark.parametrize("rule", rules("unsupported"), ids=lambda rule: rule.field)
def test_unsupported_fields(rule):
    """A field that cannot be carried out is refused off its default, with advice; at its default it is not."""
    value = off_default(rule.field)
    with pytest.raises(UnsupportedArgumentsError) as caught:
        TrainingArguments("out", **{rule.field: value})
    (problem,) = caught.value.problems
    assert problem.startswith(f"`{rule.field}=")
    assert problem.endswith(f"{rule.target}.")
    for harmless in (defaults()[rule.field], *rule.harmless):
        TrainingArguments("out", **{rule.field: harmless})


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
    refused = {rule.field for rule in rules("unsupported")}
    deprecated = {row["name"] for row in FACTS["fields"] if "deprecated" in row}
    assert deprecated - refused == {name for name, warned in shown.items() if warned}
    assert {rule.field for rule in rules("alias")} <= shown.keys() | refused


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
