"""Models, optimizers and schedules prepared by ``accelerator.prepare`` beside the run's own, and ``GradientState``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from hf_compat.engine.moving import devices_of, settle_model
from hf_compat.engine.precision import autocast_forward
from hf_compat.errors import ModelError
from hf_compat.model_facts import is_compiled
from hf_compat.optim.prepared import scaled_step, set_mode

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from hf_compat.accelerator.accelerator import Accelerator
    from hf_compat.distributed.process_state import RunState
    from hf_compat.engine.backend import LightningBackend

# `PreparedOptimizer` and `PreparedSchedule`: a script's own, beside the run's, after `accelerator.prepare`.


class PreparedOptimizer(Optimizer):
    """An optimizer that updates and zeroes gradients only where an update step ends, with fp16 by the scaler.

    Args:
        optimizer: The optimizer.
        accelerator: Tells whether the current backward pass ends an update step.

    Attributes:
        optimizer: The optimizer itself.
        step_was_skipped: Whether the scaler skipped the last step, because of an infinite gradient.

    References:
        As accelerate ``optimizer.py`` ``AcceleratedOptimizer``.
    """

    def __init__(self, optimizer: Optimizer, accelerator: Accelerator) -> None:
        self.optimizer = optimizer
        self.step_was_skipped = False
        self._accelerator = accelerator

    @property
    def state(self) -> Any:
        """The optimizer's state."""
        return self.optimizer.state

    @state.setter
    def state(self, value: Any) -> None:
        self.optimizer.state = value

    @property
    def param_groups(self) -> Any:
        """The optimizer's parameter groups."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, value: Any) -> None:
        self.optimizer.param_groups = value

    @property
    def defaults(self) -> Any:
        """The optimizer's defaults."""
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, value: Any) -> None:
        self.optimizer.defaults = value

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group."""
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state dict."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict into the optimizer."""
        self.optimizer.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero the gradients if the update step has ended."""
        if self._accelerator.sync_gradients:
            self.optimizer.zero_grad(set_to_none=set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update the parameters if the update step has ended."""
        if not self._accelerator.sync_gradients:
            return
        scaler, given = self._accelerator.scaler, () if closure is None else (closure,)
        if scaler is None:
            self.optimizer.step(*given)
        else:
            _, self.step_was_skipped = scaled_step(scaler, self.optimizer, *given)

    def train(self) -> None:
        """Put a schedule-free optimizer in training mode."""
        set_mode(self.optimizer, training=True)

    def eval(self) -> None:
        """Put a schedule-free optimizer in evaluation mode."""
        set_mode(self.optimizer, training=False)


class PreparedSchedule:
    """A learning-rate schedule that steps only where an update step ends.

    It then steps once for each rank, or once with ``split_batches``.

    Args:
        schedule: The schedule.
        accelerator: Tells whether the current backward pass ends an update step.
        optimizers: The prepared optimizers that it may belong to.

    Attributes:
        scheduler: The schedule itself.
        optimizers: The prepared optimizer of the schedule, if there is one.

    References:
        As accelerate ``scheduler.py`` ``AcceleratedScheduler``, which counts the batches of all ranks unless these
        share one batch.
    """

    def __init__(self, schedule: Any, accelerator: Accelerator, optimizers: Iterable[PreparedOptimizer]) -> None:
        self.scheduler = schedule
        self.optimizers = [item for item in optimizers if schedule.optimizer in (item, item.optimizer)]
        self._accelerator = accelerator

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step the schedule if the update step has ended and was not skipped."""
        accelerator = self._accelerator
        if not accelerator.sync_gradients or any(optimizer.step_was_skipped for optimizer in self.optimizers):
            return
        for _ in range(1 if accelerator.split_batches else accelerator.num_processes):
            total = getattr(self.scheduler, "total_steps", None)
            if total is None or self.scheduler._step_count <= total:
                self.scheduler.step(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "scheduler":
            raise AttributeError(name)
        return getattr(self.scheduler, name)


# Preparing a model beside the run's own, such as a reference model, and undoing that.


def autocast_with(handler: Any, context: Callable[[], Any]) -> Any:
    """Return ``context()``, an autocast, with the settings of accelerate's ``AutocastKwargs``, if there are any."""
    autocast = context()
    if handler is None:
        return autocast
    return torch.autocast(
        autocast.device, dtype=autocast.fast_dtype, enabled=handler.enabled, cache_enabled=handler.cache_enabled
    )


