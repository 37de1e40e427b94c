"""Data collators: how samples become a batch if the user passes no collator."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from packaging.version import Version
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from hf_compat.arguments.releases import resolve_semantics
from hf_compat.errors import DataError, LoaderError, described, warn_user
from hf_compat.model_facts import unwrap_peft
from hf_compat.nested import leaves

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)


_NUMPY_LABELS_ARE_CLASSES = Version("5.22")
_LABEL_NAMES = ("label", "label_ids")
_NUMBERS = (bool, int, float, complex, np.generic, np.ndarray, Tensor)
_CUT_LABELS = (
    "Labels of a batch have fractions, and the first of them is an `int`: all become integers, as in transformers, so "
    "that 0.5 is 0. Make each a `float` in the dataset, or pass a `data_collator`."
)
_PAD_WARNING = "Asking-to-pad-a-fast-tokenizer"


@dataclass(frozen=True, slots=True)
class _Kind:
    """Functions that make a batch of torch's tensors or of numpy's arrays."""

    array: type
    """What is stacked as it is."""
    stack: Callable[[list[Any]], Any]
    """A list of these to a batch."""
    make: Callable[..., Any]
    """A list of other values, and perhaps a dtype, to a batch."""
    integer: Any
    floating: Any

    def label_dtype(self, label: object) -> Any:
        """Return the dtype of labels of which ``label`` is the first: int64 for classes, else float32."""
        if isinstance(label, np.integer):  # older releases take numpy's integers for regression labels
            is_class = resolve_semantics().release >= _NUMPY_LABELS_ARE_CLASSES
        else:
            is_class = isinstance(label, int)
        return self.integer if is_class else self.floating

    def labels(self, samples: list[Mapping[str, Any]]) -> Any:
        """Return the labels of ``samples``, None if they have none."""
        first = samples[0]
        if first.get("label") is not None:
            label: Any = first["label"]
            if isinstance(label, self.array):
                label = first["label"].item()
            return self._labels([sample["label"] for sample in samples], self.label_dtype(label))
        if first.get("label_ids") is not None:
            rows = [sample["label_ids"] for sample in samples]
            stacks = isinstance(rows[0], self.array)
            return self.stack(rows) if stacks else self._labels(rows, self.label_dtype(rows[0][0]))
        return None

    def _labels(self, values: list[Any], dtype: Any) -> Any:
        if dtype is self.integer and any(isinstance(each, float) and not each.is_integer() for each in leaves(values)):
            warn_user(_CUT_LABELS)
        return self.make(values, dtype=dtype)

    def column(self, values: list[Any]) -> Any:
        """Return the batch of a column's values."""
        return self.stack(values) if isinstance(values[0], self.array) else self.make(values)


def _tensor(values: list[Any], dtype: torch.dtype | None = None) -> Tensor:
    is_numpy = isinstance(values[0], np.ndarray) and dtype is None
    return torch.from_numpy(np.stack(values)) if is_numpy else torch.tensor(values, dtype=dtype)


_KINDS = {
    "pt": _Kind(Tensor, torch.stack, _tensor, torch.long, torch.float),
    "np": _Kind(np.ndarray, np.stack, np.array, np.int64, np.float32),
}


def _attributes(sample: object) -> dict[str, Any]:
    """Return the values of ``sample``, which is no mapping, by name."""
    try:
        return vars(sample)
    except TypeError:
        raise LoaderError(
            f"A sample of the dataset is {described(sample)}, but the model takes its inputs by name. Return a dict of "
            "them from the dataset, or pass a `data_collator` that makes one of such samples."
        ) from None


def default_data_collator(features: list[Any], return_tensors: str = "pt") -> dict[str, Any]:
    """Return a batch of ``features``, each column stacked without padding.

    ``label``, one per sample, or else ``label_ids``, a row per sample, becomes ``labels``: int64 if the first one is an
    integer, else float32. The keys are those of the first sample, except for values that are None or a string there.

    Args:
        features: Mappings, or objects with attributes, all with the same keys and shapes.
        return_tensors: ``"pt"`` for torch's tensors, ``"np"`` for numpy's arrays.

    Returns:
        ``(batch, ...)`` tensors or arrays, ``labels`` first.

    Raises:
        DataError: If ``return_tensors`` is neither.
        LoaderError: If the values of a sample have no names.

    References:
        Same batches as ``default_data_collator`` of transformers ``data/data_collator.py``.
    """
    kind = _KINDS.get(return_tensors)
    if kind is None:
        raise DataError(f"`return_tensors={return_tensors!r}` is not supported: use 'pt' or 'np'.")
    samples = features if isinstance(features[0], Mapping) else [_attributes(feature) for feature in features]
    try:
        labels = kind.labels(samples)
    except (RuntimeError, TypeError, ValueError) as error:
        name = "label" if samples[0].get("label") is not None else "label_ids"
        _note_values(error, name, [sample.get(name) for sample in samples])
        raise
    batch = {} if labels is None else {"labels": labels}
    for name, value in samples[0].items():
        if name not in _LABEL_NAMES and value is not None and not isinstance(value, str):
            try:
                values = [sample[name] for sample in samples]
                batch[name] = kind.column(values)
            except (RuntimeError, TypeError, ValueError) as error:
                _note_values(error, name, values)
                raise
    return batch


