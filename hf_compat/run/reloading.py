"""New train loaders during a run, as ``reload_dataloaders_every_n_epochs`` requests them."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Reloading"]


class Reloading:
    """Makes a new train loader every ``epochs`` epochs.

    Args:
        epochs: Epochs after which the loader is made again.
        reload: Makes it.
    """

    def __init__(self, epochs: int, reload: Callable[[], None]) -> None:
        self._epochs = epochs
        self._reload = reload
        self._last: int | None = None

    def reload_if_due(self, epoch: int) -> None:
        """Reload at the start of ``epoch`` if that is due; the first epoch of a run has a new loader anyway."""
        if self._last is not None and epoch - self._last < self._epochs:
            return
        if self._last is not None:
            self._reload()
        self._last = epoch
