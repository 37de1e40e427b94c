"""Firing an event: the one place where what callbacks return becomes the run's control."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments
    from hf_compat.callbacks.handler import CallbackHandler
    from hf_compat.state import TrainerControl, TrainerState

__all__ = ["EventHost", "fire"]


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
