"""The private names of Lightning's ``ModelParallelStrategy`` that hf_compat touches, with the contract it relies on."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from hf_compat.engine.internals.strategies import RawModelStrategy

__all__ = ["RawModelParallelStrategy", "grid_of", "parallel_choices"]


class RawModelParallelStrategy(RawModelStrategy, ModelParallelStrategy):
    """Lightning's strategy for DTensor models, applied to the model inside the LightningModule, in running processes.

    Contract: ``setup_environment`` makes ``device_mesh``, of ``data_parallel`` and ``tensor_parallel``, in the process
    group that is there; ``setup_optimizers`` asks the module for its optimizer.
    """

    def shard(self, model: Any) -> None:
        """Shard ``model`` in place, unless it is already; nothing here, a strategy says how."""

    def setup(self, trainer: pl.Trainer) -> None:
        """Shard the model, for evaluations alone too; when fitting, hand it to the run and make the optimizer."""
        assert self.accelerator is not None, "a trainer has given it"
        module: Any = self.lightning_module
        self.accelerator.setup(trainer)
        self.shard(module.model)
        if trainer.state.fn is TrainerFn.FITTING:
            self.model = module.model
            module.host.take_wrapper(module.model)
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()


def grid_of(data: int, tensor: int, device: torch.device) -> DeviceMesh:
    """Return the processes of a run as Lightning's strategy orders them, before there is a strategy.

    Contract: its ``device_mesh`` is ``data_parallel`` by ``tensor_parallel``, the last of which are neighbours.
    """
    return init_device_mesh(device.type, (data, tensor), mesh_dim_names=("data_parallel", "tensor_parallel"))


def parallel_choices(strategy: ModelParallelStrategy) -> tuple[Any, Any, list[str]]:
    """Return the two sizes that a user chose, each a number or ``"auto"``, and what cannot be kept.

    Contract: Lightning's ``ModelParallelStrategy`` keeps its arguments under their names with an underscore.
    """
    plain = ModelParallelStrategy()
    instead = {
        "process_group_backend": "set `TrainingArguments(ddp_backend=...)` instead of its `process_group_backend`",
        "timeout": "set `TrainingArguments(ddp_timeout=...)` instead of its `timeout`",
    }
    problems = [text for name, text in instead.items() if getattr(strategy, f"_{name}") != getattr(plain, f"_{name}")]
    return strategy._data_parallel_size, strategy._tensor_parallel_size, problems
