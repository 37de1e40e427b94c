"""The Lightning loggers that a user passes, and the callback that writes a run's logs to them."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from hf_compat.callbacks import TrainerCallback
from hf_compat.engine.loggers.contents import naming_folder, numbers
from hf_compat.engine.loggers.tensorboard import write_configuration, write_texts
from hf_compat.metrics import rewrite_logs

if TYPE_CHECKING:
    from torch import nn

    from hf_compat.arguments import TrainingArguments
    from hf_compat.state import TrainerControl, TrainerState

__all__ = ["LoggingCallback", "user_loggers"]


def user_loggers(user_choice: Any, folder: str) -> list[Logger]:
    """Return the loggers of ``lightning={"logger": ...}``.

    Args:
        user_choice: A logger, or several; True for Lightning's default, which is TensorBoard's where that is
            installed, else a CSV file; None or False for none.
        folder: Where the default logger writes.
    """
    if user_choice is True:
        has_tensorboard = any(importlib.util.find_spec(name) is not None for name in ("tensorboard", "tensorboardX"))
        version = SLURMEnvironment.job_id()
        return [TensorBoardLogger(folder, version=version) if has_tensorboard else CSVLogger(folder)]
    if isinstance(user_choice, Logger):
        return [user_choice]
    return list(user_choice or ())


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
        for logger in self.loggers:
            with naming_folder(logger):
                if isinstance(logger, TensorBoardLogger):
                    write_configuration(logger.experiment, args, model)
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
        scalars = numbers(renamed)
        for logger in self.loggers:
            with naming_folder(logger):
                logger.log_metrics(scalars, step=state.global_step)
                if isinstance(logger, TensorBoardLogger):
                    write_texts(logger.experiment, renamed, state.global_step)
                logger.save()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Flush every logger; Lightning closes them."""
        for logger in self.loggers:
            with naming_folder(logger):
                logger.save()
