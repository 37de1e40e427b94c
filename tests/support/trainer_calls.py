"""Calls of each method of upstream's Trainer, with when each is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import torch

from tests.support import helpers

Call = Callable[[Any, Any], Any]
STEP = 2
"""The update step of the checkpoint that is loaded."""


def first_batch(trainer: Any) -> Any:
    """Return the first batch of the train loader."""
    return next(iter(trainer.get_train_dataloader()))


def loaded(load: Callable[[Any, str], object]) -> Call:
    """Return a call of ``load`` with a Trainer and the checkpoint, and then what it has changed."""

    def call(trainer: Any, bench: Any) -> Any:
        load(trainer, bench.checkpoint)
        return trainer.model.state_dict(), _states(trainer)

    return call


def saved(save: Callable[[Any, str], object]) -> Call:
    """Return a call of ``save`` with a Trainer and a new folder, and then the names of the files there."""

    def call(trainer: Any, bench: Any) -> Any:
        Path(bench.elsewhere).mkdir()
        save(trainer, bench.elsewhere)
        return sorted(path.name for path in Path(bench.elsewhere).rglob("*") if not path.name.startswith("lightning."))

    return call


def with_gradients(call: Call) -> Call:
    """Return ``call`` after one backward pass."""

    def after(trainer: Any, bench: Any) -> Any:
        trainer.training_step(trainer.model, first_batch(trainer))
        return call(trainer, bench)

    return after


def in_control(*flags: str, step: int = 0) -> Call:
    """Return a call of ``_maybe_log_save_evaluate`` with flags of the control set."""

    def call(trainer: Any, bench: Any) -> None:
        for flag in flags:
            setattr(trainer.control, flag, True)
        trainer.state.global_step = step
        given = (torch.tensor(1.5), None, trainer.model, None, 0, None)
        trainer._maybe_log_save_evaluate(*given, start_time=0.0, learning_rate=0.25)

    return call


def best_is_there(call: Call) -> Call:
    """Return ``call`` after the checkpoint is made the best one."""

    def after(trainer: Any, bench: Any) -> Any:
        trainer.state.best_model_checkpoint = bench.checkpoint
        return call(trainer, bench)

    return after


def tiny_dataset(trainer: Any) -> Any:
    """Return a data set of datasets with a column that the model does not take."""
    return datasets.Dataset.from_dict({"input_ids": [[1, 2], [3, 4]], "labels": [[1, 2], [3, 4]], "extra": ["a", "b"]})


def _entered(context: Any) -> bool:
    with context:
        return torch.is_autocast_enabled("cpu")


def _states(trainer: Any) -> Any:
    return [None if part is None else part.state_dict() for part in (trainer.optimizer, trainer.lr_scheduler)]


CALLS: dict[str, Call | dict[str, Call]] = {
    "_activate_neftune": lambda t, b: type(t._activate_neftune(t.model)).__name__,
    "_align_special_tokens": lambda t, b: t._align_special_tokens(),
    "_clip_grad_norm": with_gradients(lambda t, b: t._clip_grad_norm(t.model)),
    "_deactivate_neftune": lambda t, b: t._deactivate_neftune(t.model),
    "_determine_best_metric": lambda t, b: t._determine_best_metric({"eval_loss": 1.0}, None),
    "_evaluate": lambda t, b: t._evaluate(None, None),
    "_finalize_training": lambda t, b: t._finalize_training(None, 8, 0.0),
    "_finish_current_push": lambda t, b: t._finish_current_push(),
    "_get_collator_with_removed_columns": lambda t, b: sorted(
        t._get_collator_with_removed_columns(t.data_collator)(helpers.token_rows(2))
    ),
    "_get_dataloader": lambda t, b: list(
        t._get_dataloader(t.train_dataset, "Training", 3, t._get_train_sampler, is_training=True)
    ),
    "_get_eval_sampler": lambda t, b: list(t._get_eval_sampler(t.eval_dataset)),
    "_get_grad_norm": with_gradients(lambda t, b: t._get_grad_norm(t.model)),
    "_get_learning_rate": lambda t, b: t._get_learning_rate(),
    "_get_num_items_in_batch": lambda t, b: t._get_num_items_in_batch([first_batch(t)], t.args.device),
    "_get_output_dir": lambda t, b: t._get_output_dir(None),
    "_get_train_sampler": lambda t, b: list(t._get_train_sampler(t.train_dataset)),
    "_hp_search_setup": lambda t, b: t._hp_search_setup(None),
    "_init_training_state": {
        "anew": lambda t, b: t._init_training_state(10, 4, 3, None, None),
        "resumed": lambda t, b: t._init_training_state(10, 4, 3, b.checkpoint, None),
    },
    "_inner_training_loop": lambda t, b: t._inner_training_loop(batch_size=4, args=t.args),
    "_issue_warnings_after_load": lambda t, b: t._issue_warnings_after_load(
        SimpleNamespace(missing_keys=["a"], unexpected_keys=["b"])
    ),
    "_load_best_model": {
        "without one": lambda t, b: t._load_best_model(),
        "with one": best_is_there(loaded(lambda t, folder: t._load_best_model())),
    },
    "_load_callback_state": lambda t, b: t._load_callback_state(),
    "_load_from_checkpoint": {
        "into the model": loaded(lambda t, folder: t._load_from_checkpoint(folder)),
        "into another": loaded(lambda t, folder: t._load_from_checkpoint(folder, t.model)),
        "nothing there": lambda t, b: t._load_from_checkpoint(b.nowhere),
    },
    "_load_optimizer_and_scheduler": {
        "none": lambda t, b: t._load_optimizer_and_scheduler(None),
        "a checkpoint": loaded(lambda t, folder: t._load_optimizer_and_scheduler(folder)),
        "nothing there": lambda t, b: t._load_optimizer_and_scheduler(b.nowhere),
    },
    "_load_rng_state": {
        "none": lambda t, b: t._load_rng_state(None),
        "a checkpoint": lambda t, b: t._load_rng_state(b.checkpoint),
        "nothing there": lambda t, b: t._load_rng_state(b.nowhere),
    },
    "_load_scaler": {
        "none": lambda t, b: t._load_scaler(None),
        "a checkpoint": lambda t, b: t._load_scaler(b.checkpoint),
    },
    "_maybe_log_save_evaluate": {
        "nothing": in_control(),
        "log": in_control("should_log", step=1),
        "log again": in_control("should_log"),
        "evaluate": in_control("should_evaluate"),
        "save": in_control("should_save"),
        "all": in_control("should_log", "should_evaluate", "should_save", step=3),
    },
    "_move_model_to_device": lambda t, b: t._move_model_to_device(t.model, torch.device("cpu")),
    "_nested_gather": lambda t, b: t._nested_gather(torch.ones(2)),
    "_prepare_context_parallel_inputs": lambda t, b: t._prepare_context_parallel_inputs(t.model, first_batch(t))[1],
    "_prepare_input": lambda t, b: t._prepare_input({"a": torch.ones(2), "b": [1, "c"]}),
    "_prepare_inputs": {
        "a batch": lambda t, b: t._prepare_inputs(first_batch(t)),
        "an empty one": lambda t, b: t._prepare_inputs({}),
    },
    "_push_from_checkpoint": lambda t, b: t._push_from_checkpoint(b.checkpoint) if t.args.push_to_hub else None,
    "_remove_unused_columns": lambda t, b: t._remove_unused_columns(tiny_dataset(t), "training").column_names,
    "_report_to_hp_search": lambda t, b: t._report_to_hp_search(None, 1, {"eval_loss": 1.0}),
    "_rotate_checkpoints": {
        "of the output folder": lambda t, b: t._rotate_checkpoints(),
        "of a folder": lambda t, b: t._rotate_checkpoints(use_mtime=True, output_dir=t.args.output_dir),
    },
    "_save": {
        "to a folder": saved(lambda t, folder: t._save(folder)),
        "a state dict": saved(lambda t, folder: t._save(folder, state_dict=t.model.state_dict())),
        "to the output folder": lambda t, b: t._save(),
    },
    "_save_checkpoint": lambda t, b: t._save_checkpoint(t.model, None),
    "_save_optimizer_and_scheduler": saved(lambda t, folder: t._save_optimizer_and_scheduler(folder)),
    "_save_rng_state": saved(lambda t, folder: t._save_rng_state(folder)),
    "_save_scaler": saved(lambda t, folder: t._save_scaler(folder)),
    "_set_signature_columns_if_needed": lambda t, b: (
        t._set_signature_columns_if_needed(),
        sorted(set(t._signature_columns)),
    ),
    "_sorted_checkpoints": lambda t, b: t._sorted_checkpoints(output_dir=t.args.output_dir),
    "_track_num_input_tokens": lambda t, b: t._track_num_input_tokens(first_batch(t)),
    "_tune_save_checkpoint": saved(lambda t, folder: t._tune_save_checkpoint(folder)),
    "_validate_args": lambda t, b: t._validate_args(),
    "_wrap_model": {
        "to train": lambda t, b: t._wrap_model(t.model) is t.model,
        "to evaluate": lambda t, b: t._wrap_model(t.model, training=False) is t.model,
    },
    "add_callback": lambda t, b: (t.add_callback(b.kit.EarlyStoppingCallback), len(t.callback_handler.callbacks)),
    "autocast_smart_context_manager": lambda t, b: _entered(t.autocast_smart_context_manager()),
    "call_model_init": lambda t, b: t.call_model_init(),
    "compare_trainer_and_checkpoint_args": lambda t, b: t.compare_trainer_and_checkpoint_args(t.args, t.state),
    "compute_loss": {
        "alone": lambda t, b: t.compute_loss(t.model, first_batch(t)),
        "with outputs": lambda t, b: sorted(t.compute_loss(t.model, first_batch(t), return_outputs=True)[1]),
    },
    "compute_loss_context_manager": lambda t, b: _entered(t.compute_loss_context_manager()),
    "create_accelerator_and_postprocess": lambda t, b: t.create_accelerator_and_postprocess(),
    "create_model_card": lambda t, b: (t.create_model_card(), Path(t.args.output_dir, "README.md").is_file()),
    "create_optimizer": lambda t, b: t.create_optimizer().defaults,
    "create_optimizer_and_scheduler": lambda t, b: t.create_optimizer_and_scheduler(10),
    "create_scheduler": {
        "of the Trainer's optimizer": lambda t, b: t.create_scheduler(10).get_last_lr(),
        "of another": lambda t, b: t.create_scheduler(10, torch.optim.SGD(t.model.parameters(), lr=0.5)).get_last_lr(),
    },
    "end": lambda t, b: t.end(),
    "evaluate": lambda t, b: t.evaluate(),
    "evaluation_loop": lambda t, b: t.evaluation_loop(t.get_eval_dataloader(), "Evaluation").metrics,
    "floating_point_ops": lambda t, b: t.floating_point_ops(first_batch(t)),
    "get_batch_samples": lambda t, b: t.get_batch_samples(iter(t.get_train_dataloader()), 2, t.args.device),
    "get_cp_size": lambda t, b: t.get_cp_size(),
    "get_decay_parameter_names": lambda t, b: t.get_decay_parameter_names(t.model),
    "get_eval_dataloader": {
        "of the Trainer": lambda t, b: list(t.get_eval_dataloader()),
        "of another": lambda t, b: list(t.get_eval_dataloader(t.train_dataset)),
        "of a name": lambda t, b: list(t.get_eval_dataloader("validation")),
    },
    "get_learning_rates": lambda t, b: t.get_learning_rates(),
    "get_num_trainable_parameters": lambda t, b: t.get_num_trainable_parameters(),
    "get_optimizer_cls_and_kwargs": lambda t, b: (
        t.get_optimizer_cls_and_kwargs(t.args)[0].__name__,
        t.get_optimizer_cls_and_kwargs(t.args)[1],
    ),
    "get_optimizer_group": {
        "all": lambda t, b: [len(group) for group in t.get_optimizer_group()],
        "of one": lambda t, b: t.get_optimizer_group(next(t.model.parameters()))["lr"],
    },
    "get_sp_size": lambda t, b: t.get_sp_size(),
    "get_test_dataloader": lambda t, b: list(t.get_test_dataloader(t.eval_dataset)),
    "get_total_train_batch_size": lambda t, b: t.get_total_train_batch_size(t.args),
    "get_tp_size": lambda t, b: t.get_tp_size(),
    "get_train_dataloader": lambda t, b: list(t.get_train_dataloader()),
    "hyperparameter_search": lambda t, b: t.hyperparameter_search(n_trials=1, backend="optuna"),
    "init_hf_repo": lambda t, b: t.init_hf_repo() if t.args.push_to_hub else None,
    "is_local_process_zero": lambda t, b: t.is_local_process_zero(),
    "is_world_process_zero": lambda t, b: t.is_world_process_zero(),
    "log": {
        "metrics": lambda t, b: t.log({"loss": 1.0}),
        "with a start": lambda t, b: t.log({"loss": 1.0}, 0.0),
    },
    "log_metrics": lambda t, b: t.log_metrics("train", {"loss": 1.0}),
    "metrics_format": lambda t, b: t.metrics_format({"loss": 1.23456, "total_flos": 1e12, "train_runtime": 100.0}),
    "num_examples": lambda t, b: t.num_examples(t.get_train_dataloader()),
    "num_tokens": {
        "all": lambda t, b: t.num_tokens(t.get_train_dataloader()),
        "of the first batch": lambda t, b: t.num_tokens(t.get_train_dataloader(), 5),
    },
    "pop_callback": lambda t, b: t.pop_callback(b.kit.EarlyStoppingCallback),
    "predict": lambda t, b: t.predict(t.eval_dataset),
    "prediction_loop": lambda t, b: t.prediction_loop(t.get_eval_dataloader(), "Evaluation").metrics,
    "prediction_step": lambda t, b: t.prediction_step(t.model.eval(), first_batch(t), False),
    "push_to_hub": lambda t, b: t.push_to_hub() if t.args.push_to_hub else None,
    "remove_callback": lambda t, b: t.remove_callback(b.kit.EarlyStoppingCallback),
    "save_metrics": lambda t, b: t.save_metrics("eval", {"loss": 1.0}),
    "save_model": {
        "to the output folder": lambda t, b: t.save_model(),
        "to another": saved(lambda t, folder: t.save_model(folder)),
    },
    "save_state": lambda t, b: t.save_state(),
    "set_initial_training_values": lambda t, b: t.set_initial_training_values(
        t.args, t.get_train_dataloader(), *([8] if b.kit.release.major == 4 else [])
    ),
    "store_flos": lambda t, b: t.store_flos(),
    "tokenizer": lambda t, b: t.tokenizer,
    "torch_jit_model_eval": lambda t, b: t.torch_jit_model_eval(t.model, None, training=True) is t.model,
    "training_step": lambda t, b: (
        t.training_step(t.model, first_batch(t)),
        [parameter.grad for parameter in t.model.parameters()],
    ),
}
"""A call of each method, or several, with a Trainer and a bench: the kit, a checkpoint, folders."""

NEW = ("",)
EITHER = ("", "with an optimizer")
ALL = ("", "with an optimizer", "after an evaluation")
WHEN = {
    **dict.fromkeys(("_clip_grad_norm", "_evaluate", "_get_learning_rate", "_init_training_state"), EITHER),
    **dict.fromkeys(("_load_optimizer_and_scheduler", "_load_callback_state", "_load_rng_state"), EITHER),
    **dict.fromkeys(("_save_optimizer_and_scheduler", "_tune_save_checkpoint", "_finalize_training"), EITHER),
    **dict.fromkeys(("create_optimizer", "create_scheduler", "create_optimizer_and_scheduler"), EITHER),
    **dict.fromkeys(("get_learning_rates", "get_optimizer_group", "_report_to_hp_search"), EITHER),
    **dict.fromkeys(("_inner_training_loop", "_maybe_log_save_evaluate", "_save_checkpoint", "training_step"), ALL),
    **dict.fromkeys(("_load_best_model", "_load_from_checkpoint", "evaluate", "predict", "save_model"), ALL),
    **dict.fromkeys(("_rotate_checkpoints", "compute_loss", "save_state", "store_flos", "log"), ALL),
}
"""When a method is called, besides on a new Trainer; for those that depend on it."""
