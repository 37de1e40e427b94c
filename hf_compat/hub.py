"""Repositories on the Hub: how one is made, what is uploaded and what happens while an upload runs.

A push during training uploads a *snapshot*: a hidden folder with the files as they are when the push begins, large ones
as hard links. Training goes on, files are written anew and checkpoints rotated away; the commit has the update step
that it names.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_compat.checkpoint import names
from hf_compat.checkpoint.publish import HIDDEN_FOLDERS
from hf_compat.errors import HubError
from hf_compat.version import __version__

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo, HfApi

__all__ = [
    "IGNORED",
    "PushInProgress",
    "create_repository",
    "hub_api",
    "push_snapshot",
    "quiet_progress_bars",
    "shared_files",
    "snapshot",
    "upload",
]

logger = logging.getLogger(__name__)

IGNORED = ("_*", f"{names.PREFIX_CHECKPOINT_DIR}-*", *HIDDEN_FOLDERS)
"""What a push of the output folder leaves out; a folder's name stands for all that is in it."""
_UNSHARED = (*IGNORED, ".git")
_COPIED_BELOW = 8 * 2**20  # bytes


class PushInProgress:
    """The uploads of the last pushes, each a future."""

    def __init__(self, jobs: Sequence[futures.Future[Any]] | None = None) -> None:
        self.jobs = list(jobs or ())

    def is_done(self) -> bool:
        """Return whether every upload has ended, well or not."""
        return all(job.done() for job in self.jobs)

    def wait_until_done(self) -> None:
        """Return when every upload has ended."""
        futures.wait(self.jobs)

    def cancel(self) -> None:
        """Give up the uploads that have not begun."""
        self.jobs = [job for job in self.jobs if not (job.cancel() or job.done())]


def hub_api() -> HfApi:
    """Return a client of the Hub; its uploads in the background run one after the other."""
    from huggingface_hub import HfApi  # comes with datasets; loading it takes a while

    return HfApi(library_name="hf_compat", library_version=__version__)


@contextmanager
def quiet_progress_bars() -> Iterator[None]:
    """Have huggingface_hub show no progress bars, which would break into those of the training."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def create_repository(api: HfApi, name: str, *, token: str | None, private: bool | None) -> str:
    """Return the full name, ``owner/name``, of a model repository, made if it is not there.

    Raises:
        HubError: If it cannot be made.
    """
    try:
        return str(api.create_repo(name, token=token, private=private, exist_ok=True).repo_id)
    except Exception as error:
        raise HubError(
            f"The repository `{name}` cannot be created on {api.endpoint}: {_reason(error, token)} Check "
            "`hub_model_id` and `hub_token`, or leave out `push_to_hub` and upload the output folder later."
        ) from error


def upload(api: HfApi, repo_id: str, folder: str | Path, *, token: str | None, **options: Any) -> CommitInfo:
    """Upload ``folder`` in one commit and return that.

    Args:
        api: The client.
        repo_id: ``owner/name``.
        folder: What to upload.
        token: The token, None for the one of this machine.
        **options: Further arguments of ``huggingface_hub``'s ``upload_folder``.

    Raises:
        HubError: If the Hub cannot be reached or refuses it.
    """
    try:
        commit: CommitInfo = api.upload_folder(
            repo_id=repo_id, folder_path=folder, token=token, ignore_patterns=list(IGNORED), **options
        )
    except Exception as error:
        where = f"`{repo_id}`" if options.get("revision") is None else f"`{repo_id}` at `{options['revision']}`"
        raise HubError(f"The push to {where} on {api.endpoint} failed: {_reason(error, token)}") from error
    return commit


def push_snapshot(api: HfApi, repo_id: str, folder: Path, **options: Any) -> CommitInfo:
    """Upload ``folder`` and delete it, whatever comes; log a warning if that failed.

    Args:
        api: The client.
        repo_id: ``owner/name``.
        folder: What ``snapshot`` made.
        **options: As for ``upload``.

    Raises:
        HubError: If the Hub cannot be reached or refuses it.
    """
    try:
        return upload(api, repo_id, folder, **options)
    except HubError as error:
        logger.warning("%s Training goes on; nothing is lost on this machine.", error)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _reason(error: Exception, token: str | None) -> str:
    """Return what ``error`` and its cause say, in one line that ends in a full stop and holds no token."""
    said = (str(item) or type(item).__name__ for item in (error, error.__cause__) if item is not None)
    text = " ".join(" ".join(dict.fromkeys(said)).split())
    if token:
        text = text.replace(token, "<HUB_TOKEN>")
    return text if text.endswith(".") else f"{text}."


# ---- snapshots ----


def shared_files(folder: Path) -> dict[str, Path]:
    """Return the files of ``folder`` that a push of it uploads, by their paths in it."""
    entries = [entry for entry in folder.iterdir() if not any(fnmatch(entry.name, pattern) for pattern in _UNSHARED)]
    found = (path for entry in entries for path in (entry.rglob("*") if entry.is_dir() else (entry,)))
    return {path.relative_to(folder).as_posix(): path for path in found if path.is_file()}


def snapshot(files: Mapping[str, Path], target: Path, *, frozen: bool = False) -> Path:
    """Return ``target``, made to hold ``files`` as they are now.

    Args:
        files: Where each file is, by its path in ``target``.
        target: A new folder, best on the same file system.
        frozen: Whether no file is ever written to again, as in a published checkpoint. Else small ones are copied: a
            log grows while it is read.
    """
    target.mkdir(parents=True)
    try:
        for name, source in files.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if source.exists():  # not deleted since it was listed
                copied = not frozen and source.stat().st_size < _COPIED_BELOW
                (shutil.copyfile if copied else _link)(source, path)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return target


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
