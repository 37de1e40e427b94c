"""A log file for each process, in the folder that HF_COMPAT_LOG_DIR names."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from hf_compat.errors import TrainerSetupError

__all__ = ["ENVIRONMENT_VARIABLE", "write_log_file"]

ENVIRONMENT_VARIABLE = "HF_COMPAT_LOG_DIR"
"""Where each process writes ``rank_<n>.log``; without it there are no such files."""

_LOGGERS = ("hf_compat", "transformers", "lightning.pytorch", "lightning.fabric")
_WARNINGS = "py.warnings"
"""The logger that Python sends warnings to if told so."""


class _RankFile(logging.FileHandler):
    """Writes the log of one process."""


def write_log_file(rank: int, level: int) -> None:
    """Write what the libraries log, and warnings, to this process's file too, if the environment asks for it.

    A file that is there is appended to: a resumed run goes on in it. Warnings go on to standard error, through
    ``logging``.

    Args:
        rank: Number of this process among all.
        level: The lowest level of ``logging`` that is written.

    Raises:
        TrainerSetupError: If the file cannot be written.
    """
    folder = os.environ.get(ENVIRONMENT_VARIABLE)
    if not folder:
        return
    path = Path(folder).absolute() / f"rank_{rank}.log"
    warned = logging.getLogger(_WARNINGS)
    handler = _handler_for(path, [handler for handler in warned.handlers if isinstance(handler, _RankFile)])
    handler.setLevel(level)
    logging.captureWarnings(True)
    if warned.handlers == []:
        warned.addHandler(logging.StreamHandler())
    for name in (*_LOGGERS, _WARNINGS):
        logger = logging.getLogger(name)
        for other in [each for each in logger.handlers if isinstance(each, _RankFile) and each is not handler]:
            logger.removeHandler(other)  # of the process that this one was forked from
            other.close()
        if handler not in logger.handlers:
            logger.addHandler(handler)


def _handler_for(path: Path, present: list[_RankFile]) -> _RankFile:
    for handler in present:
        if handler.baseFilename == str(path):
            return handler
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _RankFile(path, encoding="utf-8")
    except OSError as error:
        raise TrainerSetupError(
            f"{ENVIRONMENT_VARIABLE}={os.environ[ENVIRONMENT_VARIABLE]}: `{path}` cannot be written: {error}. Name a "
            "folder that can be written to, or unset it."
        ) from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return handler
