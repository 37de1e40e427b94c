"""Trackers: the callbacks of ``report_to``, each with the Lightning logger of its service."""

from hf_compat.engine.loggers.reporters import LoggingCallback, build_reporters, open_loggers

__all__ = ["LoggingCallback", "build_reporters", "open_loggers"]
