"""Metrics outside the loop: speeds, the table on the console, the JSON files, plain numbers, trackers' names.

The same text, files and rounding as the helpers in transformers ``trainer_pt_utils.py`` and ``trainer_utils.py``.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from hf_compat.files import read_json_object, write_text

__all__ = [
    "denumpify_detensorize",
    "has_length",
    "log_metrics",
    "metrics_format",
    "rewrite_logs",
    "save_metrics",
    "save_state",
    "speed_metrics",
]


def speed_metrics(
    split: str,
    start_time: float,
    num_samples: float | None = None,
    num_steps: float | None = None,
    num_tokens: float | None = None,
) -> dict[str, float]:
    """Return the seconds since ``start_time`` and what was done per second.

    Args:
        split: Prefix of the names: ``"train"``, ``"eval"``, ``"test"``.
        start_time: A ``time.time()``.
        num_samples: Samples since then. Default: not reported.
        num_steps: Update steps or batches since then. Default: not reported.
        num_tokens: Tokens since then. Default: not reported.

    Returns:
        ``<split>_runtime``, rounded to 4 digits, and ``<split>_<what>_per_second``, rounded to 3; no speeds if no time
        passed.
    """
    runtime = time.time() - start_time
    result = {f"{split}_runtime": round(runtime, 4)}
    for unit, count in (("samples", num_samples), ("steps", num_steps), ("tokens", num_tokens)):
        if count is not None and runtime != 0:
            result[f"{split}_{unit}_per_second"] = round(count / runtime, 3)
    return result


def _readable(name: str, value: Any) -> Any:
    if "_mem_" in name:
        return f"{value >> 20}MB"
    if "_runtime" in name:
        hundredths = int(abs(value - int(value)) * 100)
        return f"{datetime.timedelta(seconds=int(value))}.{hundredths:02d}"
    if name == "total_flos":
        return f"{int(value) >> 30}GF"
    return round(value, 4) if isinstance(value, float) else value


def metrics_format(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``metrics`` for reading: bytes as MB, seconds as h:mm:ss, operations as GF, floats with 4 digits."""
    return {name: _readable(name, value) for name, value in metrics.items()}


def log_metrics(trainer: Any, split: str, metrics: Mapping[str, Any]) -> None:
    """Print ``metrics`` as a table sorted by name, on the first process of all."""
    if not trainer.is_world_process_zero():
        return
    rows = metrics_format(metrics)
    name_width = max((len(name) for name in rows), default=0)
    value_width = max((len(str(value)) for value in rows.values()), default=0)
    lines = [f"  {name:<{name_width}} = {rows[name]:>{value_width}}" for name in sorted(rows)]
    print("\n".join([f"***** {split} metrics *****", *lines]))  # noqa: T201  scripts call this to see it printed


def save_metrics(trainer: Any, split: str, metrics: Mapping[str, Any], combined: bool = True) -> None:
    """Write ``metrics`` to ``<split>_results.json`` in the output folder, on the first process of all.

    Args:
        trainer: The trainer, for its output folder.
        split: ``"train"``, ``"eval"``, ``"test"`` or ``"all"``.
        metrics: Names and values, not rounded.
        combined: Whether to also enter them into ``all_results.json``, over what it holds.

    Raises:
        CheckpointError: If ``all_results.json`` is there and is no JSON object.
    """
    if not trainer.is_world_process_zero():
        return
    folder = Path(trainer.args.output_dir)
    _write_results(folder / f"{split}_results.json", metrics)
    if combined:
        path = folder / "all_results.json"
        earlier = read_json_object(path) if path.exists() else {}
        _write_results(path, {**earlier, **metrics})


def _write_results(path: Path, metrics: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(metrics, indent=4, sort_keys=True))


def save_state(trainer: Any) -> None:
    """Write the trainer's state to ``trainer_state.json`` in the output folder, on the first process of all."""
    if trainer.is_world_process_zero():
        trainer.state.save_to_json(Path(trainer.args.output_dir) / "trainer_state.json")


def has_length(dataset: Any) -> TypeGuard[Sized]:
    """Return whether ``len(dataset)`` works; a data set may have the method and refuse."""
    try:
        len(dataset)
    except (TypeError, AttributeError):  # the latter from Ray's data sets
        return False
    return True


def denumpify_detensorize(metrics: Any) -> Any:
    """Return ``metrics`` with every numpy scalar and every tensor of one element in it as a Python number."""
    if isinstance(metrics, list | tuple):
        return type(metrics)(denumpify_detensorize(value) for value in metrics)
    if isinstance(metrics, dict):
        return type(metrics)({name: denumpify_detensorize(value) for name, value in metrics.items()})
    # Where torch was never imported nothing can be a tensor.
    torch = sys.modules.get("torch")
    single = torch is not None and isinstance(metrics, torch.Tensor) and metrics.numel() == 1
    return metrics.item() if single or isinstance(metrics, np.generic) else metrics


def rewrite_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``logs`` under the names that trackers show: ``eval/x`` for ``eval_x``, ``test/x``, else ``train/x``."""
    renamed = {}
    for name, value in logs.items():
        group, mark, rest = name.partition("_")
        renamed[f"{group}/{rest}" if mark and group in ("eval", "test") else f"train/{name}"] = value
    return renamed
