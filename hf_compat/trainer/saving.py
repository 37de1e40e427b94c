"""Evaluations and saves during training, the best model, and the end of a run."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from hf_compat.arguments.derived import saves_checkpoints
from hf_compat.checkpoint import names, rotation
from hf_compat.checkpoint.background import CheckpointFile, Put, is_requested, written_side_by_side
from hf_compat.data.windows import Window
from hf_compat.distributed.oom_consensus import PacedVotes
from hf_compat.errors import (
    BatchSizeError,
    CheckpointWriteError,
    MetricNameError,
    MetricsError,
    described,
)
from hf_compat.memory import WeakAttribute
from hf_compat.metrics import speed_metrics
from hf_compat.overriding import call_override, check_returned, is_overridden
from hf_compat.plan.plan import EvaluationTimes, steps_between
from hf_compat.state import export_states
from hf_compat.trainer import model_files
from hf_compat.trainer.batch_size import is_out_of_memory
from hf_compat.trainer.outputs import TrainOutput

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments
    from hf_compat.state import TrainerState
    from hf_compat.trainer.progress import RunCounters
    from hf_compat.trainer.run import TrainingRun
    from hf_compat.trainer.searching import Trial
    from hf_compat.trainer.trainer import Trainer

logger = logging.getLogger(__name__)


# The best evaluation, and its checkpoint.


def metric_for_best(args: TrainingArguments, metrics: Mapping[str, float]) -> float:
    """Return the value of ``metric_for_best_model``.

    Raises:
        MetricsError: If the evaluation returned no dict, or several numbers by that name.
        MetricNameError: If that lacks it.
    """
    if not isinstance(metrics, Mapping):
        raise MetricsError(
            f"`evaluate` returned {described(metrics)}, but a model is chosen by its metrics. Return what it computes."
        )
    wanted = args.metric_for_best_model
    name = f"eval_{(wanted or 'loss').removeprefix('eval_')}"
    if name not in metrics:
        there = f"only {', '.join(metrics)}" if metrics else "and no other metric"
        remedy = ", or use one of these" if metrics else ""
        if name == "eval_loss":
            remedy += f"; there is a loss if batches have labels, by the names in `label_names={args.label_names}`"
        elif metrics and not any(key.endswith("loss") for key in metrics):
            remedy += (
                f"; that is called if batches have labels, in a column `labels` or by `label_names={args.label_names}`"
            )
        raise MetricNameError(
            f"`metric_for_best_model={wanted!r}`, which is not found in the evaluation metrics: "
            f"there is no `{name}`, {there}. Return it from `compute_metrics`{remedy}."
        )
    if math.prod(shape := np.shape(metrics[name])) > 1:
        raise MetricsError.also(RuntimeError, ValueError)(
            f"`metric_for_best_model={wanted!r}`: `{name}` is {described(metrics[name])} of shape {tuple(shape)}, but "
            "a model is chosen by one number. Return it from `compute_metrics`, such as `value.mean().item()`."
        )
    return metrics[name]


def checked_output_dir(folder: Any) -> str:
    """Return ``folder``, which the Trainer's ``_get_output_dir`` has returned.

    Raises:
        OverrideError: If it is no path.
    """
    check_returned(isinstance(folder, str | os.PathLike), folder, "_get_output_dir", "the path of a folder")
    return folder  # type: ignore[no-any-return]


def note_best_checkpoint(trainer: Trainer, output_dir: str) -> None:
    """Set ``state.best_model_checkpoint`` if the update step of the best evaluation is saved."""
    state: TrainerState = trainer.state
    if not state.best_global_step or not saves_checkpoints(trainer.args):
        return
    best = os.path.join(output_dir, names.checkpoint_name(state.best_global_step))
    if state.best_global_step == state.global_step or os.path.exists(best):
        state.best_model_checkpoint = best


# Saving checkpoints during training, and handling write errors.


_STATE_METHODS: dict[str, Callable[[Trainer, str, Put], None]] = {
    "_save_optimizer_and_scheduler": model_files.save_optimizer_and_scheduler,
    "_save_scaler": model_files.save_scaler,
    "_save_rng_state": model_files.save_rng_state,
}
"""Methods of the Trainer, in transformers' order → what collects the files that ours write."""


