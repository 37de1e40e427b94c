"""The files of a DeepSpeed engine in a checkpoint folder, by kind and rank."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hf_compat.errors import CheckpointError

__all__ = ["LATEST_NAME", "StateFiles", "engine_folder", "state_files"]

LATEST_NAME = "latest"
"""The file with the name of the folder that contains DeepSpeed's files."""
_FILE = re.compile(r"(?:(?:bf16_|fp16_)?zero_pp_rank_([0-9]+)_)?mp_rank_([0-9]+)_(model|optim)_states\.pt")


@dataclass(frozen=True)
class StateFiles:
    """The files with the states of the model, and with those of the optimizer, by rank."""

    models: list[Path]
    optimizers: list[Path]


def engine_folder(folder: Path, latest: str = LATEST_NAME) -> Path | None:
    """Return the folder in ``folder`` with the files of DeepSpeed's last save in it, None if there is none.

    Args:
        folder: The checkpoint.
        latest: The file with the folder's name.

    Raises:
        CheckpointError: If the name is not that of a folder there.
    """
    path = folder / latest
    if not path.is_file():
        return None
    name = path.read_text(encoding="utf-8").strip()
    found = folder / name
    if not name or Path(name).name != name or not found.is_dir():
        raise CheckpointError(f"`{path}` contains `{name}`, which is not a folder next to it.")
    return found


def state_files(folder: Path) -> StateFiles:
    """Return the files in ``folder`` with the states of all ranks.

    Raises:
        CheckpointError: If files are missing, or contain parts of a model that is not whole on a rank.
    """
    found: dict[str, dict[int, Path]] = {"model": {}, "optim": {}}
    for path in folder.glob("*_states.pt"):
        match = _FILE.fullmatch(path.name)
        if match is None or int(match[2]) != 0:
            raise CheckpointError(
                f"`{path}` has a part of a model that is split over ranks (experts, a pipeline, tensor "
                "parallelism), which is not supported. Save the whole model in the run, and convert that."
            )
        found[match[3]][int(match[1] or 0)] = path
    for kind, files in found.items():
        missing = set(range(len(files))) - set(files)
        if missing or (kind == "model" and not files):
            raise CheckpointError(
                f"`{folder}` is incomplete: it has no `*_{kind}_states.pt` of rank {min(missing, default=0)}. Each "
                "node writes the files of its own ranks. Copy the files of all nodes into one folder."
            )
    models, optimizers = ([files[rank] for rank in sorted(files)] for files in found.values())
    return StateFiles(models, optimizers)
