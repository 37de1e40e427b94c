"""Tensor parallelism: matrices split over neighbouring ranks, and what each holds sharded over the others."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from hf_compat.arguments.fsdp.settings import FsdpSettings
from hf_compat.engine.placement import Placement
from hf_compat.engine.strategies.fsdp.sharding import broadcast_from_rank0, shard_model
from hf_compat.engine.strategies.fsdp.version2 import FSDP2Strategy, sharding_dtype
from hf_compat.engine.strategies.tensor_parallel.splitting import is_split, split_model

__all__ = ["TensorParallelStrategy", "tensor_parallel_strategy"]


class TensorParallelStrategy(FSDP2Strategy):
    """The model itself, split once by its plan; some of its parameters are DTensors, the others whole and equal."""

    def shard(self, model: Any) -> None:
        """Split ``model`` in place, unless it is already; then shard it, if different batches are seen."""
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
        """Return a context in which ranks with other batches exchange no gradients."""
        return super().without_sync(model) if self._shards else nullcontext()

    def setup_optimizers(self, trainer: Any) -> None:
        """Make the optimizer, which updates one parameter after the other."""
        super().setup_optimizers(trainer)
        for optimizer in self.optimizers:
            _disable_fused_updates(optimizer)

    def load_optimizer(self, optimizer: Any, folder: str) -> None:
        """Give the optimizer its part of the state in ``folder``."""
        super().load_optimizer(optimizer, folder)
        _disable_fused_updates(optimizer)

    def clip_grad_norm(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float) -> Tensor:
        """Clip the gradients of ``parameters`` to ``max_norm`` together; return their norm before, ``()``."""
        clipped = [parameter for parameter in parameters if parameter.grad is not None]
        kinds: dict[Any, list[Tensor]] = {}
        for parameter in clipped:
            grad: Any = parameter.grad
            kinds.setdefault(grad.device_mesh if isinstance(grad, DTensor) else None, []).append(grad)
        norms = [get_total_norm(grads, norm_type) for grads in kinds.values()]
        whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
        norm = get_total_norm(whole, norm_type)
        clip_grads_with_norm_(clipped, max_norm, norm, foreach=False)
        return norm


def _disable_fused_updates(optimizer: Any) -> None:
    """Have torch's optimizers call no kernel for all parameters at once: those take no mix of kinds of tensors."""
    for group in optimizer.param_groups:
        group.update({switch: False for switch in ("foreach", "fused") if switch in group})


def tensor_parallel_strategy(placement: Placement, args: Any, model: nn.Module) -> TensorParallelStrategy:
    """Return the strategy of one run from placement and arguments.

    Raises:
        TrainerSetupError: If the arguments ask for what cannot be done on split matrices.
    """
    settings = placement.fsdp or FsdpSettings(version=2)
    return TensorParallelStrategy(placement, args.device, settings, sharding_dtype(args))
