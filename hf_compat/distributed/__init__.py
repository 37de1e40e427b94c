"""Processes and devices of a run: launchers, process groups, ranks and collective operations."""
