"""Reading ``trainer_state.json``: the logged curves of a run, the best step, where it was resumed."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path, PureWindowsPath
from typing import Any

from hf_compat.atomic_files import read_json_object
from hf_compat.checkpoint.finding import checkpoint_at, list_checkpoints
from hf_compat.checkpoint.names import TRAINER_STATE_NAME
from hf_compat.errors import CheckpointError
from hf_compat.tools.checkpoints import number, whole_number

# Grouping of curves into panels: a panel for the losses, and one for each metric, in training and evaluation.


_EVALUATION = re.compile(r"(eval|test|predict)_")
_TITLES = {"loss": "Loss", "learning_rate": "Learning rate", "grad_norm": "Gradient norm"}
_LAST = ("learning_rate", "grad_norm")
_OF_SPEED = ("_runtime", "_per_second", "_preparation_time", "_compilation_time")


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over one axis."""

    title: str
    names: tuple[str, ...]
    """Their names in the logs."""


def is_evaluation(name: str) -> bool:
    """Return whether a name in the logs is that of an evaluation."""
    return _EVALUATION.match(name) is not None


def measures_speed(name: str) -> bool:
    """Return whether a name in the logs is of time or memory: what it measures is the machine, not the model."""
    return name.endswith(_OF_SPEED) or "_mem_" in name


def panels_of(names: Iterable[str]) -> Sequence[Panel]:
    """Return the panels for curves of these names: losses, metrics, learning rate and gradient norm, all others."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_measured(name), []).append(name)
    order = sorted(groups, key=lambda measured: _place(measured, groups[measured]))
    return [Panel(_TITLES.get(measured, measured), tuple(groups[measured])) for measured in order]


def _measured(name: str) -> str:
    """Return what is measured, in training and in evaluation alike: ``accuracy`` for ``eval_accuracy``."""
    if not is_evaluation(name):
        return name
    return "loss" if name.endswith("_loss") else name.partition("_")[2]


def _place(measured: str, names: Sequence[str]) -> int:
    if measured == "loss":
        return 0
    if measured in _LAST:
        return 2 + _LAST.index(measured)
    return 1 if any(map(is_evaluation, names)) else 4


_NOT_CURVES = frozenset({"epoch", "step", "total_flos", "num_input_tokens_seen"})
"""Names in a log that count, and measure nothing."""
_SUMMARY = "train_runtime"
"""In the log with which a run ends, whose other values are of the whole run."""

_ROUNDING = 6e-5
"""Largest error of a logged loss: older releases round to four digits."""


@dataclass(frozen=True, slots=True)
class Series:
    """The values of one name in the logs, by update step."""

    steps: tuple[int, ...]
    values: tuple[float, ...]
    """As logged; may be infinite or NaN."""


@dataclass(frozen=True, slots=True)
class Best:
    """The best evaluation of a run."""

    step: int
    metric: str | None
    """Its name in the logs; None if no log of that step has the value."""
    value: float | None


@dataclass(frozen=True, slots=True)
class History:
    """The logs of one run."""

    name: str
    file: Path
    last_step: int
    """Update steps done."""
    series: Mapping[str, Series]
    """By name in the logs, in the order of first appearance."""
    best: Best | None
    resumed: tuple[int, ...]
    """Update steps from which it was resumed, as far as its logs tell."""


def read_histories(places: Sequence[str | os.PathLike[str]]) -> list[History]:
    """Return the logs of several runs, with different names.

    Raises:
        CheckpointError: If one of them cannot be read or has no logs.
    """
    files = [_state_file(Path(place)) for place in places]
    return [_history(file, name) for file, name in zip(files, _names_of(files), strict=True)]


def read_history(place: str | os.PathLike[str]) -> History:
    """Return the logs of a run.

    Args:
        place: The run's folder, a checkpoint, or a ``trainer_state.json``. Of a run's folder the file with the most
            update steps is read: its own, or that of the newest checkpoint.

    Raises:
        CheckpointError: If there is none, it cannot be read, or it has no logs.
    """
    return read_histories([place])[0]


def _state_file(place: Path) -> Path:
    if place.is_file():
        return place
    if not place.is_dir():
        raise CheckpointError(f"`{place}` does not exist; pass the folder of a run, a checkpoint or its state file.")
    folders = [place]
    if checkpoint_at(place) is None:
        folders += [checkpoint.path for checkpoint in reversed(list_checkpoints(place))]
    found = [folder / TRAINER_STATE_NAME for folder in folders if (folder / TRAINER_STATE_NAME).is_file()]
    if not found:
        raise CheckpointError(
            f"`{place}` has no `{TRAINER_STATE_NAME}`, nor has a checkpoint in it; pass the folder of a run that has "
            "saved a checkpoint, or called `trainer.save_state()`."
        )
    # The newest checkpoint only: the older ones have fewer steps, and may be many.
    return max(found[:2], key=lambda file: _steps_done(read_json_object(file)))


def _names_of(files: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the files' folders that differ; numbered where the same file is given twice."""
    paths = [(file.parent if file.name == TRAINER_STATE_NAME else file).resolve() for file in files]
    least = [2 if checkpoint_at(path) is not None else 1 for path in paths]
    for more in range(max(len(path.parts) for path in paths)):
        names = ["/".join(path.parts[-parts - more :]) for path, parts in zip(paths, least, strict=True)]
        if len(set(names)) == len(set(paths)):
            break
    return [name if names.count(name) == 1 else f"{name} ({index})" for index, name in enumerate(names, 1)]


