"""The settings of FSDP: fields, config and the launcher's variables, beside what transformers hands to accelerate."""

import dataclasses
import json
import os

import pytest
import torch
from packaging.version import Version

from hf_compat import TrainingArguments
from hf_compat.arguments.fsdp import (
    KEYS,
    LOADING_VARIABLE,
    USE_VARIABLE,
    FsdpSettings,
    device_limits,
    node_limits,
    read_fsdp,
)
from hf_compat.distributed.launch import Launch
from hf_compat.engine.strategies.sharding import fsdp_units, own_embedding, trained_leaves
from hf_compat.errors import ArgumentsError

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

MAJOR_4 = Version(transformers.__version__).major == 4
RELEASES = ["4.57", "5.24.0"]
BY_CLASS = {"transformer_layer_cls_to_wrap": "GPT2Block"}
VERSION_1 = {} if MAJOR_4 else {"version": 1}
LAUNCHED = {
    USE_VARIABLE: "true",
    "FSDP_VERSION": "1",
    "FSDP_SHARDING_STRATEGY": "FULL_SHARD",
    "FSDP_OFFLOAD_PARAMS": "false",
    "FSDP_MIN_NUM_PARAMS": "100000000",
    "FSDP_FORWARD_PREFETCH": "true",
    "FSDP_USE_ORIG_PARAMS": "true",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
    "FSDP_SYNC_MODULE_STATES": "true",
    "FSDP_ACTIVATION_CHECKPOINTING": "true",
    "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": "false",
}
"""What ``accelerate launch --use_fsdp`` sets."""


pytestmark = pytest.mark.usefixtures("restored_environment", "without_warnings")


def plugin_of(args, monkeypatch):
    """Return accelerate's plugin for transformers' own arguments, as its Trainer makes it."""
    from accelerate.utils import FullyShardedDataParallelPlugin, dataclasses

    # A machine with a GPU, as far as the plugin asks: only then does it take ``sync_module_states``.
    monkeypatch.setattr(dataclasses, "is_cuda_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    plugin = FullyShardedDataParallelPlugin(**(getattr(args, "fsdp_plugin_args", None) or {}))
    if MAJOR_4:
        for name in ("limit_all_gathers", "activation_checkpointing"):
            setattr(plugin, name, args.fsdp_config.get(name, getattr(plugin, name)))
    return plugin


def settings_of(plugin):
    """Return a plugin's settings in our words."""
    policy = getattr(plugin.auto_wrap_policy, "__name__", "none").split("_")[0]
    names = plugin.transformer_cls_names_to_wrap if policy == "transformer" else None
    first = plugin.fsdp_version == 1
    strategy = plugin.sharding_strategy.name.lower().lstrip("_") if first else None
    return FsdpSettings(
        version=plugin.fsdp_version,
        sharding=strategy or ("full_shard" if plugin.reshard_after_forward else "shard_grad_op"),
        wrapping=policy,
        layer_classes=tuple(names) if names else (),
        min_num_params=(plugin.min_num_params or 0) if policy == "size" else 0,
        cpu_offload=getattr(plugin.cpu_offload, "offload_params", type(plugin.cpu_offload).__name__ != "OffloadPolicy"),
        state_dict_type=plugin.state_dict_type.name.split("_")[0].lower(),
        cpu_ram_efficient_loading=bool(plugin.cpu_ram_efficient_loading),
        activation_checkpointing=bool(plugin.activation_checkpointing),
        backward_prefetch=plugin.backward_prefetch.name.lower() if plugin.backward_prefetch else None,
        forward_prefetch=bool(plugin.forward_prefetch),
        limit_all_gathers=plugin.limit_all_gathers,
        # What version 2 of FSDP does by itself is told as such.
        use_orig_params=plugin.use_orig_params if first else True,
        sync_module_states=plugin.sync_module_states if first else True,
    )


ASKED = {
    "a switch": {"fsdp": True},
    "words": {"fsdp": "full_shard auto_wrap offload"},
    "a list": {"fsdp": ["full_shard", "auto_wrap"]},
    "options": {"fsdp": [transformers.trainer_utils.FSDPOption.FULL_SHARD]},
    "accelerate's name of the default": {"fsdp": True, "fsdp_config": {"fsdp_offload_params": "false"}},
    "layers by class": {"fsdp": "full_shard auto_wrap", "fsdp_config": BY_CLASS},
    "two classes, prefixed": {
        "fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_transformer_layer_cls_to_wrap": ["GPT2Block", "Conv1D"]},
    },
    "version 1": {"fsdp": "full_shard auto_wrap", "fsdp_config": {**VERSION_1, **BY_CLASS}},
    "every key of version 1": {
        "fsdp": "full_shard auto_wrap offload",
        "fsdp_config": {
            **VERSION_1,
            "backward_prefetch": "backward_post",
            "forward_prefetch": "true",
            "limit_all_gathers": False,
            "use_orig_params": "false",
            "sync_module_states": True,
            "cpu_ram_efficient_loading": "True",
            "activation_checkpointing": True,
            "xla": False,
        },
    },
    "not synchronized": {"fsdp": "full_shard", "fsdp_config": {**VERSION_1, "sync_module_states": False}},
    "a size without a policy": {"fsdp": "full_shard", "fsdp_config": {"min_num_params": 2000}},
    "json": {"fsdp": "full_shard", "fsdp_config": '{"activation_checkpointing": "true"}'},
    "nothing": {},
    "an empty word": {"fsdp": ""},
    "an empty list": {"fsdp": []},
}  # fmt: skip
if MAJOR_4:
    ASKED |= {
        name: {"fsdp": f"{name} auto_wrap"} for name in ("shard_grad_op", "no_shard", "hybrid_shard_zero2")
    }  # 5.23 takes the whole to be sharded whatever is asked of version 1
    ASKED |= {
        "layers by size": {"fsdp": "full_shard auto_wrap", "fsdp_config": {"min_num_params": 2000}},
        "older names": {"fsdp": "full_shard auto_wrap", "fsdp_min_num_params": 2000},
        "an older class": {"fsdp": "full_shard auto_wrap", "fsdp_transformer_layer_cls_to_wrap": "GPT2Block"},
    }
