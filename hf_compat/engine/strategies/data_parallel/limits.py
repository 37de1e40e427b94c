"""Which of a Trainer's arguments are not supported with several GPUs in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_compat.engine.moving import is_spread

if TYPE_CHECKING:
    from lightning.pytorch.plugins.precision import Precision
    from torch import nn

    from hf_compat.arguments import TrainingArguments
    from hf_compat.arguments.fsdp.settings import FsdpSettings

__all__ = ["data_parallel_limits"]


def data_parallel_limits(
    args: TrainingArguments,
    *,
    model: nn.Module | None,
    has_optimizers: bool,
    precision: Precision,
    settings: FsdpSettings | None,
) -> list[str]:
    """Return a message for each argument that is not supported with several GPUs in one process.

    Args:
        args: The training arguments.
        model: The model, which is not replicated if it is spread over the GPUs; None if ``model_init`` has not been
            called yet.
        has_optimizers: Whether an optimizer or a schedule was passed to the Trainer; both are supported.
        precision: Lightning's precision plugin; any is supported.
        settings: FSDP's settings, always None.
    """
    if "underflow_overflow" not in args.debug or (model is not None and is_spread(model, args.device)):
        return []
    return [
        f"`debug='underflow_overflow'` is not supported under DP, with {args.n_gpu} GPUs in one process: its hooks "
        "would not be those of the replicas. Start the script with `torchrun`, or set CUDA_VISIBLE_DEVICES to one GPU."
    ]
