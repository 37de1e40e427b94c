"""Compares two records, and the weights in them: what is equal, what differs, and since when."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hf_compat.tools.plot.history import measures_speed

if TYPE_CHECKING:
    from torch import Tensor

# The record of a run, read back from its folder.


_UNEQUAL_NAMES = ("events.out.tfevents.",)

Moment = tuple[int, int]
"""A ``train`` call of the script, from 1, and an update step in it."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights at one moment."""

    digests: Mapping[str, str]
    """Parameter to checksum, in the model's order."""
    file: Path | None
    """The weights themselves, if they were kept."""


@dataclass(frozen=True, slots=True)
class Record:
    """One run of a script."""

    library: str | None
    """Whose Trainer it was; None if none was built."""
    facts: Mapping[str, Any]
    """Of the first Trainer: class, precision, environment, arguments."""
    steps: tuple[Moment, ...]
    quantities: Mapping[str, Mapping[Moment, float]]
    """Loss, gradient norm and learning rates, by name."""
    logs: Mapping[str, Mapping[Moment, float]]
    metrics: Mapping[str, Mapping[Moment, float]]
    weights: Mapping[tuple[Moment, str], Weights]
    """By moment, and ``"step"`` or ``"end"`` of a ``train`` call."""
    events: tuple[tuple[str, int], ...]
    """Name and update step."""
    files: tuple[str, ...]
    """Names below the output folders, and of what is new in the copy of the working directory."""
    seconds: float
    """Of all update steps, without what is recorded in between."""
    memory: Mapping[str, int]
    """Most memory that rank 0 had, in bytes, by ``"cpu"`` and ``"gpu"``."""


