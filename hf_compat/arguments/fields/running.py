"""Fields of ``TrainingArguments`` for seeds, devices and data: the last part, in upstream's order."""

# ruff: noqa: RUF009  (option and listing return dataclass fields, which the rule cannot see)

from dataclasses import dataclass
from typing import Any

from hf_compat.arguments.enums import DebugOption
from hf_compat.arguments.fields.options import Config, Fsdp, Settings, option
from hf_compat.arguments.fields.reporting import ReportingFields

__all__ = ["DDP_BACKENDS", "SAMPLING_STRATEGIES", "RunningFields"]

DDP_BACKENDS = ("nccl", "gloo", "mpi", "ccl", "xccl", "hccl", "cncl", "mccl")
SAMPLING_STRATEGIES = ("random", "sequential", "group_by_length", "batch_rebalance")
START_METHODS = ("fork", "spawn", "forkserver")


@dataclass
class RunningFields(ReportingFields):
    """Fields for seeds, data loaders, devices and distributed training."""

    full_determinism: bool = option(False, "Use deterministic algorithms in torch.")
    seed: int = option(42, "Seed of all random generators, 0 to 2**32 - 1.")
    data_seed: int | None = option(None, "Seed of the order of samples. Default: seed.")
    use_cpu: bool = option(False, "Train on the CPU.")
    accelerator_config: Config = option(None, "Settings of data loaders: a dict, JSON or the path of a JSON file.")
    parallelism_config: Any | None = option(None, "accelerate's ParallelismConfig, for tensor parallelism.")
    dataloader_drop_last: bool = option(False, "Drop the last incomplete batch.")
    dataloader_num_workers: int = option(0, "Data loader workers per device; 0 loads in the main process.")
    dataloader_pin_memory: bool = option(True, "Load batches into pinned memory; off with use_cpu.")
    dataloader_persistent_workers: bool = option(False, "Keep data loader workers alive between epochs.")
    dataloader_prefetch_factor: int | None = option(None, "Batches that each data loader worker prefetches.")
    dataloader_multiprocessing_context: str | None = option(
        None, "Start method of data loader workers.", choices=list(START_METHODS)
    )
    dataloader_in_order: bool = option(True, "Return batches in order instead of as workers finish them.")
    remove_unused_columns: bool = option(True, "Remove columns that are not arguments of the model's forward.")
    label_names: list[str] | None = option(
        None, "Columns with labels. Default: from the arguments of the model's forward."
    )
    train_sampling_strategy: str = option("random", "Sampler of the training data.", choices=list(SAMPLING_STRATEGIES))
    length_column_name: str = option("length", "Column with the lengths for group_by_length.")
    ddp_find_unused_parameters: bool | None = option(None, "find_unused_parameters of DDP.")
    ddp_bucket_cap_mb: int | None = option(None, "bucket_cap_mb of DDP, in megabytes.")
    ddp_broadcast_buffers: bool | None = option(None, "broadcast_buffers of DDP.")
    ddp_static_graph: bool | None = option(None, "static_graph of DDP.")
    ddp_backend: str | None = option(
        None, "Backend of the process group. Default: nccl on GPUs, else gloo.", choices=list(DDP_BACKENDS)
    )
    ddp_timeout: int = option(1800, "Timeout of collective operations, in seconds.")
    fsdp: Fsdp = option(None, "Shard the model with FSDP.", nargs="?", const=True)
    fsdp_config: Settings = option(None, "Settings of FSDP: a dict, JSON or the path of a JSON file.")
    deepspeed: Config = option(None, "DeepSpeed config: a dict, JSON or the path of a JSON file.")
    debug: str | list[DebugOption] = option("", "Debugging aids, separated by spaces.")
    skip_memory_metrics: bool = option(True, "Do not report memory use in the metrics.")
    do_train: bool = option(False, "Only read by scripts: train.")
    do_eval: bool = option(False, "Only read by scripts: evaluate.")
    do_predict: bool = option(False, "Only read by scripts: predict.")
    resume_from_checkpoint: str | None = option(None, "Only read by scripts: checkpoint to resume from.")
    local_rank: int = option(-1, "Local rank, set by launchers.")
