"""The private names of Lightning's ``ModelParallelStrategy`` that hf_compat uses, with the contract it relies on."""

from __future__ import annotations

from typing import Literal

from lightning.pytorch.strategies import ModelParallelStrategy, ParallelStrategy
from torch.distributed.device_mesh import DeviceMesh

__all__ = ["parse_model_parallel_strategy", "set_up_with_mesh"]


def set_up_with_mesh(strategy: ModelParallelStrategy, mesh: DeviceMesh) -> None:
    """Set up the environment of ``strategy`` as Lightning does, with ``mesh`` in place of Lightning's own.

    Contract: ``ModelParallelStrategy.setup_environment`` calls its parent's, then ``_setup_distributed``, and sets
    ``_device_mesh`` of the strategy and of its module.
    """
    ParallelStrategy.setup_environment(strategy)
    strategy._setup_distributed()
    assert strategy.lightning_module is not None, "connected by the trainer"
    strategy._device_mesh = strategy.lightning_module._device_mesh = mesh


def parse_model_parallel_strategy(
    strategy: ModelParallelStrategy,
) -> tuple[int | Literal["auto"], int | Literal["auto"]]:
    """Return data- and tensor-parallel size of the user's ``strategy``.

    Contract: Lightning's ``ModelParallelStrategy`` stores each argument as an attribute with an underscore.
    """
    return strategy._data_parallel_size, strategy._tensor_parallel_size
