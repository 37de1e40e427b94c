"""What a Trainer cannot do while DeepSpeed's engine trains its model, told before anything begins."""

from __future__ import annotations

from typing import Any

from hf_compat.engine.precision import FullPrecision
from hf_compat.optim.settings import plain_name

__all__ = ["deepspeed_limits"]


def deepspeed_limits(args: Any, *, model: Any, has_optimizers: bool, precision: Any, settings: Any) -> list[str]:
    """Return what is wrong for a run under DeepSpeed.

    Args:
        args: The training arguments, which hold DeepSpeed's config.
        model: The model, any of which will do.
        has_optimizers: Whether an optimizer or a schedule was passed in.
        precision: Lightning's precision plugin; one that computes in less than full precision is the user's.
        settings: FSDP's, which excludes DeepSpeed.
    """
    problems = []
    if has_optimizers:
        problems.append(
            "`optimizers` cannot be passed with `deepspeed`, where transformers drops them without a word: override "
            "`create_optimizer` and `create_scheduler`, or pass `optimizer_cls_and_kwargs`."
        )
    if args.save_only_model and args.load_best_model_at_end:
        problems.append(
            "`save_only_model=True` with `load_best_model_at_end=True`: DeepSpeed loads whole checkpoints only. Set "
            "one of them to False."
        )
    if args.auto_find_batch_size:
        problems.append(
            "`auto_find_batch_size=True` is not supported with `deepspeed`: its engine is built for one batch size. "
            "Choose a `per_device_train_batch_size`."
        )
    if not isinstance(precision, FullPrecision):
        problems.append(
            "`lightning={'plugins': [...]}` says how to compute, which under `deepspeed` its config does: drop it."
        )
    optim = str(plain_name(args.optim))
    if "optimizer" in args.hf_deepspeed_config.config and not optim.startswith("adamw"):
        problems.append(f"`optim={optim!r}`: the DeepSpeed config names an `optimizer` too; drop one of them.")
    return problems
