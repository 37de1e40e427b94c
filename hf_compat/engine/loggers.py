"""``report_to``: which Lightning logger each name becomes, and what is written to it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers import Logger, TensorBoardLogger

from hf_compat.callbacks import TrainerCallback
from hf_compat.metrics import rewrite_logs

__all__ = ["REPORTERS", "LoggingCallback", "build_loggers"]


def _tensorboard(args: Any) -> Logger:
    """Return a logger into ``logging_dir``, else where upstream's 5.x writes: a folder of its own under ``runs``."""
    folder = getattr(args, "logging_dir", None) or os.environ.get("TENSORBOARD_LOGGING_DIR")
    if folder is None:
        stamp = datetime.now().strftime("%b%d_%H-%M-%S")
        folder = Path(args.output_dir, "runs", f"{stamp}_{socket.gethostname()}")
    return TensorBoardLogger(save_dir=folder, name="", version="")


REPORTERS: dict[str, Callable[[Any], Logger]] = {"tensorboard": _tensorboard}
"""Name in ``report_to`` to the Lightning logger it becomes; any other is handed in as ``lightning={"logger": ...}``."""


def build_loggers(args: Any) -> list[Logger]:
    """Return the Lightning loggers that ``args.report_to`` names."""
    return [REPORTERS[name](args) for name in args.report_to]


class LoggingCallback(TrainerCallback):
    """Writes what the Trainer logs to Lightning loggers, at the update step it belongs to.

    Scalars keep upstream's names: ``train/loss``, ``eval/loss``. The TensorBoard text tabs ``args`` and
    ``model_config`` are written at the start of training, as upstream's.
    """

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self.loggers = loggers

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Write the arguments and the model's configuration."""
        if not state.is_world_process_zero:
            return
        config = getattr(model, "config", None)
        for logger in self.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_text("args", args.to_json_string())
                if config is not None and hasattr(config, "to_json_string"):
                    logger.experiment.add_text("model_config", config.to_json_string())
            else:
                logger.log_hyperparams(args.to_sanitized_dict())

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Write ``logs``; text goes to TensorBoard's text tab, other values that are no numbers are left out."""
        if not state.is_world_process_zero:
            return
        renamed = rewrite_logs(logs)
        numbers = {key: _number(value) for key, value in renamed.items()}
        scalars = {key: value for key, value in numbers.items() if value is not None}
        texts = {key: value for key, value in renamed.items() if isinstance(value, str)}
        for logger in self.loggers:
            logger.log_metrics(scalars, step=state.global_step)
            if isinstance(logger, TensorBoardLogger):
                for key, text in texts.items():
                    logger.experiment.add_text(key, text, state.global_step)
            logger.save()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Flush every logger; Lightning closes them."""
        for logger in self.loggers:
            logger.save()


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float):
        return value
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value.item())
    return None
