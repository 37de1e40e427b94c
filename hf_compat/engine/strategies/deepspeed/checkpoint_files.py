"""DeepSpeed's files: putting off that they are written, and checks before they are loaded.

DeepSpeed's own loading would run any code in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hf_compat.checkpoint.background import CheckpointFileWriter
from hf_compat.checkpoint.unpickle import load_trusted
from hf_compat.checkpoint.zero_partitions import LATEST_NAME, engine_folder
from hf_compat.distributed import collectives
from hf_compat.distributed.launch import Launch
from hf_compat.errors import CheckpointError

__all__ = ["check_files", "load_states", "raise_together", "writing_through"]

_T = TypeVar("_T")


class _CheckpointEngine:
    """DeepSpeed's checkpoint engine, whose files are written from a snapshot when ``file_writer`` does."""

    def __init__(self, engine: Any, file_writer: CheckpointFileWriter) -> None:
        self._engine = engine
        self._file_writer = file_writer

    def save(self, state_dict: Any, path: str) -> None:
        self._file_writer(self._engine.save, self._file_writer.snapshot(state_dict), path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


@contextmanager
def writing_through(engine: Any, file_writer: CheckpointFileWriter) -> Iterator[None]:
    """Context in which the ``DeepSpeedEngine`` ``engine`` writes the files of a checkpoint through ``file_writer``."""
    before = engine.checkpoint_engine
    engine.checkpoint_engine = _CheckpointEngine(before, file_writer)
    try:
        yield
    finally:
        engine.checkpoint_engine = before


def check_files(checkpoint: str, *, launch: Launch, universal: bool, tensor: int = 1) -> int | None:
    """Check that DeepSpeed may load ``checkpoint``, and return the world size that wrote it; every rank calls it.

    On each node, one rank loads each file, allowing only tensors and plain values.

    Args:
        checkpoint: The checkpoint folder.
        launch: Rank and world size.
        universal: Whether it is a universal checkpoint, for any world size.
        tensor: Number of ranks that share each matrix.

    Returns:
        The world size if the files depend on it, as under ZeRO; else None.

    Raises:
        CheckpointError: On every rank, if files are missing or contain code, or other ranks shared each matrix.
    """
    found = raise_together(lambda: _check(checkpoint, launch, universal, tensor))
    known = [each for each in collectives.gather_objects([found]) if each is not None]  # a node may lack the file
    return known[0] if known else None


def _check(checkpoint: str, launch: Launch, universal: bool, tensor: int) -> int | None:
    folder = _states_folder(checkpoint, universal)
    files = sorted(folder.rglob("*.pt"))
    if not files:
        raise CheckpointError(f"`{folder}` contains no files of DeepSpeed.")
    for path in files[launch.local_rank :: launch.local_world_size]:
        load_states(path)
    models = sorted(folder.glob("*_model_states.pt"))
    if universal or not models:
        return None
    model = load_states(models[0], mmap=True)
    if isinstance(model, dict):
        _check_sizes(checkpoint, model, launch.world_size // tensor, tensor)
    return model.get("dp_world_size") if isinstance(model, dict) and model.get("param_shapes") else None


def _check_sizes(checkpoint: str, model: dict[str, Any], data: int, tensor: int) -> None:
    """Raise if the ranks that saved ``model`` shared matrices otherwise than ``data`` times ``tensor`` ranks do."""
    depends_on_data = model.get("param_shapes")  # under ZeRO
    written = (model.get("dp_world_size", data) if depends_on_data else data, model.get("mp_world_size") or 1)
    if max(written[1], tensor) > 1 and written != (data, tensor):
        raise CheckpointError(
            f"`{checkpoint}` was written by {written[0] * written[1]} processes with "
            f"`tensor_parallel.autotp_size={written[1]}` in the DeepSpeed config, but this run has {data * tensor} "
            f"with {tensor}, for which DeepSpeed cannot join the parts. Use the same numbers, or start anew from the "
            "whole weights that a run saves with `zero_optimization.stage3_gather_16bit_weights_on_model_save=true`."
        )


def raise_together(read: Callable[[], _T]) -> _T:
    """Return what ``read`` returns; every rank calls it.

    Raises:
        CheckpointError: On every rank, if ``read`` raises it on one.
    """
    found: Any = None
    problem: str | None = None
    try:
        found = read()
    except CheckpointError as error:
        problem = str(error)
    problems = [text for text in collectives.gather_objects([problem]) if text is not None]
    if problems:
        raise CheckpointError(problems[0])
    return found  # type: ignore[no-any-return]


def load_states(path: Path, *, mmap: bool = False) -> Any:
    """Return the content of one of DeepSpeed's files; ``mmap`` maps it into memory.

    Raises:
        CheckpointError: If it cannot be read, or contains code, which is not run.
    """
    return load_trusted(path, mmap=mmap, allowed=list(_value_classes()))


def _states_folder(checkpoint: str, universal: bool) -> Path:
    name = f"{LATEST_NAME}_universal" if universal else LATEST_NAME
    folder = engine_folder(Path(checkpoint), name)
    if folder is None:
        remedy = (
            " Convert the checkpoint with DeepSpeed's `ds_to_universal.py`, or remove `checkpoint.load_universal` from "
            "the config."
        )
        raise CheckpointError(
            f"Can't find a valid checkpoint at `{checkpoint}`: DeepSpeed's `{name}` is missing."
            f"{remedy if universal else ''}"
        )
    return folder


def _value_classes() -> Iterator[Any]:
    """Yield the classes in DeepSpeed's files that are safe: creating them runs no code."""
    from deepspeed.runtime.fp16 import loss_scaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    yield from (loss_scaler.LossScaler, loss_scaler.DynamicLossScaler, ZeroStageEnum, fragment_address)
