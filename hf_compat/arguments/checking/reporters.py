"""The trackers in ``report_to``."""

from __future__ import annotations

import importlib.util
import warnings

from hf_compat.arguments.checking.problems import Problem
from hf_compat.arguments.releases.semantics import Semantics
from hf_compat.errors import HFCompatWarning

__all__ = ["OWN_TRACKERS", "tracker_names"]

OWN_TRACKERS = ("tensorboard",)
"""Trackers for which the Trainer creates a logger."""

_OTHER_TRACKERS = {
    "clearml": "clearml",
    "codecarbon": "codecarbon",
    "comet_ml": "comet_ml",
    "dagshub": "dagshub",
    "dvclive": "dvclive",
    "mlflow": "mlflow",
    "neptune": "neptune",
    "swanlab": "swanlab",
    "trackio": "trackio",
    "wandb": "wandb",
}
"""Other trackers that transformers reports to, and the package each needs."""

_ADVICE = "pass a Lightning logger: Trainer(lightning={'logger': ...})"


def _all_trackers() -> list[str]:
    skipped = [name for name, package in _OTHER_TRACKERS.items() if importlib.util.find_spec(package) is not None]
    if skipped:
        names = ", ".join(skipped)
        warnings.warn(f"`report_to='all'` does not report to {names}: {_ADVICE}.", HFCompatWarning, stacklevel=7)
    return list(OWN_TRACKERS)


def tracker_names(
    report_to: str | list[str] | tuple[str, ...] | None, semantics: Semantics
) -> tuple[list[str], list[Problem]]:
    """Return the trackers to report to, and a problem for each that needs a logger from the user.

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
        return _all_trackers(), []
    unknown = [name for name in names if name not in OWN_TRACKERS]
    return names, [
        Problem("report_to", name, f"is not created by the Trainer; {_ADVICE}.", unsupported=True) for name in unknown
    ]
