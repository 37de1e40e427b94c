"""Parameters split in place into DTensors, by FSDP version 2, tensor parallelism or both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from hf_compat.checkpoint import distributed_files, dtensors, names, optimizer_states, weights
from hf_compat.checkpoint.background import Writes
from hf_compat.engine.environments import LaunchedEnvironment
from hf_compat.engine.placement import Placement
from hf_compat.engine.strategies.base import ModelStrategy
from hf_compat.engine.strategies.fsdp.sharding import reshard

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["DeviceMeshStrategy"]


class DeviceMeshStrategy(ModelStrategy, ModelParallelStrategy):
    """Shards the model's parameters in place as DTensors, once: later runs use the sharded model.

    Args:
        placement: Rank, world size and the sizes of the device mesh.
        device: The device of this rank.
        shard: Shards a model in place over a device mesh with the dimensions ``data_parallel`` and
            ``tensor_parallel``; does nothing with a model that it has sharded before.
        saves_sharded: Whether checkpoints contain each rank's shards; otherwise full state dicts.
    """

    def __init__(
        self,
        placement: Placement,
        device: torch.device,
        *,
        shard: Callable[[nn.Module, DeviceMesh], None],
        saves_sharded: bool,
    ) -> None:
        super().__init__(
            data_parallel_size=placement.data_parallel_size,
            tensor_parallel_size=placement.tensor_parallel,
            save_distributed_checkpoint=saves_sharded,
        )
        self.cluster_environment = LaunchedEnvironment(placement.launch, placement.environment)
        self.gathers_weights = self.copies_weights = True
        self.saves_sharded_weights = saves_sharded
        self._launch = placement.launch
        self._device = device
        self._shard = shard

    def setup(self, trainer: pl.Trainer) -> None:
        """Shard the model, in evaluations too; in a fit, pass it to the run and create the optimizer."""
        assert self.accelerator is not None, "set by the trainer"
        module: Any = self.lightning_module
        self.accelerator.setup(trainer)
        assert self.device_mesh is not None, "created with the process group"
        self._shard(module.model, self.device_mesh)
        if trainer.state.fn is TrainerFn.FITTING:
            self.model = module.model
            module.host.take_wrapper(module.model)
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()

    def setup_optimizers(self, trainer: pl.Trainer) -> None:
        """Create the optimizer, which updates parameter by parameter if those are on several meshes."""
        module: Any = self.lightning_module
        reshard(module.model)  # a forward pass of the user's may have gathered what the optimizer is to update
        super().setup_optimizers(trainer)
        for optimizer in self.optimizers:
            _disable_fused_updates(optimizer)

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

    def without_sync(self, model: nn.Module) -> AbstractContextManager[Any] | None:
        """Return a context in which gradients are not reduced over the data-parallel ranks, and stay unsharded."""
        return self._without_gradient_sync(model) if hasattr(model, "set_requires_gradient_sync") else None

    def clip_grad_norm(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float) -> Tensor:
        """Clip the total norm of the gradients of ``parameters`` to ``max_norm``; return it before clipping, ``()``."""
        clipped = [parameter for parameter in parameters if parameter.grad is not None]
        grouped = _meshes(parameter.grad for parameter in clipped if parameter.grad is not None)
        norms = [get_total_norm(gradients, norm_type) for gradients in grouped.values()]
        norms = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
        norm = norms[0] if len(norms) == 1 else get_total_norm(norms, norm_type)
        clip_grads_with_norm_(clipped, max_norm, norm, foreach=None if len(norms) == 1 else False)
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

    def save_sharded_weights(self, model: nn.Module, folder: str, *, writes: Writes) -> None:
        """Save this rank's shards of ``model`` to ``folder``."""
        path = Path(folder, names.SHARDED_WEIGHTS_NAME)
        distributed_files.save({"model": model.state_dict()}, path, writes=writes)

    def save_optimizer(self, optimizer: Optimizer, folder: str, *, writes: Writes, saves_common: bool) -> None:
        """Save the optimizer's state dict, full or sharded, in accelerate's format.

        With a full state dict the weights are saved a second time, in the file that transformers resumes from.
        """
        module: Any = self.lightning_module
        reshard(module.model)
        state = optimizer_states.by_name(optimizer, module.model)
        if self.saves_sharded_weights:
            distributed_files.save({"optimizer": state}, Path(folder, names.SHARDED_OPTIMIZER_NAME), writes=writes)
            return
        saves_common = saves_common and self._launch.rank == 0
        full = dtensors.full_tensors(state, keeps=self._launch.rank == 0)
        if saves_common:
            writes(torch.save, full, Path(folder, names.FULL_OPTIMIZER_NAME))
        del full  # before the next file's content is gathered
        resumable = optimizer_states.weights_for_resuming(module.model, self.full_state_dict(module.model))
        if saves_common:
            writes(torch.save, resumable, Path(folder, names.FULL_FSDP_WEIGHTS_NAME))

    def load_optimizer(self, optimizer: Optimizer, folder: str) -> None:
        """Load this rank's part of the state in ``folder``, full or sharded, saved with any strategy."""
        module: Any = self.lightning_module
        reshard(module.model)
        optimizer_states.load(optimizer, module.model, Path(folder))
        _disable_fused_updates(optimizer)


def _meshes(tensors: Iterable[Tensor]) -> dict[DeviceMesh | None, list[Tensor]]:
    """Return the tensors by the device mesh they are distributed over, plain ones under None."""
    grouped: dict[DeviceMesh | None, list[Tensor]] = {}
    for tensor in tensors:
        grouped.setdefault(tensor.device_mesh if isinstance(tensor, DTensor) else None, []).append(tensor)
    return grouped


def _disable_fused_updates(optimizer: Optimizer) -> None:
    """Disable torch's foreach and fused kernels if the parameters are on several meshes, which those do not support."""
    if len(_meshes(weight for group in optimizer.param_groups for weight in group["params"])) > 1:
        for group in optimizer.param_groups:
            group.update({switch: False for switch in ("foreach", "fused") if switch in group})
