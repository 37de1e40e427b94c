"""Which trackers ``report_to`` names."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

from hf_compat.arguments.checking.problems import Problem
from hf_compat.arguments.releases.semantics import Semantics
from hf_compat.errors import HFCompatWarning

__all__ = ["OWN_TRACKERS", "tracker_names"]

OWN_TRACKERS = ("tensorboard",)
"""Trackers that need no logger of the user's."""

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
"""Trackers that transformers reports to if their package, the value, is installed."""

_ADVICE = "pass a Lightning logger: Trainer(lightning={'logger': ...})"


def _all_trackers() -> list[str]:
    missed = [name for name, package in _OTHER_TRACKERS.items() if importlib.util.find_spec(package) is not None]
    if missed:
        names = ", ".join(missed)
        warnings.warn(f"`report_to='all'` leaves out {names}: {_ADVICE}.", HFCompatWarning, stacklevel=7)
    return list(OWN_TRACKERS)


def tracker_names(report_to: Any, semantics: Semantics) -> tuple[list[str], list[Problem]]:
    """Return the trackers to write to, and those that need a logger of the user's as problems.

    Args:
        report_to: A name, a list of names, ``"all"``, ``"none"`` or None, whose meaning depends on the release.
        semantics: The release.
    """
    if report_to is None:
        report_to = "none" if semantics.reports_to_none else "all"
    names = list(report_to) if isinstance(report_to, list | tuple) else [report_to]
    if names == ["none"]:
        return [], []
    if names == ["all"]:
        return _all_trackers(), []
    unknown = [name for name in names if name not in OWN_TRACKERS]
    return names, [Problem("report_to", name, f"{_ADVICE}.", unsupported=True) for name in unknown]
