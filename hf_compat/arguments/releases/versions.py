"""Defaults of fields that depend on a release, of torch or of the reproduced transformers."""

from __future__ import annotations

from importlib import metadata

from packaging.version import Version

__all__ = ["SINCE", "default_optimizer"]

_FUSED_ADAMW_IS_DEFAULT = (2, 8)

SINCE: dict[str, Version] = {
    "balances_batches": Version("5.17"),
    "drops_logging_dir": Version("5.0"),
    "drops_warmup_ratio": Version("5.0"),
    "drops_sigopt": Version("5.0"),
    "leaves_local_rank": Version("5.0"),
    "leaves_model_placement_open": Version("5.2"),
    "makes_fsdp_a_switch": Version("5.10"),
    "names_main_process": Version("5.23"),
    "renames_gradient_checkpointing": Version("5.23"),
    "renames_group_by_length": Version("5.2"),
    "renames_past_key_values": Version("5.24"),
    "saves_safetensors_only": Version("5.0"),
}
"""Changes of arguments, enums and models that do not affect numbers, and the transformers release of each."""


def default_optimizer() -> str:
    """Return upstream's default for the installed torch, which is not imported."""
    try:
        installed = Version(metadata.version("torch")).release
    except metadata.PackageNotFoundError:
        return "adamw_torch"
    return "adamw_torch_fused" if installed >= _FUSED_ADAMW_IS_DEFAULT else "adamw_torch"
