"""The accelerator of this machine: the device that torch computes on beside the CPU. torch is imported on use."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from functools import cache
from typing import TYPE_CHECKING, Any

from hf_compat.distributed.devices import cuda_is_available

if TYPE_CHECKING:
    import torch

__all__ = [
    "accelerator_module",
    "accelerator_type",
    "default_backend",
    "is_initialized",
    "lacks_bf16",
    "lacks_fp16",
    "lacks_tf32",
]

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
