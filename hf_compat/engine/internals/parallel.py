"""The private names of Lightning's ``ModelParallelStrategy`` that hf_compat uses, with the contract it relies on."""

from __future__ import annotations

from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from hf_compat.engine.internals.strategies import RawModelStrategy

__all__ = ["RawModelParallelStrategy", "create_device_mesh", "parse_model_parallel_strategy"]


class RawModelParallelStrategy(RawModelStrategy, ModelParallelStrategy):
    """Lightning's DTensor strategy for the model, not the LightningModule, in processes started already.

    Contract: ``setup_environment`` creates ``device_mesh``, ``data_parallel`` by ``tensor_parallel``, in the existing
    process group; ``setup_optimizers`` calls the module's ``configure_optimizers``.
    """

    def shard(self, model: nn.Module) -> None:
        """Shard ``model`` in place, unless it is already; a strategy overrides this."""

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


def create_device_mesh(data: int, tensor: int, device: torch.device) -> DeviceMesh:
    """Return the device mesh that Lightning's strategy will create, before there is a strategy.

    Contract: it is ``data_parallel`` by ``tensor_parallel``; the ranks of a tensor-parallel group are consecutive.
    """
    return init_device_mesh(device.type, (data, tensor), mesh_dim_names=("data_parallel", "tensor_parallel"))


def parse_model_parallel_strategy(
    strategy: ModelParallelStrategy,
) -> tuple[int | Literal["auto"], int | Literal["auto"], list[str]]:
    """Return data- and tensor-parallel size of the user's ``strategy``, and which arguments are not supported.

    Contract: Lightning's ``ModelParallelStrategy`` stores each argument as an attribute with an underscore.
    """
    plain = ModelParallelStrategy()
    instead = {
        "process_group_backend": "set `TrainingArguments(ddp_backend=...)` instead of `process_group_backend`",
        "timeout": "set `TrainingArguments(ddp_timeout=...)` instead of `timeout`",
    }
    problems = [text for name, text in instead.items() if getattr(strategy, f"_{name}") != getattr(plain, f"_{name}")]
    return strategy._data_parallel_size, strategy._tensor_parallel_size, problems
