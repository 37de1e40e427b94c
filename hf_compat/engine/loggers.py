"""``report_to``: the Lightning logger of each name, and the callback that writes to loggers."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.loggers import Logger, TensorBoardLogger

from hf_compat.callbacks import TrainerCallback
from hf_compat.metrics import rewrite_logs

if TYPE_CHECKING:
    from torch import nn

    from hf_compat.arguments import TrainingArguments
    from hf_compat.state import TrainerControl, TrainerState

__all__ = ["REPORTERS", "LoggingCallback", "TensorBoardCallback", "build_loggers", "logging_callbacks"]


def _tensorboard(args: TrainingArguments) -> Logger:
    """Return a logger to ``logging_dir`` or, as transformers 5, to a new folder under ``runs``."""
    folder = getattr(args, "logging_dir", None) or os.environ.get("TENSORBOARD_LOGGING_DIR")
    if folder is None:
        stamp = datetime.now().strftime("%b%d_%H-%M-%S")
        folder = Path(args.output_dir, "runs", f"{stamp}_{socket.gethostname()}")
    return TensorBoardLogger(save_dir=folder, name="", version="")


REPORTERS: dict[str, Callable[[TrainingArguments], Logger]] = {"tensorboard": _tensorboard}
"""Name in ``report_to`` → its Lightning logger; any other logger is passed as ``lightning={"logger": ...}``."""


def build_loggers(args: TrainingArguments) -> dict[str, Logger]:
    """Return name → Lightning logger, in the order of ``args.report_to``."""
    return {name: REPORTERS[name](args) for name in args.report_to}


def logging_callbacks(reporters: Mapping[str, Logger], others: Sequence[Logger]) -> list[TrainerCallback]:
    """Return a callback for each of ``reporters``, as transformers has them, then one for all ``others``."""
    callbacks = [_CALLBACKS[name](logger) for name, logger in reporters.items()]
    return [*callbacks, LoggingCallback(others)] if others else callbacks


class LoggingCallback(TrainerCallback):
    """Writes the Trainer's logs to Lightning loggers, by update step.

    Scalars have transformers' names: ``train/loss``, ``eval/loss``. The TensorBoard texts ``args`` and
    ``model_config`` are written at the start of training, as in transformers.
    """

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self.loggers = loggers

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
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

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write ``logs``: numbers to every logger, text to TensorBoard; other values are dropped."""
        if not state.is_world_process_zero:
            return
        renamed = rewrite_logs(logs or {})
        numbers = {key: _number(value) for key, value in renamed.items()}
        scalars = {key: value for key, value in numbers.items() if value is not None}
        texts = {key: value for key, value in renamed.items() if isinstance(value, str)}
        for logger in self.loggers:
            logger.log_metrics(scalars, step=state.global_step)
            if isinstance(logger, TensorBoardLogger):
                for key, text in texts.items():
                    logger.experiment.add_text(key, text, state.global_step)
            logger.save()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Flush every logger; Lightning closes them."""
        for logger in self.loggers:
            logger.save()


class TensorBoardCallback(TrainerCallback):
    """Writes to TensorBoard as a ``LoggingCallback``; scripts find and remove it by transformers' class too."""

    def __init__(self, logger: TensorBoardLogger) -> None:
        self._logger = logger
        self._writing = LoggingCallback([logger])

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write the arguments and the model's configuration."""
        self._writing.on_train_begin(args, state, control, **kwargs)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write the logs."""
        self._writing.on_log(args, state, control, **kwargs)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Flush the logger."""
        self._writing.on_train_end(args, state, control, **kwargs)

    @property
    def tb_writer(self) -> Any:
        """The ``SummaryWriter``."""
        return self._logger.experiment


_CALLBACKS: dict[str, Callable[[Any], TrainerCallback]] = {"tensorboard": TensorBoardCallback}
"""Name in ``report_to`` → the callback that writes to its logger."""


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float):
        return value
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value.item())
    return None
