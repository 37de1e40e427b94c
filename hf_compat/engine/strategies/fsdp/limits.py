"""What a Trainer cannot do while FSDP shards its model, told before anything begins."""

from __future__ import annotations

from typing import Any

from hf_compat.model_facts import is_peft_model

__all__ = ["fsdp_limits"]


def fsdp_limits(args: Any, settings: Any, model: Any) -> list[str]:
    """Return what is wrong for a run under FSDP.

    Args:
        args: The training arguments.
        settings: How the model is sharded; None for a run without FSDP.
        model: The model; None if it is yet to be made.
    """
    if settings is None:
        return []
    problems = []
    config = args.accelerator_config
    if args.world_size > 1 and not config.even_batches and not config.split_batches:
        problems.append(
            "`accelerator_config`: even_batches=False may give a process fewer batches, for whose part of the model "
            "the others would wait forever under FSDP; leave batches even."
        )
    if args.save_on_each_node and args.launch.num_nodes > 1:
        problems.append(
            f"`save_on_each_node=True` with {args.launch.num_nodes} nodes: under FSDP rank 0 alone has the full state "
            "dicts to write. Set it to False."
        )
    if is_peft_model(model) and settings.state_dict_type == "sharded":
        problems.append(
            "`model`: the adapters of a peft model are written whole. Set `fsdp_config={'state_dict_type': "
            "'FULL_STATE_DICT'}`."
        )
    return problems
