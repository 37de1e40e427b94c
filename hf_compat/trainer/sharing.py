"""The method that ends it all."""

from __future__ import annotations

from hf_compat.trainer.training import TrainingMethods

__all__ = ["SharingMethods"]


class SharingMethods(TrainingMethods):
    """``end``."""

    def end(self) -> None:
        """Close what a run holds open: nothing, with one process; Lightning closes its loggers with each run."""
