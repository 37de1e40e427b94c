"""The place of hf_compat's loggers and their level: settings of transformers' loggers reach them."""

from __future__ import annotations

import logging

__all__ = ["follow_transformers", "library_logger", "set_level"]


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