class CheckpointSaving:
    """Saves checkpoints, synchronously or in the background, and fires ``on_save``.

    Args:
        run: The run.
    """

    _run: WeakAttribute[TrainingRun] = WeakAttribute()
    _trainer: WeakAttribute[Trainer] = WeakAttribute()

    def __init__(self, run: TrainingRun) -> None:
        self._run, self._trainer = run, run.trainer
        self._writer = run.checkpoint_writer
        self._best_before: str | None = None
        self._last_step: int | None = None

    def note_change(self) -> None:
        """Note that what follows within this update step, an evaluation perhaps, is in no checkpoint yet."""
        self._last_step = None

    @property
    def has_saved(self) -> bool:
        """Whether the current update step is saved."""
        return self._last_step == self._trainer.state.global_step

    def save(self, model: nn.Module, trial: Trial | None, metrics: dict[str, float] | None = None) -> None:
        """Save a checkpoint and fire ``on_save``; a write error is raised or logged, as ``on_save_error`` says.

        Args:
            model: The wrapped model.
            trial: The trial of a hyperparameter search, None outside one.
            metrics: The metrics of the last evaluation, None without one.

        Raises:
            CheckpointWriteError: On every rank, unless ``on_save_error='warn'``.
        """
        self.finish()
        self._best_before = self._trainer.state.best_model_checkpoint
        try:
            with self._writer.writing():
                call_override(self._trainer._save_checkpoint, "model trial", model, trial, metrics=metrics)
        except CheckpointWriteError as error:
            self._handle_write_error(error)
            self._trainer.control.should_save = False  # as after a save: it is not tried again at the epoch's end
            return
        self._last_step = self._trainer.state.global_step  # an override may have saved by itself
        trainer = self._trainer
        trainer.control = trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)

    def finish(self) -> None:
        """Wait for a checkpoint that is being saved in the background; every rank calls it."""
        try:
            with self._writer.writing():
                self._writer.wait()
        except CheckpointWriteError as error:
            self._handle_write_error(error)

    def _handle_write_error(self, error: CheckpointWriteError) -> None:
        self._trainer.state.best_model_checkpoint = self._best_before
        if self._trainer.args.on_save_error == "raise":
            raise error
        logger.error("%s Training continues (`on_save_error='warn'`).", error)

    def write(self, trial: Trial | None) -> None:
        """Write ``checkpoint-<update step>``, which appears only when it is complete; then push it and rotate.

        If a subclass overrides ``_save_checkpoint``, or a callback ``on_save``, it may read the folder: this method
        then returns only when the folder is complete.

        Args:
            trial: The trial of a hyperparameter search, None outside one.
        """
        args, launch = self._trainer.args, self._run.backend.process_layout.launch
        writes = args.should_save  # the files that one rank writes for all, or for its node
        if self._trainer.hp_search_backend is None and trial is None:
            self._trainer.store_flos()
        output_dir = checked_output_dir(self._trainer._get_output_dir(trial=trial))
        step = self._trainer.state.global_step
        folder = Path(output_dir, names.checkpoint_name(step))
        if is_requested(args):
            self._writer.write_in_background(
                folder,
                partial(self._save_files, output_dir),
                step=step,
                launch=launch,
                writes_files=writes,
                timeout=args.ddp_timeout_delta,
                then=self._push_and_rotate,
                must_finish=self._must_finish_first,
            )
            self._last_step = step
        else:
            save = partial(self._save_at_once, output_dir)
            self._writer.write(folder, save, step=step, launch=launch, writes_files=writes)
            self._last_step = step  # the checkpoint is there, whether or not it can be pushed
            self._push_and_rotate(folder)

    def write_for_search(self, folder: Path) -> None:
        """Write a checkpoint from which a search library can resume a trial, on this rank only."""
        step = self._trainer.state.global_step

        def save(staged: Path) -> None:
            self._trainer.save_model(str(staged), _internal_call=True)
            if self._trainer.args.should_save:
                self._trainer._save_optimizer_and_scheduler(str(staged))
                self._write_state(staged)

        self._writer.write_alone(folder / names.checkpoint_name(step), save, step=step)

    # ---- the files ----

    def _save_at_once(self, output_dir: str, folder: Path) -> None:
        """Save the files; the states beside the weights, unless other code or other ranks have a part in them."""
        trainer, strategy = self._trainer, self._run.backend.strategy
        methods = [trainer.save_model, trainer._save, *(getattr(trainer, name) for name in _STATE_METHODS)]
        shares = strategy.gathers_weights or strategy.saves_sharded_weights or strategy.saves_on_every_rank
        in_order = shares or any(map(is_overridden, methods))
        with nullcontext(CheckpointFile.write) if in_order else written_side_by_side() as put:
            self._save_files(output_dir, folder, put)

    def _save_files(self, output_dir: str, folder: Path, put: Put) -> None:
        """Save the files of a checkpoint into ``folder``, in transformers' order.

        Args:
            output_dir: The folder of checkpoints.
            folder: Where this one is written.
            put: Takes the files that methods of ours save; an override writes its own here.
        """
        trainer, writes = self._trainer, self._trainer.args.should_save
        if is_overridden(trainer.save_model):
            trainer.save_model(str(folder), _internal_call=True)
        else:
            model_files.save_model(trainer, str(folder), put, is_checkpoint=True)
        note_best_checkpoint(trainer, output_dir)
        if not trainer.args.save_only_model:
            for name, collect in _STATE_METHODS.items():
                method = getattr(trainer, name)
                if is_overridden(method):
                    method(str(folder))
                else:
                    collect(trainer, str(folder), put)
            content = self._run.lightning_state()  # every rank calls it
            if writes:
                put(CheckpointFile(torch.save, content, folder / names.LIGHTNING_STATE_NAME))
        if writes:
            self._write_state(folder)

    def _write_state(self, folder: Path) -> None:
        trainer = self._trainer
        export_states(trainer.state.stateful_callbacks, [*trainer.callback_handler.callbacks, trainer.control])
        trainer.state.save_to_json(str(folder / names.TRAINER_STATE_NAME))

    # ---- after it is complete ----

    def _push_and_rotate(self, folder: Path) -> None:
        """Push the complete checkpoint ``folder``, and delete old ones."""
        if self._trainer.args.push_to_hub:
            self._trainer._push_from_checkpoint(str(folder))
        self._trainer._rotate_checkpoints(use_mtime=True, output_dir=str(folder.parent))

    def rotate_finished(self, trial: Trial | None) -> None:
        """Leave the best checkpoint of ``trial`` alone, if ``save_total_limit=1``: no newest one is resumed from."""
        args, best = self._trainer.args, self._trainer.state.best_model_checkpoint
        folder = checked_output_dir(self._trainer._get_output_dir(trial))
        if args.should_save and args.save_total_limit == 1 and best is not None:
            rotation.delete_all_but_best(folder, best=best, owned=self._writer.owned, remover=self._writer.remover)

    def _must_finish_first(self) -> bool:
        """Return whether code of the user's may read or change the folder after a save; log which callbacks may."""
        trainer = self._trainer
        readers = {type(one).__name__ for one in trainer.callback_handler.callbacks if _overrides_on_save(one)}
        if readers:
            classes = ", ".join(sorted(readers))
            logger.info("Every background save blocks training, because %s defines `on_save`.", classes)
        methods = (trainer._save_checkpoint, trainer._push_from_checkpoint, trainer._rotate_checkpoints)
        return bool(readers) or any(map(is_overridden, methods))


