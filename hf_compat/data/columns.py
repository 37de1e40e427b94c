"""Removing the columns of a data set that the model's forward does not take."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn
from torch.utils.data import IterableDataset

from hf_compat.errors import DataError
from hf_compat.model_facts import unwrap_peft

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = [
    "RemoveColumnsCollator",
    "can_return_loss",
    "find_labels",
    "is_arrow_dataset",
    "remove_unused_columns",
    "signature_columns",
]

logger = logging.getLogger(__name__)

_ANSWER_SPANS = ("start_positions", "end_positions")
_SampleT = TypeVar("_SampleT")


def _class_parameters(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    # Of the class: wrappers may replace an instance's forward by one of *args alone.
    forward: Any = type(unwrap_peft(model)).forward
    return inspect.signature(forward).parameters


def find_labels(model: nn.Module) -> list[str]:
    """Return the names of the label arguments of ``model``'s forward, in its order; may be empty.

    They are those that contain ``label``, for question answering also ``start_positions`` and ``end_positions``.

    Args:
        model: A model, or peft's wrapper around one.
    """
    answers = "QuestionAnswering" in type(unwrap_peft(model)).__name__
    return [name for name in _class_parameters(model) if "label" in name or (answers and name in _ANSWER_SPANS)]


def can_return_loss(model: nn.Module) -> bool:
    """Return whether ``model`` returns a loss without labels: its forward has ``return_loss=True``."""
    parameter = _class_parameters(model).get("return_loss")
    return parameter is not None and parameter.default is True


def signature_columns(model: nn.Module, label_names: Iterable[str]) -> list[str]:
    """Return the columns to keep for ``model``: the arguments of its forward, then the labels, without duplicates.

    Args:
        model: A model, or peft's wrapper around one.
        label_names: Names of the labels, besides ``label`` and ``label_ids``, which collators rename.
    """
    parameters = inspect.signature(unwrap_peft(model).forward).parameters
    return list(dict.fromkeys([*parameters, "label", "label_ids", *label_names]))


def is_arrow_dataset(dataset: object) -> bool:
    """Return whether ``dataset`` is a map-style ``datasets.Dataset``, whose columns can be removed."""
    if isinstance(dataset, IterableDataset | Mapping):
        return False
    return all(hasattr(dataset, name) for name in ("column_names", "remove_columns", "__len__", "__getitem__"))


def _log_removed(
    dropped: Sequence[str], description: str | None, log: logging.Logger = logger, model_name: str | None = None
) -> None:
    place = "" if description is None else f" of the {description} set"
    forward = f"`{model_name or 'model'}.forward`"
    names = ", ".join(dropped)
    # One string, as upstream's: a logger of the user's need not take arguments.
    log.info(f"Columns{place} don't have a corresponding argument in {forward} and have been ignored: {names}.")


def remove_unused_columns(dataset: Dataset, columns: Sequence[str], description: str | None = None) -> Dataset:
    """Return ``dataset`` with only the columns that are in ``columns``; ``dataset`` is not changed.

    Args:
        dataset: A map-style ``datasets.Dataset``.
        columns: The columns to keep.
        description: Name of the data set in the log: ``"Training"``.

    Raises:
        DataError: If no column would be left.
    """
    dropped = [name for name in dataset.column_names if name not in columns]
    if len(dropped) == len(dataset.column_names):
        raise DataError(
            "No columns in the dataset match the model's forward method signature. It has: "
            f"{', '.join(dropped) or 'none'}; the model takes: {', '.join(columns)}. Rename columns, or set "
            "`remove_unused_columns=False`."
        )
    if dropped:
        _log_removed(dropped, description)
    return dataset.remove_columns(dropped)


class RemoveColumnsCollator:
    """A collator that first removes the keys of samples that the model's forward does not take.

    Samples that are not dicts are not changed. It can be pickled if ``data_collator`` can.

    Args:
        data_collator: Called with the samples that are left.
        signature_columns: The keys to keep.
        logger: Logs the removed keys, once. Default: nothing is logged.
        model_name: Name of the model in the log; without it nothing is logged either.
        description: Name of the data set in the log: ``"Training"``.
    """

    def __init__(
        self,
        data_collator: Callable[[list[Any]], Any],
        signature_columns: Sequence[str],
        logger: logging.Logger | None = None,
        model_name: str | None = None,
        description: str | None = None,
    ) -> None:
        self.data_collator = data_collator
        self.signature_columns = signature_columns
        self.logger = logger
        self.model_name = model_name
        self.description = description
        self.message_logged = False

    def __call__(self, features: list[Any]) -> Any:
        """Return the batch of ``features`` without their unused keys."""
        kept, columns = [], self.signature_columns
        for feature in features:
            if not isinstance(feature, dict):
                kept.append(feature)
                continue
            kept.append({key: feature[key] for key in feature if key in columns})
            if not self.message_logged and len(kept[-1]) < len(feature):
                self._log_removed(feature)
        return self.data_collator(kept)

    def _log_removed(self, feature: dict[Any, Any]) -> None:
        if self.logger and self.model_name:
            dropped = [str(key) for key in feature if key not in self.signature_columns]
            _log_removed(dropped, self.description, self.logger, self.model_name)
            self.message_logged = True