def _note_values(error: Exception, name: str, values: list[Any]) -> None:
    """Add to ``error``, of stacking the ``values`` of the column ``name``, why they are no tensor, if that is seen."""
    odd = next((value for value in leaves(values) if not isinstance(value, _NUMBERS)), 0)
    if not isinstance(odd, int):
        found = "None" if odd is None else f"texts, such as {odd!r}" if isinstance(odd, str) else described(odd)
        remedy = "Fill them in, or leave such samples out" if odd is None else "Make numbers of them in the dataset"
        if isinstance(odd, str):
            remedy = "Make classes of them: `dataset.class_encode_column(...)`" if "label" in name else "Tokenize them"
        error.add_note(f"`{name}`: some of its values are {found}, of which no tensor can be made. {remedy}.")
        return
    with contextlib.suppress(TypeError):  # numbers have none
        lengths = sorted({len(value) for value in values})
        if len(lengths) > 1:
            error.add_note(
                f"`{name}`: samples of {lengths[0]} to {lengths[-1]} values in one batch. Pass the tokenizer as "
                "`processing_class`, which pads them, or a `data_collator` that does."
            )


def torch_default_data_collator(features: list[Any]) -> dict[str, Any]:
    """Return :func:`default_data_collator`'s batch of tensors for the samples ``features``."""
    return default_data_collator(features, "pt")


def numpy_default_data_collator(features: list[Any]) -> dict[str, Any]:
    """Return :func:`default_data_collator`'s batch of arrays for the samples ``features``."""
    return default_data_collator(features, "np")


@dataclass
class DefaultDataCollator:
    """:func:`default_data_collator` as an object.

    Attributes:
        return_tensors: ``"pt"`` for torch's tensors, ``"np"`` for numpy's arrays.
    """

    return_tensors: str = "pt"

    def __call__(self, features: list[Any], return_tensors: str | None = None) -> dict[str, Any]:
        """Return the batch of ``features``."""
        return default_data_collator(features, self.return_tensors if return_tensors is None else return_tensors)


@contextmanager
def _no_pad_warning(tokenizer: object) -> Iterator[None]:
    """Keep a fast tokenizer from warning that padding in ``__call__`` is faster: samples are encoded already."""
    warned = getattr(tokenizer, "deprecation_warnings", None)
    if warned is None:  # a feature extractor
        yield
        return
    before = warned.get(_PAD_WARNING, False)
    warned[_PAD_WARNING] = True
    try:
        yield
    finally:
        warned[_PAD_WARNING] = before


@dataclass
class DataCollatorWithPadding:
    """Pad samples to the same length with the ``pad`` of a tokenizer or feature extractor.

    Attributes:
        tokenizer: The tokenizer or feature extractor.
        padding: True or ``"longest"``: to the longest of the batch; ``"max_length"``: to ``max_length``; False: none.
        max_length: Tokens to pad to. Default: the tokenizer's own.
        pad_to_multiple_of: Pad to a multiple of this number of tokens.
        return_tensors: Passed to ``pad``.

    References:
        Same batches as the class of this name in transformers ``data/data_collator.py``.
    """

    tokenizer: Any
    padding: Any = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"

    def __call__(self, features: list[Any]) -> MutableMapping[str, Any]:
        """Return the padded batch of ``features``; ``label`` or ``label_ids`` becomes ``labels``."""
        with _no_pad_warning(self.tokenizer):
            batch: MutableMapping[str, Any] = self.tokenizer.pad(
                features,
                padding=self.padding,
                max_length=self.max_length,
                pad_to_multiple_of=self.pad_to_multiple_of,
                return_tensors=self.return_tensors,
            )
        for name in _LABEL_NAMES:
            if name in batch:
                batch["labels"] = batch[name]
                del batch[name]
        return batch


def default_collator_for(processing_class: object) -> Callable[[list[Any]], Any]:
    """Return the collator that is used if the user passes none.

    A tokenizer or a sequence feature extractor, which have a ``padding_side``, pad the batch. Image processors and
    multimodal processors may have a ``pad`` too, but not for batches of samples.

    Args:
        processing_class: The Trainer's ``processing_class``, or None.
    """
    pads = callable(getattr(processing_class, "pad", None)) and hasattr(processing_class, "padding_side")
    pads = pads and not isinstance(processing_class, type)
    return DataCollatorWithPadding(processing_class) if pads else default_data_collator


# Removing the columns of a data set that the model's forward does not take.


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
        columns = self.signature_columns
        kept = [
            {key: feature[key] for key in feature if key in columns} if isinstance(feature, dict) else feature
            for feature in features
        ]
        for feature, rest in () if self.message_logged else zip(features, kept, strict=True):
            if rest is not feature and len(rest) < len(feature):
                self._log_removed(feature)
                break
        return self.data_collator(kept)

    def _log_removed(self, feature: dict[Any, Any]) -> None:
        if self.logger and self.model_name:
            dropped = [str(key) for key in feature if key not in self.signature_columns]
            _log_removed(dropped, self.description, self.logger, self.model_name)
            self.message_logged = True
