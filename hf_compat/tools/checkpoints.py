"""Lists the checkpoints of a run, and verifies them."""

from __future__ import annotations

import json
import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PureWindowsPath
from typing import Any

from hf_compat.atomic_files import read_json_object
from hf_compat.checkpoint.completeness import (
    Marker,
    damage,
    differences,
    incomplete_reason,
    is_weight_file,
    marker_text,
    read_marker,
)
from hf_compat.checkpoint.finding import Checkpoint, checkpoint_at, list_checkpoints
from hf_compat.checkpoint.flushing import checksum
from hf_compat.checkpoint.names import LIGHTNING_MARKER_NAME, TRAINER_STATE_NAME
from hf_compat.errors import CheckpointError

# Numbers in JSON files, which may hold anything in their place.


_MOST = 2**63
"""Larger numbers of steps are those of no run."""


def number(value: object) -> float | None:
    """Return ``value`` if it is a number that a float can hold, which may be infinite or NaN; else None."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if isinstance(value, float) or abs(value) < _MOST else None


def whole_number(value: object) -> int | None:
    """Return ``value`` as an integer if it is a finite number of a possible size; else None."""
    found = number(value)
    return int(found) if found is not None and math.isfinite(found) and abs(found) < _MOST else None


_NO_CHECKSUMS = "It has no checksums: only sizes, headers and what torch's files say of themselves were checked."
_TORCH_SUFFIXES = frozenset({".bin", ".pt", ".pth"})
_HEADINGS = ("step", "epoch", "metric", "MB", "marks", "state")
_RIGHT_ALIGNED = 4
"""Number of columns, from the left, with numbers."""


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """One checkpoint folder in the list."""

    step: int
    """The update step in the folder's name."""
    path: Path
    epoch: float | None
    """Epochs done; None if ``trainer_state.json`` has no epoch."""
    metric: float | None
    """The best value so far of ``metric_for_best_model``; the last ``eval_loss`` if there is none."""
    size: int
    """Total size of the files, in bytes."""
    problems: tuple[str, ...]
    """Why it cannot be resumed from, what is damaged and what has changed since the save; empty if it is as saved."""
    is_best: bool = False
    """Whether the newest checkpoint names it as the run's best."""
    is_newest: bool = False
    """Whether ``resume_from_checkpoint=True`` resumes from it."""
    note: str = ""
    """What could not be verified, and why; empty if all was."""


def describe_checkpoints(folder: str | os.PathLike[str], *, verify: bool = False) -> list[CheckpointSummary]:
    """Return the checkpoints in ``folder``, or ``folder`` itself if it is one, by update step.

    Args:
        folder: The output folder of a run, or one of its checkpoints.
        verify: Whether to read every file and report all that differs from what was saved, by the checksums in
            ``lightning.json``; without them sizes, headers, the syntax of JSON files and torch's own checksums.

    Raises:
        CheckpointError: If it is no folder.
    """
    place = Path(folder)
    if not place.is_dir():
        what = "is no folder" if place.exists() else "does not exist"
        raise CheckpointError(f"`{place}` {what}; pass the output folder of a run or one of its checkpoints.")
    itself = checkpoint_at(place)
    checkpoints = list_checkpoints(place) if itself is None else [itself]
    described = [_describe(checkpoint, verify=verify) for checkpoint in checkpoints]
    resumable = [item for item in described if incomplete_reason(item.path) is None]
    if not resumable:
        return described
    newest = resumable[-1].path
    best = _state(newest).get("best_model_checkpoint")
    # Compare names only: the run's folder may have moved, and its path may be of either operating system.
    best_name = PureWindowsPath(best).name if isinstance(best, str) else None
    return [replace(item, is_best=item.path.name == best_name, is_newest=item.path == newest) for item in described]


def _describe(checkpoint: Checkpoint, *, verify: bool) -> CheckpointSummary:
    state = _state(checkpoint.path)
    reason = incomplete_reason(checkpoint.path)
    problems = [] if reason is None else [reason]
    try:
        marker = read_marker(checkpoint.path)
    except (CheckpointError, OSError):  # the reason
        marker = None
    try:
        problems += [] if marker is None else differences(checkpoint.path, marker)
    except OSError as error:
        problems.append(str(error))
    sums = {} if marker is None else marker.checksums
    if verify:
        problems += _find_damage(checkpoint.path, marker)
    return CheckpointSummary(
        step=checkpoint.step,
        path=checkpoint.path,
        epoch=number(state.get("epoch")),
        metric=_metric(state),
        size=sum(path.stat().st_size for path in _files(checkpoint.path)),
        problems=tuple(dict.fromkeys(problems)),
        note=_NO_CHECKSUMS if verify and not sums else "",
    )


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _state(folder: Path) -> dict[str, Any]:
    try:
        return read_json_object(folder / TRAINER_STATE_NAME)
    except (CheckpointError, FileNotFoundError):
        return {}


