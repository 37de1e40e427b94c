"""``report_to``: the callback of each tracker, and the Lightning loggers that callbacks bring along."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from lightning.pytorch.loggers import Logger

from hf_compat.errors import MissingPackageError, require_package

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments
    from hf_compat.state import TrainerState

__all__ = ["OWN_CALLBACKS", "TRANSFORMERS_CALLBACKS", "PreparesLogger", "build_reporters", "open_loggers"]

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


def open_loggers(callbacks: Iterable[object], args: TrainingArguments, state: TrainerState) -> list[Logger]:
    """Return the Lightning loggers of the trackers among ``callbacks``, which Lightning callbacks write to as well."""
    return [callback.prepare_run(args, state) for callback in callbacks if isinstance(callback, PreparesLogger)]
