"""Firing an event: the one place where what callbacks return becomes the run's control; and closing bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments
    from hf_compat.callbacks.handler import CallbackHandler
    from hf_compat.state import TrainerControl, TrainerState

__all__ = ["EventHost", "close_progress_bars", "fire"]


class EventHost(Protocol):
    """A Trainer, as far as events need it."""

    args: TrainingArguments
    state: TrainerState
    control: TrainerControl
    callback_handler: CallbackHandler


def fire(host: EventHost, event: str, *given: Any) -> None:
    """Call ``event`` of every callback of ``host``, and keep the control that they leave behind.

    Args:
        host: The Trainer.
        event: The name of a ``TrainerCallback`` method, such as ``"on_step_end"``.
        *given: What the event carries besides arguments, state and control: metrics or logs.
    """
    host.control = getattr(host.callback_handler, event)(host.args, host.state, host.control, *given)


@runtime_checkable
class _HasBars(Protocol):
    """A callback that draws on the terminal."""

    def close_progress_bars(self, *, evaluation_only: bool = False) -> None: ...


def close_progress_bars(host: EventHost, *, evaluation_only: bool = False) -> None:
    """Close the bars that the callbacks of ``host`` have left open, so that the traceback starts on a new line.

    Args:
        host: The Trainer.
        evaluation_only: Leave the bars of the training.
    """
    for callback in host.callback_handler.callbacks:
        if isinstance(callback, _HasBars):
            callback.close_progress_bars(evaluation_only=evaluation_only)
