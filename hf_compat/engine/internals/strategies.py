"""The private names of Lightning's strategies that hf_compat uses, each with its contract."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy, Strategy
from torch import Tensor

__all__ = [
    "KeepOnDeviceStrategy",
    "RawModelStrategy",
    "calling_strategy",
    "parse_ddp_strategy",
    "register_communication_hooks",
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


class RawModelStrategy(Strategy):
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

    def pre_backward(self, closure_loss: Tensor) -> None:
        """Do nothing: the wrapper has prepared the backward pass in its forward."""

    def post_backward(self, closure_loss: Tensor) -> None:
        """Do nothing, for the same reason."""


def register_communication_hooks(strategy: DDPStrategy) -> None:
    """Register the communication hooks that the user chose on ``strategy.model``, the wrapper.

    Contract: Lightning's ``DDPStrategy`` does that in ``_register_ddp_hooks``; ``teardown`` unwraps ``model``.
    """
    strategy._register_ddp_hooks()


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