def is_trainable(model: nn.Module) -> bool:
    """Return whether ``model`` has trainable parameters."""
    return any(weight.requires_grad for weight in model.parameters())


def prepare_model(
    model: nn.Module,
    state: RunState,
    *,
    autocast: Callable[[], AbstractContextManager[Any]] | None,
    moves: bool | None,
    wraps: bool,
    group: ProcessGroup | None,
) -> nn.Module:
    """Return ``model`` on its device, under autocast, in DDP and compiled, each if the run is.

    Args:
        model: The model; one that is prepared already, by accelerate too, is returned as it is.
        state: Device, ranks and compilation.
        autocast: Returns the autocast of a forward pass, whose outputs are then cast to float32; None without.
        moves: Whether the model is moved to the device. Default: unless FSDP or DTensors place it.
        wraps: Whether a trainable model is wrapped in DDP.
        group: The data-parallel ranks. Default: all.

    Raises:
        ModelError: If the model is spread over several devices and there are several ranks.

    References:
        As accelerate ``accelerator.py`` ``prepare_model``.
    """
    if getattr(model, "_is_accelerate_prepared", False):
        return model
    spread = any(len(devices_of(module)) > 1 for module in model.modules())
    if spread and state.use_distributed:
        raise ModelError(
            "`accelerator.prepare_model`: the model's `device_map` has several devices, but each of "
            f"{state.num_processes} ranks has one device. Load the model without `device_map`."
        )
    if autocast is not None:
        autocast_forward(model, autocast)
    places_itself = state.fsdp_plugin is not None or any(isinstance(weight, DTensor) for weight in model.parameters())
    if not spread and (not places_itself if moves is None else moves):
        settle_model(model, state.device)
    if wraps and is_trainable(model) and not isinstance(model, DistributedDataParallel):
        devices = None if state.device.type == "cpu" else [state.device]
        model = DistributedDataParallel(model, device_ids=devices, process_group=group)
    if state.compilation is not None and not is_compiled(model):
        chosen = state.compilation
        model = torch.compile(model, backend=chosen.backend, mode=chosen.mode)  # type: ignore[assignment]
    return model


# `GradientState`: whether a backward pass ends an update step, and the current loader, by accelerate's names.


class GradientState:
    """A view of the current run; it keeps nothing but the settings of accumulation.

    Args:
        backend: The Trainer's backend.
        settings: ``gradient_accumulation_kwargs``.

    Attributes:
        plugin_kwargs: Settings of accumulation; ``num_steps`` is 1, as the Trainer accumulates itself.
    """

    def __init__(self, backend: LightningBackend, settings: dict[str, Any]) -> None:
        self._backend = backend
        self.plugin_kwargs: dict[str, Any] = {**settings, "num_steps": 1}

    @property
    def sync_gradients(self) -> bool:
        """Whether the current backward pass ends an update step."""
        return self._backend.strategy.ends_update

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self._backend.strategy.ends_update = value

    def _set_sync_gradients(self, value: bool) -> None:
        """Set ``sync_gradients``, by the name that upstream's loop uses."""
        self.sync_gradients = value

    @property
    def num_steps(self) -> int:
        """Batches that accelerate accumulates."""
        return int(self.plugin_kwargs["num_steps"])

    @property
    def adjust_scheduler(self) -> bool:
        """Whether schedules count batches that are accumulated."""
        return bool(self.plugin_kwargs.get("adjust_scheduler", False))

    @property
    def sync_with_dataloader(self) -> bool:
        """Whether the last batch of a loader ends an update step."""
        return bool(self.plugin_kwargs.get("sync_with_dataloader", True))

    @property
    def active_dataloader(self) -> Any:
        """The loader that is iterated over: the evaluation loader inside an evaluation, else the train loader."""
        return self._backend.loaders.current

    @property
    def in_dataloader(self) -> bool:
        """Whether a loader is iterated over."""
        return self.active_dataloader is not None

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the current batch is the loader's last one."""
        return bool(getattr(self._backend.loaders.current, "end_of_dataloader", False))

    @property
    def remainder(self) -> int:
        """Samples of the last batch that are not duplicates; -1 if that is not known."""
        return int(getattr(self.active_dataloader, "remainder", -1))
