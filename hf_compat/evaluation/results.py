"""Results of evaluation, prediction and training; fields and unpacking as in transformers ``trainer_utils.py``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Arrays", "EvalLoopOutput", "EvalPrediction", "PredictionOutput", "TrainOutput"]

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
