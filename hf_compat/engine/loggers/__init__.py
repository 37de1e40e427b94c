"""Trackers: the callbacks of ``report_to``, each with the Lightning logger of its service."""

from hf_compat.engine.loggers.reporters import build_reporters, open_loggers
from hf_compat.engine.loggers.user_loggers import LoggingCallback

__all__ = ["LoggingCallback", "build_reporters", "open_loggers"]
