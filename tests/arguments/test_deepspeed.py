"""DeepSpeed configs: what they become, what contradicts the arguments, and what is answered about them."""

import base64
import contextlib
import copy
import gc
import json
import math
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hf_compat import HfDeepSpeedConfig, TrainingArguments
from hf_compat.arguments import from_transformers
from hf_compat.arguments.checks import config_contradictions, field_contradictions
from hf_compat.arguments.deepspeed import HfTrainerDeepSpeedConfig, autotp_size, config_in_use, uses_deepspeed
from hf_compat.arguments.releases import resolve_semantics
from hf_compat.distributed.processes import leave_processes
from hf_compat.errors import ArgumentsError, HFCompatWarning, MissingPackageError
from tests.support.helpers import PlainModel, gpt2
from tests.support.processes import PATIENCE
from tests.support.trainers import arguments

integration = pytest.importorskip("transformers.integrations.deepspeed")
deepspeed_plugins = pytest.importorskip("accelerate.utils")

STEPS = 40
"""Update steps of the runs that configs are finished for."""

ALL_AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "fp16": {"enabled": "auto", "loss_scale": 0},
    "bf16": {"enabled": "auto"},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_min_lr": "auto",
            "warmup_max_lr": "auto",
            "warmup_num_steps": "auto",
            "total_num_steps": "auto",
        },
    },
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": False},
        "offload_param": {"device": "auto", "nvme_path": "auto"},
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_gather_16bit_weights_on_model_save": "auto",
    },
}


def changed(config, **values):
    """Return a copy of ``config`` with some keys, sections joined by ``__``, set, or taken out if None."""
    config = copy.deepcopy(config)
    for name, value in values.items():
        *sections, key = name.split("__")
        node = config
        for section in sections:
            node = node.setdefault(section, {})
        if value is None:
            node.pop(key)
        else:
            node[key] = value
    return config


def stage(number, **values):
    return changed({"zero_optimization": {"stage": number}}, **values)


ARGUMENTS = {
    "per_device_train_batch_size": 3,
    "gradient_accumulation_steps": 2,
    "max_grad_norm": 0.5,
    "learning_rate": 0.125,
    "adam_beta1": 0.5,
    "adam_beta2": 0.75,
    "adam_epsilon": 0.25,
    "weight_decay": 0.0625,
    "warmup_steps": 4,
}

CASES = {
    "all auto": (ALL_AUTO, ARGUMENTS, []),
    "defaults of the arguments": (ALL_AUTO, {}, []),
    "bf16": (ALL_AUTO, {"bf16": True}, []),
    "bf16 in evaluation": (ALL_AUTO, {"bf16_full_eval": True}, []),
    "fp16 in evaluation": (ALL_AUTO, {"fp16_full_eval": True}, []),
    "bf16 without a section": (stage(2), {"bf16": True}, []),
    "as little as there can be": (stage(2), {}, []),
    "stage 0": (stage(0), {}, []),
    "stage 1, widths of stage 3 left alone": (changed(ALL_AUTO, zero_optimization__stage=1), ARGUMENTS, []),
    "stage 2": (changed(ALL_AUTO, zero_optimization__stage=2), ARGUMENTS, []),
    "stage by the launcher's default": (changed(ALL_AUTO, zero_optimization__stage="auto"), ARGUMENTS, []),
    "partly set, and agreeing": (
        changed(ALL_AUTO, optimizer__params__lr=0.125, train_batch_size=6, scheduler__params__warmup_num_steps=4),
        ARGUMENTS,
        [],
    ),
    "keys that are absent stay so": (
        changed(ALL_AUTO, optimizer=None, scheduler__params__warmup_min_lr=None, gradient_clipping=None),
        ARGUMENTS,
        [],
    ),
    "the least learning rate is never compared": (
        changed(ALL_AUTO, scheduler__params__warmup_min_lr=0.5),
        ARGUMENTS,
        [],
    ),
    "files on every node": (stage(1), {"save_on_each_node": True}, []),
    "files on every node, further settings": (
        stage(1, checkpoint__tag_validation="Warn"),
        {"save_on_each_node": True},
        [],
    ),
    "apex": (changed(ALL_AUTO, amp__enabled="auto", amp__opt_level="auto"), {}, []),
    "every value wrong": (
        changed(
            ALL_AUTO,
            train_batch_size=7,
            train_micro_batch_size_per_gpu=7,
            gradient_accumulation_steps=7,
            gradient_clipping=7.0,
            fp16__enabled=True,
            bf16__enabled=True,
            optimizer__params={"lr": 7, "betas": [0.1, 0.2], "eps": 7, "weight_decay": 7},
            scheduler__params={
                "warmup_min_lr": 7,
                "warmup_max_lr": 7,
                "warmup_num_steps": 7,
                "total_num_steps": 7,
            },
        ),
        ARGUMENTS,
        [
            "bf16.enabled",
            "fp16.enabled",
            "gradient_accumulation_steps",
            "gradient_clipping",
            "optimizer.params.betas",
            "optimizer.params.eps",
            "optimizer.params.lr",
            "optimizer.params.weight_decay",
            "scheduler.params.total_num_steps",
            "scheduler.params.warmup_max_lr",
            "scheduler.params.warmup_num_steps",
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
        ],
    ),
    "a precision that is not asked for": (stage(2, bf16__enabled=True), {}, ["bf16.enabled"]),
    "a precision that is switched off": (stage(2, bf16__enabled=False), {"bf16": True}, ["bf16.enabled"]),
}
"""A config, arguments, and the keys that contradict each other."""


