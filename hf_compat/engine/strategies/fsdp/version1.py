"""FSDP version 1: the model in torch's ``FullyShardedDataParallel``, on Lightning's ``FSDPStrategy``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import FSDPStrategy, Strategy
from lightning.pytorch.trainer.states import TrainerFn
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
from hf_compat.checkpoint.background import CheckpointFileWriter
from hf_compat.engine.clusters import LaunchedEnvironment
from hf_compat.engine.process_layout import ProcessLayout
from hf_compat.engine.strategies.base import ModelStrategy
from hf_compat.engine.strategies.fsdp.wrapping import Wrapped, sharding_strategy, wrap_model
from hf_compat.model_facts import unwrap_model

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from hf_compat.arguments import TrainingArguments

__all__ = ["FSDP1Strategy", "fsdp1_strategy"]


class FSDP1Strategy(ModelStrategy, FSDPStrategy):
    """Wraps the model in ``FullyShardedDataParallel``, once: later runs use the same wrapper.

    Args:
        process_layout: Rank and world size.
        device: The device of this rank.
        settings: FSDP's settings.
        dtype: Dtype of mixed precision; None without it.
    """

    # Lightning's accepts only FSDPPrecision, whose settings the wrapper has already.
    precision_plugin = Strategy.precision_plugin  # type: ignore[assignment]

    def __init__(
        self, process_layout: ProcessLayout, device: torch.device, settings: FsdpSettings, dtype: torch.dtype | None
    ) -> None:
        super().__init__(
            cluster_environment=LaunchedEnvironment(process_layout.launch, process_layout.environment),
            cpu_offload=settings.cpu_offload,
            state_dict_type=settings.state_dict_type,
            use_orig_params=settings.use_orig_params,
        )
        self.sharding_strategy = sharding_strategy(settings)
        self.gathers_weights = True
        self.saves_sharded_weights = settings.state_dict_type == "sharded"
        self._launch = process_layout.launch
        self._device = device
        self._settings = settings
        self._dtype = dtype

    def setup(self, pl_trainer: pl.Trainer) -> None:
        """Wrap the model, in evaluations too, and pass the wrapper to the run; in a fit, create the optimizer."""
        assert self.accelerator is not None, "set by the trainer"
        module: Any = self.lightning_module
        self.accelerator.setup(pl_trainer)
        self.model = self.wrapped(module.model)
        module.run.take_wrapper(self.model)
        if pl_trainer.state.fn is TrainerFn.FITTING:
            self.setup_optimizers(pl_trainer)
        self.setup_precision_plugin()

    def wrapped(self, model: nn.Module) -> FullyShardedDataParallel:
        """Return ``model`` in its wrapper, which is created the first time."""
        return self._wrapped(model).root

    def _wrapped(self, model: nn.Module) -> Wrapped:
        return wrap_model(model, self._settings, launch=self._launch, device=self._device, dtype=self._dtype)

    def clip_grad_norm(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float) -> Tensor:
        """Clip the total norm of the gradients of ``parameters`` to ``max_norm``; return it before clipping, ``()``."""
        clipped, root = list(parameters), self.model
        if isinstance(root, FullyShardedDataParallel) and {*map(id, clipped)} == {*map(id, root.parameters())}:
            return root.clip_grad_norm_(max_norm, norm_type)
        return super().clip_grad_norm(clipped, max_norm, norm_type)

    def full_state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Return the full state dict of ``model`` on the CPU on rank 0, an empty one on other ranks."""
        wrapped = self._wrapped(model)
        with self._with_state_dict_type(wrapped.root, full=True, rank0_only=True):
            state = wrapped.root.state_dict()
        return state if self._launch.rank == 0 else {}

    def evaluation_model(self, model: nn.Module) -> nn.Module:
        """Return ``model`` in its wrapper, whose forward gathers the parameters."""
        return (
            model
            if isinstance(getattr(model, "_orig_mod", model), FullyShardedDataParallel)
            else self.wrapped(unwrap_model(model))
        )

    def gathered(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Return a context in which the unwrapped ``model`` has its full parameters."""
        context: Any = FullyShardedDataParallel.summon_full_params(self.wrapped(model), writeback=False)
        return context  # type: ignore[no-any-return]

    @contextmanager
    def _with_state_dict_type(
        self, root: FullyShardedDataParallel, *, full: bool, rank0_only: bool = False
    ) -> Iterator[None]:
        """Context that sets the type of state dicts of ``root``.

        Args:
            root: The wrapper.
            full: Full state dicts; otherwise sharded ones.
            rank0_only: Whether only rank 0 needs the full state dict, on the CPU.
        """
        offload = self._device.type != "cpu"  # offloading CPU tensors would free them
        if full:
            rank0_only = rank0_only and offload
            kind = StateDictType.FULL_STATE_DICT
            model: Any = FullStateDictConfig(offload_to_cpu=rank0_only, rank0_only=rank0_only)
            optimizer: Any = FullOptimStateDictConfig(offload_to_cpu=rank0_only, rank0_only=rank0_only)
        else:
            kind = StateDictType.SHARDED_STATE_DICT
            model = ShardedStateDictConfig(offload_to_cpu=offload)
            optimizer = ShardedOptimStateDictConfig(offload_to_cpu=offload)
        with FullyShardedDataParallel.state_dict_type(root, kind, model, optimizer):
            yield

    def load_weights(self, model: nn.Module, folder: str, *, trains_on: bool) -> tuple[list[str], list[str]]:
        """Load a checkpoint's weights, full or sharded, into this rank's shards of ``model``."""
        wrapped, sharded = self._wrapped(model), distributed_files.sharded_weights(Path(folder))
        with self._with_state_dict_type(wrapped.root, full=sharded is None), wrapped.state_dicts_through_wrapper():
            if sharded is None:
                return weights.load_weights(model, folder, trains_on=trains_on)
            return distributed_files.load_model(model, sharded)

    def save_sharded_weights(self, model: nn.Module, folder: str, *, file_writer: CheckpointFileWriter) -> None:
        """Save this rank's shards of ``model`` to ``folder``."""
        root = self.wrapped(model)
        with self._with_state_dict_type(root, full=False):
            state = root.state_dict()
        distributed_files.save({"model": state}, Path(folder, names.SHARDED_WEIGHTS_NAME), file_writer=file_writer)

    def save_optimizer(
        self, optimizer: Optimizer, folder: str, *, file_writer: CheckpointFileWriter, saves_common: bool
    ) -> None:
        """Save the optimizer's state dict, full or sharded, in accelerate's format.

        With a full state dict the weights are saved a second time, in the file that transformers resumes from.
        """
        root: Any = self.model
        with self._with_state_dict_type(root, full=not self.saves_sharded_weights, rank0_only=True):
            state = FullyShardedDataParallel.optim_state_dict(root, optimizer)
        if self.saves_sharded_weights:
            distributed_files.save(
                {"optimizer": state}, Path(folder, names.SHARDED_OPTIMIZER_NAME), file_writer=file_writer
            )
            return
        saves_common = saves_common and self._launch.rank == 0
        if saves_common:
            file_writer(torch.save, file_writer.snapshot(state), Path(folder, names.FULL_OPTIMIZER_NAME))
        del state  # before the next file's content is gathered
        model = unwrap_model(root)
        resumable = optimizer_states.weights_for_resuming(model, self.full_state_dict(model))
        if saves_common:
            file_writer(torch.save, file_writer.snapshot(resumable), Path(folder, names.FULL_FSDP_WEIGHTS_NAME))

    def load_optimizer(self, optimizer: Optimizer, folder: str) -> None:
        """Load this rank's part of the state in ``folder``, full or sharded, saved with any strategy."""
        root: Any = self.model
        path = Path(folder)
        saved = optimizer_states.read_full(optimizer, unwrap_model(root), path)
        with (
            self._with_state_dict_type(root, full=saved is not None),
            optimizer_states.load_errors(optimizer, path),
        ):
            if saved is None:
                saved = optimizer_states.read_sharded(path / names.SHARDED_OPTIMIZER_NAME, root.state_dict())
            optimizer.load_state_dict(FullyShardedDataParallel.optim_state_dict_to_load(root, optimizer, saved))


def fsdp1_strategy(
    process_layout: ProcessLayout, device: torch.device, args: TrainingArguments, model: nn.Module
) -> FSDP1Strategy:
    """Return the FSDP version 1 strategy of a run."""
    assert process_layout.fsdp is not None, "the strategy is FSDP"
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(args.mixed_precision)
    return FSDP1Strategy(process_layout, device, process_layout.fsdp, dtype)
