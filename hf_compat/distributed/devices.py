"""Capabilities of the devices, and TF32. torch is imported on use."""

from __future__ import annotations

import os

from hf_compat.environment import is_yes
from hf_compat.errors import TrainerSetupError

__all__ = [
    "cuda_is_available",
    "device_index",
    "set_tf32",
    "wants_cpu",
]


def wants_cpu(use_cpu: bool) -> bool:
    """Return whether the CPU is requested, by ``use_cpu``, ``accelerate launch`` or ``fabric run``."""
    return use_cpu or is_yes(os.environ.get("ACCELERATE_USE_CPU", "")) or os.environ.get("LT_ACCELERATOR") == "cpu"


def cuda_is_available() -> bool:
    """Return whether torch sees a CUDA device; asked of the driver's library, so that CUDA is not initialized by it."""
    import torch

    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # as importing lightning does, perhaps later
    return torch.cuda.is_available()


def set_tf32(enabled: bool) -> None:
    """Turn TF32 for float32 matrix products and convolutions on or off in the whole process.

    torch has a switch for each kind of operation, and since 2.9 one for all of them, and raises where one of the former
    is read that disagrees with the latter: all are set.
    """
    import torch

    torch.set_float32_matmul_precision("high" if enabled else "highest")
    torch.backends.cudnn.allow_tf32 = enabled
    if hasattr(torch.backends, "fp32_precision"):
        torch.backends.fp32_precision = "tf32" if enabled else "ieee"
    elif hasattr(torch.backends, "mudnn"):  # of MUSA
        torch.backends.mudnn.allow_tf32 = enabled


def device_index(device_type: str, local_rank: int) -> int:
    """Return the index of the device for ``local_rank``: its own, or 0 if only one is visible."""
    import torch

    count = torch.get_device_module(device_type).device_count()
    if local_rank >= count > 1:
        name = "GPU" if device_type == "cuda" else f"{device_type.upper()} device"
        raise TrainerSetupError(
            f"LOCAL_RANK={local_rank}: only {count} {name}s are visible, so this process has none. Start as many "
            f"processes as there are {name}s, or set `use_cpu=True`."
        )
    return 0 if count == 1 else local_rank
