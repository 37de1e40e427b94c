"""The private names of Lightning's loops, signal handlers and messages that hf_compat uses, with their contracts."""

from __future__ import annotations

import copy
import logging
import re
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.trainer.call import _call_callback_hooks
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from lightning.pytorch.utilities.model_helpers import _ModuleMode
from lightning.pytorch.utilities.seed import isolate_rng

from hf_compat.engine.internals.stepping import step_alike
from hf_compat.errors import CallbackError

# Warnings that are wrong here: windows stay where they are, whoever loads them; evaluations are called, not scheduled;
# their metrics are gathered from all ranks before they are logged; checkpoints are saved after the update step; the
# first training step sets training mode; windows begin where a resumed run does. The last is Lightning's use of a
# deprecated torch name.
_MISLEADING = (
    r"You have overridden `transfer_batch_to_device` in `LightningModule` but have passed in a `LightningDataModule`.*",
    r".*defined a `validation_step` but have no `val_dataloader`.*",
    r".*`train_dataloader` does not have many workers.*",
    r".*The number of training batches .* is smaller than the logging interval.*",
    r".*It is recommended to use `self\.log\(.*sync_dist=True\)`.*",
    r".*Checkpoint directory .* exists and is not empty.*",
    r".*Using ModelCheckpoint with manual optimization and every_n_train_steps.*",
    r".*module\(s\) in eval mode at the start of training.*",
    r"You're resuming from a checkpoint that ended before the epoch ended and your dataloader is not resumable.*",
    r".*isinstance\(treespec, LeafSpec\).*",
)


def is_fitting(pl_trainer: pl.Trainer) -> bool:
    """Return whether ``pl_trainer`` is inside ``fit``."""
    return pl_trainer.state.fn is TrainerFn.FITTING and pl_trainer.state.stage is not None


def validate_in_fit(pl_trainer: pl.Trainer, loader: object) -> None:
    """Run ``pl_trainer``'s validation loop once over ``loader`` within ``fit``.

    ``Trainer.validate`` cannot be called there: it tears down the strategy. Contract: hooks and ``self.log`` use
    ``fit_loop.epoch_loop.val_loop`` while ``trainer.validating``; an evaluation loop reads its loader from
    ``_data_source.instance``; of the state of the interrupted training hook, a validation changes only the connector's
    ``_first_loop_iter`` and the module's ``_current_fx_name``.
    """
    epoch_loop = pl_trainer.fit_loop.epoch_loop
    connector = pl_trainer._logger_connector
    previous_loop, previous_stage = epoch_loop.val_loop, pl_trainer.state.stage
    first_iteration, hook = connector._first_loop_iter, pl_trainer.lightning_module._current_fx_name
    loop = _EvaluationLoop(pl_trainer, TrainerFn.FITTING, RunningStage.VALIDATING, verbose=False, inference_mode=False)
    step_alike(loop, previous_loop)
    loop._data_source.instance = loader
    epoch_loop.val_loop = loop
    if not pl_trainer.sanity_checking:
        pl_trainer.validating = True
    try:
        loop.run()
    finally:
        loop.teardown()
        _drop_strategy(loop)
        epoch_loop.val_loop = previous_loop
        pl_trainer.state.stage = previous_stage
        connector._first_loop_iter = first_iteration
        pl_trainer.lightning_module._current_fx_name = hook


@contextmanager
def sanity_checking(pl_trainer: pl.Trainer) -> Iterator[None]:
    """Context of a sanity check inside ``fit``, as Lightning's own: its hooks, and nothing is different afterwards.

    Contract: callbacks and ``_EvaluationLoop`` know it by ``sanity_checking``, a stage, and the loop takes
    ``num_sanity_val_steps`` batches of each loader; Lightning's ``_run_sanity_check`` does nothing without a loader in
    ``fit``. Metrics are reset by the connector before and after; ``_ModuleMode`` keeps the modules' modes.
    """
    connector, stage = pl_trainer._logger_connector, pl_trainer.state.stage
    modes = _ModuleMode()
    modes.capture(pl_trainer.lightning_module)
    with isolate_rng():
        pl_trainer.sanity_checking = True
        try:
            connector.reset_results()
            connector.reset_metrics()
            _call_callback_hooks(pl_trainer, "on_sanity_check_start")
            yield
            _call_callback_hooks(pl_trainer, "on_sanity_check_end")
            connector.reset_results()
            connector.reset_metrics()
        finally:
            pl_trainer.state.stage = stage
            modes.restore(pl_trainer.lightning_module)


def may_stop(pl_trainer: pl.Trainer) -> bool:
    """Return whether ``pl_trainer`` is past ``min_epochs`` and ``min_steps``.

    Contract: ``fit_loop._can_stop_early`` is what Lightning's loops read when ``should_stop`` is set.
    """
    return pl_trainer.fit_loop._can_stop_early


