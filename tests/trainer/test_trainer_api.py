"""The Trainer's surface beside upstream's: every method and attribute of every release since 4.31, by name."""

import functools
import inspect
import json
import os
import re
import warnings

import datasets
import pytest
import torch
from packaging.version import Version
from torch import nn
from torch.utils.data import DataLoader

import hf_compat
from hf_compat import Seq2SeqTrainer, Trainer
from hf_compat.errors import TrainerSetupError
from hf_compat.overriding import NEVER_CALLED
from tests.support import helpers, parity
from tests.support.paths import FACTS_FOLDER
from tests.support.trainer_methods import CALLED_BY_USERS, METHODS, OVERRIDABLE
from tests.support.trainers import arguments

transformers = pytest.importorskip("transformers")

RELEASE = Version(transformers.__version__)
API = json.loads((FACTS_FOLDER / "trainer_api.json").read_text())

NEVER_WRITTEN = {name for name in NEVER_CALLED if not hasattr(Trainer, name)}
"""Refused as overrides, and nobody calls them: for backends or loops that upstream has and Lightning replaces."""


def test_every_method_is_accounted_for():
    """Each method of each release is one of ours, or is refused as an override with what to do instead."""
    assert set(METHODS) >= CALLED_BY_USERS
    assert CALLED_BY_USERS & set(NEVER_CALLED) == set()
    assert [name for name in METHODS if not hasattr(Trainer, name)] == [
        name for name in METHODS if name in NEVER_WRITTEN
    ]


def parameters(function):
    """Return the parameters that a caller may pass, without ``self``."""
    every = inspect.signature(function).parameters.values()
    return [(item.name, item.kind, item.default) for item in every if item.name != "self"]


KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

LESS_STRICT = {
    "_rotate_checkpoints": "by file times since the first release of ours",
    "_get_output_dir": "the trial may be left out",
    "create_optimizer": "takes a model in every release",
    "set_initial_training_values": "takes both releases' arguments",
    "_maybe_log_save_evaluate": "the start time may be left out",
    "_save_checkpoint": "takes the metrics of old releases",
}
"""Methods whose defaults or parameters are not exactly upstream's, and why."""


@pytest.mark.parametrize("kind", [Trainer, Seq2SeqTrainer], ids=["Trainer", "Seq2SeqTrainer"])
def test_calls_of_the_installed_release_are_taken(kind):
    """Each method takes the installed upstream's parameters: names, order, defaults, by position and by keyword."""
    upstream = getattr(transformers, kind.__name__)
    names = {*METHODS, *API["seq2seq_methods"], "__init__"} - {"tokenizer"}
    checked = 0
    for name in sorted(names):
        theirs, ours = getattr(upstream, name, None), getattr(kind, name, None)
        if theirs is None or ours is None:
            continue
        left = [item for item in parameters(theirs) if item[1] in KINDS]
        right = [item for item in parameters(ours) if item[1] in KINDS]
        if name in LESS_STRICT:
            left, right = ([item[0] for item in side] for side in (left, right))
        assert right[: len(left)] == left, name
        checked += 1
    assert checked > 60


@pytest.mark.parametrize("row", API["constructor"]["Trainer"], ids=lambda row: f"{row[0]}-{row[1]}")
def test_constructor_takes_the_names_of_every_release(row):
    """Every argument of every release's constructor is one of ours; the newest order is ours."""
    names = [item[0] for item in parameters(Trainer.__init__)]
    assert set(row[2]) <= set(names)
    if row[1] == "5.24.0":
        assert names[: len(row[2])] == row[2]


@pytest.mark.parametrize("name", NEVER_CALLED)
def test_an_override_that_no_run_calls_is_refused(name, tmp_path):
    """It is refused at construction, naming the method and what to do instead."""
    kind = type("Mine", (Trainer,), {name: lambda self: None})
    with pytest.raises(TrainerSetupError, match=f"`Mine` overrides .*\n  `{name}`: "):
        kind(helpers.PlainModel(), hf_compat.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none"))


# Calls


STAGED = re.compile(r"\.(checkpoint-\d+)\.partial-[^/]*")
"""Ours writes a checkpoint beside its place and moves it there once it is whole."""

KINDS_OF_VALUES = {nn.Module: "a model", DataLoader: "a loader"}


def plain(value, folder):
    """Return what two runs' arguments are compared by."""
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), str(value.dtype), value.flatten().tolist()[:3])
    if isinstance(value, str):
        return STAGED.sub(r"\1", value.replace(str(folder), "<folder>"))
    if isinstance(value, dict):
        return {key: "<time>" if parity.TIME.search(str(key)) else plain(item, folder) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, folder) for item in value]
    if value is None or isinstance(value, int | float):
        return value
    kind = type(value).__name__
    return next((name for base, name in KINDS_OF_VALUES.items() if isinstance(value, base)), kind)


