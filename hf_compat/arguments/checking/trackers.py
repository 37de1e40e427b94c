"""The trackers in ``report_to``: which there are, and which are installed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hf_compat.arguments.checking.problems import Problem
from hf_compat.arguments.fields.unknown import nearest_value
from hf_compat.arguments.releases.semantics import OLDEST_RELEASE, Semantics, installed_release, resolve_semantics
from hf_compat.environment import is_switched_on
from hf_compat.errors import is_installed

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["TRACKERS", "reports_by_default", "tracker_names", "with_job_tracker"]

TRACKERS: dict[str, str] = {
    "azure_ml": "azureml.core.run",
    "comet_ml": "comet_ml",
    "dagshub": "dagshub",
    "dvclive": "dvclive",
    "mlflow": "mlflow",
    "neptune": "neptune",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "codecarbon": "codecarbon",
    "clearml": "clearml",
    "swanlab": "swanlab",
    "trackio": "trackio",
    "kubeflow": "",
    "flyte": "flytekit",
}
"""Name in ``report_to`` → the module that it needs, in the order of ``"all"``; none for Kubeflow's own server."""


def _has_comet_key() -> bool:
    return "COMET_API_KEY" in os.environ or Path.home().joinpath(".comet.config").exists()


def _is_in_kubeflow_job() -> bool:
    """Return whether a Kubeflow job wants to hear of the run, and the installed transformers supports it."""
    is_off = os.environ.get("DISABLE_KUBEFLOW_INTEGRATION", "").upper() == "TRUE"  # no other word, as in transformers
    if is_off or "KUBEFLOW_TRAINER_SERVER_URL" not in os.environ:
        return False
    release = max(installed_release(), OLDEST_RELEASE)
    return is_installed("transformers") and resolve_semantics(str(release)).reports_to_job


_USABLE: dict[str, Callable[[], bool]] = {
    "azure_ml": lambda: not is_installed("mlflow"),  # which writes there too
    "comet_ml": _has_comet_key,
    "flyte": lambda: False,  # works in a Flyte task alone
    "kubeflow": _is_in_kubeflow_job,
    "mlflow": lambda: not is_switched_on("DISABLE_MLFLOW_INTEGRATION"),
    "wandb": lambda: not is_switched_on("WANDB_DISABLED"),
}
"""Name in ``report_to`` → whether ``"all"`` contains it where it is installed; the others always."""


def _is_in_all(name: str, module: str) -> bool:
    """Return whether ``"all"`` contains the tracker: as in transformers, if it is installed and can be used."""
    return (name not in _USABLE or _USABLE[name]()) and (not module or is_installed(module))


def tracker_names(
    report_to: str | list[str] | tuple[str, ...] | None, semantics: Semantics
) -> tuple[list[str], list[Problem]]:
    """Return the trackers to report to, and a problem for each unknown name.

    Args:
        report_to: A name, a list of names, ``"all"``, ``"none"`` or None, which means all or none by release.
        semantics: The behaviours of the release.
    """
    if report_to is None:
        report_to = "none" if semantics.reports_to_none else "all"
    names = list(report_to) if isinstance(report_to, list | tuple) else [report_to]
    if names == ["none"]:
        return [], []
    if names == ["all"]:
        return [name for name, module in TRACKERS.items() if _is_in_all(name, module)], []
    unknown = [name for name in names if not isinstance(name, str) or name not in TRACKERS]
    text = (
        f"is not supported, only {', '.join(TRACKERS)} are supported. For another tracker pass a Lightning logger: "
        "Trainer(lightning={'logger': ...})."
    )
    near = [(name, nearest_value(name, TRACKERS)) for name in unknown]
    texts = [f"{question}{name!r} {text}" if question else text for name, question in near]
    return names, [
        Problem("report_to", name, told, unsupported=True) for name, told in zip(unknown, texts, strict=True)
    ]


def with_job_tracker(names: list[str], semantics: Semantics) -> list[str]:
    """Return the trackers ``names`` and, in a Kubeflow job, Kubeflow's, which gets every run."""
    is_missing = semantics.reports_to_job and "kubeflow" not in names
    return [*names, "kubeflow"] if is_missing and _is_in_kubeflow_job() else names


def reports_by_default(args: TrainingArguments) -> bool:
    """Return whether the trackers are those of a run that names none."""
    semantics = resolve_semantics(args.semantics)
    names = tracker_names(None, semantics)[0]
    return args.report_to in (names, with_job_tracker(names, semantics))
