"""Lightning's accelerator for CUDA, without what the Trainer does itself or transformers' does not do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from lightning.pytorch.accelerators import CUDAAccelerator

if TYPE_CHECKING:
    import lightning.pytorch as pl

__all__ = ["TrainersCUDA"]


class TrainersCUDA(CUDAAccelerator):
    """CUDA devices whose memory cache, precision switches and environment variables are left alone.

    Lightning's own empties the cache whenever a fit or an evaluation starts or ends, after which every allocation waits
    for the device; it reads a switch of torch's that raises once the newer one is set; and it logs the visible devices
    each time.
    """

    def setup_device(self, device: torch.device) -> None:
        """Make ``device`` the current one."""
        torch.cuda.set_device(device)

    def setup(self, trainer: pl.Trainer) -> None:
        """Do nothing."""

    def teardown(self) -> None:
        """Do nothing."""
