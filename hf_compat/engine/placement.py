"""Placement: the launcher's ranks and the user's keywords to where a run takes place and under which strategy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.fsdp.settings import FsdpSettings
from hf_compat.distributed.accelerators import accelerator_module, is_initialized
from hf_compat.distributed.launch import OWN_MARK, Launch
from hf_compat.distributed.processes import choose_backend
from hf_compat.engine.clusters import apply_cluster_environment, given_environment
from hf_compat.engine.fabric_variables import named, naming_variables
from hf_compat.engine.internals.parallel import create_device_mesh
from hf_compat.engine.internals.subprocesses import start_processes
from hf_compat.engine.strategies.choice import StrategyChoice, choose_strategy, format_strategy, read_parallel_sizes
from hf_compat.engine.strategies.facts import STRATEGY_FACTS, StrategyFacts
from hf_compat.errors import TrainerSetupError

if TYPE_CHECKING:
    from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
    from lightning.pytorch.strategies import Strategy
    from torch.distributed import ProcessGroup

    from hf_compat.arguments import TrainingArguments

__all__ = ["Placement", "ProcessStart", "place_run", "place_started", "presume_placement"]

_UNSUPPORTED_ACCELERATE_VARIABLES = ("ACCELERATE_USE_MEGATRON_LM",)
"""Variables that ``accelerate launch`` sets for strategies that are not supported."""


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """How ``train`` starts its processes by multiprocessing."""

    method: str
    """``"spawn"``, ``"fork"`` or ``"forkserver"``."""
    processes: int
    """Number of processes to start."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Ranks, strategy and its settings: where a run takes place."""

    launch: Launch
    strategy: str
    """A name in ``engine.strategies.facts.STRATEGY_FACTS``."""
    fsdp: FsdpSettings | None = None
    """How FSDP shards the model; None without FSDP."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Keywords of ``DistributedDataParallel`` that the user chose."""
    hooks: dict[str, Any] = field(default_factory=dict)
    """Keywords of Lightning's ``DDPStrategy`` for communication hooks and model averaging."""
    start: ProcessStart | None = None
    """How ``train`` starts its processes; None if it runs in this process."""
    tensor_parallel: int = 1
    """Tensor-parallel size: consecutive ranks that see the same batches, each with a shard of every matrix."""
    data_parallel_group: ProcessGroup | None = None
    """The process group of the data-parallel ranks; None for all ranks."""
    environment: ClusterEnvironment | None = None
    """The user's Lightning ``ClusterEnvironment``, which says what ``launch`` says; None without one."""

    @property
    def facts(self) -> StrategyFacts:
        """The properties of the strategy that are known by its name."""
        return STRATEGY_FACTS[self.strategy]

    @property
    def data_parallel_size(self) -> int:
        """Data-parallel size: number of ranks that see different batches."""
        return self.launch.world_size // self.tensor_parallel

    @property
    def data_parallel_rank(self) -> int:
        """Data-parallel rank of this process."""
        return self.launch.rank // self.tensor_parallel


@naming_variables()
def place_run(args: TrainingArguments, keywords: Mapping[str, Any]) -> Placement:
    """Return the placement of a run; start the processes that ``devices`` requests if no launcher has started any.

    The process group is initialised afterwards.

    Args:
        args: The training arguments.
        keywords: The user's keywords of ``lightning.Trainer``.

    Raises:
        TrainerSetupError: If keywords, arguments and launcher contradict each other, or the strategy is not supported.
            A ``ClusterEnvironment`` among the plugins counts as a launcher.
    """
    apply_cluster_environment(args, keywords)
    environment = given_environment(keywords)
    strategy = keywords.get("strategy", "auto")
    choice = choose_strategy(args, strategy)
    if problems := _environment_problems(args, keywords):
        raise TrainerSetupError("\n  ".join(problems))
    launch = args.launch
    wanted_nodes = int(keywords.get("num_nodes", launch.num_nodes))
    devices = keywords.get("devices", "auto")
    is_parallel = strategy != "auto" and not choice.one_device
    wanted = _device_count(devices, args, launch, by_default=args.n_gpu if is_parallel else 1)
    if strategy != "auto" or devices != "auto" or wanted * wanted_nodes > 1:
        args.use_one_gpu()
    if choice.one_device and wanted * wanted_nodes > 1:
        raise TrainerSetupError(
            f"{format_strategy(strategy)} is for one process, but `lightning` requests {wanted} devices on each of "
            f"{wanted_nodes} nodes. Remove `devices` and `num_nodes`, or set 'strategy': 'ddp'."
        )
    if wanted * wanted_nodes > 1:
        choose_backend(args.device, args.ddp_backend)
    if choice.start_method != "popen":
        _check_process_start(choice.start_method, strategy, launch, wanted_nodes, args)
        if wanted > 1:
            start = ProcessStart(choice.start_method, wanted)
            return Placement(launch, "one device", settings=choice.settings, hooks=choice.hooks, start=start)
    if launch.launcher is None and wanted * wanted_nodes > 1:
        start_processes(wanted, wanted_nodes, mark=OWN_MARK)
        launch = args.launch
    if (wanted, wanted_nodes) != (launch.local_world_size, launch.num_nodes):
        raise TrainerSetupError(
            f"`lightning` requests {wanted} devices on each of {wanted_nodes} nodes, but {launch.launcher} started "
            f"{launch.local_world_size} processes on each of {launch.num_nodes} (LOCAL_WORLD_SIZE, WORLD_SIZE). Do not "
            "pass `devices` and `num_nodes`, or start that many processes."
        )
    args.join_processes(args.device)
    return _placement_of_ranks(args, strategy, choice, environment)


