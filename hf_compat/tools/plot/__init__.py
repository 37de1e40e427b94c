"""Pictures of the logs of runs."""
