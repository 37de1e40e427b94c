"""Results of evaluation, prediction and training; fields and unpacking as in transformers ``trainer_utils.py``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "Arrays",
    "EvalLoopOutput",
    "EvalPrediction",
    "PredictionOutput",
    "TrainOutput",
    "note_logits",
    "note_prediction",
]

Arrays = np.ndarray[Any, Any] | tuple[Any, ...]
"""An array with a row per sample, or a tuple of arrays, nested like the model's outputs."""


class EvalPrediction:
    """The argument of ``compute_metrics``; unpacks as ``predictions, label_ids[, inputs][, losses]``.

    Args:
        predictions: The model's outputs.
        label_ids: The labels.
        inputs: The main inputs. Default: not included.
        losses: A loss per sample. Default: not included.
    """

    def __init__(
        self, predictions: Arrays, label_ids: Arrays, inputs: Arrays | None = None, losses: Arrays | None = None
    ) -> None:
        self.predictions = predictions
        self.label_ids = label_ids
        self.inputs = inputs
        self.losses = losses
        extras = tuple(extra for extra in (inputs, losses) if extra is not None)
        self.elements: tuple[Arrays, ...] = (predictions, label_ids, *extras)

    def __iter__(self) -> Iterator[Arrays]:
        return iter(self.elements)

    def __getitem__(self, idx: int) -> Arrays:
        if not 0 <= idx < len(self.elements):
            raise IndexError(f"tuple index out of range: {idx}, but EvalPrediction has {len(self.elements)} elements.")
        return self.elements[idx]


class EvalLoopOutput(NamedTuple):
    """Result of ``evaluation_loop``."""

    predictions: Arrays | None
    label_ids: Arrays | None
    metrics: dict[str, float]
    num_samples: int


class PredictionOutput(NamedTuple):
    """Result of ``predict``."""

    predictions: Arrays | None
    label_ids: Arrays | None
    metrics: dict[str, float] | None


class TrainOutput(NamedTuple):
    """Result of ``train``."""

    global_step: int
    training_loss: float
    metrics: dict[str, float]


def note_prediction(error: Exception, prediction: EvalPrediction) -> None:
    """Add to ``error`` of ``compute_metrics`` what it mistakes in ``prediction``, its argument, if that is seen."""
    told = str(error)
    if isinstance(error, AttributeError) and error.obj is prediction:
        error.add_note(
            "`compute_metrics`: an `EvalPrediction` has the model's outputs as `predictions`, labels as `label_ids` "
            "and, if `include_for_metrics` names them, `inputs` and `losses`."
        )
    elif isinstance(error, TypeError) and error.__traceback__ is not None and error.__traceback__.tb_next is None:
        error.add_note(
            "`compute_metrics`: it is called with one argument, an `EvalPrediction`, and by name with `compute_result` "
            "under `batch_eval_metrics=True`. Unpack it inside: `predictions, labels = prediction`."
        )
    elif isinstance(error, ValueError) and re.match(r"(too many|not enough) values to unpack", told):
        parts = [
            name for name in ("predictions", "label_ids", "inputs", "losses") if vars(prediction)[name] is not None
        ]
        error.add_note(f"`compute_metrics`: an `EvalPrediction` unpacks into {', '.join(parts)} here.")
    elif isinstance(prediction.predictions, tuple) and re.search("tuple|list|inhomogeneous|same shape", told):
        error.add_note(
            f"`compute_metrics`: `predictions` are {len(prediction.predictions)} outputs of the model. Take one, "
            "`predictions[0]`, or have `ignore_keys` or `preprocess_logits_for_metrics` leave the others out."
        )
    elif isinstance(error, OverflowError):
        error.add_note(
            "`compute_metrics`: predictions and labels are padded with -100, which is no token. Replace it before "
            "decoding: `np.where(ids < 0, tokenizer.pad_token_id, ids)`."
        )


def note_logits(error: Exception, logits: object) -> None:
    """Add to ``error`` of ``preprocess_logits_for_metrics`` how it is called, or what ``logits`` are, if that is it."""
    if isinstance(error, TypeError) and error.__traceback__ is not None and error.__traceback__.tb_next is None:
        error.add_note("`preprocess_logits_for_metrics`: it is called with two arguments, `logits` and `labels`.")
    elif isinstance(logits, tuple) and re.search("tuple|list", str(error)):
        error.add_note(
            f"`preprocess_logits_for_metrics`: `logits` are {len(logits)} outputs of the model. Take one, `logits[0]`."
        )
