"""FSDP version 1: the model in torch's ``FullyShardedDataParallel``, on Lightning's ``FSDPStrategy``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
)

from hf_compat.arguments.fsdp.settings import FsdpSettings
from hf_compat.checkpoint import distributed_files, names, optimizer_states, weights
from hf_compat.checkpoint.background import Writes
from hf_compat.engine.environments import LaunchedEnvironment
from hf_compat.engine.internals.fsdp import RawModelFSDPStrategy
from hf_compat.engine.placement import Placement
from hf_compat.engine.strategies.base import ModelStrategy
from hf_compat.engine.strategies.fsdp.wrapping import Wrapped, sharding_strategy, wrap_model
from hf_compat.model_facts import unwrap_model

__all__ = ["FSDP1Strategy", "fsdp1_strategy"]


class FSDP1Strategy(ModelStrategy, RawModelFSDPStrategy):
    """The model inside a wrapper that gathers and gives up its parameters; it is wrapped once and stays so.

    Args:
        placement: Which rank of how many this is.
        device: The device of this rank.
        settings: What is sharded how, and what checkpoints hold.
        dtype: Of mixed precision; None without.
    """

    def __init__(
        self, placement: Placement, device: torch.device, settings: FsdpSettings, dtype: torch.dtype | None
    ) -> None:
        super().__init__(
            cluster_environment=LaunchedEnvironment(placement.launch),
            cpu_offload=settings.cpu_offload,
            state_dict_type=settings.state_dict_type,
            use_orig_params=settings.use_orig_params,
        )
        self.sharding_strategy = sharding_strategy(settings)
        self.gathers_weights = True
        self.saves_sharded_weights = settings.state_dict_type == "sharded"
        self._launch = placement.launch
        self._device = device
        self._settings = settings
        self._dtype = dtype

    def wrapped(self, model: Any) -> FullyShardedDataParallel:
        """Return ``model`` in its wrapper, the one that it has if there is one."""
        return self._wrapped(model).root

    def _wrapped(self, model: nn.Module) -> Wrapped:
        return wrap_model(model, self._settings, launch=self._launch, device=self._device, dtype=self._dtype)

    def clip_grad_norm(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float) -> Tensor:
        """Clip the gradients of ``parameters`` to ``max_norm`` together; return their norm before, ``()``."""
        clipped, root = list(parameters), self.model
        if isinstance(root, FullyShardedDataParallel) and {*map(id, clipped)} == {*map(id, root.parameters())}:
            return root.clip_grad_norm_(max_norm, norm_type)
        return super().clip_grad_norm(clipped, max_norm, norm_type)

    def full_state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Return the full state dict of ``model`` in host memory on rank 0, an empty one elsewhere."""
        wrapped = self._wrapped(model)
        with self._states(wrapped.root, full=True, first_alone=True):
            state = wrapped.root.state_dict()
        return wrapped.tied(state) if self._launch.rank == 0 else {}

    def evaluation_model(self, model: nn.Module) -> nn.Module:
        """Return ``model`` in its wrapper: only a call of that gathers the parameters."""
        return (
            model
            if isinstance(getattr(model, "_orig_mod", model), FullyShardedDataParallel)
            else self.wrapped(unwrap_model(model))
        )

    def gathered(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Return a context in which the unwrapped ``model`` has all its parameters, to be called by itself."""
        context: Any = FullyShardedDataParallel.summon_full_params(self.wrapped(model), writeback=False)
        return context  # type: ignore[no-any-return]

    @contextmanager
    def _states(self, root: FullyShardedDataParallel, *, full: bool, first_alone: bool = False) -> Iterator[None]:
        """Have state dicts of ``root`` be full, or sharded.

        Args:
            root: The wrapper.
            full: Which of them.
            first_alone: Whether rank 0 alone needs it, in host memory.
        """
        offload = self._device.type != "cpu"  # torch frees what is on the CPU already
        if full:
            alone = first_alone and offload
            kind = StateDictType.FULL_STATE_DICT
            model: Any = FullStateDictConfig(offload_to_cpu=alone, rank0_only=alone)
            optimizer: Any = FullOptimStateDictConfig(offload_to_cpu=alone, rank0_only=alone)
        else:
            kind = StateDictType.SHARDED_STATE_DICT
            model = ShardedStateDictConfig(offload_to_cpu=offload)
            optimizer = ShardedOptimStateDictConfig(offload_to_cpu=offload)
        with FullyShardedDataParallel.state_dict_type(root, kind, model, optimizer):
            yield

    def load_weights(self, model: nn.Module, folder: str, *, trains_on: bool) -> tuple[list[str], list[str]]:
        """Give this rank's part of ``model`` the weights of a checkpoint, full or sharded."""
        wrapped, parts = self._wrapped(model), distributed_files.sharded_weights(Path(folder))
        with self._states(wrapped.root, full=parts is None), wrapped.state_dicts_through_wrapper():
            if parts is None:
                return weights.load_weights(model, folder, trains_on=trains_on)
            return distributed_files.load_model(model, parts)

    def save_sharded_weights(self, model: nn.Module, folder: str) -> None:
        """Write this rank's part of ``model`` into ``folder``."""
        root = self.wrapped(model)
        with self._states(root, full=False):
            state = root.state_dict()
        distributed_files.save({"model": state}, Path(folder, names.SHARDED_WEIGHTS_NAME))

    def save_optimizer(self, optimizer: Any, folder: str, *, writes: Writes | None) -> None:
        """Write the optimizer's state, full or this rank's part of it, as accelerate does.

        Where state dicts are full, transformers resumes from weights that it keeps beside the optimizer's state.
        """
        root: Any = self.model
        with self._states(root, full=not self.saves_sharded_weights, first_alone=True):
            state = FullyShardedDataParallel.optim_state_dict(root, optimizer)
        if self.saves_sharded_weights:
            distributed_files.save({"optimizer": state}, Path(folder, names.SHARDED_OPTIMIZER_NAME))
            return
        model = unwrap_model(root)
        resumable = optimizer_states.weights_for_resuming(model, self.full_state_dict(model))
        if writes is not None and self._launch.rank == 0:
            for name, content in ((names.WHOLE_OPTIMIZER_NAME, state), (names.WHOLE_FSDP_WEIGHTS_NAME, resumable)):
                writes(torch.save, writes.snapshot(content), Path(folder, name))

    def load_optimizer(self, optimizer: Any, folder: str) -> None:
        """Give the optimizer its part of the state in ``folder``, full or sharded, by whichever strategy."""
        root: Any = self.model
        path = Path(folder)
        saved = optimizer_states.read_whole(optimizer, unwrap_model(root), path)
        with self._states(root, full=saved is not None), optimizer_states.fitting(optimizer, path):
            if saved is None:
                saved = optimizer_states.read_shards(path / names.SHARDED_OPTIMIZER_NAME, root.state_dict())
            optimizer.load_state_dict(FullyShardedDataParallel.optim_state_dict_to_load(root, optimizer, saved))


def fsdp1_strategy(placement: Placement, args: Any, model: nn.Module) -> FSDP1Strategy:
    """Return the strategy of one run from placement and arguments."""
    assert placement.fsdp is not None, "the placement is FSDP's"
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(args.mixed_precision)
    return FSDP1Strategy(placement, args.device, placement.fsdp, dtype)
