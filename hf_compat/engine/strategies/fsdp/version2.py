"""FSDP version 2: the model's parameters sharded over ranks, on Lightning's ``ModelParallelStrategy``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from hf_compat.arguments.fsdp.settings import FsdpSettings
from hf_compat.checkpoint import distributed_files, dtensors, names, optimizer_states, weights
from hf_compat.checkpoint.background import Writes
from hf_compat.engine.environments import LaunchedEnvironment
from hf_compat.engine.internals.strategies import KeepOnDeviceStrategy, RawModelStrategy
from hf_compat.engine.placement import Placement
from hf_compat.engine.strategies.base import ModelStrategy
from hf_compat.engine.strategies.fsdp.sharding import reshard, shard_model
from hf_compat.errors import TrainerSetupError

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from hf_compat.arguments import TrainingArguments

__all__ = ["FSDP2Strategy", "fsdp2_strategy", "sharding_dtype"]


class FSDP2Strategy(ModelStrategy, RawModelStrategy, KeepOnDeviceStrategy, ModelParallelStrategy):
    """Shards the model's parameters in place as DTensors, once: later runs use the sharded model.

    Args:
        placement: Rank and world size.
        device: The device of this rank.
        settings: FSDP's settings.
        dtype: Dtype of mixed precision; None without it.
    """

    def __init__(
        self, placement: Placement, device: torch.device, settings: FsdpSettings, dtype: torch.dtype | None
    ) -> None:
        super().__init__(
            data_parallel_size=placement.data_parallel_size,
            tensor_parallel_size=placement.tensor_parallel,
            save_distributed_checkpoint=settings.state_dict_type != "full",
        )
        self.cluster_environment = LaunchedEnvironment(placement.launch)
        self.gathers_weights = True
        self.saves_sharded_weights = settings.state_dict_type != "full"
        self._launch = placement.launch
        self._device = device
        self._settings = settings
        self._dtype = dtype

    def setup(self, trainer: pl.Trainer) -> None:
        """Shard the model, in evaluations too; in a fit, pass it to the run and create the optimizer."""
        assert self.accelerator is not None, "set by the trainer"
        module: Any = self.lightning_module
        self.accelerator.setup(trainer)
        self.shard(module.model)
        if trainer.state.fn is TrainerFn.FITTING:
            self.model = module.model
            module.host.take_wrapper(module.model)
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()

    def shard(self, model: nn.Module) -> None:
        """Shard ``model`` in place, unless it is already."""
        if not isinstance(model, FSDPModule):
            mesh = self.device_mesh["data_parallel"]
            shard_model(model, self._settings, mesh=mesh, device=self._device, dtype=self._dtype)

    def on_validation_end(self) -> None:
        """Free the parameters that the evaluation gathered, since no backward pass follows that would."""
        module: Any = self.lightning_module
        reshard(module.model)

    on_test_end = on_validation_end

    @contextmanager
    def _without_gradient_sync(self, model: Any) -> Iterator[None]:
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)

    def without_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Return a context in which gradients are accumulated unsharded, without being reduced."""
        return self._without_gradient_sync(model)

    def clip_grad_norm(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float) -> Tensor:
        """Clip the total norm of the gradients of ``parameters`` to ``max_norm``; return it before clipping, ``()``."""
        clipped = [parameter for parameter in parameters if parameter.grad is not None]
        norm = get_total_norm([parameter.grad for parameter in clipped if parameter.grad is not None], norm_type)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        clip_grads_with_norm_(clipped, max_norm, norm)
        return norm

    def full_state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Return the full state dict of ``model`` on the CPU on rank 0, an empty one on other ranks."""
        state: dict[str, Any] = dtensors.full_tensors(model.state_dict(keep_vars=True), keeps=self._launch.rank == 0)
        return state

    def evaluation_model(self, model: nn.Module) -> nn.Module:
        """Return ``model``, whose forward gathers the parameters."""
        return model

    def load_weights(self, model: nn.Module, folder: str, *, trains_on: bool) -> tuple[list[str], list[str]]:
        """Load a checkpoint's weights, full or sharded, into this rank's shards of ``model``."""
        reshard(model)
        with dtensors.distributing_on_load(model):  # peft's loading does not support DTensors
            return weights.load_weights(model, folder, trains_on=trains_on)

    def save_sharded_weights(self, model: nn.Module, folder: str) -> None:
        """Save this rank's shards of ``model`` to ``folder``."""
        distributed_files.save({"model": model.state_dict()}, Path(folder, names.SHARDED_WEIGHTS_NAME))

    def save_optimizer(self, optimizer: Optimizer, folder: str, *, writes: Writes | None) -> None:
        """Save the optimizer's state dict, full or sharded, in accelerate's format.

        With a full state dict the weights are saved a second time, in the file that transformers resumes from.
        """
        module: Any = self.lightning_module
        reshard(module.model)
        state = optimizer_states.by_name(optimizer, module.model)
        if self.saves_sharded_weights:
            distributed_files.save({"optimizer": state}, Path(folder, names.SHARDED_OPTIMIZER_NAME))
            return
        files = {names.FULL_OPTIMIZER_NAME: dtensors.full_tensors(state, keeps=self._launch.rank == 0)}
        resumable = optimizer_states.weights_for_resuming(module.model, self.full_state_dict(module.model))
        files[names.FULL_FSDP_WEIGHTS_NAME] = resumable
        if writes is not None and self._launch.rank == 0:
            for name, content in files.items():
                writes(torch.save, writes.snapshot(content), Path(folder, name))

    def load_optimizer(self, optimizer: Optimizer, folder: str) -> None:
        """Load this rank's part of the state in ``folder``, full or sharded, saved with any strategy."""
        module: Any = self.lightning_module
        reshard(module.model)
        optimizer_states.load(optimizer, module.model, Path(folder))


def fsdp2_strategy(placement: Placement, args: TrainingArguments, model: nn.Module) -> FSDP2Strategy:
    """Return the FSDP version 2 strategy of a run.

    Raises:
        TrainerSetupError: If an argument is not supported with FSDP version 2.
    """
    settings = placement.fsdp
    assert settings is not None, "the strategy is FSDP"
    return FSDP2Strategy(placement, args.device, settings, sharding_dtype(args))


def sharding_dtype(args: TrainingArguments) -> torch.dtype | None:
    """Return the dtype of mixed precision, None without it.

    Raises:
        TrainerSetupError: If it is float16.
    """
    if args.mixed_precision == "fp16":
        raise TrainerSetupError(
            "`fp16=True` is not supported with FSDP version 2 or tensor parallelism: there is no gradient scaler for "
            "sharded gradients. Set `bf16=True` instead."
        )
    return torch.bfloat16 if args.mixed_precision == "bf16" else None
