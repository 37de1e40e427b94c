"""Lightning's side of the training loop: hooks that are overridden, progress, profiler, and what was logged.

Lightning's own loops call each hook of each callback, module and strategy in a profiler's context, test at every batch
whether to evaluate and to step a schedule, and collect metrics that were not logged. For a tiny model that costs as
much as the update step, and more than the step of an evaluation. What a hook sees is the same: order, arguments,
``_current_fx_name``, progress counters.
"""

from __future__ import annotations

import math
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch.core.hooks import DataHooks
from lightning.pytorch.core.optimizer import do_nothing_closure
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.loops.fetchers import _DataFetcher, _PrefetchDataFetcher
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer.call import _call_callback_hooks, _call_lightning_module_hook, _call_strategy_hook
from lightning.pytorch.trainer.connectors.data_connector import _parse_num_batches
from lightning.pytorch.trainer.connectors.logger_connector.logger_connector import _LoggerConnector
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.exceptions import SIGTERMException

from hf_compat.data.loader import TrackedLoader
from hf_compat.engine.internals.exceptions import StopIterationError
from hf_compat.nested import find_batch_size

_TRANSFER = "transfer_batch_to_device"
_CURRENT = "_current_fx_name"
_AROUND_A_TRANSFER = ("on_before_batch_transfer", "on_after_batch_transfer")


def call_hook(module: pl.LightningModule, name: str, *args: Any) -> None:
    """Call the hook ``name`` of callbacks and module in a :class:`TrainingLoop`.

    Contract: ``module._trainer`` is what the property ``trainer`` returns, which first looks for other things.

    Args:
        module: The module of the current fit.
        name: The hook.
        *args: Its arguments, besides trainer and module.
    """
    trainer: Any = module._trainer
    loop = trainer.fit_loop.epoch_loop
    if "lightning_hooks" not in loop.__dict__:  # a callback runs a backward pass before the first epoch
        loop.lightning_hooks = LightningHooks(trainer)
    loop.lightning_hooks.call(name, *args)