def _placement_of_ranks(
    args: TrainingArguments, strategy: str | Strategy, choice: StrategyChoice, environment: ClusterEnvironment | None
) -> Placement:
    """Return the placement of a run whose ranks are all there."""
    launch = args.launch
    sizes = read_parallel_sizes(args, strategy, choice.fsdp, launch)
    if sizes is not None:
        group = create_device_mesh(sizes.data, sizes.tensor, args.device)["data_parallel"].get_group()
        return Placement(
            launch,
            "tensor parallel",
            choice.fsdp,
            tensor_parallel=sizes.tensor,
            data_parallel_group=group,
            environment=environment,
        )
    name = _strategy_name(args, choice.fsdp, launch)
    if choice.fsdp is not None and name != "deepspeed" and launch.world_size == 1:
        raise TrainerSetupError(
            "`fsdp` shards a model over several processes, but the world size is only 1: Using fsdp only works in "
            "distributed training. Start more with `torchrun` or `lightning={'devices': ...}`, or do not set `fsdp`."
        )
    return Placement(launch, name, choice.fsdp, choice.settings, choice.hooks, environment=environment)


def _strategy_name(args: TrainingArguments, fsdp: FsdpSettings | None, launch: Launch) -> str:
    if args.hf_deepspeed_config is not None:
        return "deepspeed"
    if fsdp is not None:
        return f"fsdp{fsdp.version}"
    if launch.world_size > 1:
        return "ddp"
    return "data parallel" if args.n_gpu > 1 else "one device"


def presume_placement(args: TrainingArguments, keywords: Mapping[str, Any]) -> tuple[Placement, list[str]]:
    """Return where a run would take place, and why it cannot; no process is started or joined.

    For the limits of its strategy, which are told together with what is wrong about ``keywords``.

    Args:
        args: The training arguments.
        keywords: The user's keywords of ``lightning.Trainer``, some of which are refused.
    """
    launch, problems = args.launch, _environment_problems(args, keywords)
    try:
        choice = choose_strategy(args, keywords.get("strategy", "auto"))
    except TrainerSetupError as error:
        return Placement(launch, "one device"), [named(problem) for problem in (str(error), *problems)]
    name = _strategy_name(args, choice.fsdp, launch)
    return Placement(launch, name, choice.fsdp, choice.settings, choice.hooks), [*map(named, problems)]


def place_started(args: TrainingArguments, placement: Placement) -> Placement:
    """Return the placement in a process that ``train`` started, and initialise the process group."""
    args.choose_device_again()
    args.join_processes(args.device)
    return replace(placement, launch=args.launch, strategy="ddp", start=None)


def _check_process_start(
    method: str, strategy: str | Strategy, launch: Launch, nodes: int, args: TrainingArguments
) -> None:
    """Refuse to start processes inside a launcher, on several nodes, or by fork once CUDA is initialised."""
    shown = f"{format_strategy(strategy)} starts processes by {method!r}"
    if launch.launcher is not None:
        raise TrainerSetupError(
            f"{shown}, but {launch.launcher} has started {launch.world_size}. Do not pass `strategy`, or start the "
            "script with plain `python`."
        )
    if nodes > 1:
        raise TrainerSetupError(f"{shown} on a single node, not on {nodes}: start the script with `torchrun`.")
    if method == "fork" and is_initialized(args.device):
        name = args.device.type.upper()
        raise TrainerSetupError(
            f"{shown}, but {name} is initialised in this process, and a forked process cannot use it then. Create "
            f"{name} tensors and models only after `train`, or use 'ddp_spawn'."
        )


def _environment_problems(args: TrainingArguments, keywords: Mapping[str, Any]) -> list[str]:
    """Return what is wrong about the variables of ``accelerate launch`` and the user's ``accelerator``."""
    problems = []
    found = [name for name in _UNSUPPORTED_ACCELERATE_VARIABLES if os.environ.get(name, "").lower() in ("1", "true")]
    if found:
        problems.append(
            f"{', '.join(found)} is set, probably by `accelerate launch`, but is not supported. Launch with "
            "`--multi_gpu` or `--use_fsdp`, or with `torchrun`."
        )
    accelerator, kinds = keywords.get("accelerator", "auto"), {"auto": args.device.type, "gpu": _gpu_type(args)}
    if not isinstance(accelerator, str) or kinds.get(accelerator, accelerator) != args.device.type:
        problems.append(
            f"`lightning={{'accelerator': {accelerator!r}}}`: conflicts with the device of this run "
            f"({args.device.type}, chosen from `use_cpu={args.use_cpu}` and the available devices). Remove it, or set "
            "`use_cpu`."
        )
    return problems


def _gpu_type(args: TrainingArguments) -> str:
    """Return the device type that Lightning's ``"gpu"`` means."""
    return args.device.type if args.device.type in ("cuda", "mps") else "cuda"


def _device_count(devices: object, args: TrainingArguments, launch: Launch, *, by_default: int) -> int:
    """Return the number of devices per node, each with a process, that ``devices`` requests.

    Args:
        devices: The user's keyword.
        args: The training arguments.
        launch: The processes that there are.
        by_default: How many ``"auto"`` requests in a single process.

    Raises:
        TrainerSetupError: If it is a list of devices, or not a number.
    """
    if devices == "auto":
        return max(launch.local_world_size, by_default)
    if devices in (-1, "-1"):
        on_devices = args.device.type not in ("cpu", "mps")
        return accelerator_module(args.device).device_count() if on_devices else launch.local_world_size
    if isinstance(devices, int | str) and not isinstance(devices, bool) and str(devices).isdigit() and int(devices):
        return int(devices)
    raise TrainerSetupError(
        f"`lightning={{'devices': {devices!r}}}`: pass the number of devices per node; select GPUs with "
        "CUDA_VISIBLE_DEVICES."
    )
