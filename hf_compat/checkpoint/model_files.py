"""The files of a checkpoint that hold the model, and copying them into the output folder while training continues."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from hf_compat.checkpoint import names

__all__ = ["copy_model_files", "model_files"]

_CONFIGURATIONS = ("config.json", "generation_config.json", "adapter_config.json")
_INDICES = (names.WEIGHTS_INDEX_NAME, names.SAFE_WEIGHTS_INDEX_NAME)
_WEIGHTS = (
    names.WEIGHTS_NAME,
    names.SAFE_WEIGHTS_NAME,
    names.ADAPTER_WEIGHTS_NAME,
    names.ADAPTER_SAFE_WEIGHTS_NAME,
)


def model_files(checkpoint: Path) -> list[Path]:
    """Return the configurations and weights of a checkpoint, the shards that an index names included."""
    wanted = [*_CONFIGURATIONS, *_WEIGHTS, *_INDICES]
    for index in _INDICES:
        if (checkpoint / index).is_file():
            shards = json.loads((checkpoint / index).read_text(encoding="utf-8"))["weight_map"].values()
            wanted += sorted(set(shards))
    return [checkpoint / name for name in wanted if (checkpoint / name).is_file()]


def copy_model_files(files: list[Path], folder: Path) -> None:
    """Copy ``files`` into ``folder``; a reader sees the old file of a name or the new one, never a part."""
    folder.mkdir(parents=True, exist_ok=True)
    for source in files:
        partial = folder / f"_{source.name}.partial"  # no push takes names that begin so
        try:
            shutil.copyfile(source, partial)
            os.replace(partial, folder / source.name)
        finally:
            partial.unlink(missing_ok=True)