def model_of(**config):
    return SimpleNamespace(config=SimpleNamespace(**config))


SET_UP = {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
"""What arguments under ZeRO-3 set for the process."""


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch):
    """Whatever a test does, transformers knows of no config afterwards, and there is no process group."""
    for name, value in SET_UP.items():
        monkeypatch.setenv(name, value)
    # transformers 4.57 tells accelerate, and all arguments made after, that DeepSpeed is used.
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "false")
    yield
    integration.unset_hf_deepspeed_config()
    leave_processes()


def upstreams(config, args):
    """Return the config that upstream's Trainer and accelerate make of ``config``, and the keys they complain of."""
    theirs = integration.HfTrainerDeepSpeedConfig(config)
    theirs.trainer_config_process(args)
    plugin = deepspeed_plugins.DeepSpeedPlugin(hf_ds_config=theirs)
    plugin.set_mixed_precision(args.mixed_precision)
    keys = []
    try:
        theirs.trainer_config_finalize(args, model_of(hidden_size=16), STEPS)
    except ValueError as error:
        keys = sorted(re.findall(r"^- ds (\S+?)=", str(error), re.MULTILINE))
    return theirs, plugin, keys


def ours(args):
    keys = []
    try:
        args.hf_deepspeed_config.trainer_config_finalize(args, model_of(hidden_size=16), STEPS)
    except ArgumentsError as error:
        keys = sorted(re.search(r"^`deepspeed`: `(\S+)` is", problem)[1] for problem in error.problems)
    return args.hf_deepspeed_config, args.deepspeed_plugin, keys


@pytest.mark.parametrize("case", CASES)
def test_the_finished_config_is_upstreams(case, tmp_path):
    """Every key has upstream's value, and the same keys contradict the arguments; what differs is named here."""
    config, given, expected = CASES[case]
    args = arguments(tmp_path, deepspeed=config, **given)
    mine, my_plugin, my_keys = ours(args)
    theirs, their_plugin, their_keys = upstreams(config, args)
    assert my_keys == their_keys == expected
    wanted = copy.deepcopy(theirs.config)
    if "gradient_accumulation_steps" not in config:  # accelerate says 1, whatever the argument
        wanted["gradient_accumulation_steps"] = args.gradient_accumulation_steps
        my_plugin.gradient_accumulation_steps = 1
    if not expected and "optimizer" not in config:  # upstream does so when it has made its optimizer
        wanted["zero_allow_untested_optimizer"] = True
    if not resolve_semantics().deepspeed_warms_up and config.get("scheduler", {}).get("params"):
        params = wanted["scheduler"]["params"]  # DeepSpeed of today refuses the older release's 0
        params["warmup_num_steps"] = max(1, params["warmup_num_steps"])
    assert mine.config == wanted
    for name in ("zero_stage", "gradient_clipping", "offload_optimizer_device", "offload_param_device", "enable_msamp",
                 "gradient_accumulation_steps", "zero3_save_16bit_model", "zero3_init_flag"):  # fmt: skip
        assert getattr(my_plugin, name) == getattr(their_plugin, name), name
    assert [getattr(mine, name)() for name in ("is_zero2", "is_zero3", "is_offload")] == [
        getattr(theirs, name)() for name in ("is_zero2", "is_zero3", "is_offload")
    ]


