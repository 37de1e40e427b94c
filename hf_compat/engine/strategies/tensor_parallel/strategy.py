"""Tensor parallelism: matrices split over consecutive ranks, and parameters sharded over data-parallel ranks."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from hf_compat.arguments.fsdp.settings import FsdpSettings
from hf_compat.engine.placement import Placement
from hf_compat.engine.strategies.fsdp.sharding import broadcast_from_rank0, shard_model
from hf_compat.engine.strategies.fsdp.version2 import FSDP2Strategy, sharding_dtype
from hf_compat.engine.strategies.tensor_parallel.splitting import is_split, split_model

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.arguments import TrainingArguments

__all__ = ["TensorParallelStrategy", "tensor_parallel_strategy"]


class TensorParallelStrategy(FSDP2Strategy):
    """Splits the model in place by its plan: parameters in the plan are DTensors, the others are replicated."""

    def shard(self, model: nn.Module) -> None:
        """Split ``model`` in place, unless it is already; with a data-parallel size above 1, shard it too."""
        if is_split(model):
            return
        upcast = self._dtype is not None
        broadcast_from_rank0(model, self._device, upcast=upcast)
        split_model(model, self.device_mesh["tensor_parallel"])
        if self._shards:
            mesh = self.device_mesh["data_parallel"]
            shard_model(model, self._settings, mesh=mesh, device=self._device, dtype=self._dtype)

    @property
    def _shards(self) -> bool:
        return bool(self.device_mesh["data_parallel"].size() > 1)

    def without_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Return a context in which gradients are not synchronised over the data-parallel ranks."""
        return super().without_sync(model) if self._shards else nullcontext()

    def setup_optimizers(self, trainer: pl.Trainer) -> None:
        """Create the optimizer, which updates parameter by parameter."""
        super().setup_optimizers(trainer)
        for optimizer in self.optimizers:
            _disable_fused_updates(optimizer)

    def load_optimizer(self, optimizer: Optimizer, folder: str) -> None:
        """Load this rank's part of the optimizer's state in ``folder``."""
        super().load_optimizer(optimizer, folder)
        _disable_fused_updates(optimizer)

    def clip_grad_norm(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float) -> Tensor:
        """Clip the total norm of the gradients of ``parameters`` to ``max_norm``; return it before clipping, ``()``."""
        clipped = [parameter for parameter in parameters if parameter.grad is not None]
        kinds: dict[Any, list[Tensor]] = {}
        for parameter in clipped:
            grad: Any = parameter.grad
            kinds.setdefault(grad.device_mesh if isinstance(grad, DTensor) else None, []).append(grad)
        norms = [get_total_norm(grads, norm_type) for grads in kinds.values()]
        norm = get_total_norm([norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms], norm_type)
        clip_grads_with_norm_(clipped, max_norm, norm, foreach=False)
        return norm


def _disable_fused_updates(optimizer: Optimizer) -> None:
    """Disable torch's foreach and fused kernels, which do not support tensors and DTensors together."""
    for group in optimizer.param_groups:
        group.update({switch: False for switch in ("foreach", "fused") if switch in group})


def tensor_parallel_strategy(placement: Placement, args: TrainingArguments, model: nn.Module) -> TensorParallelStrategy:
    """Return the tensor-parallel strategy of a run.

    Raises:
        TrainerSetupError: If an argument is not supported with tensor parallelism.
    """
    settings = placement.fsdp or FsdpSettings(version=2)
    return TensorParallelStrategy(placement, args.device, settings, sharding_dtype(args))
