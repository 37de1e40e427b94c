"""The accelerator of this machine, and what it is capable of, such as TF32; torch is imported on use."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from functools import cache
from typing import TYPE_CHECKING, Any

from hf_compat.environment import is_yes
from hf_compat.errors import TrainerSetupError

if TYPE_CHECKING:
    import torch


logger = logging.getLogger(__name__)

_PACKAGES = ("torch_npu", "torch_mlu", "torch_musa", "torch_supa", "habana_frameworks.torch")
"""Packages that add a type of device to torch when they are imported."""
_FIRST_WITH_TF32 = {"cuda": (8, 0), "musa": (2, 2)}
"""Device type → the first compute capability with TF32."""


def accelerator_type() -> str | None:
    """Return the device type of the accelerator, such as ``"cuda"``, ``"mps"`` or ``"xpu"``; None without one.

    It does not initialize CUDA.
    """
    import torch

    _import_packages()
    found = torch.accelerator.current_accelerator()
    if found is None or found.type == "cuda":
        return "cuda" if cuda_is_available() else None
    return found.type if torch.accelerator.is_available() else None


@cache
def _import_packages() -> None:
    for name in _PACKAGES:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            continue
        try:
            importlib.import_module(name)
        except Exception as error:  # as on a machine that has the package, but not the device's driver
            logger.warning("`%s` is installed, but cannot be imported, so its devices are not used: %s", name, error)


def accelerator_module(device: torch.device | str) -> Any:
    """Return the module of torch for the type of ``device``, such as ``torch.cuda``."""
    import torch

    return torch.get_device_module(device)


def is_initialized(device: torch.device) -> bool:
    """Return whether this process has initialized the accelerator ``device``, so that forked ones cannot use it."""
    known = device.type not in ("cpu", "mps")
    return known and bool(getattr(accelerator_module(device), "is_initialized", bool)())


def lacks_fp16(device_type: str) -> bool:
    """Return whether torch cannot train in float16 on the accelerator: before 2.8 it had no gradient scaler for MPS."""
    import torch

    return device_type == "mps" and torch.__version__ < "2.8"


def lacks_bf16(device_type: str) -> bool:
    """Return whether the accelerator in use does not support bfloat16.

    Not asked before CUDA is initialized, which would initialize it, and the process could not fork any more: torch
    emulates bfloat16 on older devices.
    """
    import torch

    if device_type == "mps":
        return not torch.backends.mps.is_macos_or_newer(14, 0)
    module = accelerator_module(device_type)
    if device_type == "cuda" and not module.is_initialized():
        return False
    return hasattr(module, "is_bf16_supported") and not module.is_bf16_supported()


def lacks_tf32() -> bool:
    """Return whether the accelerator has no TF32, such as a GPU older than Ampere, or there is none."""
    import torch

    kind = accelerator_type()
    if kind == "supa":
        return not hasattr(torch.backends, "fp32_precision")  # before torch 2.9
    if kind not in _FIRST_WITH_TF32 or (kind == "cuda" and torch.version.cuda is None):
        return True
    module = accelerator_module(kind)
    properties = module.get_device_properties(module.current_device())
    return (properties.major, properties.minor) < _FIRST_WITH_TF32[kind]


def default_backend(device: torch.device) -> str | None:
    """Return the process-group backend for tensors on ``device``, such as ``"nccl"``; None if torch has none.

    A package that adds a type of device to torch registers its backend there.
    """
    import torch

    if device.type == "mps":
        return None  # torch names gloo, which does not take its tensors
    backends: dict[str, str] = torch.distributed.Backend.default_device_backend_map
    name = backends.get(device.type)
    return None if name == "fake" else name  # torch's own for tests, which exchanges nothing


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