class TrainingLoop(_TrainingEpochLoop):
    """Lightning's part of training on each batch: hooks, profiler, progress, and the metrics that were logged.

    A subclass sets ``batches`` as an epoch begins, and trains on one in ``advance``. Contract: the fit loop
    calls ``run`` for each epoch; it and callbacks read ``batch_progress``, ``_batches_that_stepped``, the steps of
    ``manual_optimization``, ``max_steps`` and ``val_loop``. What Lightning's own loop does besides is not used here: it
    steps no schedule under manual optimization, restarts only from its own checkpoints, and validates, in
    ``on_advance_end``, only if it was given a loader for that.

    Args:
        pl_trainer: The Lightning trainer, before it trains. The loop takes over limits and validation loop of its own.
        module_class: The class whose ``training_step``, which calls :meth:`train`, and ``transfer_batch_to_device`` are
            known here: where the module has others, Lightning's own code calls them.
        strategy_class: The class whose ``training_step``, which calls that of the module, is known here.

    Attributes:
        batches: The batches of the current epoch, none of them None; each is read when it is trained on.
        steps: Counts the steps of the optimizer; ``steps.completed`` is Lightning's ``global_step``.
    """

    def __init__(self, pl_trainer: pl.Trainer, module_class: type[pl.LightningModule], strategy_class: type) -> None:
        before = pl_trainer.fit_loop.epoch_loop
        super().__init__(pl_trainer, before.min_steps, before.max_steps)
        self.__dict__["_batches_that_stepped"] = 0
        self.val_loop = before.val_loop
        pl_trainer.fit_loop.epoch_loop = self
        self._module_class, self._strategy_class = module_class, strategy_class
        self.steps = self.manual_optimization.optim_step_progress.total
        self.batches: Iterator[Any] = iter(())
        self._length: float = 0

    # ---- an epoch ----

    def run(self, data_fetcher: _DataFetcher) -> None:
        """Train for an epoch.

        Raises:
            StopIterationError: If what trains on a batch raises StopIteration, which ends Lightning's fit loop.
        """
        self.reset()
        self.on_run_start(data_fetcher)
        while not self.done:
            if self.lightning_hooks.profiles:
                with self.trainer.profiler.profile("[_TrainingEpochLoop].train_dataloader_next"):
                    batch = next(self.batches, None)
            else:
                batch = next(self.batches, None)
            if batch is None:
                return
            try:
                self.advance(batch)
            except StopIteration as stop:
                raise StopIterationError(stop) from stop
            del batch  # its memory is free while the next one is read
            if self.restarting:  # in an epoch that is resumed
                self.on_iteration_done()

    @property
    def _batches_that_stepped(self) -> int:
        """The update step under way, or the last one during an evaluation: where loggers put what callbacks log.

        Lightning counts from 0. The Trainer's logs, which the same loggers get, count from 1.
        """
        before: int = vars(self)["_batches_that_stepped"]
        return before + 1 if self.trainer.training else self.global_step

    @_batches_that_stepped.setter
    def _batches_that_stepped(self, value: int) -> None:
        self.__dict__["_batches_that_stepped"] = value - 1 if self.trainer.training else value

    def on_save_checkpoint(self) -> dict[str, Any]:
        """Return the loop's state, with Lightning's count."""
        return {**super().on_save_checkpoint(), "_batches_that_stepped": vars(self)["_batches_that_stepped"]}

    def on_run_start(self, data_fetcher: _DataFetcher) -> None:
        """Begin an epoch: look up what each of its batches needs."""
        super().on_run_start(data_fetcher)
        trainer, module = self.trainer, self.trainer.lightning_module
        hooks = self.lightning_hooks = LightningHooks(trainer)
        self.strategy, self._precision = trainer.strategy, trainer.precision_plugin
        self.val_loop.restarting = False
        self._validates = trainer.enable_validation
        known = self._module_class
        self._transfers = hooks.profiles or not is_transfer_noop(trainer, known.transfer_batch_to_device)
        self._steps_itself = overrides(module, "training_step", known)
        self._calls_strategy = hooks.profiles or overrides(trainer.strategy, "training_step", self._strategy_class)
        self._length = data_fetcher.length or math.inf

    def expect(self, batches: int) -> None:
        """Have the epoch that begins end after so many batches."""
        self._length = self.trainer.fit_loop.max_batches = batches

    @property
    def done(self) -> bool:
        """Whether the epoch has ended, as Lightning's, which looks each number up through the trainer."""
        progress, fit_loop = self.batch_progress, self.trainer.fit_loop
        if progress.is_last_batch or progress.current.ready == fit_loop.max_batches or self.trainer.should_stop:
            return super().done
        return self.steps.completed >= self.max_steps != -1

    def teardown(self) -> None:
        """Drop the batches that are left, and that of an error."""
        super().teardown()
        self.batches = iter(())
        self._results.batch = None

    # ---- a batch ----

    def begin_batch(self, batch: Any) -> tuple[Any, int]:
        """Count a batch as ready; return it as precision plugin and module convert it, and its index in the epoch."""
        trainer, progress, connector = self.trainer, self.batch_progress, self.trainer._logger_connector
        index = progress.current.ready
        progress.is_last_batch = index + 1 >= self._length
        batch = self._precision.convert_input(batch)
        if self._transfers:
            batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
            batch = _call_strategy_hook(trainer, "batch_to_device", batch, dataloader_idx=0)
        progress.increment_ready()
        begin_batch_of(connector, self._results, _Samples(batch))
        return batch, index

    def train(self, batch: Any) -> Any:
        """Train on ``batch``; return the outputs that callbacks get."""
        raise NotImplementedError

    def begin_rest(self) -> None:
        """Take back the count of the last batch: what comes next is its rest."""
        self.batch_progress.is_last_batch = False
        for counts in (self.batch_progress.current, self.batch_progress.total):
            for name in ("ready", "started", "processed", "completed"):
                setattr(counts, name, getattr(counts, name) - 1)

    def call_training_step(self, batch: Any, index: int) -> Any:
        """Return what :meth:`train` returns, called by strategy and module where these do more than that."""
        trainer, attributes = self.trainer, self.lightning_hooks.attributes
        self.batch_progress.increment_started()
        if self._steps_itself:
            with trainer.profiler.profile("run_training_batch"):
                outputs: Any = self.manual_optimization.run(self._build_kwargs(OrderedDict(), batch, index))
        elif self._calls_strategy:
            with trainer.profiler.profile("run_training_batch"):
                _call_strategy_hook(trainer, "on_train_batch_start", batch, index)
                outputs = _call_strategy_hook(trainer, "training_step", batch, index)
        else:
            attributes[_CURRENT] = "training_step"
            with self._precision.train_step_context():
                outputs = self.train(batch)
            attributes[_CURRENT] = None
        self.batch_progress.increment_processed()
        return outputs

    def step_optimizer(self) -> None:
        """Step the optimizer by strategy and precision plugin, counted as one of Lightning's.

        The plugin calls the hook ``on_before_optimizer_step`` once the gradients are unscaled.
        """
        steps = self.manual_optimization.optim_step_progress
        steps.increment_ready()
        if self.lightning_hooks.profiles:
            self.trainer.profiler.start("optimizer_step")
        self.strategy.optimizer_step(self.strategy.optimizers[0], do_nothing_closure)
        if self.lightning_hooks.profiles:
            self.trainer.profiler.stop("optimizer_step")
        steps.increment_completed()

    def skip_epoch(self) -> None:
        """End the epoch before the batch, as Lightning does where the hook of a module returned -1."""
        self.batch_progress.increment_by(0, is_last_batch=True)
        self.batch_progress.increment_processed()

    def end_batch(self) -> None:
        """Count a batch as completed, and collect what was logged with ``self.log``."""
        has_values = end_batch_of(self.trainer._logger_connector, self._results)
        self.batch_progress.increment_completed()
        if has_values:
            self.trainer._logger_connector.update_train_step_metrics()
        if self._validates:  # a module with a loader of its own
            self.on_advance_end(self.trainer.fit_loop._data_fetcher)
        self.__dict__["_batches_that_stepped"] = self.steps.completed
        if not self._validates:
            self._save_loggers_on_train_batch_end()


