"""Fields that newer releases dropped or renamed, at their defaults, their borders and their ends: as in 4.57."""

import dataclasses

import pytest
from packaging.version import Version

import hf_compat
from hf_compat.arguments import TrainingArguments
from hf_compat.arguments.fields import ALIASES, checkpointing_keywords, checkpoints_activations, declared
from hf_compat.errors import HFCompatWarning

RELEASES = ["4.57.6", "5.24.0"]

LISTED = {"include_for_metrics": ["loss"]}
WRAPPED = {"fsdp": "full_shard auto_wrap"}


def warmup(args):
    """Return the update steps of warmup in runs of 1, 10 and 33 update steps."""
    return [args.get_warmup_steps(total) for total in (1, 10, 33)]


def key_of_fsdp(name):
    return lambda args: args.fsdp_config[name]


def field(name):
    return lambda args: getattr(getattr(args, name), "value", getattr(args, name))


def setting(name):
    return lambda args: getattr(args.accelerator_config, name)


TABLE = {
    "evaluation_strategy": (
        field("eval_strategy"),
        [
            ({"evaluation_strategy": None, "eval_strategy": "epoch"}, "epoch"),
            ({"evaluation_strategy": "no", "eval_strategy": "epoch"}, "no"),
        ],
    ),
    "per_gpu_train_batch_size": (
        field("train_batch_size"),
        [
            ({"per_gpu_train_batch_size": value, "per_device_train_batch_size": 4}, size)
            for value, size in ((None, 4), (0, 4), (1, 1), (5, 5))
        ],
    ),
    "per_gpu_eval_batch_size": (
        field("eval_batch_size"),
        [
            ({"per_gpu_eval_batch_size": value, "per_device_eval_batch_size": 4}, size)
            for value, size in ((None, 4), (0, 4), (1, 1), (5, 5))
        ],
    ),
    "no_cuda": (
        field("use_cpu"),
        [({"no_cuda": None}, True), ({"no_cuda": False}, True), ({"no_cuda": True, "use_cpu": False}, True)],
    ),
    "adafactor": (
        field("optim"),
        [
            ({"adafactor": value, "optim": "sgd"}, optim)
            for value, optim in ((None, "sgd"), (False, "sgd"), (True, "adafactor"))
        ],
    ),
    "include_inputs_for_metrics": (
        field("include_for_metrics"),
        [
            ({"include_inputs_for_metrics": False, **LISTED}, ["loss"]),
            ({"include_inputs_for_metrics": True, **LISTED}, ["loss", "inputs"]),
            ({"include_inputs_for_metrics": True}, ["inputs"]),
        ],
    ),
    "fp16_backend": (
        field("half_precision_backend"),
        [
            ({"fp16_backend": value, "half_precision_backend": "cuda_amp"}, backend)
            for value, backend in ((None, "cuda_amp"), ("", "cuda_amp"), ("auto", "cuda_amp"), ("cpu_amp", "cpu_amp"))
        ],
    ),
    "torchdynamo": (
        field("torch_compile_backend"),
        [
            ({"torchdynamo": None}, None),
            ({"torchdynamo": "eager", "torch_compile_backend": "inductor"}, "eager"),
        ],
    ),
    "push_to_hub_token": (
        field("hub_token"),
        [
            ({"push_to_hub_token": value, "hub_token": "new"}, token)
            for value, token in ((None, "new"), ("", ""), ("old", "old"))
        ],
    ),
    "push_to_hub_model_id": (
        field("hub_model_id"),
        [
            ({"push_to_hub_model_id": None, "hub_model_id": "me/new"}, "me/new"),
            ({"push_to_hub_model_id": "old", "push_to_hub_organization": "us", "hub_model_id": "me/new"}, "us/old"),
        ],
    ),
    "push_to_hub_organization": (
        field("hub_model_id"),
        [
            ({"push_to_hub_organization": None, "hub_model_id": "me/new"}, "me/new"),
            ({"push_to_hub_organization": "us", "hub_model_id": "me/new"}, "us/out"),
        ],
    ),
    "dispatch_batches": (
        setting("dispatch_batches"),
        [
            ({"dispatch_batches": None, "accelerator_config": {"dispatch_batches": True}}, True),
            ({"dispatch_batches": False, "accelerator_config": {"dispatch_batches": True}}, False),
            ({"dispatch_batches": True}, True),
        ],
    ),
    "split_batches": (
        setting("split_batches"),
        [
            ({"split_batches": None, "accelerator_config": {"split_batches": True}}, True),
            ({"split_batches": False, "accelerator_config": {"split_batches": True}}, False),
            ({"split_batches": True}, True),
        ],
    ),
    "warmup_ratio": (
        warmup,
        [
            ({"warmup_ratio": 0}, [0, 0, 0]),
            ({"warmup_ratio": 0.0, "warmup_steps": 2}, [2, 2, 2]),
            ({"warmup_ratio": 1e-9}, [1, 1, 1]),
            ({"warmup_ratio": 0.5}, [1, 5, 17]),
            ({"warmup_ratio": 0.5, "warmup_steps": 2}, [2, 2, 2]),
            ({"warmup_ratio": 0.5, "warmup_steps": 0}, [1, 5, 17]),
            ({"warmup_ratio": 1.0}, [1, 10, 33]),
            ({"warmup_ratio": 1, "warmup_steps": 1}, [1, 1, 1]),
        ],
    ),
    "gradient_checkpointing": (
        field("gradient_checkpointing"),
        [({"gradient_checkpointing": False}, False), ({"gradient_checkpointing": True}, True)],
    ),
    "gradient_checkpointing_kwargs": (
        field("gradient_checkpointing_kwargs"),
        [({"gradient_checkpointing_kwargs": value}, value) for value in (None, {}, {"use_reentrant": False})],
    ),
    "fsdp_min_num_params": (
        key_of_fsdp("min_num_params"),
        [
            ({"fsdp_min_num_params": 0, **WRAPPED}, 0),
            ({"fsdp_min_num_params": 4, "fsdp_config": {"min_num_params": 5}, **WRAPPED}, 5),
            ({"fsdp_min_num_params": 6, "fsdp_config": {"min_num_params": 5}, **WRAPPED}, 6),
            ({"fsdp_min_num_params": 6, **WRAPPED}, 6),
        ],
    ),
    "fsdp_transformer_layer_cls_to_wrap": (
        key_of_fsdp("transformer_layer_cls_to_wrap"),
        [
            ({"fsdp_transformer_layer_cls_to_wrap": "A", **WRAPPED}, ["A"]),
            (
                {
                    "fsdp_transformer_layer_cls_to_wrap": "A",
                    "fsdp_config": {"transformer_layer_cls_to_wrap": "B"},
                    **WRAPPED,
                },
                ["B", "A"],
            ),
        ],
    ),
}
"""Old field → what is seen of it, and its values, with other fields, beside what they make."""

