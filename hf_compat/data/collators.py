"""How samples become a batch where the user says nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from packaging.version import Version
from torch import Tensor

from hf_compat.arguments.releases.semantics import resolve_semantics
from hf_compat.errors import DataError

__all__ = ["DataCollatorWithPadding", "DefaultDataCollator", "default_collator_for", "default_data_collator"]

_NUMPY_LABELS_ARE_CLASSES = Version("5.22")
_LABEL_NAMES = ("label", "label_ids")
_PAD_WARNING = "Asking-to-pad-a-fast-tokenizer"


def _label_dtype(label: Any) -> torch.dtype:
    """Return int64 for a class and float32 for a number to predict."""
    if isinstance(label, np.integer):  # before, one of numpy's integers was a number to predict
        is_class = resolve_semantics().release >= _NUMPY_LABELS_ARE_CLASSES
    else:
        is_class = isinstance(label, int)
    return torch.long if is_class else torch.float


def _labels(samples: list[Mapping[str, Any]]) -> Tensor | None:
    first = samples[0]
    if first.get("label") is not None:
        label = first["label"]
        dtype = _label_dtype(label.item() if isinstance(label, Tensor) else label)
        return torch.tensor([sample["label"] for sample in samples], dtype=dtype)
    if first.get("label_ids") is not None:
        rows = [sample["label_ids"] for sample in samples]
        if isinstance(rows[0], Tensor):
            return torch.stack(rows)
        return torch.tensor(rows, dtype=_label_dtype(rows[0][0]))
    return None


def _column(values: list[Any]) -> Tensor:
    if isinstance(values[0], Tensor):
        return torch.stack(values)
    if isinstance(values[0], np.ndarray):
        return torch.from_numpy(np.stack(values))
    return torch.tensor(values)


def default_data_collator(features: list[Any], return_tensors: str = "pt") -> dict[str, Tensor]:
    """Return a batch that stacks each value of ``features`` as it is, without padding.

    ``label``, one per sample, or else ``label_ids``, a row per sample, becomes ``labels``: int64 if the first one is an
    integer, else float32. The first sample says which keys there are; those whose value there is None or a string are
    left out.

    Args:
        features: Mappings, or objects with attributes, all with the same keys and shapes.
        return_tensors: ``"pt"``; there are no others.

    Returns:
        ``(batch, ...)`` tensors, ``labels`` first.

    Raises:
        DataError: If ``return_tensors`` is not ``"pt"``.

    References:
        Same batches as ``default_data_collator`` of transformers ``data/data_collator.py``.
    """
    if return_tensors != "pt":
        raise DataError(f"`return_tensors={return_tensors!r}`: only 'pt', torch's tensors, can be returned.")
    samples = features if isinstance(features[0], Mapping) else [vars(feature) for feature in features]
    labels = _labels(samples)
    batch = {} if labels is None else {"labels": labels}
    for name, value in samples[0].items():
        if name not in _LABEL_NAMES and value is not None and not isinstance(value, str):
            batch[name] = _column([sample[name] for sample in samples])
    return batch


@dataclass
class DefaultDataCollator:
    """:func:`default_data_collator` as an object.

    Attributes:
        return_tensors: ``"pt"``; there are no others.
    """

    return_tensors: str = "pt"

    def __call__(self, features: list[Any], return_tensors: str | None = None) -> dict[str, Tensor]:
        """Return the batch of ``features``."""
        return default_data_collator(features, self.return_tensors if return_tensors is None else return_tensors)


@contextmanager
def _pad_warning_off(tokenizer: Any) -> Iterator[None]:
    """Keep a fast tokenizer from warning that padding while encoding is faster: here there is nothing to encode."""
    given = getattr(tokenizer, "deprecation_warnings", None)
    if given is None:  # a feature extractor
        yield
        return
    before = given.get(_PAD_WARNING, False)
    given[_PAD_WARNING] = True
    try:
        yield
    finally:
        given[_PAD_WARNING] = before


@dataclass
class DataCollatorWithPadding:
    """Pad samples to one length with the tokenizer's or feature extractor's own ``pad``.

    Attributes:
        tokenizer: Whose ``pad`` is called.
        padding: True or ``"longest"``: to the longest of the batch; ``"max_length"``: to ``max_length``; False: not.
        max_length: Tokens to pad to; None takes the tokenizer's own.
        pad_to_multiple_of: Tokens that the padded length is a multiple of.
        return_tensors: Passed on to ``pad``.

    References:
        Same batches as the class of this name in transformers ``data/data_collator.py``.
    """

    tokenizer: Any
    padding: Any = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"

    def __call__(self, features: list[Any]) -> Any:
        """Return the padded batch of ``features``; ``label`` or ``label_ids`` becomes ``labels``."""
        with _pad_warning_off(self.tokenizer):
            batch = self.tokenizer.pad(
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


def default_collator_for(processing_class: Any) -> Callable[[list[Any]], Any]:
    """Return what collates if the user gives no collator.

    A tokenizer or a sequence feature extractor, which say on which side they pad, pad the batch. Image processors and
    processors of several kinds of input may have a ``pad`` too, but for other things.

    Args:
        processing_class: The Trainer's; None if there is none.
    """
    pads = callable(getattr(processing_class, "pad", None)) and hasattr(processing_class, "padding_side")
    return DataCollatorWithPadding(processing_class) if pads else default_data_collator
