"""The data loaders of a Trainer, from dataset and arguments."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from hf_compat.arguments.data_loading import loader_keywords, order_seed
from hf_compat.arguments.fields.redeclared import for_run
from hf_compat.data import columns
from hf_compat.data.balancing import TRANSFORMERS_SEED, balanced_sampler, is_balanced
from hf_compat.data.samplers import eval_sampler, train_sampler
from hf_compat.errors import DataError, DatasetTypeError, described
from hf_compat.metrics import has_length
from hf_compat.overriding import call_as_defined, check_returned
from hf_compat.seeding import seed_worker

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments
    from hf_compat.trainer.trainer import Trainer

logger = logging.getLogger(__name__)

__all__ = ["build_loader", "choose_eval_sampler", "choose_train_sampler", "eval_loader"]


_MADE_FOR = "_made_for"
"""Attribute of a loader that is kept: the data set it was asked for, with all columns."""
_OWN_LOADER = {
    "Training": ("train_dataset", "per_device_train_batch_size", "get_train_dataloader"),
    "Evaluation": ("eval_dataset", "per_device_eval_batch_size", "get_eval_dataloader"),
    "test": ("test_dataset", "per_device_eval_batch_size", "get_test_dataloader"),
}
"""What a loader is for → the argument with its dataset, the field with its batch size, and the method that makes it."""
_SPLITS = {"Training": "train", "Evaluation": "validation", "test": "test"}
"""What a loader is for → the usual name of its split."""
_FIXED_SEED = (
    "`train_sampling_strategy='batch_rebalance'`: as in transformers, `seed` and `data_seed` do not change the order "
    "of samples: runs that differ in them alone train on the same batches. Set `semantics='corrected'` for an order "
    "that depends on them. Batches have `per_device_train_batch_size={}` samples on average only."
)


def eval_loader(trainer: Trainer, eval_dataset: Any, load: Callable[..., DataLoader[Any]]) -> DataLoader[Any]:
    """Return the evaluation loader, by ``load`` or the previous one of persistent workers; see the Trainer's method."""
    if eval_dataset is None and trainer.eval_dataset is None:
        raise DataError(
            "`eval_dataset=None`: evaluation requires an eval_dataset. Pass it to the Trainer or to `evaluate`."
        )
    if isinstance(eval_dataset, str):
        key, dataset = eval_dataset, trainer.eval_dataset[eval_dataset]
    elif eval_dataset is None or eval_dataset is trainer.eval_dataset:
        key, dataset = "eval", trainer.eval_dataset
    else:
        key, dataset = f"eval {id(eval_dataset)}", eval_dataset
    keeps_workers = trainer.args.dataloader_persistent_workers
    loaders = trainer.run_counters.eval_loaders
    kept = loaders.get(key) if keeps_workers else None
    if kept is not None and vars(kept).get(_MADE_FOR) is dataset:  # which may have been replaced
        return kept
    loader = load(dataset=dataset, dataloader_key=key)
    if keeps_workers:
        vars(loader)[_MADE_FOR] = dataset
        loaders[key] = loader
    return loader


def build_loader(
    trainer: Trainer,
    dataset: Any,
    description: str,
    batch_size: int,
    sampler_fn: Callable[[Any], Sampler[Any] | None] | None,
    *,
    is_training: bool,
) -> DataLoader[Any]:
    """Return a prepared loader of ``dataset`` without unused columns."""
    _check_has_samples(dataset, description)
    collator = trainer.data_collator
    if columns.is_arrow_dataset(dataset):
        dataset = trainer._remove_unused_columns(dataset, description=description)
    else:
        collator = trainer._get_collator_with_removed_columns(collator, description=description)
        check_returned(callable(collator), collator, "_get_collator_with_removed_columns", "a collator")
    args = for_run(trainer.args)
    settings = {"collate_fn": collator, **loader_keywords(args)}
    if isinstance(dataset, IterableDataset):
        settings["batch_size"] = batch_size
        if is_training:
            _warn_of_own_order(args.train_sampling_strategy)
    else:
        named = ("train_dataset" if is_training else "eval_dataset", dataset)
        sampler = call_as_defined(sampler_fn, named) if sampler_fn is not None else None
        _check_is_sampler(trainer, sampler, sampler_fn)
        settings |= _batching(sampler, batch_size, drop_last=args.dataloader_drop_last)
        if is_training:
            settings["worker_init_fn"] = partial(
                seed_worker, num_workers=settings["num_workers"], rank=trainer.accelerator.data_parallel_rank
            )
    loader: DataLoader[Any] = trainer.accelerator.prepare(DataLoader(dataset, **settings))
    return loader


def _check_is_sampler(trainer: Trainer, sampler: object, sampler_fn: object) -> None:
    """Raise if what ``sampler_fn`` returned is neither None nor an iterable of indices.

    Raises:
        OverrideError: If so.
    """
    named = (name for name in ("_get_train_sampler", "_get_eval_sampler") if getattr(trainer, name) == sampler_fn)
    fits = sampler is None or hasattr(sampler, "__iter__") or hasattr(sampler, "__getitem__")
    check_returned(fits, sampler, next(named, "sampler_fn"), "a `Sampler`, or None for the loader's own order")


