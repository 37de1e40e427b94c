"""``report_to``: the callback of each tracker, and the Lightning loggers that callbacks bring along."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from hf_compat.callbacks import TrainerCallback
from hf_compat.engine.loggers.contents import naming_folder, numbers
from hf_compat.engine.loggers.tensorboard import write_configuration, write_texts
from hf_compat.errors import MissingPackageError, TrainerSetupError, require_package
from hf_compat.metrics import rewrite_logs

if TYPE_CHECKING:
    from torch import nn

    from hf_compat.arguments import TrainingArguments
    from hf_compat.state import TrainerControl, TrainerState

OWN_CALLBACKS: dict[str, tuple[str, str]] = {
    "comet_ml": ("hf_compat.engine.loggers.comet", "CometCallback"),
    "mlflow": ("hf_compat.engine.loggers.mlflow", "MLflowCallback"),
    "tensorboard": ("hf_compat.engine.loggers.tensorboard", "TensorBoardCallback"),
    "wandb": ("hf_compat.engine.loggers.wandb", "WandbCallback"),
}
"""Trackers that Lightning has a logger for → module and class of our callback."""

TRANSFORMERS_CALLBACKS: dict[str, str] = {
    "azure_ml": "AzureMLCallback",
    "clearml": "ClearMLCallback",
    "codecarbon": "CodeCarbonCallback",
    "dagshub": "DagsHubCallback",
    "dvclive": "DVCLiveCallback",
    "flyte": "FlyteCallback",
    "kubeflow": "KubeflowCallback",
    "neptune": "NeptuneCallback",
    "swanlab": "SwanLabCallback",
    "trackio": "TrackioCallback",
}
"""Trackers whose callback is transformers' own → its name in ``transformers.integrations``."""


def build_reporters(args: TrainingArguments) -> list[Any]:
    """Return a callback for each tracker in ``args.report_to``.

    Raises:
        MissingPackageError: If the tracker's package is not installed.
    """
    return [_build_reporter(name) for name in args.report_to]


def _build_reporter(name: str) -> Any:
    if name in OWN_CALLBACKS:
        module, attribute = OWN_CALLBACKS[name]
        return getattr(importlib.import_module(module), attribute)()
    purpose = f"report_to={name!r}"
    integrations = require_package("transformers.integrations", extra="transformers", purpose=purpose)
    kind = getattr(integrations, TRANSFORMERS_CALLBACKS[name], None)
    if kind is None:
        raise MissingPackageError(f"`{purpose}` needs a newer release of transformers, which has its callback.")
    try:
        return kind()
    except (ImportError, RuntimeError, ValueError) as error:
        raise MissingPackageError(f"`{purpose}`: {error}") from error


@runtime_checkable
class PreparesLogger(Protocol):
    """A tracker's callback with a Lightning logger of the same run."""

    def prepare_run(self, args: TrainingArguments, state: TrainerState) -> Logger:
        """Return the logger, which names what it starts from now on after the run; end the last trial's."""


_NOT_TO_BE_FORKED = {"DVCLiveCallback": "DVCLive", "MLflowCallback": "MLflow"}
"""Callbacks whose open run a forked process would wait for: its threads and its database are of one process."""


def check_fork(callbacks: Iterable[object]) -> None:
    """Raise if this process has an open run of a tracker that a forked one cannot use.

    Raises:
        TrainerSetupError: It names the tracker, and what to do.
    """
    for callback in callbacks:
        tracker = _NOT_TO_BE_FORKED.get(type(callback).__name__)
        if tracker is not None and getattr(callback, "_initialized", False):
            raise TrainerSetupError(
                f"`train` would fork processes, but this one has opened a run of {tracker}, perhaps in an evaluation, "
                "which forked processes cannot use. Train before evaluating, or use the strategy 'ddp_spawn'."
            )


def open_loggers(callbacks: Iterable[object], args: TrainingArguments, state: TrainerState) -> list[Logger]:
    """Return the Lightning loggers of the trackers among ``callbacks``, which Lightning callbacks write to as well."""
    return [callback.prepare_run(args, state) for callback in callbacks if isinstance(callback, PreparesLogger)]


# The Lightning loggers that a user passes, and the callback that writes a run's logs to them.


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
