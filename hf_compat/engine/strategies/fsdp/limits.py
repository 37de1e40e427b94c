"""The arguments of a Trainer that are not supported with FSDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_compat.arguments.fsdp.settings import FsdpSettings
from hf_compat.model_facts import is_peft_model

if TYPE_CHECKING:
    from lightning.pytorch.plugins.precision import Precision
    from torch import nn

    from hf_compat.arguments import TrainingArguments

__all__ = ["fsdp_limits"]


def fsdp_limits(
    args: TrainingArguments,
    *,
    model: nn.Module | None,
    has_optimizers: bool,
    precision: Precision,
    settings: FsdpSettings | None,
) -> list[str]:
    """Return a message for each argument that is not supported with FSDP.

    Args:
        args: The training arguments.
        model: The model; None if ``model_init`` has not been called yet.
        has_optimizers: Whether an optimizer or a schedule was passed to the Trainer.
        precision: Lightning's precision plugin; any is supported.
        settings: How FSDP shards the model; None with tensor parallelism only.
    """
    if settings is None:
        return []
    problems = []
    config = args.accelerator_config
    if args.world_size > 1 and not config.even_batches and not config.split_batches:
        problems.append(
            "`accelerator_config={'even_batches': False}` is not supported with FSDP: a rank with fewer batches would "
            "block the others. Set `even_batches` to True."
        )
    if args.save_on_each_node and args.launch.num_nodes > 1:
        problems.append(
            f"`save_on_each_node=True` with {args.launch.num_nodes} nodes is not supported with FSDP: only rank 0 has "
            "the full state dicts. Set it to False."
        )
    if is_peft_model(model) and settings.state_dict_type == "sharded":
        problems.append(
            "`model`: the adapters of a peft model can only be saved as a full state dict. Set "
            "`fsdp_config={'state_dict_type': 'FULL_STATE_DICT'}`."
        )
    if has_optimizers:
        problems.append(
            "Passing `optimizers` is not allowed if PyTorch FSDP is enabled: it was created with the full parameters, "
            "which FSDP replaces by shards. Override `create_optimizer`, or pass `optimizer_cls_and_kwargs`."
        )
    return problems
