"""The configuration and the numbers of a run for trackers."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from hf_compat.checkpoint.weights import save_weights
from hf_compat.errors import LogWriteError

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger
    from torch import nn

    from hf_compat.arguments import TrainingArguments

logger = logging.getLogger(__name__)


SUMMARY_KEYS = frozenset(
    ("train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos")
)
"""Logs that some trackers take as one value of the run instead of a curve."""


@contextmanager
def naming_folder(logger: Logger) -> Iterator[None]:
    """Context in which ``logger`` writes.

    Raises:
        LogWriteError: If the file system fails; it names the logger's folder.
    """
    try:
        yield
    except OSError as error:
        folder = logger.log_dir or logger.save_dir or "its folder"
        raise LogWriteError(
            f"{type(logger).__name__} cannot write to `{folder}`: {error}. Check the free space and the permissions "
            "there, have it write elsewhere, or remove it.",
            errno=error.errno,
            filename=os.fspath(error.filename or folder),
        ) from error


def model_config(model: nn.Module | None) -> dict[str, Any]:
    """Return the configuration of ``model``; empty if it has none."""
    config: Any = getattr(model, "config", None)
    if config is None or isinstance(config, dict):
        return config or {}
    return config.to_dict() if hasattr(config, "to_dict") else {}


def run_config(args: TrainingArguments, model: nn.Module | None) -> dict[str, Any]:
    """Return the configuration of a run: peft's, the model's, and over both the training arguments."""
    peft: Any = getattr(model, "peft_config", None)
    return {**({} if peft is None else {"peft_config": peft}), **model_config(model), **args.to_dict()}


def _number(value: object) -> float | None:
    """Return ``value`` as a number, also from a tensor with one element; None if it is none."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value.item())
    return None


def numbers(logs: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers in ``logs``."""
    found = {key: _number(value) for key, value in logs.items()}
    return {key: value for key, value in found.items() if value is not None}


def warn_of_dropped(tracker: str, values: Mapping[str, object]) -> None:
    """Warn of the logs ``values``, which ``tracker`` cannot take."""
    for key, value in values.items():
        logger.warning("%s: not logging %r: a %s is not a number.", tracker, key, type(value).__name__)


def save_model(model: nn.Module, folder: str, processing_class: Any) -> None:
    """Save ``model`` and the processing class to ``folder``, which exists, to be uploaded."""
    save_weights(model, folder)
    if processing_class is not None:
        processing_class.save_pretrained(folder)
