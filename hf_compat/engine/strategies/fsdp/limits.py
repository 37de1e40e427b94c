"""The arguments of a Trainer that are not supported with FSDP or with tensor parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_compat.engine.parallel_mesh import float16_problem
from hf_compat.engine.ring_attention import context_parallel_limits
from hf_compat.model_facts import is_peft_model

if TYPE_CHECKING:
    from hf_compat.engine.strategies.traits import StrategyRequest

__all__ = ["fsdp_limits"]


def fsdp_limits(request: StrategyRequest) -> list[str]:
    """Return a message for each argument that is not supported with FSDP, or with tensor parallelism."""
    args, settings, problems = request.args, request.fsdp, list[str]()
    if request.sizes.tp > 1 and args.mixed_precision == "fp16":
        problems.append(float16_problem(f"`tp_size={request.sizes.tp}`"))
    if settings is None:  # tensor parallelism only
        return problems
    if args.save_on_each_node and args.launch.num_nodes > 1:
        problems.append(
            f"`save_on_each_node=True` with {args.launch.num_nodes} nodes is not supported with FSDP: only rank 0 has "
            "the full state dicts. Set it to False."
        )
    if is_peft_model(request.model) and settings.state_dict_type == "sharded":
        problems.append(
            "`model`: the adapters of a peft model can only be saved as a full state dict. Set "
            "`fsdp_config={'state_dict_type': 'FULL_STATE_DICT'}`."
        )
    if request.has_optimizers:
        problems.append(
            "Passing `optimizers` is not allowed if PyTorch FSDP is enabled: it was created with the full parameters, "
            "which FSDP replaces by shards. Override `create_optimizer`, or pass `optimizer_cls_and_kwargs`."
        )
    problems += context_parallel_limits(request.sizes.cp, request.model)
    return problems