def _history(file: Path, name: str) -> History:
    state = read_json_object(file)
    logs = state.get("log_history")
    if not isinstance(logs, list) or not all(isinstance(log, dict) for log in logs):
        raise CheckpointError(f"`{file}` is not a trainer state: it has no `log_history` list.")
    logs = [_without_impossible(log) for log in logs]
    series = _series(logs)
    if not series:
        raise CheckpointError(
            f"`{file}` has no logs to draw: `log_history` has {len(logs)} entries, none with a loss or a metric. "
            "Set `logging_steps` below the number of update steps."
        )
    steps = resumed_steps(logs, _steps_done(state))
    return History(name, file, _steps_done(state), series, _best(state, series), tuple(steps))


def _steps_done(state: Mapping[str, Any]) -> int:
    return whole_number(state.get("global_step")) or 0


def _without_impossible(log: Mapping[str, Any]) -> dict[str, Any]:
    """Return a log without whole numbers that are too large for any run."""
    return {name: value for name, value in log.items() if not isinstance(value, int) or number(value) is not None}


def _series(logs: Iterable[Mapping[str, Any]]) -> dict[str, Series]:
    found: dict[str, dict[int, float]] = {}
    for log in logs:
        step = whole_number(log.get("step"))
        if step is None:
            continue
        for name, value in _curves_in(log):
            found.setdefault(name, {})[step] = value
    return {name: _sorted(points) for name, points in found.items()}


def _sorted(points: Mapping[int, float]) -> Series:
    steps = sorted(points)
    return Series(tuple(steps), tuple(points[step] for step in steps))


def _curves_in(log: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    is_summary = _SUMMARY in log
    for name, value in log.items():
        measured = number(value)
        if measured is None or name in _NOT_CURVES or measures_speed(name):
            continue
        if not (is_summary and name.startswith("train_")):
            yield name, float(measured)


def _best(state: Mapping[str, Any], series: Mapping[str, Series]) -> Best | None:
    value = number(state.get("best_metric"))
    step = whole_number(state.get("best_global_step"))
    if step is None:  # not in files of releases before 4.52
        folder = state.get("best_model_checkpoint")
        tail = PureWindowsPath(folder).name.rpartition("-")[2] if isinstance(folder, str) else ""
        step = whole_number(int(tail)) if tail.isdecimal() and len(tail) < 20 else None
    if step is None:
        return None
    values = {name: dict(zip(item.steps, item.values, strict=True)).get(step) for name, item in series.items()}
    equal = [name for name, found in values.items() if found is not None and found == value]
    metric = next(iter(sorted(equal, key=lambda name: not is_evaluation(name))), None)
    return Best(step, metric, value)


def resumed_steps(logs: Sequence[Mapping[str, Any]], last_step: int) -> Iterator[int]:
    """Yield the update steps from which a run was resumed, as far as its logs show.

    A run that ends logs ``train_loss``: the losses since it was started or resumed, added up and divided by the update
    steps since then; in older releases by all update steps. The steps at the end of the history whose losses make up
    that number are those since then. An end that is followed by further logs was resumed from at the latest there. An
    interrupted run that never ended shows nothing.

    Args:
        logs: The ``log_history``.
        last_step: Update steps done.
    """
    losses: list[tuple[int, float]] = []
    begun = 0
    for index, log in enumerate(logs):
        step, loss, summary = log.get("step"), log.get("loss"), log.get("train_loss")
        if isinstance(step, int) and isinstance(loss, int | float):
            losses.append((step, float(loss)))
        if not (isinstance(step, int) and isinstance(summary, int | float)):
            continue
        start = _start(losses, step, float(summary))
        if start is not None and begun < start < step:
            yield start
        if index + 1 < len(logs) and step < last_step and "loss" in logs[index + 1]:
            yield step
            begun = step


def _start(losses: Sequence[tuple[int, float]], last_step: int, mean: float) -> int | None:
    """Return the update step since which the losses make up ``mean``; None if they do not show it."""
    if not losses or losses[-1][0] != last_step:  # steps after the last log are in the mean, but not in the logs
        return None
    parts = _parts(losses)
    if not all(math.isfinite(loss) and loss > 0 and steps > 0 for steps, loss in parts):
        return None
    sums = list(accumulate(steps * loss for steps, loss in reversed(parts)))
    counts = list(accumulate(steps for steps, _ in reversed(parts)))
    if abs(sums[-1] - mean * last_step) <= _ROUNDING * last_step:
        return 0
    # In newer releases the mean is of the steps since then. A resumed run's checkpoint is mostly at a log.
    since = [last_step - count for total, count in zip(sums, counts, strict=True) if _equal(total / count, mean)]
    return since[0] if len(since) == 1 else _start_of_sum(parts, last_step, mean * last_step)


def _parts(losses: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the number of steps and the mean loss of each log."""
    before = [0, *(step for step, _ in losses[:-1])]
    return [(step - previous, loss) for (step, loss), previous in zip(losses, before, strict=True)]


def _equal(mean: float, summary: float) -> bool:
    return abs(mean - summary) <= _ROUNDING


def _start_of_sum(parts: Sequence[tuple[int, float]], last_step: int, total: float) -> int | None:
    """Return the update step since which the losses add up to ``total``, as in older releases."""
    rest, doubt, step = total, 0.0, last_step
    for steps, loss in reversed(parts):
        doubt += _ROUNDING * steps
        if rest - loss * steps <= doubt:
            return _whole(step - rest / loss, doubt / loss)
        rest -= loss * steps
        step -= steps
    return None


def _whole(step: float, doubt: float) -> int | None:
    """Return the whole step that ``step`` is known to be; None if it may be several, or none."""
    if not doubt < 0.5:
        return None
    nearest = round(step)
    return nearest if abs(step - nearest) <= doubt + 1e-3 else None
