"""Check of a model, before processes are started, that so many of them can share it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from hf_compat.engine.ring_attention import context_parallel_limits
from hf_compat.engine.strategies.deepspeed.sequence_parallel import sequence_parallel_limits
from hf_compat.engine.strategies.tensor_parallel.splitting import check_plan
from hf_compat.errors import ModelError
from hf_compat.model_facts import is_presharded

if TYPE_CHECKING:
    from hf_compat.arguments.parallelism import ParallelSizes
    from hf_compat.arguments.sequence_parallelism import SequenceParallelism

__all__ = ["check_model_sizes"]


def check_model_sizes(
    model: nn.Module | None, sizes: ParallelSizes | None, sequences: SequenceParallelism | None
) -> None:
    """Check that ``model`` has heads, matrices and attention that so many ranks can share.

    Args:
        model: The model; None if ``model_init`` has not been called yet.
        sizes: The sizes of the device mesh; None without one.
        sequences: The sizes of sequence parallelism; None without it.

    Raises:
        ModelError: If they cannot, with all reasons.
    """
    if not isinstance(model, nn.Module) or is_presharded(model):  # what is no model is refused by its type
        return
    problems = [*sequence_parallel_limits(sequences, model)]
    if sizes is not None:
        problems += context_parallel_limits(sizes.cp, model)
        try:
            check_plan(model, sizes.tp)
        except ModelError as error:
            problems.append(str(error))
    if problems:
        raise ModelError("\n  ".join(problems))
