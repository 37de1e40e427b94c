"""Reading and atomic writing of small files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from hf_compat.errors import CheckpointError


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` to ``path`` in UTF-8, atomically: a reader sees the old content or the new one.

    Raises:
        OSError: If the file cannot be written; ``path`` is then unchanged.
    """
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | os.PathLike[str], content: bytes, *, keep_mode: bool = False) -> None:
    """Write ``content`` to ``path``, atomically: a reader sees the old content or the new one.

    Args:
        path: The file.
        content: What it contains then.
        keep_mode: Give it the permissions of the file that it replaces.

    Raises:
        OSError: If the file cannot be written; ``path`` is then unchanged.
    """
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        draft.write_bytes(content)
        if keep_mode:
            shutil.copymode(target, draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def read_json_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the JSON object in the file ``path``.

    Raises:
        CheckpointError: If the file cannot be read or is not a JSON object.
        FileNotFoundError: If the file does not exist.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    # ValueError covers invalid UTF-8 and invalid JSON; deeply nested brackets exhaust the parser's stack.
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError.also(type(error))(f"`{path}` cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError.also(TypeError)(
            f"`{path}` is damaged: it contains a {type(content).__name__}, not a JSON object."
        )
    return content