def _batching(sampler: Sampler[Any] | None, batch_size: int, *, drop_last: bool) -> dict[str, Any]:
    """Return the keywords of a ``DataLoader`` that define its batches, of which a sampler may decide itself."""
    if is_balanced(sampler):
        return {"batch_sampler": sampler}
    sampled = {} if sampler is None else {"sampler": sampler}
    return {"batch_size": batch_size, "drop_last": drop_last, **sampled}


def _warn_of_own_order(strategy: str) -> None:
    if strategy in ("group_by_length", "batch_rebalance"):
        logger.warning(
            "`train_sampling_strategy=%r` is ignored: the order of samples can only be chosen for a dataset with "
            "`__len__` and `__getitem__`. Pass such a dataset, or remove the field.",
            strategy,
        )


def choose_train_sampler(trainer: Trainer, train_dataset: Any) -> Sampler[Any] | None:
    """Return the sampler of ``train_sampling_strategy``; None for a dataset without length."""
    args = for_run(trainer.args)
    strategy, steps = args.train_sampling_strategy, args.gradient_accumulation_steps
    dataset = trainer.train_dataset if train_dataset is None else train_dataset
    if dataset is not None and not has_length(dataset):
        _warn_of_own_order(strategy)
        return None
    size, measured = args.train_batch_size, _length_keywords(trainer, args)
    if strategy == "batch_rebalance":
        is_fixed = trainer.semantics.balances_by_fixed_seed
        if is_fixed:
            trainer.warn_once(_FIXED_SEED.format(args.per_device_train_batch_size))
        return balanced_sampler(
            dataset,
            trainer.run_counters.train_batch_size if args.auto_find_batch_size else size,
            steps,
            ranks=(trainer.accelerator.data_parallel_rank, trainer.accelerator.data_parallel_size),
            drop_last=args.dataloader_drop_last,
            seed=TRANSFORMERS_SEED if is_fixed else order_seed(args),
            **measured,
        )
    return train_sampler(dataset, strategy, size * steps, **measured)


def choose_eval_sampler(trainer: Trainer, eval_dataset: Any) -> Sampler[Any] | None:
    """Return the evaluation sampler: sequential, or by length if training groups by length."""
    args = for_run(trainer.args)
    return eval_sampler(
        eval_dataset,
        args.train_sampling_strategy,
        args.eval_batch_size,
        **_length_keywords(trainer, args),
        seed=order_seed(args) if trainer.semantics.eval_grouping_has_own_generator else None,
    )


def _length_keywords(trainer: Trainer, args: TrainingArguments) -> dict[str, Any]:
    """Return where samplers find the length of a sample: in a column, or by the processing class's first input."""
    names = getattr(trainer.processing_class, "model_input_names", None)
    return {"length_column_name": args.length_column_name, "model_input_name": names[0] if names else None}


def _check_has_samples(dataset: object, description: str) -> None:
    """Raise if ``dataset`` is certainly none; a mapping from numbers, or to mappings, may have samples.

    Raises:
        DatasetTypeError: If it is a string, a dict of columns or of splits, a table of pandas, a data loader or another
            iterator, or has no items.
    """
    source = f"The dataset for {description.lower()} is"
    has_items = hasattr(dataset, "__getitem__")
    if isinstance(dataset, str):
        raise DatasetTypeError(
            f"{source} the string {dataset!r}. Load it, with `datasets.load_dataset`, and pass that."
        )
    if isinstance(dataset, Mapping):
        if 0 not in dataset and not any(isinstance(value, Mapping) for value in dataset.values()):
            names = ", ".join(map(str, dataset)) or "nothing"
            remedy = _remedy_for_dict(dataset, description)
            raise DatasetTypeError(f"{source} {described(dataset)}, with {names}, instead of samples{remedy}.")
    elif isinstance(dataset, DataLoader) and not has_items:
        name, size, method = _OWN_LOADER.get(description, _OWN_LOADER["Training"])
        raise DatasetTypeError(
            f"`{name}` is a DataLoader. Pass its dataset (`loader.dataset`) and set `{size}`, or override `{method}`."
        )
    elif isinstance(dataset, Iterator) and not (has_items or isinstance(dataset, IterableDataset)):
        raise DatasetTypeError(
            f"{source} {described(dataset)}, whose samples come one after the other and only once. Make a list of it, "
            "or wrap it in an `IterableDataset`."
        )
    elif hasattr(dataset, "iloc") and hasattr(dataset, "columns"):
        raise DatasetTypeError(
            f"{source} {described(dataset)}, which has columns by their names instead of samples by numbers. Make a "
            "dataset of it with `datasets.Dataset.from_pandas(..., preserve_index=False)`."
        )
    elif not (has_items or hasattr(dataset, "__iter__")):
        raise DatasetTypeError(f"{source} {described(dataset)}. Pass a list of samples, or a dataset.")


def _remedy_for_dict(dataset: Mapping[Any, Any], description: str) -> str:
    """Return the end of a sentence: what to pass instead of a dict of columns or of splits."""
    if not any(isinstance(value, Dataset) or columns.is_arrow_dataset(value) for value in dataset.values()):
        return ". Make one of columns with `datasets.Dataset.from_dict`, or pass one of several splits"
    usual = _SPLITS.get(description, "train")
    return f": pass one split, such as `dataset[{usual if usual in dataset else next(iter(dataset))!r}]`"