class CountingFromOne(_LoggerConnector):
    """Decides when callbacks log by the ``_batches_that_stepped`` of :class:`TrainingLoop`.

    Contract: Lightning adds one to it, since it is called before a batch is counted.
    """

    @property
    def should_update_logs(self) -> bool:
        """Whether callbacks log at the update step under way."""
        trainer: Any = self.trainer
        if not trainer.training or trainer.log_every_n_steps == 0:
            return super().should_update_logs
        step = trainer.fit_loop.epoch_loop._batches_that_stepped
        return bool(step % trainer.log_every_n_steps == 0 or trainer.should_stop)


def begin_batch_of(connector: _LoggerConnector, results: _ResultCollection, batch: Any) -> None:
    """Do what ``connector.on_batch_start`` does, which looks for ``results`` twice: they are the active loop's."""
    connector._first_loop_iter = connector._first_loop_iter is None
    results.batch, results.batch_size, results.dataloader_idx = batch, None, None


class _Samples:
    """Stands for a window where Lightning infers the batch size of values that are logged with ``on_epoch``.

    It has one tensor, with as many rows as the window has samples.

    Contract: Lightning reads the length of each tensor in a batch, once for each batch in which such a value is logged.
    """

    def __init__(self, window: Any) -> None:
        self._window = window

    def __iter__(self) -> Iterator[torch.Tensor]:
        batches = getattr(self._window, "batches", [self._window])
        yield torch.empty(sum(find_batch_size(batch) or 1 for batch in batches), device="meta")


def end_batch_of(connector: _LoggerConnector, results: _ResultCollection) -> bool:
    """Do what ``connector.on_batch_end`` does; return whether something was logged.

    Contract: what was logged before the last reset stays in ``results``, with ``has_reset``, and is in no metrics.
    """
    for metric in results.values():
        if not metric.has_reset:
            connector.on_batch_end()
            return True
    results.batch = results.batch_size = None
    return False


