"""The private names of Lightning's strategies that hf_compat uses, each with its contract."""

from __future__ import annotations

import inspect
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, Strategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

__all__ = [
    "KeepOnDeviceStrategy",
    "RawModelDDPStrategy",
    "RawModelDeepSpeedStrategy",
    "RawModelStrategy",
    "calling_strategy",
    "parse_ddp_strategy",
]


def calling_strategy() -> Strategy | None:
    """Return the strategy in the call stack, None if there is none.

    Contract: ``Strategy.save_checkpoint`` and ``Strategy.load_checkpoint`` call a ``CheckpointIO``, without a reference
    to the trainer.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if isinstance(caller := frame.f_locals.get("self"), Strategy):
            return caller
        frame = frame.f_back
    return None


class KeepOnDeviceStrategy(Strategy):
    """Base class of strategies that keep the optimizers' state on the device when a run ends.

    Lightning moves it to the CPU, while the Trainer keeps the parameters on their device. Contract: ``teardown`` moves
    the state of ``optimizers``.
    """

    def teardown(self) -> None:
        """Tear down without moving the optimizers' state."""
        kept, self.optimizers = self.optimizers, []
        super().teardown()
        self.optimizers = kept


class RawModelStrategy(KeepOnDeviceStrategy):
    """Base class of strategies that wrap the model, not the LightningModule, in processes started already.

    Contract: if ``self.model`` is not the module, Lightning calls the steps through it; ``_configure_launcher`` creates
    the launcher that starts processes.
    """

    _device: torch.device

    def _configure_launcher(self) -> None:
        self._launcher = None

    @property
    def root_device(self) -> torch.device:
        """The device of this process, from the training arguments."""
        return self._device

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module itself: the wrapper is around the model inside it."""
        assert self.lightning_module is not None, "called during a fit"
        with self.precision_plugin.train_step_context():
            return self.lightning_module.training_step(*args, **kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module itself."""
        assert self.lightning_module is not None, "called during an evaluation"
        with self.precision_plugin.val_step_context():
            return self.lightning_module.validation_step(*args, **kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module itself."""
        assert self.lightning_module is not None, "called during an evaluation"
        with self.precision_plugin.test_step_context():
            return self.lightning_module.test_step(*args, **kwargs)


class RawModelDDPStrategy(RawModelStrategy, DDPStrategy):
    """Lightning's DDP with the wrapper around the model, not the LightningModule, in processes started already.

    Contract: in a fit, ``setup`` calls ``model_to_device`` and ``configure_ddp``; communication hooks are registered on
    ``self.model``, which ``teardown`` unwraps.
    """

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return ``model`` in its wrapper for training; a strategy overrides this."""
        return model

    def setup(self, trainer: pl.Trainer) -> None:
        """Set up a fit; an evaluation outside a fit does not wrap the model."""
        if trainer.state.fn is TrainerFn.FITTING:
            super().setup(trainer)
        else:
            assert self.accelerator is not None, "set by the trainer"
            self.accelerator.setup(trainer)
            self.setup_precision_plugin()

    def model_to_device(self) -> None:
        """Do nothing: the Trainer has moved the model to its device."""

    def configure_ddp(self) -> None:
        """Wrap the model and pass the wrapper to the run."""
        module: Any = self.lightning_module
        self.model = self.wrap(module.model)
        self._register_ddp_hooks()
        module.host.take_wrapper(self.model)

    def pre_backward(self, closure_loss: Tensor) -> None:
        """Do nothing: the wrapper has prepared the backward pass in its forward."""

    def post_backward(self, closure_loss: Tensor) -> None:
        """Do nothing, for the same reason."""


class RawModelDeepSpeedStrategy(RawModelDDPStrategy, DeepSpeedStrategy):
    """Lightning's DeepSpeed with the engine around the model, not the LightningModule, on any device.

    Contract: Lightning changes ``config`` only in ``_init_config_if_needed``, which its ``setup`` calls. Other
    differences from DDP in training are the methods here and ``setup_optimizers``, which is empty in Lightning; a
    subclass creates the engine in it.
    """

    def setup_environment(self) -> None:
        """Set the device; the process group is initialised already."""
        assert self.accelerator is not None, "set by the trainer"
        self.accelerator.setup_device(self.root_device)
        self.set_world_ranks()

    def setup(self, trainer: pl.Trainer) -> None:
        """In a fit, create the optimizer and the engine around the model."""
        assert self.accelerator is not None, "set by the trainer"
        self.accelerator.setup(trainer)
        if trainer.state.fn is TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()

    @property
    def handles_gradient_accumulation(self) -> bool:
        """False: the module accumulates the batches of a window."""
        return False


def parse_ddp_strategy(strategy: DDPStrategy) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return the user's keywords for torch's DDP and for Lightning's, and which arguments are not supported.

    Contract: Lightning's ``DDPStrategy`` stores each argument as an attribute with an underscore.
    """
    hooks = ("ddp_comm_state", "ddp_comm_hook", "ddp_comm_wrapper", "model_averaging_period")
    plain = DDPStrategy()
    instead = {
        "process_group_backend": "set `TrainingArguments(ddp_backend=...)` instead of `process_group_backend`",
        "timeout": "set `TrainingArguments(ddp_timeout=...)` instead of `timeout`",
        "parallel_devices": "`parallel_devices` is not supported, do not pass it",
        "checkpoint_io": "`checkpoint_io` is not supported, do not pass it",
    }
    problems = [text for name, text in instead.items() if getattr(strategy, f"_{name}") != getattr(plain, f"_{name}")]
    if strategy.cluster_environment is not None:
        problems.append("`cluster_environment` is not supported, do not pass it: the launcher's variables are used")
    return dict(strategy._ddp_kwargs), {name: getattr(strategy, f"_{name}") for name in hooks}, problems