BY_RELEASE = {"group_by_length", "include_tokens_per_second"}
"""Aliases that stay fields of their own in 4.57; ``test_older_names`` shows them."""

ROWS = [
    pytest.param(look, given, expected, id=f"{name} {index}")
    for name, (look, rows) in TABLE.items()
    for index, (given, expected) in enumerate(rows)
]


FIELDS = declared(TrainingArguments)

pytestmark = [
    pytest.mark.usefixtures("restored_environment"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def test_every_alias_has_rows():
    """Each old name has its rows."""
    aliases = {alias.old for alias in ALIASES}
    aliases |= {name for name, item in FIELDS.items() if item.effect.handling == "alias"}
    assert aliases == TABLE.keys() | BY_RELEASE


@pytest.mark.filterwarnings("ignore:.*has no effect beside:hf_compat.errors.HFCompatWarning")
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("look", "given", "expected"), ROWS)
def test_an_old_name_means_what_it_meant(look, given, expected, release):
    """With the semantics of any release that does not define it otherwise, an old name has its meaning in 4.57."""
    args = TrainingArguments("out", **{"use_cpu": True, "report_to": "none", "semantics": release, **given})
    assert look(args) == expected


@pytest.mark.parametrize(("look", "given", "expected"), ROWS)
def test_transformers_agrees(look, given, expected):
    """Transformers 4.57 gives the same, as far as it still has the field."""
    transformers = pytest.importorskip("transformers")
    release = Version(transformers.__version__)
    if release.major > 4 or not all(FIELDS[name].is_of(release) for name in given):
        pytest.skip("needs transformers 4.57, and a field that it has")
    args = transformers.TrainingArguments("out", **{"use_cpu": True, "report_to": "none", **given})
    assert look(args) == expected


@pytest.mark.parametrize("name", ["activation_checkpointing", "gradient_checkpointing"])
def test_activations_are_checkpointed_by_either_name(name):
    """Also where one of them is set once the arguments are built, as callbacks and scripts do."""
    args, keywords = TrainingArguments("out", use_cpu=True), {"use_reentrant": False}
    assert (checkpoints_activations(args), checkpointing_keywords(args)) == (False, None)
    setattr(args, name, True)
    setattr(args, f"{name}_kwargs", keywords)
    assert (checkpoints_activations(args), checkpointing_keywords(args)) == (True, keywords)


@pytest.mark.parametrize(("release", "winner"), [(RELEASES[0], "gradient"), ("5.24.0", "activation")])
@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("name", ["gradient_checkpointing", "activation_checkpointing"])
def test_checkpointing_changed_by_one_name_in_a_copy(name, asked, release, winner):
    """The release's own name wins, and a warning names both; changed by both names nothing is said."""
    given = {"use_cpu": True, "report_to": "none", "semantics": release}
    first = TrainingArguments("out", activation_checkpointing=not asked, **given)
    with pytest.warns(HFCompatWarning, match=f"has no effect beside `{winner}_checkpointing=.*change both"):
        copied = dataclasses.replace(first, **{name: asked})
    assert copied.gradient_checkpointing is copied.activation_checkpointing is (asked is name.startswith(winner))
    both = dataclasses.replace(first, gradient_checkpointing=asked, activation_checkpointing=asked)
    assert both.activation_checkpointing is asked


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("name", ["gradient_checkpointing", "activation_checkpointing"])
@pytest.mark.parametrize("ending", ["", "_kwargs"])
@pytest.mark.filterwarnings("ignore::hf_compat.errors.HFCompatWarning")
def test_transformers_decides_the_same_in_a_copied_dict(ending, name, asked):
    """Whichever name is changed in a dict by ``to_dict``, passed on or parsed, both sides have the same."""
    transformers = pytest.importorskip("transformers")
    if not FIELDS[name].is_of(Version(transformers.__version__)):
        pytest.skip("a field that the release lacks")
    value, other = ({"a": 1}, {"b": 2}) if ending else (asked, not asked)
    found = []
    for library in (transformers, hf_compat):
        first = library.TrainingArguments("out", use_cpu=True, report_to="none", **{f"{name}{ending}": other})
        changed = {**first.to_dict(), f"{name}{ending}": value}
        (parsed,) = library.HfArgumentParser(library.TrainingArguments).parse_dict(changed)
        made = library.TrainingArguments(**changed)
        found.append([getattr(args, f"{name}{ending}") for args in (made, parsed)])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        pytest.param({"per_gpu_train_batch_size": 3}, {"per_device_train_batch_size": 4}, 3, id="batch size"),
        pytest.param({"adafactor": True}, {"optim": "sgd"}, "adafactor", id="optimizer"),
        pytest.param({"torchdynamo": "eager"}, {"torch_compile_backend": "inductor"}, "eager", id="compiler"),
        pytest.param({"push_to_hub_model_id": "m"}, {"hub_model_id": "n"}, "m", id="model on the Hub"),
        pytest.param(
            {"group_by_length": True}, {"train_sampling_strategy": "sequential"}, "group_by_length", id="order"
        ),
    ],
)
def test_a_new_name_that_loses_is_named(old, new, value):
    """Old names win, as they do in transformers; a warning says so where the new one is set to something else."""
    (name,), (loser,) = new, old
    given = {"use_cpu": True, "report_to": "none"}
    with pytest.warns(HFCompatWarning, match=f"`{name}=.*` has no effect beside `{loser}=.*remove one of them"):
        args = TrainingArguments("out", **given, **old, **new)
    assert getattr(args, name) == value
    assert getattr(dataclasses.replace(TrainingArguments("out", **given, **old)), name) == value
