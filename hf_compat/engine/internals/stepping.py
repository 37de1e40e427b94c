"""Loops that call only hooks that are overridden, and do only what a step of ours needs.

Lightning's own loops call each hook of each callback, module and strategy in a profiler's context, test at every batch
whether to evaluate and to step a schedule, and collect metrics that were not logged. For a tiny model that costs as
much as the update step, and more than the step of an evaluation. What a hook sees is the same: order, arguments,
``_current_fx_name``, progress counters. Where something is set up that these loops do not know, such as a profiler,
Lightning's own code runs.
"""

from __future__ import annotations

import math
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Self

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch.core.hooks import DataHooks
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.loops.fetchers import _DataFetcher, _PrefetchDataFetcher
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer.call import _call_callback_hooks, _call_lightning_module_hook
from lightning.pytorch.trainer.connectors.data_connector import _parse_num_batches
from lightning.pytorch.trainer.connectors.logger_connector.logger_connector import _LoggerConnector
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.exceptions import SIGTERMException

from hf_compat.evaluation.session import TrackedLoader

__all__ = ["Hooks", "call_hook", "is_transfer_noop", "overrides", "step_alike", "use_fast_loops"]

_TRANSFER = "transfer_batch_to_device"
_AROUND_A_TRANSFER = ("on_before_batch_transfer", "on_after_batch_transfer")


def use_fast_loops(pl_trainer: pl.Trainer, *, noop_transfer: Callable[..., Any]) -> None:
    """Let ``pl_trainer`` train and evaluate without calling hooks that are not overridden.

    Contract: ``fit_loop.epoch_loop``, its ``val_loop``, ``validate_loop`` and ``test_loop`` have their state in
    attributes; ``on_run_start`` begins an epoch. Then ``advance`` and ``on_advance_end`` are all that is done for a
    batch that is trained on, and ``_evaluation_step`` for one that is evaluated, besides fetching it.

    Args:
        pl_trainer: The Lightning trainer, before a fit or in its first ``setup``.
        noop_transfer: A ``transfer_batch_to_device`` that returns the batch as it is: with another one Lightning's own
            code runs.
    """
    epoch_loop = pl_trainer.fit_loop.epoch_loop
    lean: dict[type, type] = {_TrainingEpochLoop: _LeanEpochLoop, _EvaluationLoop: _LeanEvaluationLoop}
    loop: Any
    for loop in (epoch_loop, epoch_loop.val_loop, pl_trainer.validate_loop, pl_trainer.test_loop):
        if type(loop) in lean:
            loop.__class__ = lean[type(loop)]
            loop.noop_transfer = noop_transfer


def step_alike(loop: Any, other: object) -> None:
    """Let ``loop``, which evaluates, call the hooks that ``other`` calls."""
    if isinstance(other, _LeanEvaluationLoop):
        loop.__class__ = _LeanEvaluationLoop
        loop.noop_transfer = other.noop_transfer


def call_hook(module: pl.LightningModule, name: str, *given: Any) -> None:
    """Call the hook ``name`` of callbacks and module, as Lightning does; in a lean loop only if overridden.

    Contract: ``module._trainer`` is what the property ``trainer`` returns, which first looks for other things.

    Args:
        module: The module of the current fit.
        name: The hook.
        *given: Its arguments, besides trainer and module.
    """
    trainer: Any = module._trainer
    loop = trainer.fit_loop.epoch_loop
    hooks = loop.hooks if isinstance(loop, _LeanEpochLoop) else None
    if hooks is None:
        _call_callback_hooks(trainer, name, *given)
        _call_lightning_module_hook(trainer, name, *given)
    else:
        hooks.call(name, *given)


class _LeanEpochLoop(_TrainingEpochLoop):
    noop_transfer: Callable[..., Any]
    hooks: Hooks | None = None
    """None where Lightning's own code runs."""
    _takes_index = True

    def on_run_start(self, data_fetcher: _DataFetcher) -> None:
        super().on_run_start(data_fetcher)
        self.hooks = Hooks(self.trainer) if self._is_known(data_fetcher) else None
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
            and not overrides(module, "on_train_batch_start", pl.LightningModule)  # which may end the epoch
            and strategy.on_train_batch_start is Strategy.on_train_batch_start
            and is_transfer_noop(trainer, self.noop_transfer)
        )

    def advance(self, data_fetcher: _DataFetcher) -> None:
        """Train on one batch: what Lightning does, without what is not used."""
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
        _begin_batch(connector, self._results, batch)
        hooks.call("on_train_batch_start", batch, batch_idx)
        progress.increment_started()
        kwargs = OrderedDict(batch=batch, batch_idx=batch_idx) if self._takes_index else OrderedDict(batch=batch)
        output = self.manual_optimization.run(kwargs)
        progress.increment_processed()
        hooks.call("on_train_batch_end", output, batch, batch_idx)
        has_values = _end_batch(connector, self._results)
        progress.increment_completed()
        if has_values:
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


