"""Upstream's events, fired from Lightning's hooks in upstream's order."""

from __future__ import annotations

from typing import Any, Protocol

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor, nn

from hf_compat.data.windows import Window
from hf_compat.engine.host import Host

__all__ = ["HOOKS", "BridgeCallback", "BridgeHost"]

HOOKS: dict[str, tuple[str, ...]] = {
    "on_train_start": ("on_train_begin",),
    "on_train_epoch_start": ("on_epoch_begin",),
    "on_train_batch_start": ("on_step_begin",),
    "training_step": ("on_substep_end",),
    "on_before_optimizer_step": ("on_pre_optimizer_step",),
    "training_step, after the step": ("on_optimizer_step",),
    "on_train_batch_end": ("on_step_end", "on_log", "on_evaluate", "on_save"),
    "on_validation_batch_end": ("on_prediction_step",),
    "on_train_epoch_end": ("on_epoch_end", "on_log", "on_evaluate", "on_save"),
    "on_train_end": ("on_log", "on_train_end"),
}
"""Which events of a ``TrainerCallback`` are fired from which Lightning hook; the evaluation session fires its own."""


class BridgeHost(Protocol):
    """The part of :class:`hf_compat.Trainer` that the module and the bridge call, at upstream's points."""

    args: Any
    state: Any
    control: Any
    callback_handler: Any
    accelerator: Any
    model_wrapped: Any
    current_gradient_accumulation_steps: int

    @property
    def _engine_host(self) -> Host: ...

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Run forward and backward on one batch."""

    def _begin_training(self) -> None: ...

    def _begin_epoch(self) -> None: ...

    def _track_batch(self, loss: Tensor, inputs: Any) -> None: ...

    def _clip_gradients(self) -> None: ...

    def _count_update(self, window: Window) -> None: ...

    def _log_evaluate_save(self) -> None: ...

    def _leave_if_preempted(self) -> None: ...

    def _should_stop(self) -> bool: ...

    def _finish_training(self) -> None: ...


class BridgeCallback(Checkpoint):
    """Fires the Trainer's events, and after them logs, evaluates and saves as the control asks.

    A ``Checkpoint`` callback so that Lightning runs it after all others, and adds none of its own: a save holds what
    the other callbacks did on the same update step.
    """

    def __init__(self, host: BridgeHost) -> None:
        self._host = host
        self._step_made = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Fire ``on_train_begin``; evaluate if asked to before the first update step."""
        self._step_made = trainer.global_step
        self._host._begin_training()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Fire ``on_epoch_begin``."""
        self._host._begin_epoch()

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Fire ``on_step_begin``: Lightning's batch is a window."""
        host = self._host
        host.control = host.callback_handler.on_step_begin(host.args, host.state, host.control)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Window, batch_idx: int
    ) -> None:
        """Fire ``on_step_end`` if the window made an update step, then log, evaluate, save."""
        host = self._host
        if trainer.global_step != self._step_made:
            self._step_made = trainer.global_step
            host.control = host.callback_handler.on_step_end(host.args, host.state, host.control)
            host._log_evaluate_save()
            if not trainer.is_last_batch:  # else what belongs to the epoch's end comes first
                host._leave_if_preempted()
        self._pass_on_stop(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Fire ``on_epoch_end``, then log, evaluate, save."""
        host = self._host
        host.control = host.callback_handler.on_epoch_end(host.args, host.state, host.control)
        host._log_evaluate_save()
        host._leave_if_preempted()
        self._pass_on_stop(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the final metrics, load the best model, fire ``on_train_end``."""
        self._host._finish_training()

    def _pass_on_stop(self, trainer: pl.Trainer) -> None:
        if trainer.should_stop:  # a Lightning callback, such as EarlyStopping, asked for it
            self._host.control.should_training_stop = True
        trainer.should_stop = self._host.control.should_training_stop