def test_contradictions_name_key_argument_and_values(tmp_path):
    """Each contradiction is a sentence with the config's key and the argument's name, and both values."""
    args = arguments(tmp_path, deepspeed=stage(2, optimizer__params={"lr": 7}), learning_rate=0.5)
    with pytest.raises(
        ArgumentsError, match=r"`optimizer.params.lr` is 7, but `learning_rate` is 0.5.*\"auto\""
    ) as told:
        args.hf_deepspeed_config.trainer_config_finalize(args, PlainModel(), STEPS)
    assert told.value.fields == ("deepspeed",)


def test_fields_changed_after_construction(tmp_path):
    """What was filled in follows the field when training starts; what the config itself says does not."""
    args = arguments(tmp_path, deepspeed=changed(ALL_AUTO, gradient_clipping=1.0), learning_rate=0.5)
    config = args.hf_deepspeed_config
    assert config.get_value("optimizer.params.lr") == 0.5
    args.learning_rate, args.gradient_accumulation_steps, args.max_grad_norm = 0.25, 4, 2.0
    with pytest.raises(
        ArgumentsError, match=r"^1 problem .*\n.*`gradient_clipping` is 1.0, but `max_grad_norm` is 2.0"
    ):
        config.trainer_config_finalize(args, model_of(hidden_size=16), STEPS)
    args.max_grad_norm = 1.0
    for steps in (STEPS, 2 * STEPS):  # a second run is longer
        config.trainer_config_finalize(args, model_of(hidden_size=16), steps)
        assert config.get_value("optimizer.params.lr") == config.get_value("scheduler.params.warmup_max_lr") == 0.25
        assert (config.get_value("train_batch_size"), config.get_value("scheduler.params.total_num_steps")) == (
            32,
            steps,
        )


def test_ranks_that_share_a_matrix(tmp_path):
    """Their number is the config's; without DeepSpeed, or the section, each rank has whole matrices."""
    assert autotp_size(arguments(tmp_path)) == 1
    assert not uses_deepspeed(arguments(tmp_path))
    assert autotp_size(arguments(tmp_path, deepspeed=stage(2))) == 1
    args = arguments(tmp_path, deepspeed=stage(2, tensor_parallel__autotp_size=2))
    assert uses_deepspeed(args)
    assert autotp_size(args) == config_in_use(args).tensor_parallel_size == 2


