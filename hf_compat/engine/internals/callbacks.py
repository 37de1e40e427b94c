"""The private names of Lightning's callbacks that hf_compat uses, with their contracts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import lightning
import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.throughput import Throughput
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    Callback,
    EarlyStopping,
    ModelCheckpoint,
    ModelPruning,
    OnExceptionCheckpoint,
    SpikeDetection,
    ThroughputMonitor,
)
from lightning.pytorch.trainer.call import (
    _call_callbacks_load_state_dict,
    _call_callbacks_on_save_checkpoint,
    _call_callbacks_state_dict,
)
from lightning.pytorch.trainer.states import RunningStage

from hf_compat.data.windows import Window


def saves_by_time(callback: Callback) -> bool:
    """Return whether ``callback`` saves by time, which ``ModelCheckpoint`` leaves out under manual optimization."""
    return isinstance(callback, ModelCheckpoint) and callback._train_time_interval is not None


def saves_by_steps(callback: Callback) -> bool:
    """Return whether ``callback`` saves every so many update steps, before an evaluation of the same step."""
    return isinstance(callback, ModelCheckpoint) and callback._every_n_train_steps > 0


def keeps_masks(callback: Callback) -> bool:
    """Return whether ``callback`` leaves the masks of pruned weights in checkpoints."""
    return isinstance(callback, ModelPruning) and not callback._make_pruning_permanent


def resume_from_no_file(pl_trainer: pl.Trainer) -> None:
    """Keep ``pl_trainer`` from resuming from the file of an ``OnExceptionCheckpoint``: the run has resumed by itself.

    Contract: a connector that is ``_user_managed`` takes its ``_ckpt_path``, which is None.
    """
    if any(isinstance(callback, OnExceptionCheckpoint) for callback in pl_trainer.callbacks):  # type: ignore[attr-defined]
        pl_trainer._checkpoint_connector._user_managed = True


def publish_metrics(pl_trainer: pl.Trainer, logs: Mapping[str, Any]) -> None:
    """Put the numbers of ``logs`` into ``trainer.callback_metrics``, but for the ``epoch`` that each log has.

    Contract: ``callback_metrics`` returns the connector's dict, which keeps what is put into it. ``ModelCheckpoint``
    counts the epochs in the names of its files itself, unless it finds a metric of that name.
    """
    metrics = pl_trainer._logger_connector.callback_metrics
    numbers = {name: value for name, value in logs.items() if isinstance(value, int | float) and name != "epoch"}
    metrics.update({name: torch.tensor(value) for name, value in numbers.items()})


# ---- checkpoints ----


def callback_states(pl_trainer: pl.Trainer) -> dict[str, Any]:
    """Return the state of each Lightning callback by its state key, as in a Lightning checkpoint."""
    return _call_callbacks_state_dict(pl_trainer)


def restore_callback_states(pl_trainer: pl.Trainer, states: dict[str, Any]) -> None:
    """Restore the state of each Lightning callback; an ``EarlyStopping`` keeps the ``patience`` that it was given."""
    given = {one: one.patience for one in pl_trainer.callbacks if isinstance(one, EarlyStopping)}  # type: ignore[attr-defined]
    for callback in pl_trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, SpikeDetection) and not hasattr(callback, "running"):
            callback.running = callback.running_mean  # type: ignore[attr-defined]  # what `load_state_dict` reads
    _call_callbacks_load_state_dict(pl_trainer, {"callbacks": states})
    for stopping, patience in given.items():
        stopping.patience = patience
    for callback in pl_trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, SpikeDetection):  # which moves its mean in the first batch of an epoch alone
            callback.running_mean.to(pl_trainer.strategy.root_device)


def saved_checkpoint(pl_trainer: pl.Trainer, states: dict[str, Any]) -> dict[str, Any]:
    """Return what the callbacks' ``on_save_checkpoint`` made of a checkpoint with the module's weights and ``states``.

    Returns:
        What they added, and the ``state_dict`` if they replaced it.
    """
    module = pl_trainer.lightning_module
    before: dict[str, Any] = {**_checkpoint(pl_trainer, states), "state_dict": module.state_dict()}
    after = dict(before)
    _call_callbacks_on_save_checkpoint(pl_trainer, after)
    return {name: value for name, value in after.items() if name not in before or value is not before[name]}


def restore_checkpoint_entries(pl_trainer: pl.Trainer, states: dict[str, Any], entries: dict[str, Any]) -> None:
    """Call the callbacks' ``on_load_checkpoint`` with what they added; the weights are the module's, loaded before."""
    module = pl_trainer.lightning_module
    checkpoint = {**_checkpoint(pl_trainer, states), "state_dict": module.state_dict(), **entries}
    for callback in pl_trainer.callbacks:  # type: ignore[attr-defined]
        callback.on_load_checkpoint(pl_trainer, module, checkpoint)


def _checkpoint(pl_trainer: pl.Trainer, states: dict[str, Any]) -> dict[str, Any]:
    return {
        "epoch": pl_trainer.current_epoch,
        "global_step": pl_trainer.global_step,
        "pytorch-lightning_version": lightning.__version__,
        "callbacks": states,
    }


def unfreeze_restored(pl_trainer: pl.Trainer) -> None:
    """Train the parameters that a restored ``BaseFinetuning`` has put back into the optimizer.

    Its ``setup`` has frozen them again, and it unfreezes only those that it adds itself.
    """
    if any(isinstance(callback, BaseFinetuning) for callback in pl_trainer.callbacks):  # type: ignore[attr-defined]
        for optimizer in pl_trainer.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.requires_grad = True


# ---- throughput ----


class _OverWindow:
    """A function of a batch that, given a window, returns its sum over the window's batches."""

    def __init__(self, function: Callable[[Any], int]) -> None:
        self.function = function

    def __call__(self, batch: object) -> int:
        batches = batch.batches if isinstance(batch, Window) else [batch]
        return sum(self.function(one) for one in batches)


class _WindowThroughput(Callback):
    """Lets a ``ThroughputMonitor`` count the batches of windows, and evaluations inside a fit.

    Lightning does not know of these beforehand. Contract: the monitor has a ``Throughput`` for each stage in
    ``_throughputs``, made in ``setup``.
    """

    def __init__(self, monitor: ThroughputMonitor) -> None:
        self._monitor = monitor

    def setup(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Replace the functions of a batch, and add what measures evaluations."""
        monitor = self._monitor
        for name in ("batch_size_fn", "length_fn"):
            function = getattr(monitor, name)
            if function is not None and not isinstance(function, _OverWindow):
                setattr(monitor, name, _OverWindow(function))
        if stage == "fit":
            monitor._throughputs[RunningStage.VALIDATING] = Throughput(
                available_flops=monitor.available_flops, world_size=pl_trainer.world_size, **monitor.kwargs
            )


def with_window_counts(callbacks: list[Callback]) -> list[Callback]:
    """Return ``callbacks``, each ``ThroughputMonitor`` counting the batches of windows, and evaluations."""
    found: list[Callback] = []
    for callback in callbacks:
        found.append(callback)
        if isinstance(callback, ThroughputMonitor):
            found.append(_WindowThroughput(callback))
    return found
