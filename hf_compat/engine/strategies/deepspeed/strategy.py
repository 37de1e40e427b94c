"""DeepSpeed: the engine around the model, the Lightning strategy that trains through it, and what stands for its parts.

The engine clips, steps, and where its config says so schedules, all in the backward pass that ends an update step.

References:
    The order of calls is that of accelerate ``utils/deepspeed.py``, ``DeepSpeedEngineWrapper.backward``.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hf_compat.checkpoint.background import Writes
from hf_compat.distributed.deepspeed import import_deepspeed, prepare_process
from hf_compat.distributed.launch import Launch
from hf_compat.engine.environments import LaunchedEnvironment, Placement
from hf_compat.engine.internals.strategies import RawModelDeepSpeedStrategy
from hf_compat.engine.strategies.base import ModelStrategy
from hf_compat.engine.strategies.deepspeed.files import check_files
from hf_compat.engine.strategies.deepspeed.host_optimizers import optimizer_on_host
from hf_compat.errors import CheckpointError, TrainerSetupError
from hf_compat.model_facts import is_peft_model

logger = logging.getLogger(__name__)

__all__ = ["DeepSpeedStrategy", "EngineOptimizer", "EngineScheduler", "build_engine", "ready_optimizer"]


class EngineOptimizer(Optimizer):
    """The optimizer inside an engine, which steps it: ``step`` and ``zero_grad`` do nothing.

    Args:
        optimizer: DeepSpeed's.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The parameter groups, of the parts that this process updates."""
        return self.optimizer.param_groups  # type: ignore[no-any-return]

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of each parameter."""
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The settings of a parameter group that names none."""
        return getattr(self.optimizer, "defaults", {})

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this process's part."""
        return self.optimizer.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state_dict: Any) -> None:
        """Take over a state of :meth:`state_dict`."""
        self.optimizer.load_state_dict(state_dict)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Do nothing: the backward pass has stepped."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: the engine empties its gradients as it steps."""


class EngineScheduler:
    """The schedule inside an engine, which steps it: ``step`` does nothing; all else is the schedule's own.

    Args:
        scheduler: DeepSpeed's, or the one that was made for DeepSpeed's optimizer.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def step(self, *_: Any) -> None:
        """Do nothing: the backward pass has stepped."""

    def __getattr__(self, name: str) -> Any:
        if name == "scheduler":  # while it is copied
            raise AttributeError(name)
        return getattr(self.scheduler, name)


def ready_optimizer(optimizer: Optimizer, config: dict[str, Any]) -> Optimizer:
    """Return ``optimizer``, or DeepSpeed's in host memory where ``config`` keeps its state there."""
    offload = config.get("zero_optimization", {}).get("offload_optimizer") or {}
    offloads = offload.get("device", "none") != "none" and config.get("zero_force_ds_cpu_optimizer", True)
    return optimizer_on_host(optimizer) if offloads else optimizer


def build_engine(
    model: nn.Module,
    config: dict[str, Any],
    *,
    device: torch.device,
    launch: Launch,
    optimizer: Optimizer | None = None,
    parameters: list[nn.Parameter] | None = None,
    scheduler: Callable[[Optimizer], Any] | None = None,
) -> Any:
    """Return a ``DeepSpeedEngine`` around ``model``.

    Args:
        model: The model itself.
        config: DeepSpeed's config, without any ``"auto"``.
        device: The device of this process.
        launch: Which process this is.
        optimizer: Ours; None for the one in ``config``, or for none.
        parameters: What an optimizer of ``config`` trains.
        scheduler: Returns a schedule for DeepSpeed's optimizer; None for the one in ``config``, or for none.

    Raises:
        TrainerSetupError: If DeepSpeed refuses the config.
    """
    deepspeed = import_deepspeed(device)
    index = 0 if device.index is None else device.index
    given: dict[str, Any] = {"lr_scheduler": scheduler} if scheduler is not None else {}
    if optimizer is not None:
        given["optimizer"] = optimizer
    elif parameters is not None:
        given["model_parameters"] = parameters
    prepare_process(launch, device)
    try:
        engine, *_ = deepspeed.initialize(args=Namespace(device_rank=index), model=model, config=config, **given)
    except (AssertionError, ValueError) as error:
        raise TrainerSetupError(f"`deepspeed`: DeepSpeed refuses its config for this run: {error}") from error
    return engine