class LightningHooks:
    """The hooks of callbacks and module: those that are overridden or, under a profiler, all, as Lightning calls them.

    Args:
        pl_trainer: The Lightning trainer, in a fit or an evaluation.

    Attributes:
        profiles: Whether each hook is called in a context of the trainer's profiler.
        attributes: The module's attributes. ``_current_fx_name`` is set in them some ten times an update step, which
            takes 2 µs by the way of ``nn.Module``.
    """

    def __init__(self, pl_trainer: Any) -> None:
        self.profiles = type(pl_trainer.profiler) is not PassThroughProfiler
        self._trainer = pl_trainer
        self._module = pl_trainer.lightning_module
        self.attributes: dict[str, Any] = vars(self._module)
        self._callbacks: list[pl.Callback] = list(pl_trainer.callbacks)
        self._found: dict[str, tuple[list[pl.Callback], Callable[..., Any] | None]] = {}
        self._silent: set[str] = set()
        """Hooks that nobody overrides; none under a profiler."""

    def call(self, name: str, *args: Any) -> None:
        """Call the hook ``name`` of each callback, then of the module, whose ``_current_fx_name`` it is meanwhile."""
        if name in self._silent and self._trainer.callbacks == self._callbacks:
            return
        before = self.attributes[_CURRENT]
        self.begin(name, *args)
        self.end(name, *args)
        self.attributes[_CURRENT] = before

    def begin(self, name: str, *args: Any) -> None:
        """Call the hook ``name`` of each callback; it is the module's ``_current_fx_name`` until :meth:`end`."""
        trainer, module = self._trainer, self._module
        if self.profiles:
            _call_callback_hooks(trainer, name, *args)
            self.attributes[_CURRENT] = name
            return
        self.attributes[_CURRENT] = name
        if trainer.callbacks != self._callbacks:  # some were added, or taken away
            self._callbacks = list(trainer.callbacks)
            self._found.clear()
            self._silent.clear()
        if name not in self._found:
            self._find(name)
        for callback in self._found[name][0]:
            getattr(callback, name)(trainer, module, *args)

    def end(self, name: str, *args: Any) -> Any:
        """Call the hook ``name`` of the module, after those of the callbacks; return what it returns."""
        if self.profiles:
            result = _call_lightning_module_hook(self._trainer, name, *args)
        else:
            if name not in self._found:
                self._find(name)
            own = self._found[name][1]
            result = None if own is None else own(*args)
        self.attributes[_CURRENT] = None
        return result

    def _find(self, name: str) -> None:
        callbacks = [one for one in self._callbacks if overrides(one, name, pl.Callback)]
        own = getattr(self._module, name) if overrides(self._module, name, pl.LightningModule) else None
        self._found[name] = callbacks, own
        if not callbacks and own is None:
            self._silent.add(name)


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


# Lightning's evaluation loops, which call only hooks that are overridden and read a loader to its end.


def use_fast_loops(pl_trainer: pl.Trainer, *, noop_transfer: Callable[..., Any], strategy_class: type) -> None:
    """Let ``pl_trainer`` evaluate without calling hooks that are not overridden.

    Contract: ``fit_loop.epoch_loop.val_loop``, ``validate_loop`` and ``test_loop`` have their state in attributes;
    ``on_run_start`` begins a pass. Then ``_evaluation_step`` is all that is done for a batch, besides fetching it.
    Loggers and callbacks read the step to log at from ``epoch_loop._batches_that_stepped``.

    Args:
        pl_trainer: The Lightning trainer, before a fit or in its first ``setup``.
        noop_transfer: A ``transfer_batch_to_device`` that returns the batch as it is: with another one Lightning's own
            code runs.
        strategy_class: The class whose steps call those of the module: others are called themselves.
    """
    for loop in (pl_trainer.fit_loop.epoch_loop.val_loop, pl_trainer.validate_loop, pl_trainer.test_loop):
        if type(loop) is _EvaluationLoop:
            lean: Any = loop
            lean.__class__ = _LeanEvaluationLoop
            lean.noop_transfer, lean.strategy_class = noop_transfer, strategy_class
    if type(pl_trainer._logger_connector) is _LoggerConnector:
        pl_trainer._logger_connector.__class__ = CountingFromOne