class _LeanEvaluationLoop(_EvaluationLoop):
    noop_transfer: Callable[..., Any]
    hooks: Hooks | None = None
    """None where Lightning's own code runs."""
    _names = ("", "", "")
    _takes_index = True

    def setup_data(self) -> None:
        """Read what the length of the loader says; Lightning's own code would add it up over the ranks, on the device.

        Contract: the loader is ``_data_source.instance``; of a single one that is no ``DataLoader`` Lightning sets
        these attributes and changes nothing.
        """
        trainer: Any = self.trainer
        loader = self._data_source.instance
        limit = trainer.limit_test_batches if trainer.testing else trainer.limit_val_batches
        if not isinstance(loader, TrackedLoader) or limit == 0 or trainer.overfit_batches:
            super().setup_data()
            return
        length = sized_len(loader)
        self._max_batches = [_parse_num_batches(self._stage, math.inf if length is None else length, limit)]
        share = isinstance(limit, float) and limit < 1.0
        self._combined_loader = _ToItsEnd(loader, self._max_batches[0] if share else limit)
        self._seen_batches_per_dataloader = defaultdict(int)

    def on_run_start(self) -> None:
        super().on_run_start()
        trainer: Any = self.trainer
        data_fetcher: Any = self._data_fetcher
        is_known = (
            type(trainer.profiler) is PassThroughProfiler
            and type(data_fetcher) is _PrefetchDataFetcher
            and self.num_dataloaders == 1
            and is_transfer_noop(trainer, self.noop_transfer)
        )
        self.hooks = Hooks(trainer) if is_known else None
        if is_known:
            data_fetcher._start_profiler = data_fetcher._stop_profiler = _nothing
            stage = "test" if trainer.testing else "validation"
            self._names = (f"on_{stage}_batch_start", f"{stage}_step", f"on_{stage}_batch_end")
            given = OrderedDict(batch=None, batch_idx=0)
            self._takes_index = len(self._build_step_args_from_hook_kwargs(given, self._names[1])) == len(given)

    def _evaluation_step(
        self, batch: Any, batch_idx: int, dataloader_idx: int, dataloader_iter: Iterator[Any] | None
    ) -> None:
        """Evaluate one batch: what Lightning does, without what is not used."""
        hooks = self.hooks
        if isinstance(self._combined_loader, _ToItsEnd):
            self.batch_progress.is_last_batch = self._combined_loader.is_last(batch_idx)
        if hooks is None:
            super()._evaluation_step(batch, batch_idx, dataloader_idx, dataloader_iter)
            return
        trainer, progress, connector = self.trainer, self.batch_progress, self.trainer._logger_connector
        begins, steps, ends = self._names
        batch = trainer.precision_plugin.convert_input(batch)
        progress.increment_ready()
        _begin_batch(connector, self._results, batch)
        hooks.call(begins, batch, batch_idx)
        progress.increment_started()
        module = trainer.lightning_module
        before, module._current_fx_name = module._current_fx_name, steps
        output = getattr(trainer.strategy, steps)(*((batch, batch_idx) if self._takes_index else (batch,)))
        module._current_fx_name = before
        progress.increment_processed()
        hooks.call(ends, output, batch, batch_idx)
        has_values = _end_batch(connector, self._results)
        progress.increment_completed()
        if not trainer.sanity_checking:
            self._has_run = True
            if has_values:
                connector.update_eval_step_metrics(self._seen_batches_per_dataloader[dataloader_idx])
            self._seen_batches_per_dataloader[dataloader_idx] += 1
        if not progress.is_last_batch and trainer.received_sigterm:
            raise SIGTERMException


class _ToItsEnd(CombinedLoader):
    """A loader that is read to its end, or to a limit: its length, which callbacks are shown, is only a hint.

    Contract: a loop sets ``limits`` by that length before it begins a pass; a fetcher neither stops nor reads a batch
    ahead while it has fetched less than ``len``.

    Args:
        loader: The loader.
        limit: Batches to read at most, or 1.0 for all.
    """

    def __init__(self, loader: TrackedLoader, limit: float) -> None:
        super().__init__(loader, "sequential")
        self._loader = loader
        self._most = limit if isinstance(limit, int) else math.inf

    def __len__(self) -> int:
        return sys.maxsize

    def __iter__(self) -> Self:
        self.limits = [self._most]
        return super().__iter__()

    def is_last(self, index: int) -> bool:
        """Return whether the batch of this ``index``, which was read last, is the last."""
        return self._loader.end_of_dataloader or index + 1 == self._most


def _begin_batch(connector: _LoggerConnector, results: _ResultCollection, batch: Any) -> None:
    """Do what ``connector.on_batch_start`` does, which looks for ``results`` twice: they are the active loop's."""
    connector._first_loop_iter = connector._first_loop_iter is None
    results.batch, results.batch_size, results.dataloader_idx = batch, None, None


def _end_batch(connector: _LoggerConnector, results: _ResultCollection) -> bool:
    """Do what ``connector.on_batch_end`` does; return whether something was logged.

    Contract: what was logged before the last reset stays in ``results``, with ``has_reset``, and is in no metrics.
    """
    has_values = any(not metric.has_reset for metric in results.values())
    if has_values:
        connector.on_batch_end()
    else:
        results.batch = results.batch_size = None
    return has_values


def _nothing() -> None:
    pass


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
