"""Repositories on the Hub: creating them, what is uploaded, and uploads in the background.

A push during training uploads a *snapshot*: a hidden folder with the files as they are when the push starts, large ones
as hard links. So the commit has the files of the update step in its message, even if training overwrites or deletes
them during the upload.
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
from hf_compat.checkpoint.publish import HIDDEN_FOLDERS, final_name
from hf_compat.errors import HubError
from hf_compat.masking import masked_text
from hf_compat.version import __version__

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo, HfApi


logger = logging.getLogger(__name__)

IGNORED = ("_*", f"{names.PREFIX_CHECKPOINT_DIR}-*", *HIDDEN_FOLDERS)
"""Patterns that a push of the output folder ignores; those of a folder ignore everything in it."""
_UNSHARED = (*IGNORED, ".git")
_COPIED_BELOW = 8 * 2**20  # bytes


class PushInProgress:
    """The uploads of the last pushes, as futures."""

    def __init__(self, jobs: Sequence[futures.Future[Any]] | None = None) -> None:
        self.jobs = list(jobs or ())

    def is_done(self) -> bool:
        """Return whether all uploads have finished or failed."""
        return all(job.done() for job in self.jobs)

    def wait_until_done(self) -> None:
        """Wait until all uploads have finished or failed."""
        futures.wait(self.jobs)

    def cancel(self) -> None:
        """Cancel the uploads that have not started."""
        self.jobs = [job for job in self.jobs if not (job.cancel() or job.done())]


def hub_api() -> HfApi:
    """Return a client of the Hub; its background uploads run one after another."""
    from huggingface_hub import HfApi  # a dependency of datasets; slow to import

    return HfApi(library_name="hf_compat", library_version=__version__)


@contextmanager
def quiet_progress_bars() -> Iterator[None]:
    """Disable the progress bars of huggingface_hub, which would break those of the training."""
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
    """Create a model repository if it does not exist; return its full name, ``owner/name``.

    Raises:
        HubError: If it cannot be created.
    """
    try:
        return str(api.create_repo(name, token=token, private=private, exist_ok=True).repo_id)
    except Exception as error:
        told = (
            f"The repository `{name}` cannot be created on {api.endpoint}: {_reason(error)} Check `hub_model_id` and "
            "`hub_token`, or set `push_to_hub=False` and upload the output folder later."
        )
        raise _hub_error(told, error, token) from error


def upload(api: HfApi, repo_id: str, folder: str | Path, *, token: str | None, **options: Any) -> CommitInfo:
    """Upload ``folder`` in one commit and return the commit.

    Args:
        api: The client.
        repo_id: ``owner/name``.
        folder: What to upload.
        token: The token. Default: the one saved on this machine.
        **options: More arguments of ``huggingface_hub``'s ``upload_folder``.

    Raises:
        HubError: If the Hub cannot be reached or rejects it.
    """
    try:
        commit: CommitInfo = api.upload_folder(
            repo_id=repo_id, folder_path=folder, token=token, ignore_patterns=list(IGNORED), **options
        )
    except Exception as error:
        where = f"`{repo_id}`" if options.get("revision") is None else f"`{repo_id}` at `{options['revision']}`"
        told = f"The push to {where} on {api.endpoint} failed: {_reason(error)}"
        raise _hub_error(told, error, token) from error
    return commit


def push_snapshot(api: HfApi, repo_id: str, folder: Path, **options: Any) -> CommitInfo:
    """Upload ``folder``, then delete it in any case; log a warning if the upload failed.

    Args:
        api: The client.
        repo_id: ``owner/name``.
        folder: A snapshot.
        **options: As for ``upload``.

    Raises:
        HubError: If the Hub cannot be reached or rejects it.
    """
    try:
        return upload(api, repo_id, folder, **options)
    except HubError as error:
        logger.warning("%s Training continues; the files are still on this machine.", error)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _hub_error(told: str, error: Exception, token: str | None) -> HubError:
    """Return the error to raise for ``error``: of its class too, with the Hub's response if there is one."""
    raised = HubError.also(type(error))(masked_text(told, [token] if token else []))
    if (response := getattr(error, "response", None)) is not None:
        raised.response = response  # type: ignore[attr-defined]  # which scripts ask for its status
    return raised


def _reason(error: Exception) -> str:
    """Return the messages of ``error`` and its cause, in one line that ends in a full stop."""
    messages = (str(item) or type(item).__name__ for item in (error, error.__cause__) if item is not None)
    text = final_name(" ".join(" ".join(dict.fromkeys(messages)).split()))
    return text if text.endswith(".") else f"{text}."


# ---- snapshots ----


def shared_files(folder: Path) -> dict[str, Path]:
    """Return the files of ``folder`` that a push uploads, by their paths in it."""
    entries = [entry for entry in folder.iterdir() if not any(fnmatch(entry.name, pattern) for pattern in _UNSHARED)]
    found = (path for entry in entries for path in (entry.rglob("*") if entry.is_dir() else (entry,)))
    return {path.relative_to(folder).as_posix(): path for path in found if path.is_file()}


def snapshot(files: Mapping[str, Path], target: Path, *, frozen: bool = False) -> Path:
    """Create ``target`` with ``files`` as they are now, and return it.

    Args:
        files: Path in ``target`` to source file.
        target: A new folder, best on the same file system.
        frozen: Whether the files are never written again, as those of a published checkpoint. Otherwise small ones are
            copied, since a log grows while it is read.
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
    except OSError:  # another file system, or no hard links
        shutil.copyfile(source, target)
