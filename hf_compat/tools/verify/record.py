"""The record of a run, read back from its folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Moment", "Record", "Weights", "names_below", "read_record"]

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
