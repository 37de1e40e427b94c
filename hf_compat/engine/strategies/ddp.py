"""DDP: the model is replicated on each rank, in torch's ``DistributedDataParallel``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch import strategies
from lightning.pytorch.callbacks import BaseFinetuning
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hf_compat.arguments.fields import checkpoints_activations
from hf_compat.arguments.releases import effective_args
from hf_compat.distributed.oom_consensus import is_attempting, vote
from hf_compat.engine.internals.strategies import register_communication_hooks
from hf_compat.engine.process_layout import LaunchedEnvironment, ProcessLayout
from hf_compat.engine.strategies.base import ModelStrategy
from hf_compat.engine.strategies.ddp_voting import vote_before_exchanges
from hf_compat.errors import TrainerSetupError, warn_user
from hf_compat.model_facts import is_pretrained_model

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments


class DDPStrategy(ModelStrategy, strategies.DDPStrategy):
    """Replicates the model and averages gradients in the last backward pass of each window.

    The wrapper is around the model itself: it is the Trainer's ``model_wrapped`` and the ``model`` of ``compute_loss``.

    Args:
        process_layout: Rank and world size.
        device: The device of this rank.
        settings: Keywords of torch's ``DistributedDataParallel``.
        hooks: Keywords of Lightning's ``DDPStrategy`` for communication hooks and model averaging.
    """

    wraps_each_fit = True

    def __init__(
        self, process_layout: ProcessLayout, device: torch.device, settings: dict[str, Any], hooks: dict[str, Any]
    ) -> None:
        super().__init__(
            cluster_environment=LaunchedEnvironment(process_layout.launch, process_layout.environment), **hooks
        )
        self._device = device
        self._settings = settings

    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        """Return ``model`` in ``DistributedDataParallel``, which broadcasts the weights of rank 0."""
        with _naming("the keywords of `DDPStrategy`, or the fields `ddp_...`,"):
            return DistributedDataParallel(model, device_ids=self.determine_ddp_device_ids(), **self._settings)

    @contextmanager
    def _thawed(self, model: nn.Module) -> Iterator[None]:
        """Context for wrapping ``model``, in which what a ``BaseFinetuning`` has frozen can be trained.

        DDP averages the gradients of those parameters alone that can be trained as it is made.
        """
        callbacks = self.lightning_module.trainer.callbacks
        names = sorted({type(each).__name__ for each in callbacks if isinstance(each, BaseFinetuning)})
        parameters = model.parameters() if names else ()
        frozen = [each for each in parameters if not each.requires_grad and each.is_floating_point()]
        if frozen and not self._settings["find_unused_parameters"]:
            warn_user(
                "`callbacks`: DDP averages the gradients of parameters that can be trained as it is made. Those that "
                f"{', '.join(names)} unfreezes later would differ between ranks: set `ddp_find_unused_parameters=True`."
            )
            frozen = []
        for each in frozen:
            each.requires_grad_(True)
        try:
            yield
        finally:
            for each in frozen:
                each.requires_grad_(False)

    def setup(self, pl_trainer: pl.Trainer) -> None:
        """Set up a fit; an evaluation outside a fit does not wrap the model."""
        if pl_trainer.state.fn is TrainerFn.FITTING:
            super().setup(pl_trainer)
        else:
            assert self.accelerator is not None, "set by the trainer"
            self.accelerator.setup(pl_trainer)
            self.setup_precision_plugin()

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Wait until all ranks have reached this call."""
        vote()
        super().barrier(*args, **kwargs)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return the ``obj`` of rank ``src``."""
        vote()
        return super().broadcast(obj, src)

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        """Return the tensors of all ranks, stacked."""
        vote()
        return super().all_gather(tensor, group, sync_grads)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return the ``tensor`` of all ranks, reduced."""
        vote()
        return super().reduce(tensor, group, reduce_op)

    def on_exception(self, exception: BaseException) -> None:
        """Leave torch's text: Lightning's names its own strategies, and the run adds which field to set."""

    def configure_ddp(self) -> None:
        """Wrap the model and pass the wrapper to the run."""
        module: Any = self.lightning_module
        vote()
        with self._thawed(module.model):
            self.model = self.wrap(module.model)
        if is_attempting():
            vote_before_exchanges(self.model)
        else:
            with _naming("`ddp_comm_hook` of `DDPStrategy`"):
                register_communication_hooks(self)
        module.run.take_wrapper(self.model)


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Context in which torch's error for a type or a value says what the user chose."""
    try:
        yield
    except (AttributeError, TypeError, ValueError) as error:
        raise TrainerSetupError(
            f"`lightning={{'strategy': ...}}`: torch does not accept {what} on this device: {error}. Pass others, or "
            "none."
        ) from error


_DDP_FIELDS: dict[str, tuple[str, int]] = {
    "ddp_bucket_cap_mb": ("bucket_cap_mb", 25),
    "ddp_broadcast_buffers": ("broadcast_buffers", True),
    "ddp_static_graph": ("static_graph", False),
}
"""Field of ``TrainingArguments`` → the keyword of ``DistributedDataParallel`` that it sets, and its default there.

As in accelerate, the default is not passed: torch 2.13 warns of ``broadcast_buffers``, whatever its value.
"""


def ddp_settings(args: TrainingArguments, model: nn.Module, keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords of ``DistributedDataParallel`` that ``args`` set, overridden by ``keywords``.

    ``find_unused_parameters`` is True by default, except for a transformers model with activation checkpointing.
    """
    args = effective_args(args)
    unused = args.ddp_find_unused_parameters
    if unused is None:
        checkpoints = checkpoints_activations(args) or _checkpoints_activations(model)
        unused = not (is_pretrained_model(model) and checkpoints)
    settings = {"find_unused_parameters": unused}
    for field, (keyword, default) in _DDP_FIELDS.items():
        if getattr(args, field) not in (None, default):
            settings[keyword] = getattr(args, field)
    return settings | keywords


def _checkpoints_activations(model: nn.Module) -> bool:
    name = "is_activation_checkpointing" if hasattr(model, "is_activation_checkpointing") else None
    return bool(getattr(model, name or "is_gradient_checkpointing", False))


def ddp_strategy(
    process_layout: ProcessLayout, device: torch.device, args: TrainingArguments, model: nn.Module
) -> DDPStrategy:
    """Return the DDP strategy of a run."""
    settings = ddp_settings(args, model, process_layout.settings)
    return DDPStrategy(process_layout, device, settings, process_layout.ddp_hooks)