def recording(base, names, calls, folder):
    """Return a subclass of ``base`` that notes each call of ``names``: its arguments as the method names them."""

    def recorded(name):
        static = isinstance(inspect.getattr_static(base, name), staticmethod)
        original = getattr(base, name)
        signature = inspect.signature(original)

        @functools.wraps(original)
        def method(*given, **named):
            bound = signature.bind(*given, **named)
            bound.apply_defaults()
            taken = {key: plain(value, folder) for key, value in bound.arguments.items() if key != "self"}
            if taken.get("start_time") is not None:
                taken["start_time"] = "<time>"
            calls.append((name, taken))
            return original(*given, **named)

        return staticmethod(method) if static else method

    return type("Recording", (base,), {name: recorded(name) for name in names if hasattr(base, name)})


def calls_of(which, folder):
    """Train with everything on, evaluate, predict and save; resume with a ``model_init``; evaluate by older rules.

    Returns:
        The calls.
    """
    kit = parity.Kit(which, folder)
    calls = []
    kind = recording(kit.Trainer, OVERRIDABLE, calls, folder)
    settings = {
        "max_steps": 3,
        "gradient_accumulation_steps": 2,
        "per_device_eval_batch_size": 4,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "save_total_limit": 3,
        "load_best_model_at_end": True,
        "include_num_input_tokens_seen": "all",
        "restore_callback_states_from_checkpoint": True,
    }
    data = {
        "train_dataset": helpers.ListDataset(helpers.token_rows(14)),
        "eval_dataset": datasets.Dataset.from_list(helpers.token_rows(5, seed=1)),
        "data_collator": helpers.PadCollator(),
    }
    with parity.clean_process(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        # Not in the second run: transformers 4.57 forgets its hook when a model_init makes the model anew.
        trainer = kind(helpers.gpt2(), kit.args(**settings, neftune_noise_alpha=1.0), **data)
        trainer.train()
        trainer.evaluate()
        trainer.predict(trainer.eval_dataset)
        trainer.save_model()
        calls.append(("resumed", {}))
        trainer = kind(args=kit.args(**settings | {"max_steps": 4}), model_init=lambda: helpers.gpt2(), **data)
        trainer.train(resume_from_checkpoint=os.path.join(kit.output_dir, "checkpoint-2"))
        if kit.release.major == 4:
            calls.append(("resumed", {}))
            older = {"use_legacy_prediction_loop": True, "jit_mode_eval": True}
            trainer = kind(helpers.gpt2(), kit.args(**older), **data)
            trainer.evaluate()
            trainer.predict(trainer.eval_dataset)
    return calls


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """The calls of upstream's run and of ours."""
    return [calls_of(which, tmp_path_factory.mktemp(which)) for which in ("upstream", "ours")]


DIFFERENT_ARGUMENTS = {
    "_issue_warnings_after_load": {"load_result": "ours lists no weights that are tied to ones that are there"},
    "_wrap_model": {"dataloader": "upstream passes it before 5.0 only"},
}
"""Arguments that are not compared, and why."""

QUESTIONS = {
    "_get_output_dir": "also asked for checkpoints that a killed run left unfinished",
    "_prepare_context_parallel_inputs": "called for evaluations too, as upstream does since 5.0",
    "is_local_process_zero": "asked where messages are printed",
    "is_world_process_zero": "asked where messages are printed",
}
"""Methods that ours asks at more points than the installed release, and why."""


@pytest.mark.parametrize("name", OVERRIDABLE)
def test_overrides_are_called_as_upstreams(name, calls):
    """An override is called as often, in the same order and with the same arguments as under upstream's Trainer."""
    theirs, ours = ([taken for called, taken in side if called in (name, "resumed")] for side in calls)
    if not hasattr(transformers.Trainer, name):
        pytest.skip(f"the installed release has no `{name}`")
    if name in QUESTIONS:
        assert len(ours) > 1
        return
    known = {item[0] for item in parameters(getattr(transformers.Trainer, name))} - {*DIFFERENT_ARGUMENTS.get(name, ())}
    left, right = ([{key: taken[key] for key in taken if key in known} for taken in side] for side in (theirs, ours))
    assert right == left


# Attributes

GONE = {
    "_eval_dataloader": "one release's cache",
    "_past": "models with memory are refused",
    "amp_dtype": "apex and autocast by hand, before accelerate",
    "backward_prefetch": "FSDP's, before accelerate",
    "do_grad_scaling": "apex and autocast by hand, before accelerate",
    "forward_prefetch": "FSDP's, before accelerate",
    "fsdp": "FSDP's, before accelerate",
    "initial_num_input_tokens_seen_for_session": "`_initial_num_input_tokens_seen` since 5.3",
    "jit_compilation_time": "tracing is refused",
    "limit_all_gathers": "FSDP's, before accelerate",
    "repo": "nothing is kept in a git repository",
    "scaler": "`accelerator.scaler`",
    "sharded_ddp": "FairScale's",
    "use_cuda_amp": "apex and autocast by hand, before accelerate",
    "use_tune_checkpoints": "a search's, before 4.36",
    "_attn_mask_causal_checked": "context parallelism is refused",
    "_loggers_initialized": "whether warnings about loggers were printed",
    "_mixed_mesh_grads": "several device meshes are refused",
}
"""Attributes of upstream's that ours does not have, and why nobody misses them."""

LATER = {"_memory_tracker", "compute_objective", "hp_space", "hub_model_id", "push_in_progress"}
"""What pushing to the Hub, searches and memory metrics set."""

NOT_COMPARED = {
    "_created_lr_scheduler": "the schedule is made, and noted, in the run",
    "model_preparation_time": "a time",
}


@pytest.fixture(scope="module")
def both_trained(tmp_path_factory):
    """Upstream's Trainer and ours after the same two update steps and an evaluation."""
    done = []
    for which in ("upstream", "ours"):
        kit = parity.Kit(which, tmp_path_factory.mktemp(which))
        with parity.clean_process(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            rows = helpers.ListDataset(helpers.token_rows(8))
            args = kit.args(max_steps=2, predict_with_generate=False, seq2seq=True, neftune_noise_alpha=2.0)
            trainer = kit.Seq2SeqTrainer(
                helpers.gpt2(), args, helpers.PadCollator(), train_dataset=rows, eval_dataset=rows
            )
            trainer.evaluate()
            trainer.train()
        done.append(trainer)
    return done


@pytest.mark.parametrize("name", sorted(set(API["attributes"]) - set(GONE) - LATER))
def test_attributes_mean_the_same(name, both_trained):
    """After a run each attribute is there, and holds what upstream's holds or an object of the same kind."""
    theirs, ours = both_trained
    value = getattr(ours, name)
    if not hasattr(theirs, name) or name in NOT_COMPARED:
        return
    expected = getattr(theirs, name)
    if name == "_signature_columns":
        assert set(value) == set(expected)
    elif name.startswith("is_"):
        assert bool(value) == bool(expected)
    elif expected is None or isinstance(expected, bool | int | float | str | list | dict):
        assert value == expected
    elif isinstance(expected, torch.Tensor | nn.Module):
        assert type(value) is type(expected)
    else:
        assert callable(value) == callable(expected)


# Overrides of older releases


def _of_4_31(self, tr_loss, model, trial, epoch, ignore_keys_for_eval):
    """Log and evaluate, as before 4.38, when no gradient norm was measured."""
    assert model is self.model_wrapped
    assert (trial, epoch, ignore_keys_for_eval) == (None, self.state.global_step - 1, None)
    if self.control.should_log:
        self.log({"loss": tr_loss.item()})
        tr_loss -= tr_loss
    if self.control.should_evaluate:
        self.evaluate()


def _with_metrics(self, model, trial, metrics=None):
    """Save, as before 4.47, when the evaluation was passed on."""
    assert metrics is not None
    Trainer._save_checkpoint(self, model, trial, metrics=metrics)


OLD = {
    "compute_loss until 4.45": lambda self, model, inputs, return_outputs=False: Trainer.compute_loss(
        self, model, inputs, return_outputs
    ),
    "training_step until 4.45": lambda self, model, inputs: Trainer.training_step(self, model, inputs),
    "log until 4.46": lambda self, logs: Trainer.log(self, logs),
    "evaluate without ignore_keys": lambda self, eval_dataset=None: Trainer.evaluate(self, eval_dataset),
    "_get_train_sampler until 4.51": lambda self: Trainer._get_train_sampler(self),
    "_save_checkpoint until 4.46": _with_metrics,
    "_maybe_log_save_evaluate until 4.37": _of_4_31,
    "_maybe_log_save_evaluate until 4.46": (
        lambda self, tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval: Trainer._maybe_log_save_evaluate(
            self, tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval
        )
    ),
    "create_optimizer until 5.2": lambda self: Trainer.create_optimizer(self),
    "create_scheduler of one argument": lambda self, num_training_steps: Trainer.create_scheduler(
        self, num_training_steps
    ),
    "set_initial_training_values of 4.49": (
        lambda self, args, dataloader, total_train_batch_size: Trainer.set_initial_training_values(
            self, args, dataloader, total_train_batch_size
        )
    ),
    "_load_optimizer_and_scheduler": lambda self, checkpoint: Trainer._load_optimizer_and_scheduler(self, checkpoint),
    "_wrap_model without a loader": lambda self, model, training=True: Trainer._wrap_model(self, model, training),
    "get_optimizer_cls_and_kwargs until 4.38": staticmethod(lambda args: Trainer.get_optimizer_cls_and_kwargs(args)),
}
"""Overrides as they were written for older releases."""


@pytest.mark.parametrize("row", OLD)
def test_an_override_of_an_older_release_is_called_as_it_is_defined(row, tmp_path):
    """It gets the arguments that it takes, by name where others stood between them; the run is as without it."""
    rows = helpers.ListDataset(helpers.vector_rows(8))
    settings = {"max_steps": 2, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "save_steps": 1}
    name, histories = row.split()[0], []
    for overrides in ({}, {name: OLD[row]}):
        torch.manual_seed(0)
        args = arguments(tmp_path, semantics="4.57", **settings)
        trainer = type("Old", (Trainer,), overrides)(helpers.PlainModel(), args, train_dataset=rows, eval_dataset=rows)
        trainer.train()
        histories.append([round(entry["loss"], 4) for entry in trainer.state.log_history if "loss" in entry])
    assert histories[0] == histories[1] != []


def test_an_override_with_other_names_is_called_by_position(tmp_path):
    """Parameters may be called otherwise, as upstream passes these by position."""
    seen = []

    class Renamed(Trainer):
        def training_step(self, network, batch, count=None):
            seen.append(sorted(batch))
            return super().training_step(network, batch, count)

        def _save_checkpoint(self, network, attempt):
            seen.append("saved")
            super()._save_checkpoint(network, attempt)

    args = arguments(tmp_path, max_steps=1, save_steps=1)
    Renamed(helpers.PlainModel(), args, train_dataset=helpers.ListDataset(helpers.vector_rows(8))).train()
    assert seen == [["features", "labels"], "saved"]


def test_what_set_initial_training_values_returns_is_the_plan(tmp_path):
    """An override of it decides how long the run is."""

    class Shorter(Trainer):
        def set_initial_training_values(self, *given):
            values = list(super().set_initial_training_values(*given))
            values[-1] = 2
            return tuple(values)

    args = arguments(tmp_path, save_strategy="no", num_train_epochs=5)
    trainer = Shorter(helpers.PlainModel(), args, train_dataset=helpers.ListDataset(helpers.vector_rows(8)))
    assert trainer.train().global_step == 2


def test_a_model_wrapped_by_an_override_is_the_one_that_is_called(tmp_path):
    """Training and evaluation call what ``_wrap_model`` returns; the weights are the model's."""
    passes = []

    class Wrapped(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, **batch):
            passes.append(self.training)
            return self.module(**batch)

    class Wraps(Trainer):
        def _wrap_model(self, model, training=True, dataloader=None):
            return Wrapped(super()._wrap_model(model, training, dataloader))

    rows = helpers.ListDataset(helpers.vector_rows(8))
    args = arguments(tmp_path, save_strategy="no", max_steps=1)
    trainer = Wraps(helpers.PlainModel(), args, train_dataset=rows, eval_dataset=rows)
    before = [weight.clone() for weight in trainer.model.parameters()]
    trainer.train()
    assert not all(map(torch.equal, before, trainer.model.parameters()))
    trainer.evaluate()
    assert passes == [True, False]


def test_methods_of_older_releases_can_be_called(tmp_path):
    """What transformers 4 had and 5 has not gives what it gave."""
    args = arguments(tmp_path)
    trainer = Trainer(helpers.PlainModel(), args)
    batches = [{"input_ids": torch.ones(2, 3)}, {"input_ids": torch.ones(1, 4)}]
    assert (Trainer.num_tokens(batches), Trainer.num_tokens(batches, 5), Trainer.num_tokens([{}])) == (10, 30, 0)
    assert trainer._nested_gather(None) is None
    assert trainer._nested_gather(batches) is batches
    assert (trainer.get_tp_size(), trainer.get_cp_size(), trainer.get_sp_size()) == (1, 1, 1)
    for step in (10, 2, 3):
        (tmp_path / f"checkpoint-{step}").mkdir()
    trainer.state.best_model_checkpoint = str(tmp_path / "checkpoint-2")
    found = [os.path.basename(path) for path in trainer._sorted_checkpoints(tmp_path)]
    assert found == ["checkpoint-3", "checkpoint-2", "checkpoint-10"]
    with pytest.raises(ValueError, match="checkpoint_prefix"):
        trainer._sorted_checkpoints(tmp_path, "copy")
    with pytest.raises(ValueError, match="Neftune is not activated"):
        trainer._deactivate_neftune(trainer.model)
