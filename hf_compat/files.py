"""Small text files that are read and written whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hf_compat.errors import CheckpointError

__all__ = ["read_json_object", "write_text"]


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` to ``path`` in UTF-8 so that a reader sees the old content or the new one, never a part.

    Raises:
        OSError: If the folder is missing or cannot be written to; ``path`` is then as it was.
    """
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def read_json_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the JSON object in the file ``path``.

    Raises:
        CheckpointError: If the file cannot be read or does not hold exactly one JSON object.
        FileNotFoundError: If there is no such file.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    # Neither UTF-8 nor JSON are errors of one kind; deeply nested brackets exhaust the parser's stack.
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"`{path}` cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"`{path}` holds a {type(content).__name__}, not a JSON object: it is damaged.")
    return content
