"""What is looked at before DeepSpeed reads its part of a checkpoint: it would run whatever code the files hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf_compat.checkpoint.unpickle import load_trusted
from hf_compat.distributed import collectives
from hf_compat.distributed.launch import Launch
from hf_compat.errors import CheckpointError

__all__ = ["LATEST_NAME", "check_files"]

LATEST_NAME = "latest"
"""The file that names the folder with DeepSpeed's files."""
_OPTIMIZER_FILES = "*_optim_states.pt"


def check_files(checkpoint: str, *, launch: Launch, universal: bool) -> None:
    """Make sure that DeepSpeed may read ``checkpoint``; every process has to call it.

    Each file is read with nothing but tensors and plain values allowed, by one process of each node.

    Args:
        checkpoint: The checkpoint folder.
        launch: Which rank this is of how many.
        universal: Whether it was converted for any number of processes.

    Raises:
        CheckpointError: On every rank, if files are missing, hold code, or are those of another number of processes.
    """
    problem: str | None = None
    try:
        _check(checkpoint, launch, universal)
    except CheckpointError as error:
        problem = str(error)
    told = [text for text in collectives.gather_objects([problem]) if text is not None]
    if told:
        raise CheckpointError(told[0])


def _check(checkpoint: str, launch: Launch, universal: bool) -> None:
    folder = _states_folder(checkpoint, universal)
    processes = len(list(folder.glob(_OPTIMIZER_FILES)))
    if processes not in (0, launch.world_size) and not universal:
        raise CheckpointError(
            f"`{checkpoint}` was written by {processes} processes under DeepSpeed, and this run has "
            f"{launch.world_size}: start it with {processes}, or convert the checkpoint with DeepSpeed's "
            "`ds_to_universal.py` and set "
            '`"checkpoint": {"load_universal": true}` in the config.'
        )
    files = sorted(folder.rglob("*.pt"))
    if not files:
        raise CheckpointError(f"`{folder}` holds no files of DeepSpeed's.")
    for path in files[launch.local_rank :: launch.local_world_size]:
        load_trusted(path, allowed=_allowed_classes())


def _states_folder(checkpoint: str, universal: bool) -> Path:
    latest = Path(checkpoint, f"{LATEST_NAME}_universal" if universal else LATEST_NAME)
    if not latest.is_file():
        raise CheckpointError(
            f"Can't find a valid checkpoint at `{checkpoint}`: DeepSpeed wrote none, as `{latest.name}` is missing."
        )
    name = latest.read_text(encoding="utf-8").strip()
    folder = Path(checkpoint, name)
    if not name or Path(name).name != name or not folder.is_dir():
        raise CheckpointError(f"`{latest}` names `{name}`, which is no folder beside it.")
    return folder


def _allowed_classes() -> list[Any]:
    """Return the classes in DeepSpeed's files that hold values and do nothing when they are made."""
    return list(_value_classes())


def _value_classes() -> Iterator[Any]:
    from deepspeed.runtime.fp16 import loss_scaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    yield from (loss_scaler.LossScaler, loss_scaler.DynamicLossScaler, ZeroStageEnum, fragment_address)
