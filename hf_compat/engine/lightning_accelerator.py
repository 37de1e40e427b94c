"""Lightning's accelerator for the device of a run: its own, or for other devices one over their module of torch."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.accelerators import Accelerator, CUDAAccelerator

from hf_compat.distributed.accelerators import accelerator_module

if TYPE_CHECKING:
    import lightning.pytorch as pl

__all__ = ["TrainersCUDA", "lightning_accelerator"]

_OF_LIGHTNING = {"cpu": "cpu", "mps": "mps"}
"""Device type → the name of Lightning's accelerator, where that is used as it is."""


def lightning_accelerator(device: torch.device) -> str | Accelerator:
    """Return the keyword ``accelerator`` of ``lightning.Trainer`` for ``device``."""
    if device.type == "cuda":
        return TrainersCUDA()
    name = _OF_LIGHTNING.get(device.type)
    return _accelerator_class(device.type)() if name is None else name


class TrainersCUDA(CUDAAccelerator):
    """CUDA devices whose memory cache, precision switches and environment variables are left alone.

    Lightning's own empties the cache whenever a fit or an evaluation starts or ends, after which every allocation waits
    for the device; it reads a switch of torch's that raises once the newer one is set; it logs the visible devices each
    time; and it wants each process to see the GPUs of all local ranks, where a launcher may show it its own alone.
    """

    def setup_device(self, device: torch.device) -> None:
        """Make ``device`` the current one."""
        torch.cuda.set_device(device)

    def setup(self, pl_trainer: pl.Trainer) -> None:
        """Do nothing."""

    def teardown(self) -> None:
        """Do nothing."""

    @staticmethod
    def parse_devices(devices: int | list[int]) -> list[int]:  # type: ignore[override]
        """Return the indices of ``devices``, which are indices or a number of local ranks."""
        return list(range(devices)) if isinstance(devices, int) else devices


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
