"""The private names of Lightning's strategies that hf_compat touches, each with its contract."""

from __future__ import annotations

import inspect
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, Strategy
from lightning.pytorch.trainer.states import TrainerFn

__all__ = [
    "RawModelDDPStrategy",
    "RawModelDeepSpeedStrategy",
    "RawModelStrategy",
    "StayingStrategy",
    "calling_strategy",
    "ddp_choices",
]


def calling_strategy() -> Strategy | None:
    """Return the strategy whose method is calling, None if there is none.

    Contract: Lightning hands checkpoints to a ``CheckpointIO`` in ``Strategy.save_checkpoint`` and
    ``Strategy.load_checkpoint``, and never tells it for which trainer.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if isinstance(caller := frame.f_locals.get("self"), Strategy):
            return caller
        frame = frame.f_back
    return None


class StayingStrategy(Strategy):
    """Mixed into a strategy whose optimizers' state stays on the device when a run ends.

    Lightning's own move it to the host, away from the parameters that the Trainer leaves where they are. Contract:
    ``teardown`` moves what is in ``optimizers``.
    """

    def teardown(self) -> None:
        """End the run without touching the optimizers."""
        kept, self.optimizers = self.optimizers, []
        super().teardown()
        self.optimizers = kept


class RawModelStrategy(StayingStrategy):
    """Mixed into a strategy for the model inside the LightningModule, in processes that run already.

    Contract: where ``self.model`` is not the module, Lightning's steps are called through it; ``_configure_launcher``
    makes what starts processes.
    """

    _device: torch.device

    def _configure_launcher(self) -> None:
        self._launcher = None

    @property
    def root_device(self) -> torch.device:
        """The device of this process, as the arguments chose it."""
        return self._device

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module itself: what wraps the model, or is done to it, is inside."""
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
    """Lightning's DDP with the wrapper around the model inside the LightningModule, in processes that run already.

    Contract: ``setup`` calls ``model_to_device`` and ``configure_ddp`` when fitting; ``self.model`` is what hooks on
    gradients are registered on and what ``teardown`` unwraps.
    """

    def wrap(self, model: Any) -> Any:
        """Return what is called in place of ``model`` to train it: the model itself, unless a strategy wraps it."""
        return model

    def setup(self, trainer: pl.Trainer) -> None:
        """Set up a fit; for an evaluation alone there is nothing to wrap, and weights are left as they are."""
        if trainer.state.fn is TrainerFn.FITTING:
            super().setup(trainer)
        else:
            assert self.accelerator is not None, "a trainer has given it"
            self.accelerator.setup(trainer)
            self.setup_precision_plugin()

    def model_to_device(self) -> None:
        """Do nothing: the Trainer has put the model where it belongs."""

    def configure_ddp(self) -> None:
        """Wrap the model and hand the wrapper to the run."""
        module: Any = self.lightning_module
        self.model = self.wrap(module.model)
        self._register_ddp_hooks()
        module.host.take_wrapper(self.model)

    def pre_backward(self, closure_loss: Any) -> None:
        """Do nothing: the forward pass went through the wrapper, which has prepared for the backward pass."""

    def post_backward(self, closure_loss: Any) -> None:
        """Do nothing, for the same reason."""


class RawModelDeepSpeedStrategy(RawModelDDPStrategy, DeepSpeedStrategy):
    """Lightning's DeepSpeed with the engine around the model inside the LightningModule, on any device.

    Contract: Lightning's own changes ``config`` in ``_init_config_if_needed`` alone, which its ``setup`` calls; what
    else differs from DDP while a model trains is in the methods here, and in ``setup_optimizers``, which Lightning
    leaves empty and a strategy derived from this fills.
    """

    def setup_environment(self) -> None:
        """Take the device; the processes know each other already."""
        assert self.accelerator is not None, "a trainer has given it"
        self.accelerator.setup_device(self.root_device)
        self.set_world_ranks()

    def setup(self, trainer: pl.Trainer) -> None:
        """Build the optimizer, with the engine around the model, if this is a fit."""
        assert self.accelerator is not None, "a trainer has given it"
        self.accelerator.setup(trainer)
        if trainer.state.fn is TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()

    @property
    def handles_gradient_accumulation(self) -> bool:
        """False: a window's batches are counted by the module."""
        return False


def ddp_choices(strategy: DDPStrategy) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return what a user chose for ``strategy``: keywords for torch, keywords for Lightning, and what cannot be kept.

    Contract: Lightning's ``DDPStrategy`` keeps its arguments under their names with an underscore.
    """
    hooks = ("ddp_comm_state", "ddp_comm_hook", "ddp_comm_wrapper", "model_averaging_period")
    plain = DDPStrategy()
    instead = {
        "process_group_backend": "set `TrainingArguments(ddp_backend=...)` instead of its `process_group_backend`",
        "timeout": "set `TrainingArguments(ddp_timeout=...)` instead of its `timeout`",
        "parallel_devices": "leave its `parallel_devices` out",
        "checkpoint_io": "leave its `checkpoint_io` out",
    }
    problems = [text for name, text in instead.items() if getattr(strategy, f"_{name}") != getattr(plain, f"_{name}")]
    if strategy.cluster_environment is not None:
        problems.append("leave its `cluster_environment` out, the launcher's variables decide")
    return dict(strategy._ddp_kwargs), {name: getattr(strategy, f"_{name}") for name in hooks}, problems
