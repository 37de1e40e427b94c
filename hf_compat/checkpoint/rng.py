"""The states of the random generators of python, numpy and torch, in memory and as a file."""

from __future__ import annotations

import logging
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_compat.checkpoint.names import rng_state_name
from hf_compat.checkpoint.unpickle import load_trusted
from hf_compat.distributed.accelerators import accelerator_module, accelerator_type
from hf_compat.errors import CheckpointError

__all__ = [
    "host_rng_state",
    "load_rng_state",
    "rng_state",
    "save_rng_state",
    "set_host_rng_state",
    "set_rng_state",
]

logger = logging.getLogger(__name__)


def host_rng_state() -> dict[str, Any]:
    """Return the states of the global CPU generators."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.random.get_rng_state(),
    }


def set_host_rng_state(state: dict[str, Any]) -> None:
    """Set the states of the global CPU generators."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.random.set_rng_state(state["cpu"])


def rng_state(*, distributed: bool = False) -> dict[str, Any]:
    """Return the states of the global generators.

    Args:
        distributed: Whether to return a list with the states of all GPUs of this process, not the current GPU's.
            Those of another accelerator are likewise by its device type.
    """
    state, kind = host_rng_state(), accelerator_type()
    if kind is not None:
        generators = _generators(kind)
        has_several = distributed and hasattr(generators, "get_rng_state_all")
        state[kind] = generators.get_rng_state_all() if has_several else generators.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Set the global generators to ``state``; GPUs without a state in it keep theirs, with a logged warning."""
    set_host_rng_state(state)
    kind = accelerator_type()
    if kind is not None:
        _set_device_state(kind, state.get(kind))


def _set_device_state(kind: str, saved: object) -> None:
    generators = _generators(kind)
    if isinstance(saved, torch.Tensor):
        generators.set_rng_state(saved)
    elif isinstance(saved, list) and len(saved) == accelerator_module(kind).device_count():
        generators.set_rng_state_all(saved)
    else:
        logger.warning(
            "The checkpoint has no %s random states for these devices; dropout will differ from the original run.",
            kind.upper(),
        )


def _generators(kind: str) -> Any:
    """Return the module with the functions for the random states of a device type."""
    module = accelerator_module(kind)
    return module if hasattr(module, "get_rng_state") else module.random


def save_rng_state(
    folder: str | os.PathLike[str], *, rank: int = 0, world_size: int = 1, distributed: bool = False
) -> None:
    """Save the states of the global generators of ``rank`` into ``folder``; ``distributed`` as in ``rng_state``."""
    torch.save(rng_state(distributed=distributed), Path(folder, rng_state_name(rank, world_size)))


def load_rng_state(folder: str | os.PathLike[str], *, rank: int = 0, world_size: int = 1) -> bool:
    """Set the global generators to the states in ``folder``; return whether there were any for ``rank``.

    Raises:
        CheckpointError: If the file cannot be read or contains something else.
    """
    path = Path(folder, rng_state_name(rank, world_size))
    if not path.is_file():
        logger.warning("`%s` is missing: random numbers will differ from those of an uninterrupted run.", path)
        return False
    state = load_trusted(path)
    try:
        set_rng_state(state)
    except (AttributeError, LookupError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError.also(type(error))(
            f"`{path}` does not hold random states: {error or type(error).__name__}."
        ) from error
    return True
