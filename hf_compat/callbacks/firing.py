"""Firing an event: the one place where what callbacks return becomes the run's control; and closing bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

__all__ = ["close_progress_bars", "fire"]


def fire(trainer: Trainer, event: str, *given: Any) -> None:
    """Call ``event`` of every callback of ``trainer``, and keep the control that they leave behind.

    Args:
        trainer: The Trainer.
        event: The name of a ``TrainerCallback`` method, such as ``"on_step_end"``.
        *given: What the event carries besides arguments, state and control: metrics or logs.
    """
    trainer.control = getattr(trainer.callback_handler, event)(trainer.args, trainer.state, trainer.control, *given)


@runtime_checkable
class _HasBars(Protocol):
    """A callback that draws on the terminal."""

    def close_progress_bars(self, *, evaluation_only: bool = False) -> None: ...


def close_progress_bars(trainer: Trainer, *, evaluation_only: bool = False) -> None:
    """Close the bars that the callbacks of ``trainer`` have left open, so that the traceback starts on a new line.

    Args:
        trainer: The Trainer.
        evaluation_only: Leave the bars of the training.
    """
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, _HasBars):
            callback.close_progress_bars(evaluation_only=evaluation_only)
