"""Where a run's model lives: the Lightning strategy of one device."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy

__all__ = ["StayingStrategy", "device_keywords"]


class StayingStrategy(SingleDeviceStrategy):
    """One device on which the optimizer's state stays when a run ends.

    Lightning's own moves it to the host, away from the parameters that the Trainer leaves on the device.
    """

    def teardown(self) -> None:
        """End the run without touching the optimizers."""
        kept, self.optimizers = self.optimizers, []
        super().teardown()
        self.optimizers = kept


def device_keywords(device: torch.device) -> dict[str, Any]:
    """Return the keywords of ``lightning.Trainer`` for a run on ``device``."""
    accelerator = "gpu" if device.type == "cuda" else device.type
    devices: Any = 1 if device.type == "cpu" else [device.index or 0]
    return {"accelerator": accelerator, "devices": devices, "strategy": StayingStrategy(device=device)}
