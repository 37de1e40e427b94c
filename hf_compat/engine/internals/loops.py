"""The private names of Lightning's loops, signals and notices that hf_compat touches, each with its contract."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.trainer.call import _call_callbacks_load_state_dict, _call_callbacks_state_dict
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from lightning.pytorch.trainer.states import RunningStage, TrainerFn

__all__ = [
    "callback_states",
    "fast_forward",
    "is_fitting",
    "leave_signals_alone",
    "restore_callback_states",
    "validate_in_fit",
    "without_notices",
    "without_signal_broadcast",
]

# Each says something that does not hold for a Trainer whose evaluations are called, not scheduled, and gathered from
# all processes before they are logged, and whose checkpoints come after the update step; the last is Lightning using a
# deprecated name of torch.
_MISLEADING = (
    r".*defined a `validation_step` but have no `val_dataloader`.*",
    r".*`train_dataloader` does not have many workers.*",
    r".*The number of training batches .* is smaller than the logging interval.*",
    r".*It is recommended to use `self\.log\(.*sync_dist=True\)`.*",
    r".*Checkpoint directory .* exists and is not empty.*",
    r".*Using ModelCheckpoint with manual optimization and every_n_train_steps.*",
    r".*isinstance\(treespec, LeafSpec\).*",
)


def is_fitting(trainer: pl.Trainer) -> bool:
    """Return whether ``trainer`` is inside ``fit``."""
    return trainer.state.fn is TrainerFn.FITTING and trainer.state.stage is not None


def validate_in_fit(trainer: pl.Trainer, loader: Any) -> None:
    """Run ``trainer``'s validation loop once over ``loader`` in the middle of ``fit``.

    ``Trainer.validate`` cannot be called there: it tears the strategy down. Contract: hooks and ``self.log`` use
    ``fit_loop.epoch_loop.val_loop`` while ``trainer.validating``; an evaluation loop reads its loader from
    ``_data_source.instance``; the connector's ``_first_loop_iter`` and the module's ``_current_fx_name`` are all that a
    validation leaves changed for the training hook it interrupts.
    """
    epoch_loop = trainer.fit_loop.epoch_loop
    connector = trainer._logger_connector
    previous_loop, previous_stage = epoch_loop.val_loop, trainer.state.stage
    first_iteration, hook = connector._first_loop_iter, trainer.lightning_module._current_fx_name
    loop = _EvaluationLoop(trainer, TrainerFn.FITTING, RunningStage.VALIDATING, verbose=False, inference_mode=False)
    loop._data_source.instance = loader
    epoch_loop.val_loop = loop
    trainer.validating = True
    try:
        loop.run()
    finally:
        loop.teardown()
        epoch_loop.val_loop = previous_loop
        trainer.state.stage = previous_stage
        connector._first_loop_iter = first_iteration
        trainer.lightning_module._current_fx_name = hook


def fast_forward(trainer: pl.Trainer, *, epochs: int, windows: int, update_steps: int) -> None:
    """Set ``trainer``'s progress to a position in the run, before its fit loop starts.

    Contract: the fit loop counts epochs in ``epoch_progress``, an epoch's batches in ``epoch_loop.batch_progress``, and
    ``global_step`` is ``manual_optimization.optim_step_progress.total.completed``.
    """
    loop = trainer.fit_loop
    steps = loop.epoch_loop.manual_optimization.optim_step_progress
    for tracker, count in (
        (loop.epoch_progress.current, epochs),
        (loop.epoch_progress.total, epochs),
        (loop.epoch_loop.batch_progress.total, windows),
        (steps.current, update_steps),
        (steps.total, update_steps),
    ):
        for stage in vars(tracker):  # ready, completed and, where they are told apart, started and processed
            setattr(tracker, stage, count)
    loop.epoch_loop._batches_that_stepped = update_steps


def callback_states(trainer: pl.Trainer) -> dict[str, Any]:
    """Return the state of each Lightning callback, by its state key; what a Lightning checkpoint keeps of them."""
    return _call_callbacks_state_dict(trainer)


def restore_callback_states(trainer: pl.Trainer, states: dict[str, Any]) -> None:
    """Give each Lightning callback its state back."""
    _call_callbacks_load_state_dict(trainer, {"callbacks": states})


class _QuietSignals(_SignalConnector):
    """Takes no signal: Lightning would exit with 0 on SIGTERM, and under SLURM save inside a handler."""

    def register_signal_handlers(self) -> None:
        self.received_sigterm = False


def leave_signals_alone(trainer: pl.Trainer) -> None:
    """Keep ``trainer`` from installing signal handlers.

    Contract: a run's handlers come from ``_signal_connector.register_signal_handlers`` alone.
    """
    trainer._signal_connector = _QuietSignals(trainer)


def without_signal_broadcast(trainer: pl.Trainer) -> None:
    """Keep ``trainer`` from asking process 0 before every window whether it was told to stop.

    That waits for the device each time. A launcher sends SIGTERM to every process itself. Contract: the epoch loop
    asks in ``_broadcast_sigterm_tensor``.
    """
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]


@contextmanager
def without_notices() -> Iterator[None]:
    """Leave out Lightning's start-up notices and the warnings that do not hold here.

    Errors and all other warnings pass. Contract: notices go through the logger of Lightning's ``rank_zero`` module.
    """
    notices = [logging.getLogger(f"lightning.{part}.utilities.rank_zero") for part in ("pytorch", "fabric")]
    levels = [logger.level for logger in notices]
    for logger in notices:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in _MISLEADING:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        for logger, level in zip(notices, levels, strict=True):
            logger.setLevel(level)
