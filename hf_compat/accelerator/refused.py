"""Members of accelerate's ``Accelerator`` that a Trainer's does not have, and what to use instead."""

from __future__ import annotations

from typing import Any

from hf_compat.errors import NotSupportedError

__all__ = ["HANDLERS", "REFUSED", "NoHandler", "RefusedMemberError", "refused_member"]

_CHECKPOINTS = "the Trainer saves and resumes: `save_strategy` and `train(resume_from_checkpoint=...)`"
_STATES = "give a callback a state that checkpoints hold: derive it from `ExportableState`"
_TRACKERS = "report by `report_to`, or pass `lightning={'logger': ...}` to the Trainer"
_UNEVEN = "give every rank as many batches: leave `accelerator_config={'even_batches': True}`"
_PARALLEL = "this parallelism is not supported; see the table of distributed training in the README"

REFUSED: dict[str, str] = {
    "context_parallel_rank": _PARALLEL,
    "deepspeed_ulysses_dl_adapter": _PARALLEL,
    "get_tracker": _TRACKERS,
    "init_trackers": _TRACKERS,
    "join_uneven_inputs": _UNEVEN,
    "load_state": _CHECKPOINTS,
    "pipeline_parallel_rank": _PARALLEL,
    "register_for_checkpointing": _STATES,
    "register_load_state_pre_hook": _STATES,
    "register_save_state_pre_hook": _STATES,
    "save_state": _CHECKPOINTS,
}
"""Name → what to use instead."""

_FP8 = "8-bit training is not supported"
HANDLERS: dict[str, str] = {
    "ao_recipe_handler": _FP8,
    "ddp_handler": "set the fields `ddp_...`, or pass `lightning={'strategy': DDPStrategy(...)}`",
    "fp8_recipe_handler": _FP8,
    "init_handler": "set the fields `ddp_backend` and `ddp_timeout`",
    "msamp_recipe_handler": _FP8,
    "scaler_handler": "pass a precision plugin with a scaler: `lightning={'plugins': [MixedPrecision(...)]}`",
    "te_recipe_handler": _FP8,
}
"""Settings of accelerate's that are always None here → what to use instead of assigning to them."""


class RefusedMemberError(NotSupportedError, AttributeError):
    """A member of accelerate's ``Accelerator`` that is not supported; ``hasattr`` is False for it."""


def refused_member(name: str) -> AttributeError:
    """Return the error of reading ``accelerator.<name>``."""
    if name in REFUSED:
        return RefusedMemberError(f"`accelerator.{name}` is not supported: {REFUSED[name]}.")
    return AttributeError(f"`accelerator` has no attribute {name!r}.")


class NoHandler:
    """One of ``HANDLERS`` as an attribute: it is None, and assigning to it is an error."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, accelerator: object, owner: type) -> None:
        return None

    def __set__(self, accelerator: object, value: Any) -> None:
        if value is not None:
            raise RefusedMemberError(f"`accelerator.{self._name}` cannot be set: {HANDLERS[self._name]}.")
