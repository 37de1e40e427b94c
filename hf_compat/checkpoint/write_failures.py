"""Errors of the file system while files are written, in the form in which each library reports them."""

from __future__ import annotations

import os
import re
import traceback
from pathlib import Path

from safetensors import SafetensorError

from hf_compat.checkpoint.hidden_folders import final_name
from hf_compat.errors import CheckpointWriteError

__all__ = ["as_write_error", "close_files", "errno_of", "is_write_failure"]

_TORCH = re.compile(r"inline_container|PytorchStreamWriter|iostream|basic_ios|basic_filebuf|ios_base")
"""The texts of torch's errors about files and C++ streams, which contain no number."""
_RUST = re.compile(r"\(os error ([0-9]+)\)|\bOs \{ code: ([0-9]+)")
"""The system's number in errors of safetensors and tokenizers."""
_PROBE_SIZE = 2**20  # bytes; more than a file system leaves free that has just been full


def is_write_failure(error: BaseException) -> bool:
    """Return whether ``error`` comes from the file system: from Python, torch, safetensors or tokenizers."""
    if isinstance(error, OSError | SafetensorError):
        return True
    # torch raises RuntimeError, tokenizers Exception itself.
    if not (isinstance(error, RuntimeError) or type(error) is Exception):
        return False
    return bool(_TORCH.search(str(error)) or _RUST.search(str(error)))


def errno_of(error: BaseException, place: Path | None = None) -> int | None:
    """Return the system's number of a failure, None if it is not known.

    Args:
        error: The failure.
        place: The folder that was written into. If ``error`` has no number, a file is written there to find it.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = _RUST.search(str(error))
    if found is not None:
        return int(found[1] or found[2])
    return None if place is None else _probed_errno(place)


def close_files(error: BaseException) -> None:
    """Let go of what the calls that ended with ``error`` hold.

    torch's writer would keep its file open until the next garbage collection, and an open file, deleted or not, its
    space on a disk that is full.
    """
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)
        found = found.__cause__ or found.__context__


def as_write_error(
    error: BaseException, target: Path, *, staged: Path | None = None, remark: str = "", advice: str
) -> CheckpointWriteError:
    """Return the error to raise for the failure ``error``, which names ``target``.

    Args:
        error: The failure.
        target: What was to be written.
        staged: The folder in which it was written, for ``errno_of``.
        remark: Stands after the reason.
        advice: Ends the message.
    """
    number = errno_of(error, staged)
    reason = final_name(str(error)) or type(error).__name__
    if number is not None and os.strerror(number) not in reason:
        reason = f"{reason.rstrip('.')}: {os.strerror(number)}"
    file = getattr(error, "filename", None)
    return CheckpointWriteError(
        f"`{target}` cannot be written: {reason}{remark}. {advice}",
        errno=number,
        filename=str(target) if file is None else final_name(os.fsdecode(file)),
    )


def _probed_errno(folder: Path) -> int | None:
    """Return the number of the error that writing to ``folder`` ends with at present, None if it succeeds."""
    probe = folder / ".probe"
    try:
        with probe.open("wb") as file:
            file.write(bytes(_PROBE_SIZE))
            file.flush()
            os.fsync(file.fileno())
        probe.unlink()
    except OSError as error:
        return error.errno
    return None