def test_fields_that_deepspeed_cannot_combine(tmp_path):
    """Weights alone cannot be loaded as the best, which an engine loads with the optimizer."""
    best = {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch", "deepspeed": stage(2)}
    assert list(field_contradictions(arguments(tmp_path, **best))) == []
    (told,) = field_contradictions(arguments(tmp_path, **best, save_only_model=True))
    assert "`save_only_model` along with `load_best_model_at_end`" in told


@pytest.mark.parametrize(
    ("keys", "in_background", "texts"),
    [
        ({}, True, []),
        ({"sequence_parallel_size": 2}, False, ["`sequence_parallel_size=2` in the DeepSpeed config"]),
        ({"checkpoint__writer": {"type": "FAST"}}, False, []),
        ({"checkpoint__writer": {"type": "FAST"}}, True, ["is not supported with `checkpoint.writer`"]),
        ({"checkpoint__writer": {"decoupled": True}}, False, ["`checkpoint.writer.decoupled` in the DeepSpeed config"]),
        ({"datastates_ckpt": {}}, False, ["`datastates_ckpt` in the DeepSpeed config"]),
        (
            {"checkpoint__load_universal": True, "sequence_parallel_size": 2},
            False,
            ["`sequence_parallel_size=2`", "with `load_best_model_at_end=True` is not supported"],
        ),
    ],
)
def test_keys_that_the_fields_do_not_allow(keys, in_background, texts, tmp_path):
    """Each is told; of several, those of the ranks come first."""
    best = {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"}
    told = [
        *config_contradictions(arguments(tmp_path, deepspeed=stage(2, **keys), **best), in_background=in_background)
    ]
    assert [text in found for text, found in zip(texts, told, strict=True)] == [True] * len(texts)


def test_a_batch_size_that_is_searched_for(tmp_path):
    """While a batch size is searched for, the config's own does not contradict it, and "auto" follows it."""
    args = arguments(tmp_path, deepspeed=stage(2, train_batch_size=8, train_micro_batch_size_per_gpu="auto"))
    args.per_device_train_batch_size = 4
    config = args.hf_deepspeed_config
    config.trainer_config_process(args, auto_find_batch_size=True)
    config.trainer_config_finalize(args, PlainModel(), STEPS)
    assert config.get_value("train_micro_batch_size_per_gpu") == 4
    config.trainer_config_process(args)
    assert len(config.mismatches) == 1


@pytest.mark.parametrize(
    ("model", "hidden"),
    [
        (model_of(hidden_sizes=[4, 32, 8]), 32),
        (model_of(text_config=SimpleNamespace(hidden_size=8)), 8),
        (model_of(text_config=SimpleNamespace(hidden_sizes=[4, 8])), 8),
    ],
    ids=["several widths", "a text model within", "several widths within"],
)
def test_widths_of_models(model, hidden):
    """Buckets follow the widest part of the model, as upstream has it."""
    configs = [kind(ALL_AUTO) for kind in (HfTrainerDeepSpeedConfig, integration.HfTrainerDeepSpeedConfig)]
    for config in configs:
        config.trainer_config_finalize(TrainingArguments("out", use_cpu=True), model, STEPS)
    assert configs[0].get_value("zero_optimization.reduce_bucket_size") == hidden**2
    assert configs[0].config["zero_optimization"] == configs[1].config["zero_optimization"]


def test_models_without_a_width(tmp_path):
    """A model that says nothing of its width is told which keys need numbers."""
    args = arguments(tmp_path, deepspeed=changed(ALL_AUTO, zero_optimization__reduce_bucket_size=100))
    with pytest.raises(ArgumentsError, match=r"stage3_prefetch_bucket_size`, .*persistence_threshold`.*write numbers"):
        args.hf_deepspeed_config.trainer_config_finalize(args, PlainModel(), STEPS)


# Reading and asking


@pytest.mark.parametrize("shape", ["dict", "path", "text", "base64"])
def test_configs_are_read(shape, tmp_path):
    """A config is a dict, a file's path, JSON or base64; a dict that was given stays as it is, "auto" and all."""
    text = json.dumps(ALL_AUTO)
    path = tmp_path / "ds.json"
    path.write_text(text)
    encoded = base64.urlsafe_b64encode(text.encode()).decode()
    given = {"dict": ALL_AUTO, "path": str(path), "text": text, "base64": encoded}[shape]
    before = copy.deepcopy(given)
    assert HfDeepSpeedConfig(given).config == integration.HfDeepSpeedConfig(given).config == ALL_AUTO
    args = arguments(tmp_path, deepspeed=given, learning_rate=0.5)
    assert args.hf_deepspeed_config.get_value("optimizer.params.lr") == 0.5
    assert given == before


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("ds.json", "is not a dict, an existing JSON file"),
        ("{'single': 1}", "is not valid JSON"),
        (7, "is not a dict, an existing JSON file"),
        ({"fp16": {}}, "no section `zero_optimization`"),
        (stage(2, optimizer="adam"), "`optimizer` is 'adam', not a section"),
    ],
    ids=["no file", "no JSON", "a number", "no ZeRO", "no section"],
)
def test_configs_of_no_use(given, text, tmp_path):
    """What cannot be a config is refused with all else that is wrong, before anything is loaded."""
    with pytest.raises(ArgumentsError, match=text) as told:
        arguments(tmp_path, deepspeed=given, adam_beta1=2)
    assert sorted(told.value.fields) == ["adam_beta1", "deepspeed"]


@pytest.mark.parametrize("empty", [None, "", {}])
def test_without_a_config(empty, tmp_path):
    """Nothing, an empty string and an empty dict ask for no DeepSpeed."""
    args = arguments(tmp_path, deepspeed=empty)
    assert args.hf_deepspeed_config is None
    assert args.deepspeed_plugin is None
    assert integration.deepspeed_config() is None


def test_questions_are_answered_as_upstream():
    """Every question has upstream's answer, about keys that are there, are not, or lie in sections that are not."""
    configs = [kind(stage(2, a__on=True, a__off=False)) for kind in (HfDeepSpeedConfig, integration.HfDeepSpeedConfig)]
    for key in ("a.on", "a.off", "a.none", "b.none", "a", "zero_optimization.stage"):
        for question in ("get_value", "is_true", "is_false", "find_config_node"):
            mine, theirs = (getattr(config, question)(key) for config in configs)
            assert mine == theirs, (question, key)
    for config in configs:
        config.del_config_sub_tree("a.on")
        config.del_config_sub_tree("b.none")
        with pytest.raises(ValueError, match=r"b\.none"):
            config.del_config_sub_tree("b.none", must_exist=True)
    assert configs[0].config == configs[1].config == stage(2, a__off=False)