else:
    ASKED |= {
        "kept after the forward pass": {"fsdp": "shard_grad_op"},
        "a config alone": {
            "fsdp": True,
            "fsdp_config": {
                "reshard_after_forward": False, "cpu_offload": True, "state_dict_type": "SHARDED_STATE_DICT",
                "auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 2000,
            },
        },
        "a key against the word": {"fsdp": "full_shard", "fsdp_config": {"reshard_after_forward": False}},
        "a key for the word": {"fsdp": "shard_grad_op", "fsdp_config": {"fsdp_reshard_after_forward": "true"}},
        "no layers": {"fsdp": True, "fsdp_config": {"auto_wrap_policy": "NO_WRAP"}},
        "layers of no size": {"fsdp": True, "fsdp_config": {"auto_wrap_policy": "SIZE_BASED_WRAP"}},
        "a size and classes": {"fsdp": True, "fsdp_config": {**BY_CLASS, "min_num_params": 2000}},
    }  # fmt: skip


SECOND = {**LAUNCHED, "FSDP_VERSION": "2"}
LAUNCHERS = {"by hand": {}, "launched": LAUNCHED, "launched for version 2": SECOND}
IGNORED = {"every key of version 1", "shard_grad_op", "no_shard", "hybrid_shard_zero2"}
"""What 4.57 drops without a word when its launcher says version 2; ours does what is asked, or refuses it."""
CASES = [
    pytest.param(asked, variables, id=f"{name}, {launcher}")
    for name, asked in ASKED.items()
    for launcher, variables in LAUNCHERS.items()
    if not (MAJOR_4 and variables is SECOND and name in IGNORED)
]


