"""DeepSpeed's files: putting off that they are written, and checks before they are loaded.

DeepSpeed's own loading would run any code in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hf_compat.checkpoint.background import Writes
from hf_compat.checkpoint.unpickle import load_trusted
from hf_compat.distributed import collectives
from hf_compat.distributed.launch import Launch
from hf_compat.errors import CheckpointError

__all__ = ["LATEST_NAME", "check_files", "writing_through"]

LATEST_NAME = "latest"
"""The file with the name of the folder that contains DeepSpeed's files."""
_OPTIMIZER_FILES = "*_optim_states.pt"


class _CheckpointEngine:
    """DeepSpeed's checkpoint engine, whose files are written from a snapshot when ``writes`` does."""

    def __init__(self, engine: Any, writes: Writes) -> None:
        self._engine = engine
        self._writes = writes

    def save(self, state_dict: Any, path: str) -> None:
        self._writes(self._engine.save, self._writes.snapshot(state_dict), path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


@contextmanager
def writing_through(engine: Any, writes: Writes) -> Iterator[None]:
    """Context in which the ``DeepSpeedEngine`` ``engine`` writes the files of a checkpoint through ``writes``."""
    before = engine.checkpoint_engine
    engine.checkpoint_engine = _CheckpointEngine(before, writes)
    try:
        yield
    finally:
        engine.checkpoint_engine = before


def check_files(checkpoint: str, *, launch: Launch, universal: bool) -> None:
    """Check that DeepSpeed may load ``checkpoint``; every rank has to call it.

    On each node, one rank loads each file, allowing only tensors and plain values.

    Args:
        checkpoint: The checkpoint folder.
        launch: Rank and world size.
        universal: Whether it is a universal checkpoint, for any world size.

    Raises:
        CheckpointError: On every rank, if files are missing, contain code, or were written with another world size.
    """
    problem: str | None = None
    try:
        _check(checkpoint, launch, universal)
    except CheckpointError as error:
        problem = str(error)
    problems = [text for text in collectives.gather_objects([problem]) if text is not None]
    if problems:
        raise CheckpointError(problems[0])


def _check(checkpoint: str, launch: Launch, universal: bool) -> None:
    folder = _states_folder(checkpoint, universal)
    world_size = len(list(folder.glob(_OPTIMIZER_FILES)))
    if world_size not in (0, launch.world_size) and not universal:
        raise CheckpointError(
            f"`{checkpoint}` was written by DeepSpeed with world size {world_size}, but this run has world size "
            f"{launch.world_size}. Start {world_size} processes, or convert the checkpoint with DeepSpeed's "
            '`ds_to_universal.py` and set `"checkpoint": {"load_universal": true}` in the config.'
        )
    files = sorted(folder.rglob("*.pt"))
    if not files:
        raise CheckpointError(f"`{folder}` contains no files of DeepSpeed.")
    for path in files[launch.local_rank :: launch.local_world_size]:
        load_trusted(path, allowed=_allowed_classes())


def _states_folder(checkpoint: str, universal: bool) -> Path:
    latest = Path(checkpoint, f"{LATEST_NAME}_universal" if universal else LATEST_NAME)
    if not latest.is_file():
        remedy = (
            " Convert the checkpoint with DeepSpeed's `ds_to_universal.py`, or remove `checkpoint.load_universal` from "
            "the config."
        )
        raise CheckpointError(
            f"Can't find a valid checkpoint at `{checkpoint}`: DeepSpeed's `{latest.name}` is missing."
            f"{remedy if universal else ''}"
        )
    name = latest.read_text(encoding="utf-8").strip()
    folder = Path(checkpoint, name)
    if not name or Path(name).name != name or not folder.is_dir():
        raise CheckpointError(f"`{latest}` contains `{name}`, which is not a folder next to it.")
    return folder


def _allowed_classes() -> list[Any]:
    """Return the classes in DeepSpeed's files that are safe: creating them runs no code."""
    return list(_value_classes())


def _value_classes() -> Iterator[Any]:
    from deepspeed.runtime.fp16 import loss_scaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    yield from (loss_scaler.LossScaler, loss_scaler.DynamicLossScaler, ZeroStageEnum, fragment_address)