def without_minimum(pl_trainer: pl.Trainer) -> None:
    """Let ``pl_trainer`` stop before ``min_epochs`` and ``min_steps``, which its loops have as attributes."""
    pl_trainer.fit_loop.min_epochs = pl_trainer.fit_loop.epoch_loop.min_steps = None


def allow_next_step(pl_trainer: pl.Trainer) -> None:
    """Let ``pl_trainer`` make another update step than its ``max_steps``, within its ``max_epochs``.

    Contract: the loops read ``epoch_loop.max_steps``, -1 for no limit, before each batch and each epoch.
    """
    loop = pl_trainer.fit_loop.epoch_loop
    if loop.max_steps != -1:
        loop.max_steps = max(loop.max_steps, loop.global_step + 1)


class AutogradModes:
    """The modes of autograd in which a fit is called; Lightning sets its own ones for the time of the fit.

    Contract: ``fit_loop.reset``, which is called before ``on_train_start`` and not again, enables gradients, and leaves
    them enabled; ``_run_stage`` switches anomaly detection on or off for the time of its loop, by ``_detect_anomaly``.
    """

    def __init__(self) -> None:
        self._gradients = torch.is_grad_enabled()
        self._anomalies, self._nan = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()

    def set(self) -> None:
        """Set them again; anomaly detection stays on if it is."""
        torch.set_grad_enabled(self._gradients)
        if self._anomalies:
            torch.autograd.set_detect_anomaly(True, check_nan=self._nan)


def fast_forward(pl_trainer: pl.Trainer, epochs: int, windows: int, update_steps: int) -> None:
    """Set ``pl_trainer``'s progress counters to a position in the run, before its fit loop starts.

    They are what Lightning loads from a checkpoint that it saved there: within an epoch at the end of a batch, whose
    last counts it makes up for when it starts, otherwise at the end of an epoch. Contract: the fit loop counts
    epochs in ``epoch_progress`` and batches in ``epoch_loop.batch_progress``; ``global_step`` is
    ``manual_optimization.optim_step_progress.total.completed``. What starts in the middle of an epoch is
    ``restarting``; what has loaded its counts says so.

    Args:
        pl_trainer: The Lightning trainer.
        epochs: Epochs completed.
        windows: Windows of the next epoch that are done.
        update_steps: Update steps that are done.
    """
    loop = pl_trainer.fit_loop
    batches, steps = loop.epoch_loop.batch_progress, loop.epoch_loop.manual_optimization.optim_step_progress
    is_within = windows > 0
    of_epoch = windows if is_within or not epochs else update_steps // epochs
    epochs_completed = epochs if is_within else max(epochs - 1, 0)
    for tracker, count, completed in (
        (loop.epoch_progress.current, epochs, epochs_completed),
        (loop.epoch_progress.total, epochs, epochs_completed),
        (batches.current, of_epoch, of_epoch - is_within),
        (batches.total, update_steps, update_steps - is_within),
        (steps.current, update_steps, update_steps),
        (steps.total, update_steps, update_steps),
    ):
        for stage in vars(tracker):  # ready, completed and, for some, started and processed
            setattr(tracker, stage, completed if stage == "completed" else count)
    loop.epoch_loop.__dict__["_batches_that_stepped"] = update_steps - is_within  # it may be a property
    if not (epochs or is_within):
        return
    batches.is_last_batch = not is_within
    loop._loaded_from_state_dict = loop._resuming_from_checkpoint = True
    if is_within:
        for counts in (loop.epoch_progress.current, loop.epoch_progress.total):
            counts.ready = counts.started = epochs + 1  # type: ignore[attr-defined]
        loop.restarting = True


def continues_epoch(pl_trainer: pl.Trainer) -> bool:
    """Return whether ``pl_trainer``, which calls ``on_train_start``, goes on in an epoch.

    Contract: Lightning does not call ``on_train_epoch_start`` then.
    """
    return pl_trainer.fit_loop.restarted_mid_epoch


def train_on(pl_trainer: pl.Trainer, windows: object, *, max_steps: int, max_epochs: int) -> None:
    """Train on ``windows``, with these limits, in the fit that ``pl_trainer`` has begun; Lightning does not evaluate.

    Contract: before the first hook but ``setup`` is called, the fit loop has read neither its limits nor its loaders,
    which it gets from ``_data_source.instance``, and its validation loop of another; a module without a loader has
    none.
    """
    loop = pl_trainer.fit_loop
    loop.max_epochs, loop.epoch_loop.max_steps = max_epochs, max_steps
    loop._data_source.instance = windows
    loop.epoch_loop.val_loop._data_source.instance = pl_trainer.lightning_module


