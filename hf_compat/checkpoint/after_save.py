"""Taking over what callbacks and overrides change in a checkpoint after it was published."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hf_compat.checkpoint.completeness import Marker, file_sizes, marker_text, read_marker
from hf_compat.checkpoint.names import LIGHTNING_MARKER_NAME
from hf_compat.checkpoint.publish import flush_file
from hf_compat.errors import CheckpointError

__all__ = ["Published"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint as this process published it."""

    folder: Path
    marker: Marker
    foreign: frozenset[str]
    """Names in the folder that the marker does not list: they were there before the save, and are not the run's."""

    @classmethod
    def look_at(cls, folder: Path) -> Published | None:
        """Return the checkpoint ``folder``, which was published just now; None if that cannot be read."""
        try:
            marker = read_marker(folder)
            found = file_sizes(folder)
        except (CheckpointError, OSError):
            return None
        return None if marker is None else cls(folder, marker, _first_names(found) - _first_names(marker.files))

    def accept_changes(self) -> None:
        """Make the files that are in the folder now those of the checkpoint.

        What was written since is flushed before the new marker replaces the old one. A process that is killed before
        leaves the old one, by which a checkpoint that lacks files is not complete. An error is logged as a warning: the
        checkpoint itself is saved.
        """
        try:
            if self.folder.is_dir():
                self._accept()
        except OSError as error:
            logger.warning("Changes to %s after it was saved could not be recorded: %s", self.folder, error)

    def _accept(self) -> None:
        files = {name: size for name, size in file_sizes(self.folder).items() if self._is_own(name)}
        self._flush([name for name, size in files.items() if self._is_changed(name, size)])
        wanted = Marker(step=self.marker.step, run_id=self.marker.run_id, files=files)
        try:
            present = read_marker(self.folder)
        except CheckpointError:
            present = None
        if present != wanted:
            self._replace_marker(marker_text(wanted))

    def _is_own(self, name: str) -> bool:
        """Return whether the file ``name`` belongs to the checkpoint.

        Others' files do not, nor new hidden ones: drafts, and what a network file system keeps of open files.
        """
        parts = PurePosixPath(name).parts
        is_hidden = any(part.startswith(".") for part in parts)
        return name in self.marker.files or (parts[0] not in self.foreign and not is_hidden)

    def _is_changed(self, name: str, size: int) -> bool:
        marker = self.folder / LIGHTNING_MARKER_NAME
        if self.marker.files.get(name) != size or not marker.is_file():
            return True
        return (self.folder / name).stat().st_mtime_ns >= marker.stat().st_mtime_ns

    def _flush(self, changed: Collection[str]) -> None:
        """Flush files, and the folders inside the checkpoint that they are in."""
        folders = {str(parent) for name in changed for parent in PurePosixPath(name).parents if parent.name}
        for name in [*changed, *sorted(folders)]:
            flush_file(self.folder / name)

    def _replace_marker(self, text: str) -> None:
        target = self.folder / LIGHTNING_MARKER_NAME
        draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            draft.write_text(text, encoding="utf-8")
            flush_file(draft)
            flush_file(self.folder)  # the names of new files, before a marker lists them
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
        flush_file(self.folder)


def _first_names(files: Collection[str]) -> frozenset[str]:
    return frozenset(PurePosixPath(name).parts[0] for name in files)
