"""``TrainingArguments`` beside the installed transformers': defaults, values, checks, parsers, conversion."""

import copy
import dataclasses
import inspect
import json
import os
import pickle
import warnings

import pytest
import torch
from packaging.version import Version

from hf_compat.arguments import Seq2SeqTrainingArguments, TrainingArguments, from_transformers
from hf_compat.errors import ArgumentsError, UnsupportedArgumentsError

transformers = pytest.importorskip("transformers")

RELEASE = Version(transformers.__version__)
MAJOR_4 = RELEASE.major == 4

DEFAULT_EXCEPTIONS = {
    "trackio_space_id": "None since 5.6; before, the name of a Space that only Trackio's callback reads",
    "logging_dir": "holds the second of construction; compared by its folder instead",
}
"""Fields whose default may differ from the installed release's, and why."""


pytestmark = pytest.mark.usefixtures("restored_environment", "without_warnings")


def both(*args, seq2seq=False, **settings):
    if seq2seq:
        return transformers.Seq2SeqTrainingArguments(*args, **settings), Seq2SeqTrainingArguments(*args, **settings)
    return transformers.TrainingArguments(*args, **settings), TrainingArguments(*args, **settings)


def differences(theirs, ours):
    """Return what differs between two dicts in the keys of the first."""
    return {
        key: (value, ours.get(key, "missing"))
        for key, value in theirs.items()
        if key not in DEFAULT_EXCEPTIONS
        and (key not in ours or ours[key] != value or type(ours[key]) is not type(value))
    }


def test_defaults():
    """After construction every common field holds what it holds upstream."""
    theirs, ours = both("out", seq2seq=True)
    common = [item.name for item in dataclasses.fields(theirs) if item.init]
    left = {name: getattr(theirs, name) for name in common if name != "accelerator_config"}
    right = {name: getattr(ours, name) for name in common if name != "accelerator_config"}
    plain = {name: getattr(value, "value", value) for name, value in left.items()}
    assert differences(plain, {name: getattr(value, "value", value) for name, value in right.items()}) == {}
    if MAJOR_4:
        assert os.path.dirname(theirs.logging_dir) == os.path.dirname(ours.logging_dir)


