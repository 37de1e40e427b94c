"""``CheckpointReader``: the checkpoint that a run resumes from, each of whose files is read once."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hf_compat.checkpoint import names, rng
from hf_compat.checkpoint.unpickle import load_trusted
from hf_compat.errors import CheckpointError
from hf_compat.state import TrainerState

__all__ = ["CheckpointReader"]

_T = TypeVar("_T")

_MISFITS: dict[str, str] = {
    "callbacks": (
        "`{path}` does not fit this run's Lightning callbacks: {reason}. Resume with the callbacks that the checkpoint "
        "was written with."
    ),
}
"""An entry of ``lightning.pt`` → the message if it cannot be read; by default that the file is damaged."""


class CheckpointReader:
    """A checkpoint folder to resume from.

    Weights and the optimizer's state are read by the strategy, which knows how they are sharded.

    Args:
        folder: The checkpoint. Missing files are not resumed.

    Attributes:
        path: The folder as it was given.
        folder: The folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = os.fspath(folder)
        self.folder = Path(folder)
        self._state: TrainerState | None = None
        self._lightning: dict[str, Any] | None = None

    def trainer_state(self) -> TrainerState:
        """Return the content of ``trainer_state.json``, a new object each time.

        Raises:
            CheckpointError: If the file is not a trainer state.
            FileNotFoundError: If there is no such file.
        """
        if self._state is None:
            self._state = TrainerState.load_from_json(self.folder / names.TRAINER_STATE_NAME)
        return copy.deepcopy(self._state)

    def lightning(self, name: str, read: Callable[[Any], _T]) -> _T | None:
        """Return the entry ``name`` of ``lightning.pt``, converted by ``read``.

        Args:
            name: ``"callbacks"``, ``"position"``, ``"stream"``, ...
            read: Called with the entry, which is cached, so it must not change it.

        Returns:
            The result of ``read``; None without such a file or entry.

        Raises:
            CheckpointError: If the file cannot be read or is damaged, or the entry does not fit this run.
        """
        content = self.lightning_state()
        if name not in content:
            return None
        try:
            return read(content[name])
        except CheckpointError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            path, reason = self.folder / names.LIGHTNING_STATE_NAME, error or type(error).__name__
            message = _MISFITS.get(name, "`{path}` is damaged: {reason}")
            raise CheckpointError.also(type(error))(message.format(path=path, reason=reason)) from error

    def lightning_state(self) -> dict[str, Any]:
        """Return the content of ``lightning.pt``, empty if there is no such file.

        Raises:
            CheckpointError: If it cannot be read, or is not a dict.
        """
        if self._lightning is None:
            content = self.read(names.LIGHTNING_STATE_NAME)
            if content is not None and not isinstance(content, dict):
                path = self.folder / names.LIGHTNING_STATE_NAME
                raise CheckpointError(f"`{path}` is damaged: it contains a {type(content).__name__}, not a dict.")
            self._lightning = content or {}
        return dict(self._lightning)

    def read(self, file_name: str) -> Any:
        """Return the content of a ``torch.save`` file, None if it does not exist; it is not cached.

        Raises:
            CheckpointError: If it cannot be read, or contains code.
        """
        path = self.folder / file_name
        return load_trusted(path) if path.is_file() else None

    def restore_rng(self, rank: int, world_size: int) -> bool:
        """Restore the random states of ``rank``; return whether there are any.

        Raises:
            CheckpointError: If the file cannot be read or contains something else.
        """
        return rng.load_rng_state(self.folder, rank=rank, world_size=world_size)

    def drop_caches(self) -> None:
        """Free the cached content; later calls read the files again."""
        self._state = self._lightning = None
