"""The data loaders of a Trainer, from dataset and arguments."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch.distributed import ProcessGroup
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from hf_compat.arguments.sequence_parallelism import SequenceParallelism
from hf_compat.data import collators
from hf_compat.data.samplers import is_balanced
from hf_compat.data.sequence_shards import SequenceShards
from hf_compat.errors import DataError, DatasetTypeError, described
from hf_compat.metrics import has_length
from hf_compat.overriding import WarnOnce, check_returned
from hf_compat.plan import RunPlan
from hf_compat.seeding import transforms_with_generators

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

logger = logging.getLogger(__name__)


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
FIXED_SEED = (
    "`train_sampling_strategy='batch_rebalance'`: as in transformers, `seed` and `data_seed` do not change the order "
    "of samples: runs that differ in them alone train on the same batches. Set `semantics='corrected'` for an order "
    "that depends on them. Batches have `per_device_train_batch_size={}` samples on average only."
)


def named_dataset(eval_dataset: Any, default: Any) -> tuple[str, Any]:
    """Return a key by which the loader of an evaluation dataset is kept, and the dataset.

    Args:
        eval_dataset: What the call was given: a dataset, the name of one of several, or None for the Trainer's.
        default: The Trainer's, or a dict of several.

    Raises:
        DataError: If there is none.
        DatasetTypeError: If it is a string that is the name of none.
    """
    if eval_dataset is None and default is None:
        raise DataError(
            "`eval_dataset=None`: evaluation requires an eval_dataset. Pass it to the Trainer or to `evaluate`."
        )
    if isinstance(eval_dataset, str):
        if isinstance(default, str):  # one that was passed to the Trainer
            check_has_samples(default, "Evaluation")
        try:
            return eval_dataset, default[eval_dataset]
        except (LookupError, TypeError, ValueError) as error:
            named = isinstance(default, Mapping)
            there = f"has only {', '.join(map(str, default))}" if named else f"is {described(default)}"
            raise DatasetTypeError.also(type(error))(
                f"The dataset for evaluation is the string {eval_dataset!r}, but `eval_dataset` of the Trainer {there}."
                " Pass a dataset, or a name in a dict of datasets that the Trainer has."
            ) from error
    if eval_dataset is None or eval_dataset is default:
        return "eval", default
    return f"eval {id(eval_dataset)}", eval_dataset


def kept_loader(
    kept: dict[str, DataLoader[Any]], key: str, dataset: Any, load: Callable[..., DataLoader[Any]]
) -> DataLoader[Any]:
    """Return the loader of ``dataset`` that is kept with its workers; a new one of ``load``, kept from now on, if none.

    Args:
        kept: The loaders that are kept, by their keys.
        key: The key.
        dataset: The dataset with all columns; another than the kept loader's has replaced that.
        load: Makes a loader.
    """
    loader = kept.get(key)
    if loader is None or vars(loader).get(_MADE_FOR) is not dataset:
        loader = kept[key] = load(dataset=dataset, dataloader_key=key)
        vars(loader)[_MADE_FOR] = dataset
    return loader


def check_is_sampler(sampler: object, made_by: object, **methods: object) -> None:
    """Raise if ``sampler`` is neither None nor an iterable of indices.

    Args:
        sampler: What was returned.
        made_by: What returned it.
        **methods: Methods of the Trainer that make samplers, of which the error names the one that did.

    Raises:
        OverrideError: If so.
    """
    fits = sampler is None or hasattr(sampler, "__iter__") or hasattr(sampler, "__getitem__")
    name = next((name for name, method in methods.items() if method == made_by), "sampler_fn")
    check_returned(fits, sampler, name, "a `Sampler`, or None for the loader's own order")


def batching(sampler: Sampler[Any] | None, batch_size: int, *, drop_last: bool) -> dict[str, Any]:
    """Return the keywords of a ``DataLoader`` that define its batches, of which a sampler may decide itself."""
    if is_balanced(sampler):
        return {"batch_sampler": sampler}
    sampled = {} if sampler is None else {"sampler": sampler}
    return {"batch_size": batch_size, "drop_last": drop_last, **sampled}


def warn_of_own_order(strategy: str) -> None:
    """Warn that a stream has an order of its own, if ``strategy`` is to change the order."""
    if strategy in ("group_by_length", "batch_rebalance"):
        logger.warning(
            "`train_sampling_strategy=%r` is ignored: the order of samples can only be chosen for a dataset with "
            "`__len__` and `__getitem__`. Pass such a dataset, or remove the field.",
            strategy,
        )


def length_keywords(processing_class: Any, args: TrainingArguments) -> dict[str, Any]:
    """Return where samplers find the length of a sample: in a column, or by the processing class's first input."""
    names = getattr(processing_class, "model_input_names", None)
    return {"length_column_name": args.length_column_name, "model_input_name": names[0] if names else None}


