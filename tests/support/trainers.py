"""One builder of Trainers: a tiny classifier of vectors that trains silently on the CPU."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

import hf_compat
from tests.support.helpers import WIDTH, ListDataset, PlainModel, vector_rows

QUIET = {"use_cpu": True, "disable_tqdm": True, "report_to": "none"}
"""Arguments of a run that shows nothing, and reports to nothing."""


def arguments(folder: Path | str = "out", library: Any = hf_compat, **fields: Any) -> Any:
    """Return arguments of ``library`` that write into ``folder``: ``fields``, and besides these ``QUIET``."""
    return library.TrainingArguments(str(folder), **QUIET | fields)


def new_trainer(
    folder: Path,
    kind: Any = None,
    *,
    library: Any = hf_compat,
    model: nn.Module | None = None,
    rows: int = 8,
    train_dataset: Any = None,
    callbacks: Iterable[Any] | None = None,
    given: dict[str, Any] | None = None,
    **fields: Any,
) -> Any:
    """Return a Trainer that writes into ``folder``.

    Args:
        folder: ``output_dir``.
        kind: The class of the Trainer. Default: the library's ``Trainer``.
        library: ``hf_compat`` or ``transformers``.
        model: Default: a new ``PlainModel``, unless there is a ``model_init``.
        rows: How many samples it trains on, and evaluates, if there is no ``train_dataset``.
        train_dataset: What it trains on, and evaluates.
        callbacks: The user's callbacks.
        given: Further arguments of the Trainer's constructor.
        **fields: Training arguments, besides ``QUIET``.
    """
    data = ListDataset(vector_rows(rows)) if train_dataset is None else train_dataset
    every = {"train_dataset": data, "eval_dataset": data, "callbacks": None if callbacks is None else list(callbacks)}
    every |= given or {}
    if model is None and "model_init" not in every:
        model = PlainModel()
    return (kind or library.Trainer)(model, arguments(folder, library, **fields), **every)


class Seeing(hf_compat.Trainer):
    """Keeps the numbers of the samples that it trains on."""

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Any:
        self.seen.append(inputs["features"][:, 0].int().tolist())
        return super().training_step(model, inputs, num_items_in_batch)


def seeing_trainer(folder: Path, *, data: Any = ListDataset, count: int = 13, **fields: Any) -> Any:
    """Return a Trainer that keeps in ``seen`` which of the ``count`` samples of ``data`` each batch had."""
    numbered = data([{"features": [float(number)] * WIDTH, "labels": 0} for number in range(count)])
    settings = {"save_steps": 1, "learning_rate": 1e-4, "logging_steps": 1}
    trainer = new_trainer(folder, Seeing, train_dataset=numbered, **settings | fields)
    trainer.seen = []
    return trainer