@pytest.mark.parametrize(("asked", "launcher"), CASES)
def test_settings(asked, launcher, monkeypatch):
    """Fields and variables ask for what transformers hands to accelerate for them, and read the same afterwards."""
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    if launcher and not asked:  # 5.23 takes this variable before what the fields say to version 1
        monkeypatch.setenv("FSDP_SHARDING_STRATEGY", "SHARD_GRAD_OP")
    ours = TrainingArguments("out", use_cpu=True, **asked)
    found = read_fsdp(ours)
    os.environ[LOADING_VARIABLE] = launcher.get(LOADING_VARIABLE, "false")
    theirs = transformers.TrainingArguments("out", use_cpu=True, **asked)
    assert ours.fsdp == theirs.fsdp
    assert ours.fsdp_config == theirs.fsdp_config
    if not theirs.fsdp and not launcher:
        assert found is None
        return
    expected = settings_of(plugin_of(theirs, monkeypatch))
    assert found == expected


UNREAD = {
    "version": ({"version": 2}, {"version": 2, "state_dict_type": "sharded"}),
    "state_dict_type": ({"state_dict_type": "SHARDED_STATE_DICT"}, {"state_dict_type": "sharded"}),
    "auto_wrap_policy": ({"auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}, {"wrapping": "transformer"}),
    "cpu_offload": ({"cpu_offload": True}, {"cpu_offload": True}),
}
"""A key of ``fsdp_config``, with a value, and what is then otherwise."""


@pytest.mark.skipif(not MAJOR_4, reason="transformers 5 reads them")
@pytest.mark.parametrize(("config", "settings"), UNREAD.values(), ids=UNREAD)
def test_keys_that_transformers_4_does_not_read(config, settings, monkeypatch):
    """Keys of ``fsdp_config`` that 4.57 drops without a word do what they do in 5.24."""
    found = read_fsdp(TrainingArguments("out", use_cpu=True, fsdp=True, fsdp_config=config))
    theirs = transformers.TrainingArguments("out", use_cpu=True, fsdp=True, fsdp_config=config)
    expected = settings_of(plugin_of(theirs, monkeypatch))
    assert {name: getattr(found, name) for name in settings} == settings
    assert all(getattr(expected, name) == getattr(FsdpSettings(), name) for name in settings)


@pytest.mark.parametrize("semantics", RELEASES)
@pytest.mark.parametrize(
    ("word", "config", "sharding"),
    [
        pytest.param("full_shard", {"version": 2, "reshard_after_forward": False}, "shard_grad_op", id="version 2"),
        pytest.param("full_shard", {"version": 1, "reshard_after_forward": "no_shard"}, "no_shard", id="version 1"),
        pytest.param(
            "hybrid_shard", {"version": 1, "reshard_after_forward": "FULL_SHARD"}, "full_shard", id="upper case"
        ),
    ],
)
def test_the_key_wins_over_the_word(word, config, sharding, semantics, caplog):
    """``reshard_after_forward`` decides where ``fsdp`` names another strategy, which is said; with 4.57 too."""
    found = read_fsdp(TrainingArguments("out", use_cpu=True, semantics=semantics, fsdp=word, fsdp_config=config))
    assert found.sharding == sharding
    assert [text for text in caplog.messages if text.startswith(f"`fsdp='{word}'` has no effect")]


WRONG = {
    "an unknown word": (
        {"fsdp": "full_shard wrap"}, ["`fsdp='wrap'`: Unknown `fsdp` option, not a valid FSDPOption: full_shard"]
    ),
    "a word nearly right": ({"fsdp": "full_shrad"}, ["`fsdp='full_shrad'`: .*auto_wrap; did you mean 'full_shard'?"]),
    "a word like no other": ({"fsdp": "on"}, ["`fsdp='on'`: .*; use one of them, or remove it"]),
    "the name of FSDP 2": (
        {"fsdp": "fully_shard"},
        ["`fsdp='fully_shard'`: .*; for FSDP 2 set `fsdp=True` and `fsdp_config={'version': 2}`."],
    ),
    "two words": (
        {"fsdp": "full_shard shard_grad_op"},
        ["`fsdp='full_shard shard_grad_op'`: `full_shard` is not compatible with `shard_grad_op`"],
    ),
    "a word against accelerate's name": (
        {"fsdp": "full_shard", "fsdp_config": {"version": 1, "sharding_strategy": "no_shard"}},
        ["`fsdp='full_shard'`: contradicts `fsdp_config={'sharding_strategy': 'no_shard'}`"],
    ),
    "several at once": (
        {
            "fsdp": True,
            "gradient_checkpointing": True,
            "fsdp_config": {
                "version": 1, "activation_checkpointing": True, "cpu_ram_efficient_loading": True,
                "sync_module_states": False, "backward_prefetch": "soon", "wrap": 1, "xla": True,
                "offload_params": True, "cpu_offload": False, "ignored_modules": "head",
                "mixed_precision_policy": "bf16",
            },
        },
        [
            "`fsdp_config={'backward_prefetch': 'soon'}`: must be one of 'NO_PREFETCH'",
            "`fsdp_config={'wrap': 1}`: unknown key, not one of version, ",
            "`fsdp_config={'xla': True}`: is for TPUs",
            "`fsdp_config={'offload_params': True}`: contradicts 'cpu_offload', which is the same key",
            "`fsdp_config={'ignored_modules': 'head'}`: is for accelerate's own plugin, and transformers ignores it",
            "`fsdp_config={'mixed_precision_policy': 'bf16'}`: is not the precision of the training arguments",
            "`fsdp_config={'activation_checkpointing': True}`: and `activation_checkpointing=True` of the arguments",
            "`fsdp_config={'cpu_ram_efficient_loading': True}`: `sync_module_states` must be True",
        ],
    ),
    "a class that is not used": (
        {"fsdp": True, "fsdp_config": {"auto_wrap_policy": "NO_WRAP", **BY_CLASS}},
        ["`fsdp_config={'transformer_layer_cls_to_wrap': ['GPT2Block']}`: needs wrapping by class"],
    ),
    "a size that is none": (
        {"fsdp": True, "fsdp_config": {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": -1}},
        ["`fsdp_config={'min_num_params': -1}`: must be an integer"],
    ),
    "two names for a strategy": (
        {"fsdp": True, "fsdp_config": {"version": 2, "reshard_after_forward": True, "sharding_strategy": "2"}},
        ["`fsdp_config={'sharding_strategy': '2'}`: contradicts 'reshard_after_forward': True"],
    ),
    "accelerate's name of a strategy of version 1": (
        {"fsdp": True, "fsdp_config": {"version": 2, "sharding_strategy": "HYBRID_SHARD"}},
        ["`fsdp_config={'sharding_strategy': 'HYBRID_SHARD'}`: is only available with FSDP1."],
    ),
    "no word of version 2": (
        {"fsdp": "no_shard", "fsdp_config": {"version": 2}},
        ["`fsdp='no_shard'`: is only available with FSDP1. FSDP version 2 supports 'full_shard'"],
    ),
    "version 3": ({"fsdp": True, "fsdp_config": {"version": 3}}, ["`fsdp_config={'version': 3}`: must be one of"]),
    "a config alone": ({"fsdp_config": {"use_orig_params": True}}, ["has no effect without `fsdp`"]),
    "a file alone": ({"fsdp_config": "nowhere.json"}, ["`fsdp_config='nowhere.json'`: "]),
    "no file": ({"fsdp": True, "fsdp_config": "nowhere.json"}, ["`fsdp_config='nowhere.json'`: .*pass a dict"]),
    "only the model": (
        {"fsdp": True, "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}, "save_only_model": True},
        ["`save_only_model=True`: is not compatible with FSDP state dict type 'SHARDED_STATE_DICT'"],
    ),
    "the best of only models": (
        {
            "fsdp": True, "save_only_model": True, "load_best_model_at_end": True, "eval_strategy": "epoch",
            "save_strategy": "epoch",
        },
        ["`save_only_model=True`: FSDP can't be used with `save_only_model` along with `load_best_model_at_end`"],
    ),
    "local states": (
        {"fsdp": True, "fsdp_config": {"state_dict_type": "LOCAL_STATE_DICT"}}, ["must be one of 'FULL_STATE_DICT'"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("semantics", RELEASES)
@pytest.mark.parametrize(("asked", "told"), WRONG.values(), ids=WRONG)
def test_contradictions(asked, told, semantics):
    """What cannot be is told before anything runs, all of it at once, each by its field and value."""
    with pytest.raises(ArgumentsError) as caught:
        TrainingArguments("out", use_cpu=True, semantics=semantics, **asked)
    text = "\n".join(caught.value.problems)
    missing = [part for part in told if part.split(".*")[0] not in text or part.split(".*")[-1] not in text]
    assert missing == [], text
    assert len(caught.value.problems) == len(told), text


PLUGINS_NAMES = {
    "version": ({"fsdp_version": 2}, {"version": 2}),
    "sharding_strategy": ({"version": 1, "sharding_strategy": "NO_SHARD"}, {"version": 1, "sharding": "no_shard"}),
    "sharding_strategy, by number": ({"version": 2, "sharding_strategy": 2}, {"sharding": "shard_grad_op"}),
    "sharding_strategy of version 2": ({"version": 2, "fsdp_sharding_strategy": "FULL_SHARD"}, {}),
    "backward_prefetch": (
        {"version": 1, "fsdp_backward_prefetch_policy": "BACKWARD_POST"},
        {"version": 1, "backward_prefetch": "backward_post"},
    ),
    "cpu_offload": ({"version": 2, "fsdp_offload_params": "true"}, {"cpu_offload": True}),
    "transformer_cls_names_to_wrap": (
        {"version": 2, "transformer_cls_names_to_wrap": ["GPT2Block"], "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
        {"layer_classes": ("GPT2Block",)},
    ),
    "mixed_precision_policy": ({"version": 2, "mixed_precision_policy": "fp32"}, {}),
    **{
        name: ({"version": 2, name: value}, {})
        for name, value in {
            **dict.fromkeys(("ignored_modules", "param_init_fn", "state_dict_config", "optim_state_dict_config")),
            "activation_checkpointing_offload": False,
        }.items()
    },
    "one key by two names": ({"version": 2, "cpu_offload": True, "offload_params": "true"}, {"cpu_offload": True}),
}
"""accelerate's name → a config with it, and the settings that differ from those of the same config without it."""
SAME_NAMES = {
    *("auto_wrap_policy", "state_dict_type", "limit_all_gathers", "use_orig_params", "sync_module_states"),
    *("forward_prefetch", "activation_checkpointing", "cpu_ram_efficient_loading", "min_num_params"),
    "reshard_after_forward",
}


def test_every_name_of_the_plugin_is_tested():
    """A name that is new in accelerate's plugin fails this test."""
    from accelerate.utils import FullyShardedDataParallelPlugin

    fields = {field.name.removeprefix("fsdp_") for field in dataclasses.fields(FullyShardedDataParallelPlugin)}
    assert fields - SAME_NAMES <= PLUGINS_NAMES.keys()
    assert {*(row.key for row in KEYS), "reshard_after_forward"} >= SAME_NAMES


@pytest.mark.parametrize(("config", "settings"), PLUGINS_NAMES.values(), ids=PLUGINS_NAMES)
def test_names_of_the_plugin(config, settings):
    """Accelerate's names, which transformers ignores, say the same here as in accelerate."""
    fields = {"use_cpu": True, "fsdp": True, "semantics": "5.24"}  # before, True was a sharding strategy
    found = read_fsdp(TrainingArguments("out", fsdp_config=config, **fields))
    version = {key: value for key, value in config.items() if key in ("version", "auto_wrap_policy")}
    plain = read_fsdp(TrainingArguments("out", fsdp_config={"version": 2, **version}, **fields))
    assert found == dataclasses.replace(plain, **settings)


def test_keys_that_version_2_does_not_have(caplog):
    """They have no effect, as in transformers, and one warning says so; what version 2 does anyway is not named."""
    keys = {"use_orig_params": False, "forward_prefetch": True, "backward_prefetch": "backward_pre"}
    args = TrainingArguments("out", use_cpu=True, fsdp=True, fsdp_config={"version": 2, **keys})
    told = [record.getMessage() for record in caplog.records if "no effect" in record.getMessage()]
    assert told == [
        "`fsdp_config`: forward_prefetch, use_orig_params have no effect with FSDP version 2, in transformers either. "
        "Remove them, or set 'version': 1."
    ]
    plain = TrainingArguments("out", use_cpu=True, fsdp=True, fsdp_config={"version": 2})
    assert read_fsdp(args) == read_fsdp(plain)


@pytest.mark.parametrize("config", [{}, BY_CLASS], ids=["no policy", "a policy by class"])
def test_a_size_that_is_not_used(config, caplog):
    """It has no effect, as in transformers, and a warning says what it would need."""
    fields = {"use_cpu": True, "fsdp": True, "semantics": "5.24"}
    args = TrainingArguments("out", fsdp_config={**config, "min_num_params": 5}, **fields)
    told = [record.getMessage() for record in caplog.records if "no effect" in record.getMessage()]
    assert told == [
        "`fsdp_config`: min_num_params has no effect with layers that are not chosen by size, in transformers either. "
        "Remove them, or set 'auto_wrap_policy': 'SIZE_BASED_WRAP'."
    ]
    assert read_fsdp(args) == read_fsdp(TrainingArguments("out", fsdp_config=dict(config), **fields))


def test_layers_of_no_size():
    """Version 1 then has no FSDP units besides the model, as in accelerate; of version 2 each layer is one."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
    assert fsdp_units(model, FsdpSettings(version=1, wrapping="size")) == []
    assert fsdp_units(model, FsdpSettings(version=2, wrapping="size")) == [*model]


def test_layers_by_class_and_by_size():
    """Releases before 5.10 refuse both."""
    config = {**BY_CLASS, "min_num_params": 5}
    with pytest.raises(ArgumentsError, match="`min_num_params` and `transformer_layer_cls_to_wrap` are mutually"):
        TrainingArguments("out", use_cpu=True, fsdp="full_shard auto_wrap", fsdp_config=config, semantics="4.57")


def test_wrong_variables(monkeypatch):
    """A launcher's variable that says nothing usable is told by its name."""
    for name, value in {**LAUNCHED, "FSDP_SHARDING_STRATEGY": "9", "FSDP_IGNORED_MODULES": "h.*"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ArgumentsError, match=r"`FSDP_SHARDING_STRATEGY='9'`(.|\n)*`FSDP_IGNORED_MODULES='h\.\*'`"):
        TrainingArguments("out", use_cpu=True)


@pytest.mark.parametrize("semantics", RELEASES)
def test_config_from_a_file(tmp_path, semantics):
    """A file holds the same as a dict, which is left as it was given."""
    config = {"fsdp_version": 1, "state_dict_type": "SHARDED_STATE_DICT", "fsdp_use_orig_params": "false"}
    path = tmp_path / "fsdp.json"
    path.write_text(json.dumps(config))
    given = dict(config)
    one, other = (TrainingArguments("out", fsdp=True, fsdp_config=it, semantics=semantics) for it in (str(path), given))
    assert read_fsdp(one) == read_fsdp(other)
    assert (read_fsdp(one).state_dict_type, read_fsdp(one).use_orig_params) == ("sharded", False)
    assert given == config


def test_loading_is_announced_to_transformers(monkeypatch):
    """While process 0 alone is to read weights transformers' loading knows, and later arguments are not sharded."""
    monkeypatch.delenv(USE_VARIABLE, raising=False)
    TrainingArguments("out", use_cpu=True, fsdp=True, fsdp_config={"cpu_ram_efficient_loading": True})
    assert (os.environ[USE_VARIABLE], os.environ[LOADING_VARIABLE]) == ("1", "true")
    later = TrainingArguments("out", use_cpu=True)
    assert read_fsdp(later) is None
    assert os.environ[LOADING_VARIABLE] == "false"


def test_what_the_device_does_not_allow(tmp_path):
    """Version 1 offloads to the CPU from a GPU alone, where its scaler is too; version 2 has no such limits."""
    args = TrainingArguments(str(tmp_path), use_cpu=True, fp16=True)
    settings = FsdpSettings(cpu_offload=True, sharding="no_shard", state_dict_type="sharded")
    texts = ["`fsdp`: CPU offloading needs a GPU", "`fp16=True`: FSDP's gradient scaler", "no sharded state dict"]
    told = [*device_limits(args, settings)]
    assert [text in found for text, found in zip(texts, told, strict=True)] == [True] * 3
    assert [*device_limits(args, FsdpSettings(version=2, cpu_offload=True)), *device_limits(args, None)] == []


@pytest.mark.parametrize(("each", "nodes", "refused"), [(True, 2, True), (True, 1, False), (False, 2, False)])
def test_files_of_each_node(each, nodes, refused, tmp_path, monkeypatch):
    """Only rank 0 has the full state dicts, so that other nodes cannot write them."""
    args = TrainingArguments(str(tmp_path), use_cpu=True, save_on_each_node=each)
    monkeypatch.setattr(TrainingArguments, "launch", Launch("torchrun", world_size=nodes, local_world_size=1))
    assert ["`save_on_each_node=True` with 2 nodes" in text for text in node_limits(args)] == [True] * refused


@pytest.mark.skipif(MAJOR_4, reason="transformers 4 tells accelerate by a variable, which counts")
@pytest.mark.parametrize("asked", ["no_shard", "shard_grad_op", "hybrid_shard"])
@pytest.mark.parametrize("by_key", [False, True], ids=["the word", "the key"])
def test_a_strategy_of_version_1_is_carried_out(asked, by_key, monkeypatch):
    """Version 1 shards what it is asked to; accelerate shards all for transformers 5, unless a variable says so."""
    monkeypatch.delenv("FSDP_SHARDING_STRATEGY", raising=False)
    config = {"reshard_after_forward": asked} if by_key else {}
    given = {"fsdp": True if by_key else asked, "fsdp_config": VERSION_1 | config}
    theirs = transformers.TrainingArguments("out", use_cpu=True, **given)
    assert read_fsdp(TrainingArguments("out", use_cpu=True, **given)).sharding == asked
    assert theirs.fsdp_plugin_args["reshard_after_forward"] == asked
    assert settings_of(plugin_of(theirs, monkeypatch)).sharding == "full_shard"
    monkeypatch.setenv("FSDP_SHARDING_STRATEGY", asked)
    assert settings_of(plugin_of(theirs, monkeypatch)).sharding == asked


class Embedded(torch.nn.Module):
    """Has an embedding and a head, tied or not."""

    def __init__(self, *, is_tied=False):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(4, 2), torch.nn.Linear(2, 4, bias=False)
        if is_tied:
            self.head.weight = self.embedding.weight

    def get_input_embeddings(self):
        """Return the embedding."""
        return self.embedding


class WithoutTokens(Embedded):
    """A model of transformers' that has no such embedding."""

    def get_input_embeddings(self):
        """Raise what transformers raises."""
        raise NotImplementedError


def test_units_beside_the_layers():
    """For FSDP 2 the embedding, if it is neither tied nor in a layer; for adapters under FSDP 1 each trained leaf."""
    model = Embedded()
    assert own_embedding(model, []) == [model.embedding]
    assert own_embedding(Embedded(is_tied=True), []) == own_embedding(model, [model.embedding]) == []
    assert own_embedding(WithoutTokens(), []) == own_embedding(torch.nn.Linear(2, 2), []) == []
    assert trained_leaves(model) == [model.embedding, model.head]
    model.embedding.requires_grad_(False)
    assert trained_leaves(model) == [model.head]
