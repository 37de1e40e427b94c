"""The data loaders of a Trainer, from dataset and arguments."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch.distributed import ProcessGroup
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from hf_compat.arguments.parallelism import read_sequence_parallelism
from hf_compat.data import collators
from hf_compat.data.samplers import is_balanced
from hf_compat.data.sequence_shards import SequenceShards
from hf_compat.errors import DataError, DatasetTypeError, described
from hf_compat.memory import WeakAttribute
from hf_compat.overriding import WarnOnce, check_returned
from hf_compat.plan import RunPlan

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments
    from hf_compat.trainer.run import TrainingRun
    from hf_compat.trainer.trainer import Trainer

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


def check_is_sampler(trainer: Trainer, sampler: object, sampler_fn: object) -> None:
    """Raise if what ``sampler_fn`` returned is neither None nor an iterable of indices.

    Raises:
        OverrideError: If so.
    """
    named = (name for name in ("_get_train_sampler", "_get_eval_sampler") if getattr(trainer, name) == sampler_fn)
    fits = sampler is None or hasattr(sampler, "__iter__") or hasattr(sampler, "__getitem__")
    check_returned(fits, sampler, next(named, "sampler_fn"), "a `Sampler`, or None for the loader's own order")


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


def length_keywords(trainer: Trainer, args: TrainingArguments) -> dict[str, Any]:
    """Return where samplers find the length of a sample: in a column, or by the processing class's first input."""
    names = getattr(trainer.processing_class, "model_input_names", None)
    return {"length_column_name": args.length_column_name, "model_input_name": names[0] if names else None}


def check_has_samples(dataset: object, description: str) -> None:
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
    if not any(isinstance(value, Dataset) or collators.is_arrow_dataset(value) for value in dataset.values()):
        return ". Make one of columns with `datasets.Dataset.from_dict`, or pass one of several splits"
    usual = _SPLITS.get(description, "train")
    return f": pass one split, such as `dataset[{usual if usual in dataset else next(iter(dataset))!r}]`"


# Train loaders during a run: new ones by epochs, and those of ranks that share sequences.


def share_sequences(
    trainer: Trainer, loader: Iterable[Any], group: Callable[[], ProcessGroup | None], warn_once: WarnOnce
) -> Iterable[Any]:
    """Return this rank's chunks of the batches of ``loader``; ``loader`` itself, if no rank shares its sequences.

    Args:
        trainer: The Trainer.
        loader: The train loader of this rank.
        group: Returns the ranks that share sequences; called when the first batch is read.
        warn_once: Warns of batches whose attention mask would be needed.
    """
    sequences = read_sequence_parallelism(trainer.args)
    if sequences is None:
        return loader
    return SequenceShards(
        loader,
        group,
        rank=trainer.args.process_index % sequences.size,
        size=sequences.size,
        attends_across=sequences.attention == "sdpa",
        warn_once=warn_once,
        carries_on=trainer.semantics.carries_on_with_shared_sequences,
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


class Reloading:
    """Makes a new train loader every ``epochs`` epochs.

    Args:
        run: The run, which makes it.
        epochs: Epochs after which the loader is made again.
    """

    _run: WeakAttribute[TrainingRun] = WeakAttribute()

    def __init__(self, run: TrainingRun, epochs: int) -> None:
        self._run = run
        self._epochs = epochs
        self._last: int | None = None

    def reload_if_due(self, epoch: int) -> None:
        """Reload at the start of ``epoch`` if that is due; the first epoch of a run has a new loader anyway."""
        if self._last is not None and epoch - self._last < self._epochs:
            return
        if self._last is not None:
            self._run.reload()
        self._last = epoch
