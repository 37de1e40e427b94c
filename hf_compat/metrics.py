"""Metrics: speeds, the printed table, the JSON files, conversion to plain numbers, names for trackers.

The same text, files and rounding as the helpers in transformers ``trainer_pt_utils.py`` and ``trainer_utils.py``.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import numpy as np

from hf_compat.atomic_files import read_json_object, write_text

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments
    from hf_compat.state import TrainerState


def speed_metrics(
    split: str,
    start_time: float,
    num_samples: float | None = None,
    num_steps: float | None = None,
    num_tokens: float | None = None,
) -> dict[str, float]:
    """Return the seconds since ``start_time``, and samples, steps and tokens per second.

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
    seconds = time.time() - start_time
    result = {f"{split}_runtime": round(seconds, 4)}
    for unit, count in (("samples", num_samples), ("steps", num_steps), ("tokens", num_tokens)):
        if count is not None and seconds != 0:
            result[f"{split}_{unit}_per_second"] = round(count / seconds, 3)
    return result


def _format_value(name: str, value: Any) -> str | float:
    if "_mem_" in name:
        return f"{value >> 20}MB"
    if "_runtime" in name:
        hundredths = int(abs(value - int(value)) * 100)
        return f"{datetime.timedelta(seconds=int(value))}.{hundredths:02d}"
    if name == "total_flos":
        return f"{int(value) >> 30}GF"
    return round(value, 4) if isinstance(value, float) else value


def metrics_format(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``metrics`` formatted: bytes as MB, seconds as h:mm:ss, FLOPs as GF, floats with 4 digits."""
    return {name: _format_value(name, value) for name, value in metrics.items()}


class HasResults(Protocol):
    """A Trainer, by the members that the functions below use."""

    args: TrainingArguments
    state: TrainerState

    def is_world_process_zero(self) -> bool:
        """Return whether this is rank 0."""


def log_metrics(trainer: HasResults, split: str, metrics: Mapping[str, Any]) -> None:
    """Print ``metrics`` as a table sorted by name, on rank 0."""
    if not trainer.is_world_process_zero():
        return
    rows = metrics_format(metrics)
    name_width = max((len(name) for name in rows), default=0)
    value_width = max((len(str(value)) for value in rows.values()), default=0)
    lines = [f"  {name:<{name_width}} = {rows[name]:>{value_width}}" for name in sorted(rows)]
    print("\n".join([f"***** {split} metrics *****", *lines]))  # noqa: T201  scripts call this to see it printed


def save_metrics(trainer: HasResults, split: str, metrics: Mapping[str, Any], combined: bool = True) -> None:
    """Write ``metrics`` to ``<split>_results.json`` in the output folder, on rank 0.

    Args:
        trainer: The trainer, for its output folder.
        split: ``"train"``, ``"eval"``, ``"test"`` or ``"all"``.
        metrics: Names and values, not rounded.
        combined: Also update ``all_results.json`` with them.

    Raises:
        CheckpointError: If ``all_results.json`` exists and is not a JSON object.
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


def save_state(trainer: HasResults) -> None:
    """Write the trainer's state to ``trainer_state.json`` in the output folder, on rank 0."""
    if trainer.is_world_process_zero():
        trainer.state.save_to_json(Path(trainer.args.output_dir) / "trainer_state.json")


def has_length(dataset: object) -> TypeGuard[Sized]:
    """Return whether ``len(dataset)`` works; a data set may have ``__len__`` and raise."""
    try:
        len(dataset)  # type: ignore[arg-type]
    except (TypeError, AttributeError):  # the latter from Ray's data sets
        return False
    return True


def denumpify_detensorize(metrics: object) -> Any:
    """Return ``metrics`` with numpy scalars and one-element tensors converted to Python numbers."""
    if isinstance(metrics, list | tuple):
        return type(metrics)(denumpify_detensorize(value) for value in metrics)
    if isinstance(metrics, dict):
        return type(metrics)({name: denumpify_detensorize(value) for name, value in metrics.items()})
    # Without importing torch: if nobody has, nothing is a tensor.
    torch = sys.modules.get("torch")
    if isinstance(metrics, np.generic):
        return metrics.item()
    if torch is not None and isinstance(metrics, torch.Tensor) and metrics.numel() == 1:
        return metrics.item()
    return metrics


def rewrite_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``logs`` with names for trackers: ``eval/x`` for ``eval_x``, ``test/x``, otherwise ``train/x``."""
    renamed = {}
    for name, value in logs.items():
        group, mark, rest = name.partition("_")
        renamed[f"{group}/{rest}" if mark and group in ("eval", "test") else f"train/{name}"] = value
    return renamed
