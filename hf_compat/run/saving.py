"""Saving checkpoints during training: their parts, and handling write errors."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from hf_compat.callbacks.handler import fire
from hf_compat.checkpoint import names, rotation
from hf_compat.checkpoint.background import is_requested
from hf_compat.checkpoint.writer import Part
from hf_compat.errors import CheckpointWriteError
from hf_compat.memory import WeakAttribute
from hf_compat.overriding import call_as_defined, is_ours
from hf_compat.run.best_model import checked_output_dir, note_best_checkpoint
from hf_compat.state import export_states

if TYPE_CHECKING:
    from hf_compat.run.run import TrainingRun
    from hf_compat.trainer.trainer import Trainer
    from hf_compat.tuning.spaces import Trial

__all__ = ["CheckpointSaving"]

logger = logging.getLogger(__name__)


class CheckpointSaving:
    """Saves checkpoints, synchronously or in the background, and fires ``on_save``.

    Args:
        run: The run.
    """

    _run: WeakAttribute[TrainingRun] = WeakAttribute()
    _trainer: WeakAttribute[Trainer] = WeakAttribute()

    def __init__(self, run: TrainingRun) -> None:
        self._run, self._trainer = run, run.trainer
        self._writer = run.checkpoints
        self._best_before: str | None = None

    def begin_step(self) -> None:
        """Note that what follows, an evaluation perhaps, is in no checkpoint yet."""
        self._writer.last_step = None

    @property
    def has_saved(self) -> bool:
        """Whether the current update step is saved."""
        return self._writer.last_step == self._trainer.state.global_step

    @property
    def _writes_files(self) -> bool:
        """Whether this rank writes the files that one writes for all, or for its node."""
        return self._trainer.args.should_save

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
                call_as_defined(self._trainer._save_checkpoint, ("model", model), ("trial", trial), metrics=metrics)
        except CheckpointWriteError as error:
            self._handle_write_error(error)
            self._trainer.control.should_save = False  # as after a save: it is not tried again at the epoch's end
            return
        self._writer.last_step = self._trainer.state.global_step  # an override may have saved by itself
        fire(self._trainer, "on_save")

    def finish(self) -> None:
        """Wait for a checkpoint that is being saved in the background; every rank calls it."""
        if is_requested(self._trainer.args):
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
        args = self._trainer.args
        if self._trainer.hp_search_backend is None and trial is None:
            self._trainer.store_flos()
        output_dir = checked_output_dir(self._trainer._get_output_dir(trial=trial))
        step = self._trainer.state.global_step
        self._writer.write(
            Path(output_dir, names.checkpoint_name(step)),
            self._parts(output_dir),
            step=step,
            launch=args.launch,
            writes_files=self._writes_files,
            background=is_requested(args),
            timeout=args.ddp_timeout_delta,
            then=(self._push, self._rotate),
            must_finish=self._must_finish_first,
        )

    def write_for_search(self, folder: Path) -> None:
        """Write a checkpoint from which a search library can resume a trial, on this rank only."""
        step = self._trainer.state.global_step
        parts = [self._weights()]
        if self._writes_files:
            parts += [self._part("_save_optimizer_and_scheduler"), Part(self._write_state)]
        self._writer.write_alone(folder / names.checkpoint_name(step), parts, step=step)

    # ---- parts ----

    def _parts(self, output_dir: str) -> list[Part]:
        """Return the parts of a checkpoint in transformers' order."""
        best = Part(lambda _: note_best_checkpoint(self._trainer, output_dir), deferrable=True)  # which writes nothing
        parts = [self._weights(), best]
        if not self._trainer.args.save_only_model:
            methods = ("_save_optimizer_and_scheduler", "_save_scaler", "_save_rng_state")
            parts += [*map(self._part, methods), Part(self._write_lightning_state, deferrable=True)]
        if self._writes_files:
            parts.append(Part(self._write_state))
        return parts

    def _weights(self) -> Part:
        own = is_ours(self._trainer.save_model) and is_ours(self._trainer._save)
        return Part(lambda folder: self._trainer.save_model(str(folder), _internal_call=True), deferrable=own)

    def _part(self, name: str) -> Part:
        """Return the part written by the Trainer's method ``name``."""
        method = getattr(self._trainer, name)
        return Part(lambda folder: method(str(folder)), deferrable=is_ours(method))

    def _write_lightning_state(self, folder: Path) -> None:
        file_writer = self._writer.file_writer
        file_writer.finish_concurrent()  # callbacks may change the weights
        content = self._run.lightning_state()  # every rank calls it
        if self._writes_files:
            file_writer(torch.save, file_writer.snapshot(content), folder / names.LIGHTNING_STATE_NAME)

    def _write_state(self, folder: Path) -> None:
        trainer = self._trainer
        export_states(trainer.state.stateful_callbacks, [*trainer.callback_handler.callbacks, trainer.control])
        trainer.state.save_to_json(str(folder / names.TRAINER_STATE_NAME))

    # ---- after it is complete ----

    def _push(self, folder: Path) -> None:
        if self._trainer.args.push_to_hub:
            self._trainer._push_from_checkpoint(str(folder))

    def _rotate(self, folder: Path) -> None:
        self._trainer._rotate_checkpoints(use_mtime=True, output_dir=str(folder.parent))

    def rotate_finished(self, trial: Trial | None) -> None:
        """Leave the best checkpoint of ``trial`` alone, if ``save_total_limit=1``: no newest one is resumed from."""
        args, best = self._trainer.args, self._trainer.state.best_model_checkpoint
        folder = checked_output_dir(self._trainer._get_output_dir(trial))
        if args.should_save and args.save_total_limit == 1 and best is not None:
            rotation.delete_all_but_best(folder, best=best, owned=self._writer.owned, remover=self._writer.remover)

    def _must_finish_first(self) -> bool:
        """Return whether the folder is needed before training continues; log which callbacks need it."""
        if found := self._reading_callbacks():
            classes = ", ".join(sorted({type(callback).__name__ for callback in found}))
            logger.info("Every background save blocks training, because %s defines `on_save`.", classes)
        follows = (self._trainer._push_from_checkpoint, self._trainer._rotate_checkpoints)
        return self._is_read_after_saving() or not all(map(is_ours, follows))

    def _is_read_after_saving(self) -> bool:
        """Return whether an override of the user's is called after a save, and may read or change its folder."""
        return bool(self._reading_callbacks()) or not is_ours(self._trainer._save_checkpoint)

    def _reading_callbacks(self) -> list[object]:
        return [callback for callback in self._trainer.callback_handler.callbacks if _overrides_on_save(callback)]


def _overrides_on_save(callback: object) -> bool:
    function = getattr(type(callback), "on_save", None)
    # The method of the base class, ours or transformers', does nothing.
    return function is not None and function.__qualname__ != "TrainerCallback.on_save" and not is_ours(function)
