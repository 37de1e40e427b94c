"""The arguments of a Trainer that are not supported with several GPUs in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_compat.engine.moving import is_spread

if TYPE_CHECKING:
    from hf_compat.engine.strategies.traits import StrategyRequest

__all__ = ["data_parallel_limits"]


def data_parallel_limits(request: StrategyRequest) -> list[str]:
    """Return a message for each argument that is not supported with several GPUs in one process."""
    args, model = request.args, request.model
    if "underflow_overflow" not in args.debug or (model is not None and is_spread(model, args.device)):
        return []
    return [
        f"`debug='underflow_overflow'` is not supported under DP, with {args.n_gpu} GPUs in one process: its hooks "
        "would not be those of the replicas. Start the script with `torchrun`, or set CUDA_VISIBLE_DEVICES to one GPU."
    ]
