"""``fast_dev_run`` and ``barebones``: keywords of ``lightning.Trainer`` that stand for several others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_compat.arguments.enums import IntervalStrategy, SaveStrategy

__all__ = ["barebones_problems", "development_fields", "spelled_out"]

_OFF = ("fast_dev_run", "num_sanity_val_steps")
"""Keywords that are the same as not given if they are None, False or 0."""
_SET_BY_DEVELOPMENT = (
    *("max_epochs", "max_steps", "limit_train_batches", "limit_val_batches", "limit_test_batches"),
    *("limit_predict_batches", "val_check_interval", "check_val_every_n_epoch", "num_sanity_val_steps"),
    *("enable_checkpointing", "logger"),
)
"""Keywords that ``fast_dev_run`` decides, whatever else they say; ``overfit_batches`` is the stronger of the two."""

_BARE: dict[str, Any] = {
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "enable_progress_bar": False,
    "log_every_n_steps": 0,
    "logger": False,
    "num_sanity_val_steps": 0,
}
"""What ``barebones`` switches off → its value then."""
_NOT_BARE = (*_BARE, "detect_anomaly", "fast_dev_run", "profiler")
"""Keywords that ``barebones`` excludes, unless they are off."""


def spelled_out(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``given`` with the keywords that ``fast_dev_run`` and ``barebones`` stand for."""
    count = int(given.get("fast_dev_run") or 0)
    keywords = {name: value for name, value in given.items() if name not in _OFF or value not in (None, 0)}
    if count:
        keywords = {name: value for name, value in keywords.items() if name not in _SET_BY_DEVELOPMENT}
        keywords |= {"fast_dev_run": count, "limit_test_batches": count, "limit_predict_batches": count}
        keywords |= {"max_epochs": 1, "max_steps": count}
        if not given.get("overfit_batches"):
            keywords |= {"limit_train_batches": count, "limit_val_batches": count}
    return {**keywords, **_BARE} if keywords.get("barebones") else keywords


def development_fields(given: Mapping[str, Any], *, has_eval_data: bool) -> dict[str, Any]:
    """Return the fields that ``fast_dev_run`` sets, whatever the user set them to; none without it.

    Args:
        given: The user's keywords.
        has_eval_data: Whether there is something to evaluate on.
    """
    count = int(given.get("fast_dev_run") or 0)
    if not count:
        return {}
    return {
        "max_steps": count,
        "num_train_epochs": 1.0,
        "eval_strategy": IntervalStrategy.EPOCH if has_eval_data else IntervalStrategy.NO,
        "eval_delay": 0,
        "eval_on_start": False,
        "save_strategy": SaveStrategy.NO,
        "load_best_model_at_end": False,
        "report_to": [],
    }


def barebones_problems(given: Mapping[str, Any]) -> list[str]:
    """Return why ``barebones`` is refused beside what it would switch off."""
    if not given.get("barebones"):
        return []
    return [
        f"`lightning={{'barebones': True, {name!r}: {given[name]!r}}}` contradict each other: `barebones` switches it "
        "off. Remove one of them."
        for name in _NOT_BARE
        if given.get(name)
    ]
