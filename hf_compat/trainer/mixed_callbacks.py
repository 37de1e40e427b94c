"""Adding and removing callbacks: transformers' belong to the callback handler, Lightning's to the backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_compat.arguments.fields.redeclared import for_run
from hf_compat.engine.keywords import lightning_callbacks
from hf_compat.engine.lightning_callbacks import callback_problems
from hf_compat.errors import TrainerSetupError

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

__all__ = ["add_callback", "pop_callback", "remove_callback"]


def add_callback(trainer: Trainer, callback: Any) -> None:
    """Append ``callback``, an instance or a class.

    Raises:
        TrainerSetupError: If it is one of Lightning that is not supported.
    """
    backend, found = trainer.lightning_backend, lightning_callbacks([callback])
    if not found:
        trainer.callback_handler.add_callback(callback)
        return
    problems = callback_problems(
        found, for_run(trainer.args), shards_model=backend.traits.shards_model, keywords=backend.keywords
    )
    if problems:
        raise TrainerSetupError("\n  ".join(problems))
    backend.callbacks += found


def pop_callback(trainer: Trainer, callback: Any) -> Any:
    """Remove the first callback that is, or is an instance of, ``callback``; return it, None if there is none."""
    found = trainer.lightning_backend.pop_callback(callback)
    return trainer.callback_handler.pop_callback(callback) if found is None else found


def remove_callback(trainer: Trainer, callback: Any) -> None:
    """Remove the first callback that is, or is an instance of, ``callback``.

    Raises:
        CallbackError: If ``callback`` is an instance that the Trainer does not have.
    """
    if trainer.lightning_backend.pop_callback(callback) is None:
        trainer.callback_handler.remove_callback(callback)