class DeepSpeedStrategy(ModelStrategy, RawModelDeepSpeedStrategy):
    """Trains through a DeepSpeed engine around the model itself, the Trainer's ``model_wrapped``.

    Args:
        placement: Which process of how many this is.
        device: The device of this process.
        config: DeepSpeed's config.

    Attributes:
        engine: The engine of the fit under way; the Trainer builds it with its optimizer.
    """

    def __init__(self, placement: Placement, device: torch.device, config: dict[str, Any]) -> None:
        import_deepspeed(device)
        super().__init__(cluster_environment=LaunchedEnvironment(placement.launch), config=config)
        self._device = device
        self._launch = placement.launch
        self.engine: Any = None

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last update step left the weights as they were, because a gradient was infinite."""
        return bool(getattr(getattr(self.engine, "optimizer", None), "overflow", False))

    def backward(  # type: ignore[override]
        self, closure_loss: Tensor, optimizer: Optimizer | None, *_: Any, **keywords: Any
    ) -> None:
        """Run the backward pass; step if it ends the update step, with as many batches as that has."""
        # The Trainer has averaged over the window; dividing by the config's accumulation as well would be wrong.
        self.engine.set_gradient_accumulation_boundary(is_boundary=self.ends_update_step)
        self.engine.backward(closure_loss, scale_wrt_gas=False, **keywords)
        if self.ends_update_step:
            self.engine.step()

    def no_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Return a context that does nothing: the engine decides when gradients are exchanged."""
        return nullcontext()

    def clip_grad_norm(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float) -> Any:
        """Return the norm of all gradients in the last update step: the engine has clipped them by its config."""
        norm = self.engine.get_global_grad_norm()
        return norm.item() if isinstance(norm, Tensor) else norm

    def evaluation_model(self, model: nn.Module) -> nn.Module:
        """Return the model itself: under ZeRO-3 its layers gather their weights as they are called."""
        return model.module if model is self.engine else model

    @property
    def saves_sharded_weights(self) -> bool:  # type: ignore[override]
        """Whether the config leaves the parts of ZeRO-3 apart when a model is saved."""
        return self._holds_parts and not self.engine.zero_gather_16bit_weights_on_model_save()

    @property
    def gathers_weights(self) -> bool:  # type: ignore[override]
        """Whether it has them put together; the weights of other stages are whole."""
        return not self.saves_sharded_weights

    @property
    def saves_scheduler(self) -> bool:  # type: ignore[override]
        """Whether the engine has a schedule, and so saves it."""
        return self.engine.lr_scheduler is not None

    @property
    def _holds_parts(self) -> bool:
        return bool(self.engine.zero_optimization_partition_weights())

    def full_state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Return the whole state of ``model``, under ZeRO-3 on the main process alone.

        Raises:
            ValueError: If the config does not have the parts of ZeRO-3 put together.
        """
        if not self._holds_parts:
            from deepspeed.checkpoint import utils

            state: dict[str, Any] = utils.clone_tensors_for_torch_save(model.state_dict())
            return state
        if self.saves_sharded_weights:
            raise ValueError(
                "`zero_optimization.stage3_gather_16bit_weights_on_model_save=False` in the DeepSpeed config: the "
                "weights are not put together. Set it to true, or use `zero_to_fp32.py` on a checkpoint."
            )
        return self.engine._zero3_consolidated_16bit_state_dict(is_peft_model(model)) or {}

    def load_weights(self, model: nn.Module, folder: str, *, trains_on: bool) -> tuple[list[str], list[str]]:
        """Give the engine all that DeepSpeed wrote into ``folder``: weights, optimizer and schedule."""
        self.load_optimizer(None, folder)
        return [], []

    def save_sharded_weights(self, model: nn.Module, folder: str) -> None:
        """Write into ``folder`` what each process holds of the weights; every process has to call it."""
        logger.warning(
            "The weights in `%s` are not put together, as `stage3_gather_16bit_weights_on_model_save=False`: run "
            "`zero_to_fp32.py` in it to do so.",
            folder,
        )
        self.save_optimizer(None, folder, writes=None)

    def save_optimizer(self, optimizer: Any, folder: str, *, writes: Writes | None) -> None:
        """Write what DeepSpeed needs to go on into ``folder``; every process has to call it."""
        self.engine.save_checkpoint(folder, exclude_frozen_parameters=is_peft_model(self.engine.module))

    def load_optimizer(self, optimizer: Any, folder: str) -> None:
        """Give the engine weights, optimizer and schedule in ``folder``; nothing is unpickled that could run code.

        Raises:
            CheckpointError: If DeepSpeed wrote none there, or other processes did, or they do not fit.
        """
        universal = bool(self.engine.load_universal_checkpoint())
        check_files(folder, launch=self._launch, universal=universal)
        try:
            path, _ = self.engine.load_checkpoint(folder, load_module_strict=not is_peft_model(self.engine.module))
        except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"DeepSpeed could not load `{folder}`: {error or type(error).__name__}. Resume with the model, the "
                "arguments and the DeepSpeed config that the checkpoint was written with."
            ) from error
        if path is None:
            raise CheckpointError(f"DeepSpeed found no checkpoint in `{folder}`.")