CALLS = {
    "nothing": {},
    "cpu": {"use_cpu": True},
    "home": {"output_dir": "~/out"},
    "evaluation by steps": {"eval_strategy": "steps"},
    "evaluation steps of zero": {"eval_strategy": "steps", "eval_steps": 0, "logging_steps": 7},
    "whole floats": {"logging_steps": 10.0, "save_steps": 20.0, "eval_steps": 5.0, "eval_strategy": "steps"},
    "shares": {"logging_steps": 0.1, "save_steps": 0.2, "eval_steps": 0.1, "eval_strategy": "steps"},
    "floats unused": {"logging_strategy": "epoch", "logging_steps": 10.5},
    "best model": {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"},
    "best metric": {"metric_for_best_model": "accuracy"},
    "best shares": {
        "load_best_model_at_end": True, "eval_strategy": "steps", "save_steps": 0.3, "eval_steps": 0.1,
    },
    "save best": {"save_strategy": "best", "metric_for_best_model": "eval_f1", "greater_is_better": False},
    "plateau": {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"},
    "all trackers": {"report_to": "all"},
    "trackers by list": {"report_to": ["tensorboard"]},
    "no trackers by list": {"report_to": ["none"]},
    "tokens": {"include_num_input_tokens_seen": True},
    "tokens by name": {"include_num_input_tokens_seen": "non_padding"},
    "json": {"lr_scheduler_kwargs": '{"a": "2", "b": {"c": "true", "d": "1.5"}, "e": "x", "f": ["1"]}'},
    "accelerator": {"accelerator_config": {"split_batches": True}},
    "compiled": {"torch_compile_mode": "default"},
    "checkpointing": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
    "bf16": {"bf16": True, "use_cpu": True},
    "enums": {"optim": "sgd", "lr_scheduler_type": "cosine", "hub_strategy": "every_save"},
    "metrics": {"include_for_metrics": ["loss"], "label_names": ["a", "b"]},
}  # fmt: skip


@pytest.mark.parametrize("settings", CALLS.values(), ids=CALLS)
def test_values(settings):
    """The same call gives the same dicts, sanitized or not, and the same batch sizes."""
    theirs, ours = both(**{"output_dir": "out", **settings})
    assert differences(theirs.to_dict(), ours.to_dict()) == {}
    assert differences(theirs.to_sanitized_dict(), ours.to_sanitized_dict()) == {}
    for name in (
        "train_batch_size",
        "eval_batch_size",
        "device",
        "n_gpu",
        "world_size",
        "process_index",
        "should_save",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.place_model_on_device == theirs.place_model_on_device
    assert ours.ddp_timeout_delta == theirs.ddp_timeout_delta
    assert ours.get_process_log_level() == theirs.get_process_log_level()


@pytest.mark.parametrize("settings", CALLS.values(), ids=CALLS)
def test_conversion(settings):
    """Arguments of transformers become ours with the same values, without a warning."""
    theirs = transformers.TrainingArguments(**{"output_dir": "out", **settings})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = from_transformers(theirs)
    assert type(ours) is TrainingArguments
    assert differences(theirs.to_dict(), ours.to_dict()) == {}
    assert from_transformers(ours) is ours
    if MAJOR_4:
        assert ours.logging_dir == theirs.logging_dir


WARMUPS = [{"warmup_steps": 7}, {"warmup_steps": 0}, {"warmup_ratio": 0.3} if MAJOR_4 else {"warmup_steps": 0.3}]


@pytest.mark.parametrize("settings", WARMUPS, ids=repr)
@pytest.mark.parametrize("total", [1, 10, 33])
def test_warmup(settings, total):
    """Warmup takes as many update steps."""
    theirs, ours = both("out", **settings)
    assert ours.get_warmup_steps(total) == theirs.get_warmup_steps(total)


INVALID = {
    "best model, other strategies": {"load_best_model_at_end": True, "eval_strategy": "epoch"},
    "best model, no evaluation": {"load_best_model_at_end": True},
    "not a multiple": {"load_best_model_at_end": True, "eval_strategy": "steps", "save_steps": 5, "eval_steps": 2},
    "share and steps": {"load_best_model_at_end": True, "eval_strategy": "steps", "save_steps": 5, "eval_steps": 0.3},
    "shares": {"load_best_model_at_end": True, "eval_strategy": "steps", "save_steps": 0.25, "eval_steps": 0.1},
    "logging fraction": {"logging_steps": 1.5},
    "save fraction": {"save_steps": 1.5},
    "eval fraction": {"eval_strategy": "steps", "eval_steps": 1.5},
    "logging zero": {"logging_steps": 0},
    "eval zero": {"eval_strategy": "steps", "logging_steps": 0, "logging_strategy": "no"},
    "two precisions": {"fp16": True, "bf16": True, "use_cpu": True},
    "two full precisions": {"fp16_full_eval": True, "bf16_full_eval": True, "use_cpu": True},
    "plateau": {"lr_scheduler_type": "reduce_lr_on_plateau"},
    "warmup": {"warmup_steps": -1},
    "prefetch": {"dataloader_prefetch_factor": 2},
    "cache": {"torch_empty_cache_steps": 0},
    "cache of a float": {"torch_empty_cache_steps": 1.5},
    "strategy": {"eval_strategy": "never"},
    "schedule": {"lr_scheduler_type": "lines"},
    "optimizer": {"optim": "adam"},
    "hub": {"hub_strategy": "never"},
    "debug": {"debug": "everything"},
    "tf32": {"tf32": True, "use_cpu": True},
    "accelerator class": {"accelerator_config": transformers.trainer_pt_utils.AcceleratorConfig},
    "accelerator key": {"accelerator_config": {"split": 1}},
    "unknown": {"learning_rat": 1},
    **({} if MAJOR_4 else {"greedy": {"lr_scheduler_type": "greedy"}}),
    **({"ratio": {"warmup_ratio": 2.0}, "share": {"warmup_steps": 0.5}} if MAJOR_4 else {}),
}


@pytest.mark.parametrize("settings", INVALID.values(), ids=INVALID)
def test_invalid_in_both(settings):
    """What upstream refuses is refused, by an error that a script catching upstream's catches too."""
    with pytest.raises((ValueError, TypeError, NotImplementedError)):
        transformers.TrainingArguments("out", **settings)
    with pytest.raises(TypeError if "learning_rat" in settings else ValueError):
        TrainingArguments("out", **settings)


SETTERS = {
    "set_training": {"learning_rate": 1.0, "batch_size": 3, "num_epochs": 2, "seed": 5},
    "set_evaluate": {"strategy": "steps", "steps": 10, "batch_size": 3, "delay": 2},
    "set_testing": {"batch_size": 3, "loss_only": True},
    "set_save": {"strategy": "epoch", "total_limit": 2},
    "set_logging": {"steps": 5, "report_to": ["tensorboard"], "first_step": True, "level": "info"},
    "set_optimizer": {"name": "sgd", "learning_rate": 1.0, "beta1": 0.5, "args": "momentum=0.9"},
    "set_lr_scheduler": {"name": "cosine", "num_epochs": 2, "max_steps": 9, "warmup_steps": 3},
    "set_push_to_hub": {
        "model_id": "me/model",
        "strategy": "end",
        "token": "hf_x",
        "always_push": True,
        "revision": "b",
    },
    "set_dataloader": {"train_batch_size": 2, "num_workers": 2, "prefetch_factor": 4, "sampler_seed": 1},
}


@pytest.mark.parametrize("given", [False, True], ids=["defaults", "values"])
@pytest.mark.parametrize("name", SETTERS)
def test_setters(name, given):
    """A method that sets the fields of a topic sets the same ones."""
    theirs, ours = both("out")
    settings = SETTERS[name] if given else {"set_push_to_hub": {"model_id": "model"}}.get(name, {})
    # The one deliberate difference: no delay is 0, not None, which nothing can be compared with.
    left = getattr(theirs, name)(**{"delay": 0, **settings} if name == "set_evaluate" else settings)
    right = getattr(ours, name)(**settings)
    assert right is ours
    left.report_to = [] if left.report_to == "none" else left.report_to
    if MAJOR_4:
        left.warmup_ratio = float(left.warmup_ratio)
    assert differences(left.to_dict(), right.to_dict()) == {}


def test_setters_refuse():
    """A strategy without steps is refused."""
    for name in ("set_evaluate", "set_save", "set_logging"):
        with pytest.raises(ArgumentsError, match="`steps=0`"):
            getattr(TrainingArguments("out"), name)(strategy="steps", steps=0)


LINE = (
    "--output_dir out --bf16 --use_cpu --eval_strategy steps --eval_steps 0.5 --report_to none --include_for_metrics "
    "inputs loss --no_dataloader_pin_memory --learning_rate 1e-3 --warmup_steps 10 --label_names a b --optim sgd "
    "--gradient_checkpointing --fp16_full_eval False --disable_tqdm True "
    "--generation_config folder --generation_num_beams 4 --log_level info"
)


def parse(kind, line):
    parser = transformers.HfArgumentParser(kind)
    return parser.parse_args_into_dataclasses(line.split(), look_for_args_file=False)[0]


def test_command_line():
    """The parser of transformers reads our fields as it reads upstream's."""
    theirs = parse(transformers.Seq2SeqTrainingArguments, LINE)
    ours = parse(Seq2SeqTrainingArguments, f"{LINE} --semantics {RELEASE}")
    assert differences(theirs.to_dict(), ours.to_dict()) == {}
    # Upstream's own class cannot be given JSON if a package such as deepspeed has named the union of its types in
    # another order first: Python keeps one object for both orders.
    ours = parse(Seq2SeqTrainingArguments, f'{LINE} --semantics {RELEASE} --lr_scheduler_kwargs {{"num_cycles":2}}')
    assert ours.lr_scheduler_kwargs == {"num_cycles": 2}
    assert ours.semantics == str(RELEASE)


def test_command_line_help():
    """Every field is explained on the command line."""
    text = transformers.HfArgumentParser(Seq2SeqTrainingArguments).format_help()
    assert all(f"--{item.name}" in text for item in dataclasses.fields(Seq2SeqTrainingArguments) if item.init)


@dataclasses.dataclass
class UserArguments(transformers.Seq2SeqTrainingArguments):
    """A user's subclass of transformers' arguments."""

    temperature: float = 0.5


def test_conversion_keeps_a_subclass_fields():
    """Fields and attributes that only the user's class has are kept; a subclass for generation stays one."""
    theirs = UserArguments("out", predict_with_generate=True, temperature=2.0)
    theirs.note = "set later"
    ours = from_transformers(theirs)
    assert type(ours) is Seq2SeqTrainingArguments
    assert (ours.temperature, ours.note, ours.predict_with_generate) == (2.0, "set later", True)


def test_conversion_refuses():
    """What cannot be carried out is refused as in our own arguments; so is what are no arguments."""
    with pytest.raises(UnsupportedArgumentsError, match="`debug='tpu_metrics_debug'`"):
        from_transformers(transformers.TrainingArguments("out", debug="tpu_metrics_debug"))
    with pytest.raises(ArgumentsError, match="`args` is an object of type dict"):
        from_transformers({"output_dir": "out"})


def test_text():
    """Text has one line per field, sorted, in upstream's form."""
    theirs, ours = both("out")
    lines = str(ours).splitlines()
    assert lines[0] == str(theirs).splitlines()[0]
    assert lines[1:-1] == sorted(lines[1:-1], key=lambda line: line.split("=")[0])
    assert {line for line in str(theirs).splitlines() if "Strategy" in line} <= set(lines)


def test_generation_config():
    """A generation config is written as a dict."""
    theirs, ours = both("out", seq2seq=True, generation_config=transformers.GenerationConfig(num_beams=3))
    assert ours.to_dict()["generation_config"] == theirs.to_dict()["generation_config"]


PROPERTIES = [
    name
    for name in dir(transformers.TrainingArguments)
    if isinstance(inspect.getattr_static(transformers.TrainingArguments, name), property)
]
PROPERTY_CALLS = ("cpu", "bf16", "evaluation by steps", "accelerator", "best model")


@pytest.mark.parametrize("name", PROPERTIES)
def test_properties(name):
    """Each property of upstream's is one of ours, with the same value for the same call."""
    for call in PROPERTY_CALLS:
        theirs, ours = both(**{"output_dir": "out", "use_cpu": True, **CALLS[call]})
        expected, value = getattr(theirs, name), getattr(ours, name)
        assert getattr(value, "value", value) == getattr(expected, "value", expected)


OWN_METHODS = [
    name
    for name in dir(transformers.TrainingArguments)
    if inspect.isfunction(inspect.getattr_static(transformers.TrainingArguments, name)) and name[0] != "_"
]
NEWEST_ORDER = {"set_dataloader": "5.15", "set_lr_scheduler": "5.0", "set_training": "5.23"}
"""Setters whose parameters are in the newest release's order, whatever is installed, and the release that made it."""


@pytest.mark.parametrize("name", OWN_METHODS)
def test_methods_take_upstreams_parameters(name):
    """Each public method takes upstream's parameters; in the newest order where releases differ."""
    left, right = (
        list(inspect.signature(getattr(kind, name)).parameters)
        for kind in (transformers.TrainingArguments, TrainingArguments)
    )
    if Version(NEWEST_ORDER.get(name, "4.57")) > RELEASE:
        assert set(left) <= set(right)
    else:
        assert right[: len(left)] == left


@pytest.mark.parametrize("is_local", [True, False])
def test_main_process_first(is_local):
    """The block runs, in one process without waiting."""
    for args in both("out", use_cpu=True):
        with args.main_process_first(local=is_local, desc="tokenizing"):
            ran = True
        assert ran


COPIES = {
    "pickle": lambda args: pickle.loads(pickle.dumps(args)),
    "deepcopy": copy.deepcopy,
    "replace": dataclasses.replace,
    "from a dict": lambda args: type(args)(
        **{item.name: getattr(args, item.name) for item in dataclasses.fields(args) if item.init}
    ),
}


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_is_equal(way):
    """A copy is equal to the original, also once its devices were looked at; another value makes it unequal."""
    for args in both("out", use_cpu=True, eval_strategy="epoch", learning_rate=0.25):
        assert args.n_gpu == 0
        copied = COPIES[way](args)
        assert type(copied) is type(args)
        assert copied == args
        copied.learning_rate = 1.0
        assert copied != args


def test_asdict_has_the_fields_of_upstreams():
    """``dataclasses.asdict`` gives at least upstream's fields, with their values."""
    theirs, ours = (dataclasses.asdict(args) for args in both("out", use_cpu=True))
    left_out = {"accelerator_config", *DEFAULT_EXCEPTIONS}
    names = [name for name in theirs if not name.startswith("_") and name not in left_out]
    assert {name: getattr(ours[name], "value", ours[name]) for name in names} == {
        name: getattr(theirs[name], "value", theirs[name]) for name in names
    }


def test_files_of_torch(tmp_path):
    """Ours are written and read by torch; upstream's file is read, and what it holds is taken as arguments."""
    theirs, ours = both("out", use_cpu=True, learning_rate=0.25)
    for name, args in (("theirs", theirs), ("ours", ours)):
        torch.save(args, tmp_path / name)
        read = from_transformers(torch.load(tmp_path / name, weights_only=False))
        assert (type(read), read.learning_rate) == (TrainingArguments, 0.25)
    assert torch.load(tmp_path / "ours", weights_only=False) == ours


def test_text_and_json():
    """``repr`` is ``str``, and JSON holds what the dict holds."""
    for args in both("out", use_cpu=True):
        assert repr(args) == str(args)
        assert json.loads(args.to_json_string()) == json.loads(json.dumps(args.to_dict()))
