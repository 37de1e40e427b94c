"""Lightning's strategies and cluster environments in a run: what each does here, and which are refused.

``docs/lightning_strategies.md`` is generated from the tables of this module.
"""

from __future__ import annotations

from hf_compat.engine.support import Support, refused, works

__all__ = ["ABSTRACT", "CLASSES", "ENVIRONMENTS", "NAMES", "refused_strategy"]

_WITH_DEEPSPEED = "the DeepSpeed config must be known before the model is created"
_ON_TPU = refused("TPUs are not supported", "a machine with GPUs")
ABSTRACT = "it is an abstract class"
"""Why the classes are refused from which a user's own may inherit directly."""


def _deepspeed(**sizes: object) -> Support:
    offload = "".join(f", '{name}': {{'device': {device!r}}}" for name, device in sizes.items() if name != "stage")
    stage = f"{{'zero_optimization': {{'stage': {sizes['stage']}{offload}}}}}"
    return refused(_WITH_DEEPSPEED, f"`TrainingArguments(deepspeed={stage})`, or the path of such a config")


CLASSES: dict[str, Support] = {
    "DDPStrategy": works(
        "DDP with its keywords for torch's wrapper, communication hooks and `model_averaging_period`; `start_method` "
        "says how `devices` processes are started without a launcher.",
        "`accelerator`, `parallel_devices`; `process_group_backend`: `ddp_backend`; `timeout`: `ddp_timeout`",
    ),
    "DeepSpeedStrategy": _deepspeed(stage=2),
    "FSDPStrategy": works(
        "FSDP version 1 with its wrapping, sharding and offloading, on several processes.",
        "settings that conflict with `fsdp` or `fsdp_config`; `accelerator`, `checkpoint_io`, `device_mesh`, "
        "`mixed_precision`, `parallel_devices`, `precision_plugin`; `process_group_backend`: `ddp_backend`; "
        "`timeout`: `ddp_timeout`; policies that no field can express",
    ),
    "ModelParallelStrategy": works(
        "Tensor parallelism of its sizes, by the model's own plan; with `fsdp` FSDP version 2 across the data-parallel "
        "ranks. Checkpoints are those of the training arguments, whatever `save_distributed_checkpoint` says.",
        "`tensor_parallel_size=1`: `fsdp`; `process_group_backend`: `ddp_backend`; `timeout`: `ddp_timeout`",
    ),
    "ParallelStrategy": refused(ABSTRACT, "`DDPStrategy`, or `FSDPStrategy`"),
    "SingleDeviceStrategy": works(
        "One process on one device, without a wrapper.", "a device other than that of the arguments; several processes"
    ),
    "SingleDeviceXLAStrategy": _ON_TPU,
    "SingleTPUStrategy": _ON_TPU,
    "Strategy": refused(ABSTRACT, "`DDPStrategy`, or `SingleDeviceStrategy`"),
    "XLAStrategy": _ON_TPU,
}
"""Each strategy class that ``lightning.pytorch.strategies`` exports → what becomes of an instance."""

_STARTS = {
    "ddp": "DDP; without a launcher the Trainer runs the script again for the other `devices`",
    "ddp_spawn": "DDP; `train()` spawns `devices` fresh processes",
    "ddp_fork": "DDP; `train()` forks `devices` processes",
    "ddp_notebook": "As `ddp_fork`, also inside a notebook",
}
_UNUSED = {
    "": ".",
    "_find_unused_parameters_false": ". `find_unused_parameters=False`.",
    "_find_unused_parameters_true": ". `find_unused_parameters=True`.",
}

NAMES: dict[str, Support] = {
    "auto": works(
        "Chosen by the training arguments: `deepspeed`, `fsdp`, `parallelism_config`; otherwise DDP, `DataParallel` "
        "for several GPUs of one process, or a single device."
    ),
    **{f"{name}{end}": works(note + more) for name, note in _STARTS.items() for end, more in _UNUSED.items()},
    "deepspeed": _deepspeed(stage=2),
    "deepspeed_stage_1": _deepspeed(stage=1),
    "deepspeed_stage_2": _deepspeed(stage=2),
    "deepspeed_stage_2_offload": _deepspeed(stage=2, offload_optimizer="cpu"),
    "deepspeed_stage_3": _deepspeed(stage=3),
    "deepspeed_stage_3_offload": _deepspeed(stage=3, offload_optimizer="cpu", offload_param="cpu"),
    "deepspeed_stage_3_offload_nvme": _deepspeed(stage=3, offload_optimizer="nvme", offload_param="nvme"),
    "fsdp": works("FSDP version 1, as `fsdp` and `fsdp_config` say; on several processes."),
    "fsdp_cpu_offload": works("The same with the parameters offloaded to the CPU; on GPUs."),
    "single_device": works("As `SingleDeviceStrategy`, on the device that the arguments choose.", "several processes"),
    "single_tpu": _ON_TPU,
    "single_xla": _ON_TPU,
    "xla": _ON_TPU,
    "xla_debug": _ON_TPU,
}
"""``"auto"`` and each name in Lightning's ``StrategyRegistry`` → what becomes of it."""

ENVIRONMENTS: dict[str, Support] = {
    "ClusterEnvironment": works(
        "Your subclass determines rank and world size: from `use_cluster_environment` on, or from the creation of the "
        "Trainer that it is passed to.",
        "answers that contradict a launcher's variables; one that starts processes itself",
    ),
    "KubeflowEnvironment": works("RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; each pod is a node of one process."),
    "LightningEnvironment": works(
        "Lightning's default: the Trainer starts processes as Lightning does. Also where LOCAL_RANK is set, as "
        "`torchrun` does.",
        "a launcher that does not set LOCAL_RANK: each of its processes would start more",
    ),
    "LSFEnvironment": works("The variables of `jsrun`, JSM_NAMESPACE_*, and the hosts in LSB_DJOB_RANKFILE."),
    "MPIEnvironment": works(
        "The variables of `mpirun` (Open MPI, MPICH, Intel MPI, MVAPICH). If passed, it also chooses address and port "
        "of the rendezvous, which are otherwise MASTER_ADDR and MASTER_PORT."
    ),
    "SLURMEnvironment": works(
        "The variables of `srun`, SLURM_*; if passed, also its `auto_requeue` and `requeue_signal`. Jobs named `bash` "
        "or `interactive` have one process, unless a launcher is used in them."
    ),
    "TorchElasticEnvironment": works("The variables of `torchrun`, `fabric run` and `accelerate launch`."),
    "XLAEnvironment": _ON_TPU,
}
"""Each class that ``lightning.fabric.plugins.environments`` exports → what becomes of it."""


def refused_strategy(name: str) -> Support | None:
    """Return what becomes of a strategy or a class of that name, if it is refused; else None."""
    found = CLASSES.get(name) or NAMES.get(name)
    return None if found is None or found.works else found