def _overrides_on_save(callback: object) -> bool:
    function = getattr(type(callback), "on_save", None)
    # The method of the base class, ours or transformers', does nothing.
    return function is not None and function.__qualname__ != "TrainerCallback.on_save" and is_overridden(function)


# Evaluations during training, and their times where no training argument can express them.


class TrainingEvaluation:
    """Evaluates, and remembers the weights until it is done.

    Args:
        run: The run.
    """

    _run: WeakAttribute[TrainingRun] = WeakAttribute()
    _trainer: WeakAttribute[Trainer] = WeakAttribute()

    def __init__(self, run: TrainingRun) -> None:
        self._run, self._trainer = run, run.trainer
        self._before: Tensor | None = None

    def measure(self, ignore_keys: list[str] | None) -> dict[str, float]:
        """Evaluate and return the metrics.

        Args:
            ignore_keys: Model outputs excluded from the predictions.

        Raises:
            BatchSizeError: If it runs out of memory; ``auto_find_batch_size`` reduces only the training batch size.
        """
        trainer = self._trainer
        self._before = sample_of_weights(trainer.model)
        try:
            metrics = call_override(trainer.evaluate, ignore_keys=ignore_keys)
        except Exception as error:
            self._run.exit_if_preempted()  # a signal may have ended loader workers
            if trainer.args.auto_find_batch_size and is_out_of_memory(error):
                raise BatchSizeError(
                    "Evaluation hit an out-of-memory error: `auto_find_batch_size=True` only reduces the training "
                    f"batch size. Set a `per_device_eval_batch_size` below {trainer.args.per_device_eval_batch_size}."
                ) from error
            raise
        self._before = None
        return metrics  # type: ignore[no-any-return]

    def keeps_weights(self) -> bool:
        """Return whether the model has the weights of training, also where an evaluation has not come to its end.

        Callbacks and overrides may evaluate others, such as averages, and put the former back afterwards.
        """
        return self._before is None or torch.equal(self._before, sample_of_weights(self._trainer.model))


