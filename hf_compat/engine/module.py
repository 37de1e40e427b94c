"""The LightningModule around a model."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hf_compat.data.windows import Window
from hf_compat.engine.bridge import BridgeHost
from hf_compat.engine.host import EvaluationPass, Host
from hf_compat.model_facts import accepts_parameter

__all__ = ["HFModule"]


class HFModule(pl.LightningModule):
    """A model as Lightning trains it: one training step is one window, that is, one update step.

    ``training_step`` runs forward and backward for each batch of the window through the Trainer's own
    ``training_step``, then makes the optimizer step; clipping happens in ``on_before_optimizer_step``, after a gradient
    scaler has unscaled. Validation and test steps go to the evaluation session under way.

    Args:
        model: The model, unchanged; ``self.model`` is the same object.
        host: The Trainer whose methods are called.
    """

    def __init__(self, model: nn.Module, host: BridgeHost) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self._host_reference = weakref.ref(host)
        self.session: EvaluationPass | None = None

    @property
    def _host(self) -> BridgeHost:
        # Weakly held: a Lightning callback that copies the module must not copy the Trainer and its data sets.
        host = self._host_reference()
        assert host is not None, "a run's Trainer outlives it"
        return host

    @property
    def host(self) -> Host:
        """The run, as a strategy asks it for an optimizer and gives it what it put around the model."""
        return self._host._engine_host

    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning sets this one some 45 times an update step; nn.Module's bookkeeping would cost 2 µs each time.
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def configure_optimizers(self) -> Any:
        """Return the run's optimizer, with its schedule so that Lightning callbacks see it."""
        optimizer, scheduler = self.host.optimization.create_both()
        if isinstance(scheduler, LRScheduler | ReduceLROnPlateau) and scheduler.optimizer is optimizer:
            return {"optimizer": optimizer, "lr_scheduler": scheduler}
        return optimizer

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Return ``batch`` as it is: the Trainer's loader and ``_prepare_inputs`` move batches."""
        return batch

    def training_step(self, window: Window, batch_idx: int) -> dict[str, Tensor]:
        """Make one update step of ``window`` and return the loss summed over its batches, ``()``."""
        host = self._host
        last = len(window.batches) - 1
        host.current_gradient_accumulation_steps = len(window.batches)
        total: Tensor | None = None
        for index, batch in enumerate(window.batches):
            host.accelerator.sync_gradients = index == last and window.is_complete
            with nullcontext() if index == last else host.accelerator.no_sync(host.model_wrapped):
                loss = self._step(batch, window.num_items)
            total = loss if total is None else total + loss
            host._track_batch(loss, batch)
            if index == last and window.is_complete:
                self._update(window)
            else:
                host.control = host.callback_handler.on_substep_end(host.args, host.state, host.control)
            if host.should_stop():
                break
        assert total is not None, "a window has at least one batch"
        return {"loss": total}

    def _step(self, batch: Any, num_items: Any) -> Tensor:
        host = self._host
        if accepts_parameter(host.training_step, "num_items_in_batch"):
            return host.training_step(host.model_wrapped, batch, num_items)
        return host.training_step(host.model_wrapped, batch)

    def _update(self, window: Window) -> None:
        host = self._host
        optimizer = self.optimizers()
        optimizer.step()  # type: ignore[union-attr]
        host.control = host.callback_handler.on_optimizer_step(host.args, host.state, host.control)
        host._count_update(window)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Clip the gradients and tell the user callbacks."""
        host = self._host
        host._clip_gradients()
        host.control = host.callback_handler.on_pre_optimizer_step(host.args, host.state, host.control)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Hand ``batch`` to the evaluation session under way."""
        assert self.session is not None, "an evaluation has a session"
        with torch.enable_grad():  # upstream leaves gradients on for a prediction_step that wants them
            self.session.step(batch)

    def on_validation_epoch_end(self) -> None:
        """Finish the session: metrics are computed here, so that Lightning's monitors see them."""
        assert self.session is not None, "an evaluation has a session"
        metrics = self.session.finish()
        numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
        self.log_dict(numbers, logger=False, batch_size=1)

    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    def on_validation_model_train(self) -> None:
        """Leave the model in evaluation mode, as upstream does; ``training_step`` switches back."""

    on_test_model_train = on_validation_model_train

    def lr_scheduler_step(self, scheduler: Any, metric: Any | None) -> None:
        """Do nothing: the Trainer steps its schedule after each update."""

    def cpu(self) -> HFModule:
        """Return the module where it is: Lightning would move the model off its device after every run."""
        return self