def step_alike(loop: Any, other: object) -> None:
    """Let ``loop``, which evaluates, call the hooks that ``other`` calls."""
    if isinstance(other, _LeanEvaluationLoop):
        loop.__class__ = _LeanEvaluationLoop
        loop.noop_transfer, loop.strategy_class = other.noop_transfer, other.strategy_class


class _LeanEvaluationLoop(_EvaluationLoop):
    noop_transfer: Callable[..., Any]
    strategy_class: type
    lightning_hooks: LightningHooks | None = None
    """None where Lightning's own code runs."""
    _names = ("", "", "")
    _takes_index = _counts = True
    _context: Callable[[], AbstractContextManager[Any]]
    _step: Callable[..., Any]
    """Of the module, in a context of the precision plugin, unless the strategy does more than call that."""
    _convert: Callable[[Any], Any] | None = None

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
        self.lightning_hooks = LightningHooks(trainer) if is_known else None
        if is_known:
            plugin = trainer.precision_plugin
            self._convert = None if type(plugin).convert_input is Precision.convert_input else plugin.convert_input
            self._counts = not trainer.sanity_checking
            data_fetcher._start_profiler = data_fetcher._stop_profiler = _nothing
            stage = "test" if trainer.testing else "validation"
            self._names = (f"on_{stage}_batch_start", f"{stage}_step", f"on_{stage}_batch_end")
            self._context = plugin.test_step_context if trainer.testing else plugin.val_step_context
            evaluates: Any = trainer.lightning_module
            if overrides(trainer.strategy, self._names[1], self.strategy_class):
                self._context, evaluates = nullcontext, trainer.strategy
            self._step = getattr(evaluates, self._names[1])
            given = OrderedDict(batch=None, batch_idx=0)
            self._takes_index = len(self._build_step_args_from_hook_kwargs(given, self._names[1])) == len(given)

    def _evaluation_step(
        self, batch: Any, batch_idx: int, dataloader_idx: int, dataloader_iter: Iterator[Any] | None
    ) -> None:
        """Evaluate one batch: what Lightning does, without what is not used."""
        hooks = self.lightning_hooks
        if isinstance(self._combined_loader, _ToItsEnd):
            self.batch_progress.is_last_batch = self._combined_loader.is_last(batch_idx)
        if hooks is None:
            super()._evaluation_step(batch, batch_idx, dataloader_idx, dataloader_iter)
            return
        trainer, progress, connector = self.trainer, self.batch_progress, self.trainer._logger_connector
        begins, steps, ends = self._names
        if self._convert is not None:
            batch = self._convert(batch)
        progress.increment_ready()
        begin_batch_of(connector, self._results, batch)
        hooks.call(begins, batch, batch_idx)
        progress.increment_started()
        before, hooks.attributes[_CURRENT] = hooks.attributes[_CURRENT], steps
        with self._context():
            output = self._step(*((batch, batch_idx) if self._takes_index else (batch,)))
        hooks.attributes[_CURRENT] = before
        progress.increment_processed()
        hooks.call(ends, output, batch, batch_idx)
        has_values = end_batch_of(connector, self._results)
        progress.increment_completed()
        if self._counts:
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

    Contract: a fetcher reads from ``iter``, each batch with its index and that of the loader; it neither stops nor
    reads a batch ahead while it has fetched less than ``len``.

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

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # Lightning's returns itself
        for index, batch in enumerate(self._loader):
            yield batch, index, 0
            if index + 1 == self._most:
                return

    def is_last(self, index: int) -> bool:
        """Return whether the batch of this ``index``, which was read last, is the last."""
        return self._loader.end_of_dataloader or index + 1 == self._most


def _nothing() -> None:
    pass