def sample_of_weights(model: nn.Module) -> Tensor:
    """Return some elements of each parameter of this rank, in float32, on one device."""
    parts: list[Tensor] = []
    for parameter in model.parameters():
        own = parameter.detach()
        own = own.to_local() if hasattr(own, "to_local") else own
        if type(own) not in (Tensor, nn.Parameter):  # quantized ones, which are not trained, have no plain elements
            continue
        corner = own[(slice(2),) * own.dim()].flatten()[:8]
        parts.append((torch.view_as_real(corner).flatten() if corner.is_complex() else corner).float())
    return torch.cat([part.to(parts[0].device, copy=True) for part in parts]).nan_to_num() if parts else torch.empty(0)


class EvaluationTiming:
    """Asks for an evaluation, by ``control.should_evaluate``, when one is due.

    A fraction or a number of update steps is counted from the beginning of each epoch. A time is measured by each rank
    from the end of its last evaluation; all evaluate once one finds that it is due, which they exchange
    twice a second, and ten times within a shorter interval.

    Args:
        trainer: The Trainer.
        times: When the run evaluates.
    """

    _trainer: WeakAttribute[Trainer] = WeakAttribute()

    def __init__(self, trainer: Trainer, times: EvaluationTimes) -> None:
        self._trainer = trainer
        self._times = times
        self._steps: int | None = None
        self._evaluated_at = 0.0
        self._was_due = False
        interval = times.every.total_seconds() if isinstance(times.every, timedelta) else math.inf
        self._votes = PacedVotes(min(0.5, interval / 10))

    def begin(self) -> None:
        """Count or measure from here."""
        plan = self._trainer.run_plan
        assert plan is not None, "a fit has a plan"
        self._steps = steps_between(self._times, plan)
        self._evaluated_at = time.monotonic()

    def begin_window(self) -> None:
        """Measure from here if there was an evaluation since the last update step."""
        if self._was_due:
            self._evaluated_at, self._was_due = time.monotonic(), False

    def request_after_update(self, window: Window) -> None:
        """Request an evaluation after the update step of ``window``, if it is due."""
        trainer, times = self._trainer, self._times
        if times.at_epoch_end:
            return
        is_due = self._is_time() if self._steps is None else self._is_step(window, self._steps)
        if is_due and times.has_epoch(window.epoch) and trainer.state.global_step >= times.delay:
            trainer.control.should_evaluate = True
            self._was_due = True

    def request_after_epoch(self, epoch: int) -> None:
        """Request an evaluation after ``epoch``, if it is one with evaluations."""
        trainer, times = self._trainer, self._times
        if times.at_epoch_end and times.has_epoch(epoch) and (trainer.state.epoch or 0) >= times.delay:
            trainer.control.should_evaluate = True

    def _is_step(self, window: Window, steps: int) -> bool:
        plan = self._trainer.run_plan
        assert plan is not None, "a fit has a plan"
        done = window.batches_before + len(window.batches)
        return math.ceil(done / plan.accumulate) % steps == 0

    def _is_time(self) -> bool:
        assert isinstance(self._times.every, timedelta), "neither steps nor epochs count"
        is_due = time.monotonic() - self._evaluated_at >= self._times.every.total_seconds()
        timeout = self._trainer.args.ddp_timeout_delta
        return bool(self._votes.max_over_ranks(self._trainer.state.global_step, int(is_due), timeout))


