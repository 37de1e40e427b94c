"""Lightning's accelerator for the device of a run: its own, or for other devices one over their module of torch."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from lightning.pytorch.accelerators import Accelerator, CPUAccelerator, MPSAccelerator

from hf_compat.distributed.accelerators import accelerator_module
from hf_compat.engine.cuda import TrainersCUDA

__all__ = ["lightning_accelerator"]

_OF_LIGHTNING: dict[str, Any] = {"cpu": CPUAccelerator, "cuda": TrainersCUDA, "mps": MPSAccelerator}
"""Device type → Lightning's accelerator."""


def lightning_accelerator(device: torch.device) -> Accelerator:
    """Return the keyword ``accelerator`` of ``lightning.Trainer`` for ``device``."""
    kind: type[Accelerator] = _OF_LIGHTNING.get(device.type) or _accelerator_class(device.type)
    return kind()


@cache
def _accelerator_class(device_type: str) -> type[Accelerator]:
    """Return the accelerator of a device type; Lightning calls most of its methods on the class."""
    module = accelerator_module(device_type)

    class TorchAccelerator(Accelerator):
        """Devices of a type that Lightning does not know, by their module of torch."""

        def setup_device(self, device: torch.device) -> None:
            """Make ``device`` the current one."""
            module.set_device(device)

        def teardown(self) -> None:
            """Do nothing: memory is freed where the Trainer frees it."""

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            """Return the statistics of the device's allocator."""
            return dict(module.memory_stats(device))

        @staticmethod
        def parse_devices(devices: Any) -> list[int]:
            """Return the indices of ``devices``, which are indices or a number of devices."""
            return list(devices) if isinstance(devices, list | tuple) else list(range(int(devices)))

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            """Return the devices of the indices ``devices``."""
            return [torch.device(device_type, index) for index in devices]

        @staticmethod
        def auto_device_count() -> int:
            """Return the number of devices of this machine."""
            return int(module.device_count())

        @staticmethod
        def is_available() -> bool:
            """Return whether this machine has such a device."""
            return bool(module.is_available())

        @staticmethod
        def name() -> str:
            """Return the device type."""
            return device_type

    return TorchAccelerator
