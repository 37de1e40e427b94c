"""Lightning's evaluation loops, which call only hooks that are overridden and read a loader to its end."""

from __future__ import annotations

import math
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Self

import lightning.pytorch as pl
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.loops.fetchers import _PrefetchDataFetcher
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.trainer.connectors.data_connector import _parse_num_batches
from lightning.pytorch.trainer.connectors.logger_connector.logger_connector import _LoggerConnector
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.exceptions import SIGTERMException

from hf_compat.engine.internals.stepping import CountingFromOne, Hooks, begin_batch_of, end_batch_of, is_transfer_noop
from hf_compat.evaluation.session import TrackedLoader

__all__ = ["step_alike", "use_fast_loops"]


def use_fast_loops(pl_trainer: pl.Trainer, *, noop_transfer: Callable[..., Any]) -> None:
    """Let ``pl_trainer`` evaluate without calling hooks that are not overridden.

    Contract: ``fit_loop.epoch_loop.val_loop``, ``validate_loop`` and ``test_loop`` have their state in attributes;
    ``on_run_start`` begins a pass. Then ``_evaluation_step`` is all that is done for a batch, besides fetching it.
    Loggers and callbacks read the step to log at from ``epoch_loop._batches_that_stepped``.

    Args:
        pl_trainer: The Lightning trainer, before a fit or in its first ``setup``.
        noop_transfer: A ``transfer_batch_to_device`` that returns the batch as it is: with another one Lightning's own
            code runs.
    """
    for loop in (pl_trainer.fit_loop.epoch_loop.val_loop, pl_trainer.validate_loop, pl_trainer.test_loop):
        if type(loop) is _EvaluationLoop:
            lean: Any = loop
            lean.__class__ = _LeanEvaluationLoop
            lean.noop_transfer = noop_transfer
    if type(pl_trainer._logger_connector) is _LoggerConnector:
        pl_trainer._logger_connector.__class__ = CountingFromOne


def step_alike(loop: Any, other: object) -> None:
    """Let ``loop``, which evaluates, call the hooks that ``other`` calls."""
    if isinstance(other, _LeanEvaluationLoop):
        loop.__class__ = _LeanEvaluationLoop
        loop.noop_transfer = other.noop_transfer


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
        begin_batch_of(connector, self._results, batch)
        hooks.call(begins, batch, batch_idx)
        progress.increment_started()
        module = trainer.lightning_module
        before, module._current_fx_name = module._current_fx_name, steps
        output = getattr(trainer.strategy, steps)(*((batch, batch_idx) if self._takes_index else (batch,)))
        module._current_fx_name = before
        progress.increment_processed()
        hooks.call(ends, output, batch, batch_idx)
        has_values = end_batch_of(connector, self._results)
        progress.increment_completed()
        if not trainer.sanity_checking:
            self._has_run = True
            if has_values:
                connector.update_eval_step_metrics(self._seen_batches_per_dataloader[dataloader_idx])
            self._seen_batches_per_dataloader[dataloader_idx] += 1
        if not progress.is_last_batch and trainer.received_sigterm:
            raise SIGTERMException

    def teardown(self) -> None:
        """Drop the batch of an error, too."""
        super().teardown()
        self._results.batch = None


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


def _nothing() -> None:
    pass
