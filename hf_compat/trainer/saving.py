"""Saves during training: the files in their order, errors of the disk, the best checkpoint, what is kept."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hf_compat.arguments.derived import saves_checkpoints
from hf_compat.checkpoint import names, rotation
from hf_compat.checkpoint.background import CheckpointFile, Put, is_requested, written_side_by_side
from hf_compat.errors import CheckpointWriteError
from hf_compat.memory import WeakAttribute
from hf_compat.overriding import call_override, check_returned, is_overridden
from hf_compat.state import export_states
from hf_compat.trainer import model_files

if TYPE_CHECKING:
    from hf_compat.state import TrainerState
    from hf_compat.trainer.run import TrainingRun
    from hf_compat.trainer.searching import Trial
    from hf_compat.trainer.trainer import Trainer

logger = logging.getLogger(__name__)


# The best checkpoint, and where checkpoints are.


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
