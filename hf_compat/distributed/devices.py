"""What the fields for precision and devices need to know of, or set in, the machine. torch is imported on use."""

from __future__ import annotations

import functools
import os

from hf_compat.errors import TrainerSetupError

__all__ = [
    "cuda_is_available",
    "cuda_is_initialized",
    "gpu_index",
    "gpu_lacks_bf16",
    "gpu_lacks_tf32",
    "is_yes",
    "mps_is_available",
    "set_tf32",
    "wants_cpu",
]

_YES = ("1", "true", "yes", "y", "t", "on")


def is_yes(word: str) -> bool:
    """Return whether the value of an environment variable switches something on."""
    return word.lower() in _YES


def wants_cpu(use_cpu: bool) -> bool:
    """Return whether the run stays on the CPU, by its arguments or by ``accelerate launch --cpu``."""
    return use_cpu or is_yes(os.environ.get("ACCELERATE_USE_CPU", ""))


def cuda_is_available() -> bool:
    """Return whether torch sees a CUDA device."""
    import torch

    return torch.cuda.is_available()


def cuda_is_initialized() -> bool:
    """Return whether this process uses CUDA, which processes forked from it then cannot."""
    import torch

    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def mps_is_available() -> bool:
    """Return whether torch sees Apple's GPU."""
    import torch

    return torch.backends.mps.is_available()


def gpu_lacks_bf16() -> bool:
    """Return whether there is a CUDA device and it cannot compute in bfloat16."""
    import torch

    return torch.cuda.is_available() and not torch.cuda.is_bf16_supported()


def gpu_lacks_tf32() -> bool:
    """Return whether there is no CUDA device that computes in TF32: none at all, or one before Ampere."""
    import torch

    if not torch.cuda.is_available() or torch.version.cuda is None:
        return True
    return torch.cuda.get_device_properties(torch.cuda.current_device()).major < 8


@functools.cache
def _has_named_precisions() -> bool:
    import torch

    # Mixing the switches of both generations is an error in torch, so exactly one of them is used.
    return hasattr(torch.backends, "fp32_precision")


def set_tf32(enabled: bool) -> None:
    """Let matrix products of float32 use TF32 in the whole process, or forbid it."""
    import torch

    if _has_named_precisions():
        torch.backends.fp32_precision = "tf32" if enabled else "ieee"  # type: ignore[attr-defined]
        return
    torch.backends.cuda.matmul.allow_tf32 = enabled
    torch.backends.cudnn.allow_tf32 = enabled


def gpu_index(local_rank: int) -> int:
    """Return the index of the GPU of ``local_rank`` on its node: its own, or the only one that it is shown."""
    import torch

    count = torch.cuda.device_count()
    if local_rank >= count > 1:
        raise TrainerSetupError(
            f"LOCAL_RANK={local_rank}: this process has no GPU of its own, as only {count} are visible. Start as many "
            "processes as there are GPUs, or set `use_cpu=True`."
        )
    return 0 if count == 1 else local_rank