def read_record(folder: Path) -> Record:
    """Return the record of a run in ``folder``."""
    lines = {path: _lines(path) for path in sorted(folder.glob("rank-*.jsonl"))}
    first = lines.get(folder / "rank-0.jsonl", [])
    quantities: dict[str, dict[Moment, float]] = {}
    for path, told in lines.items():
        rank = path.stem.removeprefix("rank-")
        for moment, name, value in _quantities(told):
            of_rank = name if rank == "0" else f"{name} of rank {rank}"
            quantities.setdefault(of_rank, {})[moment] = value
    facts: Mapping[str, Any] = next(_of_kind(first, "trainer"), {})
    return Record(
        library=facts.get("library"),
        facts=facts,
        steps=tuple(_moment(line) for line in _of_kind(first, "step")),
        quantities=quantities,
        logs=_values(first, "log"),
        metrics=_values(first, "metrics"),
        weights={
            (_moment(line), line["at"]): Weights(line["digests"], folder / line["file"] if line["file"] else None)
            for line in _of_kind(first, "weights")
        },
        events=tuple((line["name"], line["step"]) for line in _of_kind(first, "event")),
        files=_files(folder),
        seconds=sum(line["seconds"] for line in _of_kind(first, "step")),
        memory=next((line["memory"] for line in _of_kind(first, "end")), {}),
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _of_kind(lines: list[dict[str, Any]], kind: str) -> Iterator[dict[str, Any]]:
    return (line for line in lines if line["kind"] == kind)


def _moment(line: Mapping[str, Any]) -> Moment:
    return line["train"], line["step"]


def _quantities(lines: list[dict[str, Any]]) -> Iterator[tuple[Moment, str, float]]:
    for line in _of_kind(lines, "step"):
        rates = line["learning_rates"]
        named = {"loss": line["loss"], "gradient norm": line["gradient_norm"]}
        for index, rate in enumerate(rates):
            named["learning rate" if index == 0 else f"learning rate of group {index + 1}"] = rate
        yield from ((_moment(line), name, value) for name, value in named.items() if value is not None)


def _values(lines: list[dict[str, Any]], kind: str) -> dict[str, dict[Moment, float]]:
    found: dict[str, dict[Moment, float]] = {}
    for line in _of_kind(lines, kind):
        for name, value in line["values"].items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                found.setdefault(name, {})[_moment(line)] = float(value)
    return found


def _files(folder: Path) -> tuple[str, ...]:
    task = folder / "task.json"
    before = set(json.loads(task.read_text(encoding="utf-8"))["copied"]) if task.exists() else set()
    new = {name for name in names_below(folder / "working_directory") if name not in before}
    return tuple(sorted({*names_below(folder / "outputs"), *new}))


def names_below(folder: Path) -> Iterator[str]:
    """Yield the names of all files in a folder and its folders, but those that have the time in their names."""
    for path in folder.rglob("*") if folder.is_dir() else ():
        if path.is_file() and not path.name.startswith(_UNEQUAL_NAMES):
            yield path.relative_to(folder).as_posix()


TOLERANCES: Mapping[str, float] = {"fp64": 1e-9, "fp32": 1e-5, "tf32": 1e-3, "fp16": 5e-3, "bf16": 2e-2}
"""Precision to the largest relative difference that counts as equal."""
_OF_RATES = 1e-9
"""The same for learning rates, which are computed in double precision whatever the model's precision is."""
_SMALLEST = 1e-8
"""Magnitude below which numbers are compared as if they were as large as this."""

Verdict = Literal["equal", "within tolerance", "different", "for information"]

MOST_NAMED = 3
"""Parameters that a message names."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    upstream: str
    ours: str
    verdict: Verdict
    difference: float | None = None
    """Largest relative difference."""
    tolerance: float | None = None
    first: Moment | None = None
    """Where it first differs, at all if within the tolerance, else by more than that."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs side by side."""

    rows: tuple[Row, ...]
    tolerance: float
    weights: WeightsDifference
    curves: Mapping[str, Mapping[Moment, float]] = field(default_factory=dict)
    """Relative difference of each quantity at each moment."""

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs by more than its tolerance."""
        return all(row.verdict != "different" for row in self.rows)

    @property
    def is_identical(self) -> bool:
        """Whether nothing differs at all."""
        return all(row.verdict in ("equal", "for information") for row in self.rows)

    @property
    def first(self) -> Row | None:
        """Return what differs first by more than its tolerance; None if nothing does."""
        rows = [row for row in self.rows if row.verdict == "different"]
        return min(rows, key=lambda row: row.first or (math.inf, 0), default=None)


def compare(upstream: Record, ours: Record, tolerance: float) -> Comparison:
    """Return the comparison of two records.

    Args:
        upstream: The record to compare with.
        ours: The other one.
        tolerance: Largest relative difference of losses, norms, metrics and weights that counts as equal.
    """
    rows: list[Row] = []
    curves: dict[str, Mapping[Moment, float]] = {}
    for title, first, second in (
        ("", upstream.quantities, ours.quantities),
        ("logged ", upstream.logs, ours.logs),
        ("metric ", upstream.metrics, ours.metrics),
    ):
        for name in dict.fromkeys([*first, *second]):
            if not _is_compared(title, name, upstream):
                continue
            allowed = min(_OF_RATES, tolerance) if name.startswith("learning") else tolerance
            values = first.get(name, {}), second.get(name, {})
            rows.append(_row(title + name, *values, allowed))
            curves[title + name] = _differences(*values)
    weights = compare_weights(upstream, ours, tolerance)
    rows += [_weights(weights), _events(upstream, ours), _files_row(upstream, ours), *_costs(upstream, ours)]
    curves["weights"] = weights.by_moment
    return Comparison(tuple(rows), tolerance, weights, curves)


def _is_compared(title: str, name: str, upstream: Record) -> bool:
    """Return whether a row is made: not of speeds, and once only of metrics, which are logged too."""
    if measures_speed(name):
        return False
    return not (title == "logged " and name in upstream.metrics and name != "epoch") and title + name != "metric epoch"


def relative_difference(first: float | None, second: float | None) -> float:
    """Return the difference of two numbers relative to the larger one; infinity if only one is there or finite."""
    if first is None or second is None:
        return math.inf
    if first == second or (math.isnan(first) and math.isnan(second)):
        return 0.0
    if not (math.isfinite(first) and math.isfinite(second)):
        return math.inf
    return abs(first - second) / max(abs(first), abs(second), _SMALLEST)


def _differences(first: Mapping[Moment, float], second: Mapping[Moment, float]) -> dict[Moment, float]:
    moments = sorted({*first, *second})
    return {moment: relative_difference(first.get(moment), second.get(moment)) for moment in moments}


def _row(name: str, first: Mapping[Moment, float], second: Mapping[Moment, float], tolerance: float) -> Row:
    found = _differences(first, second)
    largest = max(found.values(), default=0.0)
    verdict: Verdict = "equal" if largest == 0 else "within tolerance" if largest <= tolerance else "different"
    limit = tolerance if verdict == "different" else 0.0
    since = next((moment for moment, difference in found.items() if difference > limit), None)
    shown = since or max(found, default=None)
    return Row(name, _text(first, shown), _text(second, shown), verdict, largest, tolerance, since)


def _text(values: Mapping[Moment, float], moment: Moment | None) -> str:
    value = None if moment is None else values.get(moment)
    return "-" if value is None else f"{value:.9g}"


def _weights(difference: WeightsDifference) -> Row:
    if difference.problem:
        return Row("weights", "-", "-", "different", first=difference.first, note=difference.problem)
    parameters = f"{difference.count} parameters"
    if difference.first is None:
        return Row("weights", parameters, parameters, "equal", 0.0, difference.tolerance)
    more = f" and {len(difference.differing) - MOST_NAMED} more" if len(difference.differing) > MOST_NAMED else ""
    note = (
        f"first after step {difference.first[1]} in module `{difference.module}` "
        f"({', '.join(difference.differing[:MOST_NAMED])}{more}); largest in `{difference.parameter}`: "
        f"{difference.absolute:.3g}"
    )
    is_different = difference.largest > difference.tolerance
    verdict: Verdict = "different" if is_different else "within tolerance"
    since = (difference.beyond or difference.first) if is_different else difference.first
    differing = f"{len(difference.differing)} of them differ"
    return Row("weights", parameters, differing, verdict, difference.largest, difference.tolerance, since, note)


def _events(upstream: Record, ours: Record) -> Row:
    pairs = list(zip_longest(upstream.events, ours.events))
    index = next((index for index, (first, second) in enumerate(pairs) if first != second), None)
    counts = f"{len(upstream.events)}", f"{len(ours.events)}"
    if index is None:
        return Row("events", *counts, "equal")
    first, second = (f"{pair[0]} at step {pair[1]}" if pair else "none" for pair in pairs[index])
    trains = sum(name == "on_train_begin" for name, _ in upstream.events[: index + 1])
    step = next(pair[1] for pair in pairs[index] if pair)
    return Row("events", first, second, "different", first=(trains, step), note=f"event {index + 1} differs first")


def _files_row(upstream: Record, ours: Record) -> Row:
    first, second = set(upstream.files), set(ours.files)
    # What hf_compat writes besides: see the page on checkpoints.
    added = {name for name in second - first if name.rpartition("/")[2] in _OWN_FILES}
    missing, more = sorted(first - second), sorted(second - first - added)
    notes = [f"only {whose}: {', '.join(names)}" for whose, names in (("upstream", missing), ("ours", more)) if names]
    notes += [f"hf_compat's own: {', '.join(sorted({name.rpartition('/')[2] for name in added}))}"] if added else []
    verdict: Verdict = "different" if missing or more else "equal"
    return Row("files", f"{len(first)}", f"{len(second)}", verdict, note="; ".join(notes))


_OWN_FILES = frozenset({"lightning.json", "lightning.pt"})


def _costs(upstream: Record, ours: Record) -> Iterator[Row]:
    first, second = (f"{run.seconds / max(1, len(run.steps)):.4g} s" for run in (upstream, ours))
    yield Row("time an update step", first, second, "for information")
    for kind in dict.fromkeys([*upstream.memory, *ours.memory]):
        first, second = (f"{run.memory[kind] / 1e6:,.0f} MB" if kind in run.memory else "-" for run in (upstream, ours))
        yield Row(f"peak memory ({kind.upper()})", first, second, "for information")


@dataclass(frozen=True, slots=True)
class WeightsDifference:
    """Differences between the weights of two runs."""

    largest: float
    """Largest difference of a weight, relative to the largest weight of its parameter."""
    absolute: float
    parameter: str | None
    """Where it is."""
    tolerance: float
    first: Moment | None = None
    """When a bit differs first."""
    module: str | None = None
    """Of the first parameter, in the model's order, that differs then."""
    differing: tuple[str, ...] = ()
    """All parameters that differ then."""
    count: int = 0
    """Parameters of the model."""
    problem: str = ""
    """Why the two cannot be compared; empty if they can."""
    beyond: Moment | None = None
    """When the tolerance is exceeded first, as far as weights were kept."""
    by_moment: Mapping[Moment, float] = field(default_factory=dict)
    """Largest relative difference, where the weights were kept."""


def compare_weights(upstream: Record, ours: Record, tolerance: float) -> WeightsDifference:
    """Return how the weights differ, from the beginning of training on."""
    missing = {*upstream.weights} ^ {*ours.weights}
    if missing:
        (moment, at), *_ = sorted(missing)
        return WeightsDifference(
            0.0, 0.0, None, tolerance, moment, problem=f"one run has no {at} of training at step {moment[1]}"
        )
    first: Moment | None = None
    beyond: Moment | None = None
    differing: tuple[str, ...] = ()
    largest, absolute, parameter = 0.0, 0.0, None
    by_moment: dict[Moment, float] = {}
    count = 0
    for key, (theirs, own) in ((key, (upstream.weights[key], ours.weights[key])) for key in sorted(upstream.weights)):
        count = max(count, len(theirs.digests))
        if [*theirs.digests] != [*own.digests]:
            return WeightsDifference(
                0.0, 0.0, None, tolerance, key[0], problem=_names_differ(theirs.digests, own.digests)
            )
        changed = tuple(name for name, digest in theirs.digests.items() if own.digests[name] != digest)
        if changed and first is None:
            first, differing = key[0], changed
        here = _largest(theirs, own, changed)
        if here is None:
            continue
        by_moment[key[0]] = max(by_moment.get(key[0], 0.0), here[0])
        if here[0] > tolerance and beyond is None:
            beyond = key[0]
        if here[0] > largest:
            largest, absolute, parameter = here
    module = differing[0].rpartition(".")[0] or "the model itself" if differing else None
    return WeightsDifference(
        largest, absolute, parameter, tolerance, first, module, differing, count, "", beyond, by_moment
    )


def _names_differ(first: Mapping[str, str], second: Mapping[str, str]) -> str:
    only = sorted({*first} ^ {*second})
    return f"other parameters, or in another order: {', '.join(only[:MOST_NAMED])}"


def _largest(theirs: Weights, ours: Weights, changed: tuple[str, ...]) -> tuple[float, float, str | None] | None:
    """Return the largest relative difference, the absolute one there, and the parameter; None without the weights."""
    if theirs.file is None or ours.file is None:
        return None
    found = [(*_difference(theirs.file, ours.file, name), name) for name in changed]
    return max(found, default=(0.0, 0.0, None))


def _difference(first: Path, second: Path, name: str) -> tuple[float, float]:
    from safetensors import safe_open

    with safe_open(first, "pt") as theirs, safe_open(second, "pt") as own:
        one, other = theirs.get_tensor(name).double(), own.get_tensor(name).double()
    return tensor_difference(one, other)


def tensor_difference(one: Tensor, other: Tensor) -> tuple[float, float]:
    """Return the largest difference relative to the largest value, and the absolute one.

    Both are infinite for tensors of other shapes, and if a value is NaN or infinite in one of them alone.
    """
    if one.shape != other.shape:
        return math.inf, math.inf
    differs = (one != other) & ~(one.isnan() & other.isnan())
    if not differs.any():
        return 0.0, 0.0
    if not (one[differs].isfinite() & other[differs].isfinite()).all():
        return math.inf, math.inf
    absolute = (one[differs] - other[differs]).abs().max().item()
    scale = max(tensor[tensor.isfinite()].abs().max().item() for tensor in (one, other))
    return absolute / scale, absolute
