"""Capabilities of the devices, and TF32. torch is imported on use."""

from __future__ import annotations

import os

from hf_compat.environment import is_yes
from hf_compat.errors import TrainerSetupError

__all__ = [
    "cuda_is_available",
    "cuda_is_initialized",
    "gpu_index",
    "gpu_lacks_bf16",
    "gpu_lacks_tf32",
    "mps_is_available",
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


def cuda_is_initialized() -> bool:
    """Return whether this process has initialized CUDA; processes forked from it cannot use CUDA then."""
    import torch

    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def mps_is_available() -> bool:
    """Return whether torch sees Apple's GPU."""
    import torch

    return torch.backends.mps.is_available()


def gpu_lacks_bf16() -> bool:
    """Return whether the CUDA device in use does not support bfloat16.

    Not asked before CUDA is initialized, which would initialize it, and the process could not fork any more: torch
    emulates bfloat16 on older devices.
    """
    import torch

    return cuda_is_initialized() and not torch.cuda.is_bf16_supported()


def gpu_lacks_tf32() -> bool:
    """Return whether there is no CUDA device with TF32: none at all, or one older than Ampere."""
    import torch

    if not torch.cuda.is_available() or torch.version.cuda is None:
        return True
    return torch.cuda.get_device_properties(torch.cuda.current_device()).major < 8


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


def gpu_index(local_rank: int) -> int:
    """Return the index of the GPU for ``local_rank``: its own, or 0 if only one is visible."""
    import torch

    count = torch.cuda.device_count()
    if local_rank >= count > 1:
        raise TrainerSetupError(
            f"LOCAL_RANK={local_rank}: only {count} GPUs are visible, so this process has none. Start as many "
            "processes as there are GPUs, or set `use_cpu=True`."
        )
    return 0 if count == 1 else local_rank
