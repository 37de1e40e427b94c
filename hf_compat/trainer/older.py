"""What only transformers 4 had, for subclasses and scripts that call it; no run does."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hf_compat.checkpoint.layout import list_checkpoints
from hf_compat.checkpoint.names import PREFIX_CHECKPOINT_DIR
from hf_compat.checkpoint.rotation import by_age

__all__ = ["count_tokens", "sorted_checkpoints"]


def count_tokens(loader: Iterable[Mapping[str, Any]], max_steps: int | None) -> int:
    """Return the tokens in ``input_ids`` of one pass over ``loader``.

    Args:
        loader: One whose batches have no ``input_ids`` counts as 0.
        max_steps: Count this many batches as large as the first instead.
    """
    total = 0
    for batch in loader:
        if "input_ids" not in batch:
            return total
        tokens = int(batch["input_ids"].numel())
        if max_steps is not None:
            return tokens * max_steps
        total += tokens
    return total


def sorted_checkpoints(
    folder: str | os.PathLike[str], best: str | None, *, checkpoint_prefix: str, use_mtime: bool
) -> list[str]:
    """Return the checkpoint folders in ``folder``, oldest first, the best one next to last.

    Args:
        folder: Where the checkpoints are.
        best: The best checkpoint, None if there is none.
        checkpoint_prefix: What their names start with: ``"checkpoint"``, as all that a Trainer writes.
        use_mtime: Go by the time of the last change instead of the update step.

    Raises:
        ValueError: If ``checkpoint_prefix`` is another.
    """
    if checkpoint_prefix != PREFIX_CHECKPOINT_DIR:
        raise ValueError(f"`checkpoint_prefix={checkpoint_prefix!r}`: use {PREFIX_CHECKPOINT_DIR!r}.")
    found = list_checkpoints(folder)
    paths = by_age(found) if use_mtime else [item.path for item in found]
    if best is not None and Path(best) in paths[:-1]:
        paths.remove(Path(best))
        paths.insert(len(paths) - 1, Path(best))
    return [str(path) for path in paths]
