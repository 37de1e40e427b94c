"""The values that fields of ``TrainingArguments`` may have, where they are few."""

__all__ = ["DDP_BACKENDS", "HALF_PRECISION_BACKENDS", "LOG_LEVELS", "SAMPLING_STRATEGIES", "START_METHODS"]

DDP_BACKENDS = ("nccl", "gloo", "mpi", "ccl", "xccl", "hccl", "cncl", "mccl")
HALF_PRECISION_BACKENDS = ("auto", "cuda_amp", "apex", "cpu_amp")
SAMPLING_STRATEGIES = ("random", "sequential", "group_by_length", "batch_rebalance")
START_METHODS = ("fork", "spawn", "forkserver")

LOG_LEVELS: dict[str, int] = {
    "detail": 10,
    "debug": 10,
    "info": 20,
    "warning": 30,
    "error": 40,
    "critical": 50,
    "passive": -1,
}
"""Name to level of ``logging``; -1 does not change the level."""
