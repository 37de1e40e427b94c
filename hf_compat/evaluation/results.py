"""What evaluation, prediction and training give back; fields and unpacking as in transformers ``trainer_utils.py``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Arrays", "EvalLoopOutput", "EvalPrediction", "PredictionOutput", "TrainOutput"]

Arrays = np.ndarray[Any, Any] | tuple[Any, ...]
"""One array with a row per sample, or a tuple of them, nested as the model's outputs are."""


class EvalPrediction:
    """What ``compute_metrics`` is given; unpacks as ``predictions, label_ids[, inputs][, losses]``.

    Args:
        predictions: The model's outputs.
        label_ids: The labels.
        inputs: The main inputs. Default: not kept.
        losses: A loss per sample. Default: not kept.
    """

    def __init__(
        self, predictions: Arrays, label_ids: Arrays, inputs: Arrays | None = None, losses: Arrays | None = None
    ) -> None:
        self.predictions = predictions
        self.label_ids = label_ids
        self.inputs = inputs
        self.losses = losses
        kept = tuple(extra for extra in (inputs, losses) if extra is not None)
        self.elements: tuple[Any, ...] = (predictions, label_ids, *kept)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.elements)

    def __getitem__(self, idx: int) -> Any:
        if not 0 <= idx < len(self.elements):
            raise IndexError(f"An EvalPrediction of {len(self.elements)} elements has none at {idx}.")
        return self.elements[idx]


class EvalLoopOutput(NamedTuple):
    """What ``evaluation_loop`` returns."""

    predictions: Arrays | None
    label_ids: Arrays | None
    metrics: dict[str, float]
    num_samples: int


class PredictionOutput(NamedTuple):
    """What ``predict`` returns."""

    predictions: Arrays | None
    label_ids: Arrays | None
    metrics: dict[str, float] | None


class TrainOutput(NamedTuple):
    """What ``train`` returns."""

    global_step: int
    training_loss: float
    metrics: dict[str, float]
