"""Callbacks of a Trainer: added and removed wherever they belong, and restored in a resumed run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from hf_compat.errors import CheckpointError

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

# Adding and removing callbacks: transformers' belong to the callback handler, Lightning's to the backend.


# The states of callbacks in a resumed checkpoint, restored into new callbacks.


logger = logging.getLogger("transformers.trainer")
"""Upstream's: scripts look there for these messages."""


def load_callback_state(trainer: Trainer) -> None:
    """Replace the exportable callbacks, and the control, by new ones with their states in ``trainer.state``."""
    handler, restored, missing = trainer.callback_handler, [], []
    present = [*handler.callbacks, trainer.control]
    for name, saved in trainer.state.stateful_callbacks.items():
        same = [each for each in present if type(each).__name__ == name]
        if not same:
            missing.append(name)
        for callback, state in zip(same, _latest_states(name, saved, len(same)), strict=False):
            new = _restore_callback(callback, state)
            if callback is trainer.control:
                trainer.control = new
            else:
                handler.callbacks[:] = [each for each in handler.callbacks if each is not callback]
                restored.append(new)
    found = [name for name in trainer.state.stateful_callbacks if name not in missing]
    if found:
        logger.info("Continuing training from checkpoint, restoring callbacks: %s.", ", ".join(found))
    if missing:
        text = (
            f"Checkpoint included callbacks not included in current configuration: {', '.join(missing)}. Their states "
            "are ignored."
        )
        logger.warning(text)
    for callback in restored:
        handler.add_callback(callback)


def _latest_states(name: str, saved: Any, count: int) -> list[Any]:
    """Return the last states of ``count`` callbacks of the class ``name``; fewer if there are not as many.

    transformers appends to the list at every save, so that the first ones in its checkpoints are those before training.
    """
    states = saved if isinstance(saved, list) else [saved]
    if count and (len(states) % count or (count == 1 and len(states) > 1)):
        logger.warning(
            "The checkpoint has %s states of %s, but the Trainer has %s such callbacks. The last %s states are "
            "restored into the first %s of them; the others keep their initial state.",
            *(len(states), name, count),
            *[min(len(states), count)] * 2,
        )
    return states[-count:] if count else []


def _restore_callback(callback: Any, state: dict[str, Any]) -> Any:
    """Return a new object of ``callback``'s class with the saved ``state``."""
    try:
        return type(callback).from_state({"args": {}, "attributes": {}, **state})
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError.also(type(error))(
            f"`stateful_callbacks` in the checkpoint's `trainer_state.json` has no valid state of a "
            f"{type(callback).__name__}: {error or type(error).__name__}. Set "
            "`restore_callback_states_from_checkpoint=False`."
        ) from error
