"""Members of accelerate's ``Accelerator`` that a Trainer's does not have or cannot change, and what to use instead."""

from __future__ import annotations

from copy import copy
from typing import Any

from hf_compat.errors import NotSupportedError

__all__ = ["FIXED", "REFUSED", "FixedSetting", "RefusedMemberError", "refused_member"]

_CHECKPOINTS = "the Trainer saves and resumes: `save_strategy` and `train(resume_from_checkpoint=...)`"
_STATES = "put the state into a callback that derives from `ExportableState`, which checkpoints save"
_TRACKERS = "report by `report_to`, or pass `lightning={'logger': ...}` to the Trainer"
_UNEVEN = "give every rank the same number of batches: keep `accelerator_config={'even_batches': True}`"
_PARALLEL = "this parallelism is not supported; see the table in docs/distributed.md"

REFUSED: dict[str, str] = {
    "context_parallel_rank": "read `accelerator.torch_device_mesh['cp'].get_local_rank()`",
    "deepspeed_ulysses_dl_adapter": "with an `sp_size` the Trainer itself shares out the sequences of its train loader",
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
_POSITIONS = "the Trainer restores the position of a loader itself"
FIXED: dict[str, tuple[Any, str]] = {
    "ao_recipe_handler": (None, _FP8),
    "ddp_handler": (None, "set the fields `ddp_...`, or pass `lightning={'strategy': DDPStrategy(...)}`"),
    "delayed_fp8_autocast": (False, _FP8),
    "device_placement": (True, "pass `device_placement=False` to `prepare`, `prepare_model` or `prepare_data_loader`"),
    "fp8_backend": ("NO", _FP8),
    "fp8_enabled": (False, _FP8),
    "fp8_recipe_handler": (None, _FP8),
    "has_fp8_handler": (False, _FP8),
    "init_handler": (None, "set the fields `ddp_backend` and `ddp_timeout`"),
    "log_with": ([], _TRACKERS),
    "msamp_recipe_handler": (None, _FP8),
    "rng_types": (["generator"], "the ranks only share the order of samples; seed other generators on each rank"),
    "scaler_handler": (None, "pass a precision plugin with a scaler: `lightning={'plugins': [MixedPrecision(...)]}`"),
    "step_scheduler_with_optimizer": (True, "do not prepare a schedule that steps by itself"),
    "te_recipe_handler": (None, _FP8),
    "dataloader_config.use_stateful_dataloader": (False, _POSITIONS),
    "project_configuration.automatic_checkpoint_naming": (False, _CHECKPOINTS),
    "project_configuration.iteration": (0, _CHECKPOINTS),
    "project_configuration.save_on_each_node": (False, "save where `accelerator.is_local_main_process`"),
    "project_configuration.total_limit": (None, "set `save_total_limit`"),
}
"""Settings of accelerate's that have one value here → that value, and what to use instead of assigning another."""


class RefusedMemberError(NotSupportedError, AttributeError):
    """A member of accelerate's ``Accelerator`` that is not supported; ``hasattr`` is False for it."""


def refused_member(name: str) -> AttributeError:
    """Return the error of reading ``accelerator.<name>``."""
    if name in REFUSED:
        return RefusedMemberError(f"`accelerator.{name}` is not supported: {REFUSED[name]}.")
    return AttributeError(f"`accelerator` has no attribute {name!r}.")


class FixedSetting:
    """One of ``FIXED`` as an attribute: it has its one value, and assigning another is an error.

    Args:
        within: The settings object of the accelerator that it belongs to. Default: the accelerator itself.
    """

    def __init__(self, within: str | None = None) -> None:
        self._prefix = "" if within is None else f"{within}."

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = self._prefix + name

    def __get__(self, holder: object, owner: type) -> Any:
        return copy(FIXED[self._name][0])

    def __set__(self, holder: object, value: Any) -> None:
        fixed, remedy = FIXED[self._name]
        if value != fixed:
            raise RefusedMemberError(f"`accelerator.{self._name}={value!r}` cannot be set: {remedy}.")