def user_loader(pl_trainer: pl.Trainer, *, evaluates: bool) -> Callable[[], Any] | None:
    """Return what loads the batches that ``trainer.fit`` was given, from a module or as they are; None without any.

    Contract: as for :func:`train_on`.
    """
    loop = pl_trainer.fit_loop.epoch_loop.val_loop if evaluates else pl_trainer.fit_loop
    source = copy.copy(loop._data_source)  # the loop's is about to have another instance
    return source.dataloader if source.is_defined() else None


class _NoSignalHandlers(_SignalConnector):
    """Installs no handlers: Lightning would exit with status 0 on SIGTERM, and in SLURM jobs save inside a handler."""

    def register_signal_handlers(self) -> None:
        self.received_sigterm = False


def disable_signal_handlers(pl_trainer: pl.Trainer) -> None:
    """Prevent ``pl_trainer`` from installing signal handlers.

    Contract: only ``_signal_connector.register_signal_handlers`` installs handlers.
    """
    pl_trainer._signal_connector = _NoSignalHandlers(pl_trainer)


class _KeepsMemoryCache(_CheckpointConnector):
    """Keeps the device's memory cache as a fit or an evaluation starts: every allocation would wait for the device."""

    def resume_end(self) -> None:
        if self._ckpt_path:
            super().resume_end()
        else:
            self.trainer.strategy.barrier("resume_end")


def keep_memory_cache(pl_trainer: pl.Trainer) -> None:
    """Prevent ``pl_trainer`` from emptying the device's memory cache as a fit or an evaluation starts.

    Contract: without a path to resume from, ``resume_end`` of the checkpoint connector only waits for the other ranks
    besides, in ``strategy.barrier``; the connector has its state in attributes.
    """
    pl_trainer._checkpoint_connector.__class__ = _KeepsMemoryCache


def _drop_strategy(loop: _Loop) -> None:
    """Have ``loop``, which has run for the last time, keep what was logged without the strategy, and its model.

    Contract: ``_results`` has a metric for each key, which refers to itself, and to the strategy's ``reduce``.
    """
    for metric in (vars(loop).get("_results") or {}).values():
        metric.meta.sync.fn = None
        metric.meta.sync.should = False  # which forgets the function, too


class _Gone:
    """Stands in a callback for a ``lightning.Trainer`` that is gone."""

    def __getattr__(self, name: str) -> Any:
        raise CallbackError(
            f"A Lightning callback reads `trainer.{name}`, but the Trainer that it was passed to is gone. Keep that "
            "Trainer in a variable for as long as you read the callback."
        )


def _replace_in(callbacks: Iterable[weakref.ref[Any]], old: object, new: object) -> None:
    """Replace attributes of ``callbacks``, as far as they are still there."""
    for callback in (reference() for reference in callbacks):
        if callback is not None:
            vars(callback).update({name: new for name, value in vars(callback).items() if value is old})