# Launchers, other arguments, and what is missing

LAUNCHES = {
    "nothing more": {},
    "stage and offloading": {
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu",
        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "nvme",
        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH": "/fast",
        "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2",
        "ACCELERATE_GRADIENT_CLIPPING": "0.5",
    },
    "a file": {"ACCELERATE_DEEPSPEED_CONFIG_FILE": "ds.json"},
}


@pytest.mark.parametrize("launch", LAUNCHES)
def test_launchers_say_what_they_say_to_upstream(launch, tmp_path, monkeypatch):
    """``accelerate launch --use_deepspeed`` gives the config that it gives upstream's Trainer."""
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text(json.dumps(changed(ALL_AUTO, zero_optimization__stage="auto")))
    for name, value in {"ACCELERATE_USE_DEEPSPEED": "true", **LAUNCHES[launch]}.items():
        monkeypatch.setenv(name, value)
    args = arguments(tmp_path, gradient_accumulation_steps=2, max_grad_norm=0.5)
    mine, plugin, keys = ours(args)
    launched = deepspeed_plugins.DeepSpeedPlugin()
    launched.set_mixed_precision("no")
    theirs = integration.HfTrainerDeepSpeedConfig(launched.hf_ds_config.config)
    theirs.trainer_config_process(args)
    theirs.trainer_config_finalize(args, model_of(hidden_size=16), STEPS)
    wanted = copy.deepcopy(theirs.config)
    if "optimizer" not in wanted:
        wanted["zero_allow_untested_optimizer"] = True
    if not resolve_semantics().deepspeed_warms_up and "scheduler" in wanted:
        wanted["scheduler"]["params"]["warmup_num_steps"] = 1
    assert keys == []
    assert mine.config == wanted
    assert plugin.zero_stage == launched.zero_stage
    assert plugin.zero3_init_flag == launched.zero3_init_flag


def test_launchers_that_contradict(tmp_path, monkeypatch):
    """What the launcher says is compared with the arguments too, and a file is not to be said twice."""
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "3")
    assert ours(arguments(tmp_path))[2] == ["gradient_accumulation_steps"]
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO3_INIT", "true")
    with pytest.warns(HFCompatWarning, match="only stage 3 partitions models"):
        assert not arguments(tmp_path).deepspeed_plugin.is_zero3_init_enabled()
    monkeypatch.setenv("ACCELERATE_CONFIG_DS_FIELDS", "deepspeed_config_file,zero_stage")
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(ALL_AUTO))
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(file))
    with pytest.raises(ArgumentsError, match="overrides zero_stage of accelerate's configuration"):
        arguments(tmp_path)


def test_the_package_has_to_be_there(tmp_path, monkeypatch):
    """Without DeepSpeed the error says how to install it, when the arguments are made."""
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(MissingPackageError, match=r'pip install "hf-compat\[deepspeed\]"'):
        arguments(tmp_path, deepspeed=stage(2))


def test_arguments_are_copied_and_pickled(tmp_path):
    """Copies have a config of their own; pickles keep it."""
    args = arguments(tmp_path, deepspeed=ALL_AUTO, learning_rate=0.5)
    copied, pickled = copy.deepcopy(args), pickle.loads(pickle.dumps(args))
    args.hf_deepspeed_config.config["optimizer"]["params"]["lr"] = 7
    for other in (copied, pickled):
        assert other.hf_deepspeed_config is other.deepspeed_plugin.hf_ds_config
        assert other.deepspeed_plugin.deepspeed_config["optimizer"]["params"]["lr"] == 0.5
        assert other.deepspeed_plugin.deepspeed_config["steps_per_print"] == math.inf


@pytest.mark.parametrize("zero", [2, 3])
def test_transformers_own_arguments(zero, tmp_path, monkeypatch):
    """Arguments of transformers give the config that ours give; theirs stays as it is, and a path is read again."""
    import transformers

    path = tmp_path / "ds.json"
    path.write_text(json.dumps(changed(ALL_AUTO, zero_optimization__stage=zero)))
    monkeypatch.delenv("LOCAL_RANK")  # accelerate would look for a group
    theirs = transformers.TrainingArguments(str(tmp_path), use_cpu=True, deepspeed=str(path), **ARGUMENTS)
    before = copy.deepcopy(theirs.hf_deepspeed_config.config)
    converted = from_transformers(theirs)
    mine, plugin, keys = ours(converted)
    assert integration.is_deepspeed_zero3_enabled() == (zero == 3)
    assert keys == []
    assert mine.config == ours(arguments(tmp_path, deepspeed=str(path), **ARGUMENTS))[0].config
    assert (plugin.zero_stage, converted.deepspeed) == (zero, str(path))
    assert theirs.hf_deepspeed_config.config == before