# The end of training: final metrics, the best model, the checkpoints that are left, `on_train_end`.


def finalize_training(trainer: Trainer, run: TrainingRun, num_train_samples: float, start_time: float) -> TrainOutput:
    """Log the final metrics, load the best model, rotate, fire ``on_train_end``; return the run's result.

    Args:
        trainer: The Trainer.
        run: The run, which waits for a checkpoint that is being saved, and deletes those that it no longer needs.
        num_train_samples: Samples of the run.
        start_time: When the run started, in seconds of ``time.time``.
    """
    counters, saving = run.counters, run.saving
    logger.info("Training completed after %s update steps.", f"{trainer.state.global_step:,}")
    if counters.tr_loss is not None:  # else nothing was trained
        counters.total_loss_scalar += counters.tr_loss.item()
    saving.finish()
    loads_best = trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint is not None
    if loads_best and not trainer.semantics.loads_best_after_final_log:
        trainer._load_best_model()
    metrics = _final_metrics(trainer, counters, num_train_samples, start_time)
    trainer.is_in_train = trainer.semantics.loads_best_after_final_log
    counters.memory.stop_and_update_metrics(metrics, "train")
    trainer.log(metrics)
    if loads_best and trainer.semantics.loads_best_after_final_log:
        trainer._load_best_model()
    saving.rotate_finished(counters.trial)
    trainer.control = trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
    trainer._finish_current_push()
    trainer.is_in_train = False  # not after an error, as in transformers
    return TrainOutput(trainer.state.global_step, metrics["train_loss"], metrics)


def _final_metrics(
    trainer: Trainer, counters: RunCounters, num_train_samples: float, start_time: float
) -> dict[str, Any]:
    """Return speed metrics, floating-point operations and the mean loss of the run."""
    state = trainer.state
    if trainer.semantics.averages_over_session_steps:
        done = steps = state.global_step - counters.initial_step
        samples = num_train_samples * steps / max(state.max_steps, 1)
    else:
        steps, samples, done = state.max_steps, num_train_samples, state.global_step
    metrics = speed_metrics("train", start_time, num_samples=samples, num_steps=steps, num_tokens=counters.train_tokens)
    trainer.store_flos()
    metrics["total_flos"] = state.total_flos
    metrics["train_loss"] = counters.total_loss_scalar / max(done, 0.001)
    return metrics
