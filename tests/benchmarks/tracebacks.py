"""The frames of a traceback of an error in a user's own code: what a person has to read."""

from __future__ import annotations

import os
import tempfile
import traceback
from types import ModuleType
from typing import Any

import torch
import transformers
from torch import nn

import hf_compat
from hf_compat.engine.internals.exceptions import FULL_TRACEBACKS
from tests.benchmarks.measuring import HF_COMPAT, TRANSFORMERS
from tests.support.helpers import ListDataset

PLACES = ("forward", "compute_metrics", "dataset", "callback")


class OwnError(Exception):
    """What the user's code raises."""


class _Model(nn.Module):
    def __init__(self, place: str) -> None:
        super().__init__()
        self.body, self.place = nn.Linear(4, 3), place

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Fail if this is the place."""
        if self.place == "forward":
            raise OwnError
        logits = self.body(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class _Rows(ListDataset):
    def __getitem__(self, index: int) -> Any:
        raise OwnError


def _train(library: ModuleType, place: str, folder: str) -> None:
    def compute_metrics(prediction: object) -> dict[str, float]:
        raise OwnError

    class Fails(library.TrainerCallback):  # type: ignore[name-defined, misc]
        """Fails at the first step."""

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            raise OwnError

    kinds = {"use_cpu": True, "disable_tqdm": True, "report_to": "none"}
    args = library.TrainingArguments(folder, max_steps=1, eval_strategy="steps", eval_steps=1, **kinds)
    rows = [{"x": torch.ones(4), "labels": torch.tensor(row % 3)} for row in range(8)]
    library.Trainer(
        _Model(place),
        args,
        train_dataset=_Rows(rows) if place == "dataset" else ListDataset(rows),
        eval_dataset=ListDataset(rows),
        compute_metrics=compute_metrics if place == "compute_metrics" else None,
        callbacks=[Fails()] if place == "callback" else None,
    ).train()


def frames(library: ModuleType, place: str) -> int:
    """Return the frames from the call of ``train`` to the user's code, in ``place``."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            _train(library, place, folder)
        except OwnError as error:
            return len(traceback.extract_tb(error.__traceback__)) - 1
    raise AssertionError(f"nothing failed in {place}")


def table() -> list[str]:
    """Return the lines of a Markdown table."""
    shown = {place: (frames(hf_compat, place), frames(transformers, place)) for place in PLACES}
    os.environ[FULL_TRACEBACKS] = "1"
    try:
        rows = [f"| {place} | {shown[place][0]} | {frames(hf_compat, place)} | {shown[place][1]} |" for place in PLACES]
    finally:
        del os.environ[FULL_TRACEBACKS]
    return [f"| error in | {HF_COMPAT} | all of {HF_COMPAT} | {TRANSFORMERS} |", "|---|---|---|---|", *rows]
