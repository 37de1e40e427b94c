"""Where hf_compat's loggers stand, and their level: settings of transformers' loggers reach them."""

from __future__ import annotations

import logging
import sys

__all__ = ["follow_transformers", "set_level"]

_PARENT = "transformers.trainer"


def follow_transformers() -> bool:
    """Put hf_compat's logger below that of transformers' Trainer if transformers is loaded; return whether it is.

    ``transformers.utils.logging.set_verbosity_info()``, its handlers and formats, and levels of the loggers
    ``transformers`` and ``transformers.trainer`` then apply to what hf_compat logs. Without transformers it logs as any
    package does.
    """
    if sys.modules.get("transformers") is None:
        return False
    own, parent = logging.getLogger("hf_compat"), logging.getLogger(_PARENT)
    if own.parent is not parent:
        own.parent = parent
        own.setLevel(own.level)  # forgets what loggers remember of the former parent's level
    return True


def set_level(level: int) -> None:
    """Set the level of transformers' loggers, and hf_compat's with them."""
    logging.getLogger("transformers").setLevel(level)
    if not follow_transformers():
        logging.getLogger("hf_compat").setLevel(level)
