"""Lightning's strategies and cluster environments in a run: what each does here, and which are refused.

``docs/lightning_strategies.md`` is generated from the tables of this module.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Support:
    """Support of a component of Lightning's.

    Attributes:
        works: Whether it does its work; if not, a Trainer refuses it.
        note: What it does here; of a refused one, the reason.
        instead: What to use instead of a refused one.
        refuses: Settings of one that works which are refused, with the reason and what to use instead.
    """

    works: bool
    note: str
    instead: str = ""
    refuses: str = ""


def works(note: str, refuses: str = "") -> Support:
    """Return the row of a component that does its work."""
    return Support(works=True, note=note, refuses=refuses)


def refused(note: str, instead: str) -> Support:
    """Return the row of a component that a Trainer refuses."""
    return Support(works=False, note=note, instead=instead)


_ON_TPU = refused("TPUs are not supported", "a machine with GPUs")
ABSTRACT = "it is an abstract class"
"""Why the classes are refused from which a user's own may inherit directly."""

_RAY = "ray.train.lightning"


def _deepspeed(stage: int, offloaded: str = "") -> Support:
    offloading = f", offloading {offloaded}" if offloaded else ""
    return works(f"DeepSpeed, ZeRO stage {stage}{offloading}; as `DeepSpeedStrategy`.", "`deepspeed` set too")


CLASSES: dict[str, Support] = {
    "DDPStrategy": works(
        "DDP with its keywords for torch's wrapper, communication hooks and `model_averaging_period`; `start_method` "
        "says how `devices` processes are started without a launcher.",
        "`fsdp`, `deepspeed` or `parallelism_config` set too",
    ),
    "DeepSpeedStrategy": works(
        "The DeepSpeed config that it makes of its options is the field `deepspeed`. Under ZeRO-3 a `model` is sharded "
        "when training begins, one of `model_init` while it is created.",
        "`deepspeed` set too; a config that contradicts training arguments",
    ),
    "FSDPStrategy": works(
        "FSDP version 1 with its wrapping, sharding and offloading, on several processes.",
        "`fsdp` set too; policies that no field can express",
    ),
    "ModelParallelStrategy": works(
        "Tensor parallelism of its sizes, by the model's own plan; with `fsdp` FSDP version 2 across the data-parallel "
        "ranks.",
        "`tensor_parallel_size=1`; other sizes than those of `parallelism_config`",
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
    "deepspeed": _deepspeed(2),
    "deepspeed_stage_1": _deepspeed(1),
    "deepspeed_stage_2": _deepspeed(2),
    "deepspeed_stage_2_offload": _deepspeed(2, "the optimizer's state"),
    "deepspeed_stage_3": _deepspeed(3),
    "deepspeed_stage_3_offload": _deepspeed(3, "parameters and the optimizer's state"),
    "deepspeed_stage_3_offload_nvme": _deepspeed(3, "parameters and the optimizer's state to `/local_nvme`"),
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


def is_of_ray(part: object) -> bool:
    """Return whether ``part`` is a strategy of Ray's, such as ``RayDDPStrategy``, not of a class derived from one.

    Such a strategy overrides where ranks and the device come from. The Trainer has the same ones: in each worker, Ray
    sets the variables that torchrun sets.
    """
    return type(part).__module__.startswith(_RAY)
