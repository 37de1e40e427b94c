"""One log file per rank, in the folder HF_COMPAT_LOG_DIR."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from hf_compat.errors import TrainerSetupError

ENVIRONMENT_VARIABLE = "HF_COMPAT_LOG_DIR"
"""The folder for ``rank_<rank>.log``; if it is not set, no log files are written."""

_LOGGERS = ("transformers", "lightning.pytorch", "lightning.fabric")
"""Those above all that is written; hf_compat's stands below transformers'."""
_WARNINGS = "py.warnings"
"""The logger of Python's warnings under ``logging.captureWarnings``."""


class _RankFile(logging.FileHandler):
    """Writes the log file of one rank."""


def write_log_file(rank: int, level: int) -> None:
    """Also write log records and warnings to the log file of this rank, if HF_COMPAT_LOG_DIR is set.

    An existing file is appended to, as by a resumed run. Warnings are still written to standard error, through
    ``logging``.

    Args:
        rank: The rank of this process.
        level: The lowest level to write.

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
            logger.removeHandler(other)  # inherited from the process that forked this one
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
            f"{ENVIRONMENT_VARIABLE}={os.environ[ENVIRONMENT_VARIABLE]}: `{path}` cannot be written: {error}. Set it "
            "to a writable folder, or unset it."
        ) from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return handler


# The place of hf_compat's loggers and their level: settings of transformers' loggers reach them.


def library_logger() -> logging.Logger:
    """Return transformers' logger, whose level users set; it inherits the root logger's without transformers."""
    return logging.getLogger("transformers")


def follow_transformers() -> None:
    """Put hf_compat's logger below that of transformers' Trainer, whether transformers is loaded or not.

    ``transformers.utils.logging.set_verbosity_info()``, its handlers and formats, and levels of the loggers
    ``transformers`` and ``transformers.trainer`` then apply to what hf_compat logs. Without transformers its records
    reach the root logger, as any package's.
    """
    logging.getLogger("hf_compat").parent = logging.getLogger("transformers.trainer")


def set_level(level: int) -> None:
    """Set the level of transformers' loggers, hf_compat's among them."""
    library_logger().setLevel(level)