def test_launchers_say_the_precision(tmp_path, monkeypatch):
    """``accelerate launch --mixed_precision bf16`` makes the config bf16, as accelerate's own plugin does."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    config = changed(ALL_AUTO, zero_optimization__stage=2)
    mine, _, keys = ours(arguments(tmp_path, deepspeed=config))
    theirs = deepspeed_plugins.DeepSpeedPlugin(hf_ds_config=config)
    theirs.set_mixed_precision("bf16")
    assert keys == []
    for section in ("bf16", "fp16"):
        assert mine.config[section]["enabled"] == theirs.deepspeed_config[section]["enabled"] == (section == "bf16")


# What transformers is told


def test_transformers_knows_the_config_while_it_lives(tmp_path):
    """The config of the arguments says whether models are partitioned, until they are gone or it is told not to."""
    args = arguments(tmp_path, deepspeed=stage(3))
    assert integration.is_deepspeed_zero3_enabled()
    assert integration.deepspeed_config() is args.hf_deepspeed_config.config
    plugin = args.deepspeed_plugin
    assert plugin.is_zero3_init_enabled()
    with contextlib.suppress(KeyError), plugin.zero3_init_context_manager(enable=False):
        assert not integration.is_deepspeed_zero3_enabled()
        assert not plugin.is_zero3_init_enabled()
        raise KeyError
    assert integration.is_deepspeed_zero3_enabled()
    del args, plugin
    gc.collect()
    assert not integration.is_deepspeed_zero3_enabled()
    kept = HfDeepSpeedConfig(stage(3))
    assert integration.is_deepspeed_zero3_enabled()
    assert integration.deepspeed_config() is kept.config


def test_launchers_may_leave_models_whole(tmp_path, monkeypatch):
    """``--zero3_init_flag false`` leaves models whole while they are loaded."""
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO3_INIT", "false")
    args = arguments(tmp_path, deepspeed=stage(3))
    assert not args.deepspeed_plugin.is_zero3_init_enabled()
    assert not integration.is_deepspeed_zero3_enabled()


LOADING = """
import os
import sys
import torch
from hf_compat import TrainingArguments

folder = sys.argv[1]
config = {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
          "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}}
for _ in range(2):
    args = TrainingArguments(folder + "/out", use_cpu=True, deepspeed=config, bf16=True)
    assert (args.world_size, args.process_index, args.local_process_index) == (1, 0, 0)
    assert os.environ["DS_ACCELERATOR"] == "cpu" and os.environ["LOCAL_RANK"] == "0"
    assert torch.distributed.get_world_size() == 1
from transformers import GPT2LMHeadModel
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
import deepspeed

saved = torch.load(folder + "/weights.pt")
model = GPT2LMHeadModel.from_pretrained(folder)
for name, weight in model.named_parameters():
    assert weight.numel() == 0 and tuple(weight.ds_shape) == tuple(saved[name].shape), name
    assert weight.ds_tensor.dtype == torch.bfloat16, name
    with deepspeed.zero.GatheredParameters([weight]):
        assert torch.equal(weight.float(), saved[name].bfloat16().float()), name
assert "deepspeed_shm_comm_op" not in sys.modules
unset_hf_deepspeed_config()
whole = GPT2LMHeadModel.from_pretrained(folder)
assert all(not hasattr(weight, "ds_shape") and weight.numel() for weight in whole.parameters())
print("partitioned", len(saved))
"""


@pytest.mark.slow
def test_a_lone_process_partitions_models_while_it_loads_them(tmp_path, monkeypatch):
    """Under ZeRO-3 a script that nothing launched loads partitions with the saved values; told not to, whole models."""
    import torch

    model = gpt2()
    model.save_pretrained(tmp_path)
    torch.save(dict(model.named_parameters()), tmp_path / "weights.pt")
    for name in SET_UP:
        monkeypatch.delenv(name)
    done = subprocess.run(
        [sys.executable, "-c", LOADING, str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"partitioned {len(dict(model.named_parameters()))}"