def _metric(state: dict[str, Any]) -> float | None:
    best = number(state.get("best_metric"))
    history = state.get("log_history")
    if best is not None or not isinstance(history, list):
        return best
    losses = (number(log.get("eval_loss")) for log in reversed(history) if isinstance(log, dict))
    return next((loss for loss in losses if loss is not None), None)


def _find_damage(folder: Path, marker: Marker | None) -> Iterator[str]:
    """Yield what is damaged in ``folder``, or differs from what was saved."""
    sums = {} if marker is None else marker.checksums
    if marker is not None and sums and not _is_as_written(folder / LIGHTNING_MARKER_NAME, marker):
        yield f"`{LIGHTNING_MARKER_NAME}` has changed since the save."
    intact = set()
    for path in _files(folder):
        name = path.relative_to(folder).as_posix()
        try:
            if name in sums and checksum(path) == sums[name]:
                intact.add(path)
                continue
            if name in sums:
                yield f"`{name}` has changed since the save: its checksum is another."
            elif sums and is_weight_file(name):
                yield f"`{name}` was added after the save."
            reason = _content_damage(path)
        except (EOFError, OSError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
            reason = str(error)
        if reason is not None:
            yield f"`{name}` is damaged: {reason}"
    try:
        yield from damage(folder, intact=intact)
    except (CheckpointError, OSError) as error:
        yield str(error)


def _is_as_written(path: Path, marker: Marker) -> bool:
    """Return whether ``path`` is the very file that was written for ``marker``, which contains its own checksum."""
    return path.read_bytes() == marker_text(marker).encode()


def _content_damage(path: Path) -> str | None:
    if path.suffix == ".json":
        json.loads(path.read_text(encoding="utf-8"))
    elif path.suffix in _TORCH_SUFFIXES and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
        return None if broken is None else f"the checksum of `{broken}` in it does not match."
    return None


def as_table(checkpoints: Sequence[CheckpointSummary]) -> str:
    """Return an aligned table of ``checkpoints``, one line each and one more for each additional problem."""
    rows = [_HEADINGS, *(row for item in checkpoints for row in _rows(item))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column < _RIGHT_ALIGNED else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def verdict(checkpoints: Sequence[CheckpointSummary]) -> str:
    """Return a line that says how many files are as saved, of verified checkpoints; empty if that is not known of all.

    It counts those with checksums and the file with these.
    """
    if not checkpoints or any(item.problems or item.note for item in checkpoints):
        return ""
    markers = [read_marker(item.path) for item in checkpoints]
    files = sum(1 + len(marker.checksums) for marker in markers if marker is not None)
    return f"verified: {files} {'file' if files == 1 else 'files'} as saved"


def _rows(item: CheckpointSummary) -> Iterator[tuple[str, ...]]:
    marks = ", ".join(name for name, holds in (("best", item.is_best), ("newest", item.is_newest)) if holds)
    epoch = "-" if item.epoch is None else f"{item.epoch:.2f}"
    metric = "-" if item.metric is None else f"{item.metric:.6g}"
    states = [*(item.problems or ["complete"]), *([item.note] if item.note else [])]
    first, *further = map(_printable, states)
    yield (str(item.step), epoch, metric, f"{item.size / 1e6:.2f}", marks, first)
    for problem in further:
        yield (*[""] * (len(_HEADINGS) - 1), problem)


def _printable(text: str) -> str:
    """Return ``text`` without control characters: names of files come from the checkpoint."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def as_json(checkpoints: Sequence[CheckpointSummary]) -> str:
    """Return ``checkpoints`` as a JSON list of objects with the fields of ``CheckpointSummary``, NaN as null."""
    return json.dumps(
        [{name: _json_value(value) for name, value in asdict(item).items()} for item in checkpoints], indent=2
    )


def _json_value(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
