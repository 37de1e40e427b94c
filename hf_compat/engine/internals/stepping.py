"""An epoch loop that calls only the hooks that somebody overrides, and does only what an update step of ours needs.

Lightning's own loop calls each hook of each callback, module and strategy in a profiler's context, asks at every batch
whether to evaluate and to step a schedule, and collects metrics that nobody has logged. For a tiny model that costs as
much as the update step. What a hook sees is the same: order, arguments, ``_current_fx_name``, progress counters. Where
something is set up that this loop does not know, such as a profiler, Lightning's own code runs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.core.hooks import DataHooks
from lightning.pytorch.loops.fetchers import _DataFetcher, _PrefetchDataFetcher
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer.call import _call_callback_hooks, _call_lightning_module_hook
from lightning.pytorch.utilities.exceptions import SIGTERMException

__all__ = ["call_hook", "step_lean"]

_TRANSFERS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


def step_lean(trainer: pl.Trainer, *, leaves_batch: Callable[..., Any]) -> None:
    """Let ``trainer`` train without calling the hooks that nobody overrides.

    Contract: ``fit_loop.epoch_loop`` has its state in attributes; ``on_run_start`` begins an epoch, and ``advance`` and
    ``on_advance_end`` are all that it does for a batch.

    Args:
        trainer: The Lightning trainer, before a fit or in its first ``setup``.
        leaves_batch: A ``transfer_batch_to_device`` that returns the batch as it is: with another one Lightning's own
            code runs.
    """
    loop = trainer.fit_loop.epoch_loop
    if type(loop) is _TrainingEpochLoop:
        loop.__class__ = _LeanEpochLoop
        loop.leaves_batch = leaves_batch


def call_hook(trainer: pl.Trainer, name: str, *given: Any) -> None:
    """Call the hook ``name`` of callbacks and module, as Lightning does; in a lean loop only if overridden."""
    loop = trainer.fit_loop.epoch_loop
    hooks = loop.hooks if isinstance(loop, _LeanEpochLoop) else None
    if hooks is None:
        _call_callback_hooks(trainer, name, *given)
        _call_lightning_module_hook(trainer, name, *given)
    else:
        hooks.call(name, *given)


class _Hooks:
    """The overrides of hooks in callbacks and module.

    Args:
        trainer: The Lightning trainer, in a fit.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self._module = trainer.lightning_module
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
        callbacks = [one for one in self._callbacks if _overrides(one, name, pl.Callback)]
        own = getattr(self._module, name) if _overrides(self._module, name, pl.LightningModule) else None
        self._found[name] = callbacks, own
        return self._found[name]


def _overrides(instance: Any, name: str, base: type) -> bool:
    method = getattr(instance, name)
    return getattr(method, "__func__", method) is not getattr(base, name)


class _LeanEpochLoop(_TrainingEpochLoop):
    leaves_batch: Callable[..., Any]
    hooks: _Hooks | None = None
    """None where Lightning's own code runs."""
    _takes_index = True

    def on_run_start(self, data_fetcher: _DataFetcher) -> None:
        super().on_run_start(data_fetcher)
        self.hooks = _Hooks(self.trainer) if self._is_known(data_fetcher) else None
        if self.hooks is not None:
            data_fetcher._start_profiler = data_fetcher._stop_profiler = _nothing
            self._takes_index = "batch_idx" in self._build_kwargs(OrderedDict(), None, 0)

    def _is_known(self, data_fetcher: _DataFetcher) -> bool:
        """Return whether there is nothing in this epoch that :meth:`advance` does not do."""
        trainer, module, strategy = self.trainer, self.trainer.lightning_module, type(self.trainer.strategy)
        return (
            type(trainer.profiler) is PassThroughProfiler
            and type(data_fetcher) is _PrefetchDataFetcher
            and not module.automatic_optimization
            and not trainer.enable_validation
            and not _overrides(module, "on_train_batch_start", pl.LightningModule)  # which may end the epoch
            and strategy.on_train_batch_start is Strategy.on_train_batch_start
            and strategy.batch_to_device is Strategy.batch_to_device
            and not any(self._transfers(source) for source in (module, trainer.datamodule) if source is not None)
        )

    def _transfers(self, source: Any) -> bool:
        """Return whether a module or data module does something with a batch before it is trained on."""
        overridden = [name for name in _TRANSFERS if _overrides(source, name, DataHooks)]
        return any(getattr(type(source), name, None) is not self.leaves_batch for name in overridden)

    def advance(self, data_fetcher: _DataFetcher) -> None:
        """Train on one batch: what Lightning does, without what nobody asks for."""
        hooks = self.hooks
        if hooks is None or self.restarting:
            super().advance(data_fetcher)
            return
        trainer, progress, connector = self.trainer, self.batch_progress, self.trainer._logger_connector
        if self.val_loop.restarting:
            self.val_loop.restarting = False
        if trainer.world_size > 1 and torch.distributed.is_initialized():
            self._broadcast_sigterm_tensor()
        batch, _, _ = next(data_fetcher)
        batch_idx = self.batch_idx + 1
        progress.is_last_batch = data_fetcher.done
        batch = trainer.precision_plugin.convert_input(batch)
        progress.increment_ready()
        connector.on_batch_start(batch)
        hooks.call("on_train_batch_start", batch, batch_idx)
        progress.increment_started()
        kwargs = OrderedDict(batch=batch, batch_idx=batch_idx) if self._takes_index else OrderedDict(batch=batch)
        output = self.manual_optimization.run(kwargs)
        progress.increment_processed()
        hooks.call("on_train_batch_end", output, batch, batch_idx)
        if self._results:  # something was logged
            connector.on_batch_end()
        else:
            self._results.batch = self._results.batch_size = None
        progress.increment_completed()
        if self._results:
            connector.update_train_step_metrics()

    def on_advance_end(self, data_fetcher: _DataFetcher) -> None:
        """Count the batch; there is no validation to run and no schedule to step."""
        if self.hooks is None or self.restarting:
            super().on_advance_end(data_fetcher)
            return
        self._batches_that_stepped += 1
        self._save_loggers_on_train_batch_end()
        if self.trainer.received_sigterm and not self._is_training_done:
            raise SIGTERMException


def _nothing() -> None:
    pass
