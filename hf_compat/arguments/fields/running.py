"""Fields of ``TrainingArguments``: seeds, devices, data. The last part of transformers 5.23.0's order."""

# ruff: noqa: RUF009  (option and listing return dataclass fields, which the rule cannot see)

from dataclasses import dataclass
from typing import Any

from hf_compat.arguments.enums import DebugOption
from hf_compat.arguments.fields.options import Config, Settings, option
from hf_compat.arguments.fields.reporting import ReportingFields

__all__ = ["DDP_BACKENDS", "SAMPLING_STRATEGIES", "RunningFields"]

DDP_BACKENDS = ("nccl", "gloo", "mpi", "ccl", "xccl", "hccl", "cncl", "mccl")
SAMPLING_STRATEGIES = ("random", "sequential", "group_by_length", "batch_rebalance")
START_METHODS = ("fork", "spawn", "forkserver")


@dataclass
class RunningFields(ReportingFields):
    """Where and on what the run computes."""

    full_determinism: bool = option(False, "Make torch choose deterministic algorithms.")
    seed: int = option(42, "Seed of every random generator, 0 to 2**32 - 1.")
    data_seed: int | None = option(None, "Seed of the order of samples. Default: seed.")
    use_cpu: bool = option(False, "Stay on the CPU.")
    accelerator_config: Config = option(None, "How loaders are shared out: a dict, JSON or the path of a JSON file.")
    parallelism_config: Any | None = option(None, "accelerate's parallelism of several dimensions.")
    dataloader_drop_last: bool = option(False, "Drop a last batch that is not full.")
    dataloader_num_workers: int = option(0, "Processes that load data, per device; 0 loads in the main process.")
    dataloader_pin_memory: bool = option(True, "Load into pinned memory; off on the CPU.")
    dataloader_persistent_workers: bool = option(False, "Keep the loading processes between epochs.")
    dataloader_prefetch_factor: int | None = option(None, "Batches that each loading process loads ahead.")
    dataloader_multiprocessing_context: str | None = option(
        None, "How loading processes are started.", choices=list(START_METHODS)
    )
    dataloader_in_order: bool = option(True, "Take batches in order, not as they are ready.")
    remove_unused_columns: bool = option(True, "Drop the columns that the model's forward does not take.")
    label_names: list[str] | None = option(None, "Columns that hold labels. Default: found in the model's forward.")
    train_sampling_strategy: str = option("random", "Order of training samples.", choices=list(SAMPLING_STRATEGIES))
    length_column_name: str = option("length", "Column of lengths that group_by_length reads.")
    ddp_find_unused_parameters: bool | None = option(None, "Whether DDP looks for parameters without gradient.")
    ddp_bucket_cap_mb: int | None = option(None, "Megabytes in a bucket of DDP.")
    ddp_broadcast_buffers: bool | None = option(None, "Whether DDP broadcasts buffers.")
    ddp_static_graph: bool | None = option(None, "Whether DDP may take the graph for static.")
    ddp_backend: str | None = option(None, "How processes talk to each other.", choices=list(DDP_BACKENDS))
    ddp_timeout: int = option(1800, "Seconds after which a collective operation fails.")
    fsdp: str | None = option(None, "Shard the model with FSDP.", nargs="?", const=True)
    fsdp_config: Settings = option(None, "Settings of FSDP: a dict, JSON or the path of a JSON file.")
    deepspeed: Config = option(None, "Settings of DeepSpeed: a dict, JSON or the path of a JSON file.")
    debug: str | list[DebugOption] = option("", "Debugging aids, separated by blanks.")
    skip_memory_metrics: bool = option(True, "Leave memory use out of the metrics.")
    do_train: bool = option(False, "For scripts: train.")
    do_eval: bool = option(False, "For scripts: evaluate.")
    do_predict: bool = option(False, "For scripts: predict.")
    resume_from_checkpoint: str | None = option(None, "For scripts: the checkpoint to resume from.")
    local_rank: int = option(-1, "For launchers: number of this process on its node.")
