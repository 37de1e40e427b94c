"""Data loaders as the fields describe them: the keywords of each, and the seed of their order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_compat.arguments.fields.redeclared import for_run

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["loader_keywords", "order_seed"]


def loader_keywords(args: TrainingArguments) -> dict[str, Any]:
    """Return the keywords of every ``DataLoader``, which say how workers load batches."""
    args = for_run(args)
    return {
        "num_workers": args.dataloader_num_workers,
        "pin_memory": args.dataloader_pin_memory,
        "persistent_workers": args.dataloader_persistent_workers,
        "multiprocessing_context": args.dataloader_multiprocessing_context,
        "prefetch_factor": args.dataloader_prefetch_factor,
        "in_order": args.dataloader_in_order,
    }


def order_seed(args: TrainingArguments) -> int:
    """Return the seed of an order of samples that has a generator of its own."""
    return args.seed if args.data_seed is None else args.data_seed
