"""Several GPUs in one process."""