def refer_weakly_to(pl_trainer: pl.Trainer) -> None:
    """Have what ``pl_trainer`` consists of refer to it weakly, so that it goes with its last user.

    Its module has no trainer then, as a copy of it has none, and its profiler no module, which that of a user looks for
    as the next trainer starts. What a callback reads of it once it is gone, as progress bars do, is an error that says
    what to keep. Contract: loops, connectors and callbacks, and what they consist of, have the trainer as an attribute;
    each call gives callbacks the module's ``log`` and ``log_dict``, the module its trainer, and the profiler a module.
    """

    def referring(objects: Iterable[object]) -> list[Any]:
        own = ((one, getattr(one, "__dict__", {})) for one in objects)
        return [one for one, values in own if any(value is pl_trainer for value in values.values())]

    weak, callbacks = weakref.proxy(pl_trainer), pl_trainer.callbacks  # type: ignore[attr-defined]
    parts = referring([*vars(pl_trainer).values(), *callbacks])
    for part in parts:
        own = vars(part)
        own.update({name: weak for name, value in own.items() if value is pl_trainer})
        parts += referring(own.values())
        if isinstance(part, _Loop):
            _drop_strategy(part)
    weakref.finalize(pl_trainer, _replace_in, [weakref.ref(each) for each in callbacks], weak, _Gone()).atexit = False
    module = pl_trainer.strategy._lightning_module
    for callback in callbacks:
        for name in ("log", "log_dict"):
            if getattr(vars(callback).get(name), "__self__", module) is module:
                vars(callback).pop(name, None)
    if module is not None and module._trainer is pl_trainer:
        module._trainer = None
    pl_trainer.profiler._lightning_module = None  # type: ignore[attr-defined]


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Suppress Lightning's start-up messages and the warnings that are wrong here.

    All other warnings are shown. Contract: the messages use the logger of Lightning's ``rank_zero`` module.
    """
    loggers = [logging.getLogger(f"lightning.{part}.utilities.rank_zero") for part in ("pytorch", "fabric")]
    quiet = _FromWarning()  # not a level: setting one costs a millisecond where there are many loggers
    for logger in loggers:
        logger.addFilter(quiet)
    try:
        with ignoring_misleading_warnings():
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(quiet)


class _FromWarning(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING


@contextmanager
def ignoring_misleading_warnings() -> Iterator[None]:
    """Context in which Lightning's warnings that are wrong here are ignored; leaves filters that others add or remove.

    The list is changed without ``warnings.filterwarnings``, after which Python would show each warning of the program
    again that it shows once.
    """
    filters: list[Any] = [
        ("ignore", re.compile(message, re.IGNORECASE), Warning, None, 0) for message in reversed(_MISLEADING)
    ]
    warnings.filters[:0] = filters  # type: ignore[index]  # a list, which is typed as a sequence
    try:
        yield
    finally:
        for each in filters:
            if each in warnings.filters:
                warnings.filters.remove(each)  # type: ignore[attr-defined]


# The private names of Lightning's loops that evaluate, outside a fit, with their contracts.


def is_evaluating(pl_trainer: pl.Trainer) -> bool:
    """Return whether ``pl_trainer`` is inside ``validate``, ``test`` or ``predict``."""
    return pl_trainer.state.fn not in (None, TrainerFn.FITTING) and pl_trainer.state.stage is not None


def run_evaluation(pl_trainer: pl.Trainer, module: pl.LightningModule, loader: object, *, test: bool) -> None:
    """Run one loop of ``pl_trainer`` over ``loader``: that of the call that it is inside of, if it is inside of one.

    Args:
        pl_trainer: The Lightning trainer.
        module: The module.
        loader: The batches.
        test: Outside of any call: whether to call ``test``, or ``validate``.
    """
    if is_fitting(pl_trainer):
        validate_in_fit(pl_trainer, loader)
    elif is_evaluating(pl_trainer):
        _run_own(pl_trainer, loader)
    elif test:
        pl_trainer.test(module, dataloaders=loader, verbose=False)
    else:
        pl_trainer.validate(module, dataloaders=loader, verbose=False)


# ---- of a call that a person has made ----


@contextmanager
def run_instead(pl_trainer: pl.Trainer, run: Callable[[], Any]) -> Iterator[None]:
    """Context in which the call that ``pl_trainer`` is inside of returns what ``run`` does, without its loop.

    ``run`` may run the loop, by :func:`run_evaluation`. Contract: ``_run_stage`` returns what ``run`` of
    ``_active_loop`` returns, which the class has decorated to disable gradients; what comes before it does not read
    the loaders.

    Args:
        pl_trainer: The Lightning trainer, in the ``setup`` of the call.
        run: What to do instead.
    """
    loop: Any = pl_trainer._active_loop
    loop.run = run
    try:
        yield
    finally:
        vars(loop).pop("run", None)


def _run_own(pl_trainer: pl.Trainer, loader: object) -> None:
    """Run the loop of the call that ``pl_trainer`` is inside of over ``loader``; see :func:`run_instead`."""
    loop: Any = pl_trainer._active_loop
    vars(loop).pop("run", None)
    loop._data_source.instance = loader
    loop.run()


def user_data(pl_trainer: pl.Trainer) -> object:
    """Return what the call that ``pl_trainer`` is inside of was given as data: a data module, loaders, or the module.

    Contract: ``_data_source.instance``; the trainer's ``datamodule`` may be that of an earlier call.
    """
    loop: Any = pl_trainer._active_loop
    return loop._data_source.instance


def renew_loops(pl_trainer: pl.Trainer) -> None:
    """Prepare the loops of ``pl_trainer`` that evaluate for another strategy, under ``torch.no_grad``.

    What a model caches there can then be trained on. Contract: each loop has ``inference_mode``; ``_results`` has what
    was logged before, with the strategy's method to reduce it, which has to be that of what is logged next.
    """
    for loop in (pl_trainer.validate_loop, pl_trainer.test_loop):
        loop._results.clear()
    for one in (pl_trainer.validate_loop, pl_trainer.test_loop, pl_trainer.predict_loop):
        one.inference_mode = False


def evaluation_loader(pl_trainer: pl.Trainer) -> Callable[[], Any] | None:
    """Return what loads the batches that the call was given, from a module or as they are; None without any."""
    loop: Any = pl_trainer._active_loop
    source = copy.copy(loop._data_source)  # the loop's is about to have another instance
    return source.dataloader if source.is_defined() else None
