"""What a Trainer cannot do while FSDP shards its model, told before anything begins."""

from __future__ import annotations

from typing import Any

from hf_compat.arguments.fsdp.settings import FsdpSettings
from hf_compat.model_facts import is_peft_model

__all__ = ["fsdp_limits"]


def fsdp_limits(
    args: Any, *, model: Any, has_optimizers: bool, precision: Any, settings: FsdpSettings | None
) -> list[str]:
    """Return what is wrong for a run under FSDP.

    Args:
        args: The training arguments.
        model: The model; None if it is yet to be made.
        has_optimizers: Whether an optimizer or a schedule was passed in.
        precision: Lightning's precision plugin, any of which will do.
        settings: How the model is sharded; None if tensor parallelism alone splits it.
    """
    if settings is None:
        return []
    problems = []
    config = args.accelerator_config
    if args.world_size > 1 and not config.even_batches and not config.split_batches:
        problems.append(
            "`accelerator_config`: even_batches=False may give a rank fewer batches, for whose part of the model the "
            "others would wait forever under FSDP. Leave batches even."
        )
    if args.save_on_each_node and args.launch.num_nodes > 1:
        problems.append(
            f"`save_on_each_node=True` with {args.launch.num_nodes} nodes: under FSDP rank 0 alone has the full state "
            "dicts to write. Set it to False."
        )
    if is_peft_model(model) and settings.state_dict_type == "sharded":
        problems.append(
            "`model`: the adapters of a peft model are saved as a full state dict only. Set "
            "`fsdp_config={'state_dict_type': 'FULL_STATE_DICT'}`."
        )
    if has_optimizers:
        problems.append(
            "`optimizers` is not supported with FSDP: they hold the full parameters, which FSDP shards. Override "
            "`create_optimizer`, or pass `optimizer_cls_and_kwargs`."
        )
    return problems
