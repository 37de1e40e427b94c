"""``GradientState``: whether a backward pass ends an update step, and the current loader, by accelerate's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_compat.engine.backend import LightningBackend

__all__ = ["GradientState"]


class GradientState:
    """A view of the current run; it keeps nothing but the settings of accumulation.

    Args:
        backend: The Trainer's backend.
        settings: ``gradient_accumulation_kwargs``.

    Attributes:
        plugin_kwargs: Settings of accumulation; ``num_steps`` is 1, as the Trainer accumulates itself.
    """

    def __init__(self, backend: LightningBackend, settings: dict[str, Any]) -> None:
        self._backend = backend
        self.plugin_kwargs: dict[str, Any] = {**settings, "num_steps": 1}

    @property
    def sync_gradients(self) -> bool:
        """Whether the current backward pass ends an update step."""
        return self._backend.strategy.ends_update

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self._backend.strategy.ends_update = value

    def _set_sync_gradients(self, value: bool) -> None:
        """Set ``sync_gradients``, by the name that upstream's loop uses."""
        self.sync_gradients = value

    @property
    def num_steps(self) -> int:
        """Batches that accelerate accumulates."""
        return int(self.plugin_kwargs["num_steps"])

    @property
    def adjust_scheduler(self) -> bool:
        """Whether schedules count batches that are accumulated."""
        return bool(self.plugin_kwargs.get("adjust_scheduler", False))

    @property
    def sync_with_dataloader(self) -> bool:
        """Whether the last batch of a loader ends an update step."""
        return bool(self.plugin_kwargs.get("sync_with_dataloader", True))

    @property
    def active_dataloader(self) -> Any:
        """The loader that is iterated over: the evaluation loader inside an evaluation, else the train loader."""
        return self._backend.loaders.current

    @property
    def in_dataloader(self) -> bool:
        """Whether a loader is iterated over."""
        return self.active_dataloader is not None

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the current batch is the loader's last one."""
        return bool(getattr(self.active_dataloader, "end_of_dataloader", False))

    @property
    def remainder(self) -> int:
        """Samples of the last batch that are not duplicates; -1 if that is not known."""
        return int(getattr(self.active_dataloader, "remainder", -1))
