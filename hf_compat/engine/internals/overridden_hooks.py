"""The hooks that are overridden: the loops of update steps and of evaluations call no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.core.hooks import DataHooks
from lightning.pytorch.strategies import Strategy

__all__ = ["Hooks", "is_transfer_noop", "overrides"]

_TRANSFER = "transfer_batch_to_device"
_AROUND_A_TRANSFER = ("on_before_batch_transfer", "on_after_batch_transfer")


class Hooks:
    """The overrides of hooks in callbacks and module.

    Args:
        trainer: The Lightning trainer, in a fit or an evaluation.
    """

    def __init__(self, pl_trainer: pl.Trainer) -> None:
        self._trainer = pl_trainer
        self._module = pl_trainer.lightning_module
        self._callbacks: list[pl.Callback] = []
        self._found: dict[str, tuple[list[pl.Callback], Callable[..., Any] | None]] = {}

    def call(self, name: str, *given: Any) -> None:
        """Call the hook ``name`` of each callback, then of the module, whose ``_current_fx_name`` it is meanwhile."""
        trainer, module = self._trainer, self._module
        if trainer.callbacks != self._callbacks:  # type: ignore[attr-defined]  # some were added, or taken away
            self._callbacks = list(trainer.callbacks)  # type: ignore[attr-defined]
            self._found.clear()
        callbacks, own = self._found.get(name) or self._find(name)
        if not callbacks and own is None:
            return
        before = module._current_fx_name
        module._current_fx_name = name
        for callback in callbacks:
            getattr(callback, name)(trainer, module, *given)
        if own is not None:
            own(*given)
        module._current_fx_name = before

    def _find(self, name: str) -> tuple[list[pl.Callback], Callable[..., Any] | None]:
        callbacks = [one for one in self._callbacks if overrides(one, name, pl.Callback)]
        own = getattr(self._module, name) if overrides(self._module, name, pl.LightningModule) else None
        self._found[name] = callbacks, own
        return self._found[name]


def overrides(instance: Any, name: str, base: type) -> bool:
    """Return whether the method ``name`` of ``instance`` is not that of ``base``."""
    method = getattr(instance, name)
    return getattr(method, "__func__", method) is not getattr(base, name)


def is_transfer_noop(pl_trainer: pl.Trainer, noop_transfer: Callable[..., Any]) -> bool:
    """Return whether strategy, module and data module pass each batch as the loader yields it.

    Args:
        pl_trainer: The Lightning trainer, in a fit or an evaluation.
        noop_transfer: The ``transfer_batch_to_device`` of a module that hands it on.
    """
    module, data = pl_trainer.lightning_module, pl_trainer.datamodule  # type: ignore[attr-defined]
    return (
        type(pl_trainer.strategy).batch_to_device is Strategy.batch_to_device
        and type(module).transfer_batch_to_device is noop_transfer
        and not any(overrides(module, name, DataHooks) for name in _AROUND_A_TRANSFER)
        and not (
            data is not None and any(overrides(data, name, DataHooks) for name in (_TRANSFER, *_AROUND_A_TRANSFER))
        )
    )