def check_has_samples(dataset: object, description: str) -> None:
    """Raise if ``dataset`` is certainly none; a mapping from numbers, or to mappings, may have samples.

    Raises:
        DatasetTypeError: If it is a string, a dict of columns or of splits, a table of pandas, a data loader or another
            iterator, a list of datasets, or has no items.
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
    elif isinstance(dataset, list | tuple) and dataset and all(map(_is_dataset, dataset)):
        by_name = (
            "Pass a dict of them by name to evaluate on each" if description == "Evaluation" else "Pass one of them"
        )
        raise DatasetTypeError.also(RuntimeError)(
            f"{source} a {type(dataset).__name__} of {len(dataset)} datasets. {by_name}, or join them: "
            "`torch.utils.data.ConcatDataset(...)`, or of the library datasets `concatenate_datasets(...)`."
        )
    elif hasattr(dataset, "iloc") and hasattr(dataset, "columns"):
        raise DatasetTypeError(
            f"{source} {described(dataset)}, which has columns by their names instead of samples by numbers. Make a "
            "dataset of it with `datasets.Dataset.from_pandas(..., preserve_index=False)`."
        )
    elif not (has_items or hasattr(dataset, "__iter__")):
        raise DatasetTypeError(f"{source} {described(dataset)}. Pass a list of samples, or a dataset.")


def _is_dataset(value: object) -> bool:
    return isinstance(value, Dataset) or collators.is_arrow_dataset(value)


def _remedy_for_dict(dataset: Mapping[Any, Any], description: str) -> str:
    """Return the end of a sentence: what to pass instead of a dict of columns or of splits."""
    if not any(map(_is_dataset, dataset.values())):
        return ". Make one of columns with `datasets.Dataset.from_dict`, or pass one of several splits"
    usual = _SPLITS.get(description, "train")
    return f": pass one split, such as `dataset[{usual if usual in dataset else next(iter(dataset))!r}]`"


# Train loaders during a run: new ones by epochs, and those of ranks that share sequences.


def share_sequences(
    loader: Iterable[Any],
    sequences: SequenceParallelism | None,
    rank: int,
    group: Callable[[], ProcessGroup | None],
    warn_once: WarnOnce,
    *,
    carries_on: bool,
) -> Iterable[Any]:
    """Return this rank's chunks of the batches of ``loader``; ``loader`` itself, if no rank shares its sequences.

    Args:
        loader: The train loader of this rank.
        sequences: How ranks share sequences; None if they do not.
        rank: Rank of this process.
        group: Returns the ranks that share sequences; called when the first batch is read.
        warn_once: Warns of batches whose attention mask would be needed.
        carries_on: Whether each epoch goes on with the pass of the one before, as under transformers.
    """
    if sequences is None:
        return loader
    return SequenceShards(
        loader,
        group,
        rank=rank % sequences.size,
        size=sequences.size,
        attends_across=sequences.attention == "sdpa",
        warn_once=warn_once,
        carries_on=carries_on,
    )


def warn_of_dropped_rows(loader: DataLoader[Any], description: str, warn_once: WarnOnce) -> None:
    """Warn if an evaluation loader leaves out the last samples of its dataset."""
    total = getattr(loader, "total_batch_size", None)
    samples = len(loader.dataset) if has_length(loader.dataset) else 0
    if total and samples % total:
        warn_once(
            f"`dataloader_drop_last=True` is for evaluations too, as with transformers: a {description.lower()} leaves "
            f"out the last {samples % total} of {samples} samples. Set a `per_device_eval_batch_size` that, times the "
            "ranks, divides the number of samples, or override the method that returns the loader."
        )


def warn_of_copied_generators(dataset: object, workers: int, warn_once: WarnOnce) -> None:
    """Warn if ``dataset`` has transforms with random generators of their own, which each of its workers copies."""
    for name, _ in transforms_with_generators(dataset) if workers else ():
        warn_once(
            f"`{name}` of `train_dataset` draws from a random generator of its own, which each of {workers} workers "
            "copies when an epoch begins, as in transformers: all workers and all epochs draw the same numbers. Set "
            "`TrainingArguments(semantics='corrected')`, which seeds it in each worker, or `dataloader_num_workers=0`."
        )


def is_carried_on(loader: object) -> bool:
    """Return whether an epoch of ``loader`` goes on with the pass of the one before, as under transformers."""
    return isinstance(loader, SequenceShards) and loader.carries_on


def warn_of_lost_steps(loader: object, plan: RunPlan, epoch: int, warn_once: WarnOnce) -> None:
    """Warn if ``loader`` is carried on from one epoch to the next.

    Args:
        loader: The train loader.
        plan: The plan of the run.
        epoch: Completed epochs at its start.
        warn_once: Warns.
    """
    if is_carried_on(loader) and plan.num_train_epochs > epoch + 1:
        warn_once(
            "With sequence parallelism each epoch after the first has one update step less, as under transformers, so "
            f"the run may end before `max_steps={plan.max_steps}`. Set `TrainingArguments(semantics='corrected')` to "
            "train on all batches of each epoch."
        )
