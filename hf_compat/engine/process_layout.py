"""Placement: from the launcher's ranks and the user's keywords to where a run takes place, and under which strategy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from hf_compat.arguments.deepspeed.requested import partition_from_now_on
from hf_compat.arguments.fsdp.settings import FsdpSettings
from hf_compat.arguments.parallelism import ParallelSizes, read_sequence_parallelism
from hf_compat.arguments.process_facts import join_alone, join_as_started
from hf_compat.arguments.sequence_parallelism import Rotation, rotation
from hf_compat.distributed.accelerators import accelerator_module, is_initialized
from hf_compat.distributed.launch import OWN_MARK, Launch, is_launched
from hf_compat.distributed.processes import choose_backend
from hf_compat.engine.clusters import apply_cluster_environment, user_environment
from hf_compat.engine.fabric_variables import named, naming_variables
from hf_compat.engine.internals.strategies import start_processes
from hf_compat.engine.parallel_mesh import DATA_PARALLEL, LOSSES, create_device_mesh
from hf_compat.engine.ring_attention import context_parallel_limits
from hf_compat.engine.strategies.choice import StrategyChoice, choose_strategy, format_strategy, read_parallel_sizes
from hf_compat.engine.strategies.deepspeed.sequence_parallel import sequence_parallel_limits
from hf_compat.engine.strategies.tensor_parallel_splitting import check_plan
from hf_compat.engine.strategies.traits import STRATEGY_TRAITS, StrategyTraits
from hf_compat.errors import ModelError, TrainerSetupError
from hf_compat.model_facts import is_presharded

if TYPE_CHECKING:
    import torch
    from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
    from lightning.pytorch.strategies import Strategy
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from hf_compat.arguments import TrainingArguments
    from hf_compat.arguments.sequence_parallelism import SequenceParallelism

__all__ = [
    "ProcessLayout",
    "ProcessStart",
    "check_model_sizes",
    "place_run",
    "place_started",
    "presume_layout",
    "with_mesh",
]

_UNSUPPORTED_ACCELERATE_VARIABLES = ("ACCELERATE_USE_MEGATRON_LM",)
"""Variables that ``accelerate launch`` sets for strategies that are not supported."""


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """Settings of the processes that ``train`` starts by multiprocessing."""

    method: str
    """``"spawn"``, ``"fork"`` or ``"forkserver"``."""
    processes: int
    """Number of processes to start."""


@dataclass(frozen=True, slots=True)
class ProcessLayout:
    """Ranks, strategy and its settings: where a run takes place."""

    launch: Launch
    strategy: str
    """A name in ``engine.strategies.traits.STRATEGY_TRAITS``."""
    fsdp: FsdpSettings | None = None
    """How FSDP shards the model; None without FSDP."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Keywords of ``DistributedDataParallel`` that the user chose."""
    hooks: dict[str, Any] = field(default_factory=dict)
    """Keywords of Lightning's ``DDPStrategy`` for communication hooks and model averaging."""
    start: ProcessStart | None = None
    """How ``train`` starts its processes; None if it runs in this process."""
    sizes: ParallelSizes = ParallelSizes()  # noqa: RUF009 - a frozen value
    """The sizes of the device mesh; all 1 without one."""
    mesh: DeviceMesh | None = None
    """The device mesh; None without one."""
    rotation: Rotation = "allgather"
    """How ranks that share a sequence exchange keys and values."""
    data_parallel_group: ProcessGroup | None = None
    """The process group of the data-parallel ranks; None for all ranks."""
    environment: ClusterEnvironment | None = None
    """The user's Lightning ``ClusterEnvironment``, which says what ``launch`` says; None without one."""

    @property
    def traits(self) -> StrategyTraits:
        """The properties of the strategy that are known by its name."""
        return STRATEGY_TRAITS[self.strategy]

    @property
    def data_parallel_size(self) -> int:
        """Data-parallel size: number of ranks that see different batches."""
        return self.launch.world_size // self.ranks_per_batch

    @property
    def data_parallel_rank(self) -> int:
        """Data-parallel rank of this process."""
        return self.launch.rank // self.ranks_per_batch

    @property
    def ranks_per_batch(self) -> int:
        """Number of consecutive ranks that get the same batches: whole ones, or parts of each sequence."""
        return self.sizes.ranks_per_batch

    @property
    def plan_size(self) -> int:
        """Tensor-parallel size by the model's own plan: 1 under DeepSpeed, which splits matrices by another."""
        return 1 if self.strategy == "deepspeed" else self.sizes.tp

    @property
    def loss_group(self) -> ProcessGroup | None:
        """The process group of the ranks whose losses differ, as do their batches or sequences; None for all ranks."""
        if self.sizes.cp == 1 or self.mesh is None:
            return self.data_parallel_group
        return None if self.sizes.tp == 1 else self.mesh[LOSSES].get_group()

    @property
    def loss_group_size(self) -> int:
        """Number of ranks in ``loss_group``."""
        return self.data_parallel_size * self.sizes.cp


@naming_variables()
def place_run(args: TrainingArguments, keywords: Mapping[str, Any], model: nn.Module | None = None) -> ProcessLayout:
    """Return the placement of a run; start the processes that ``devices`` requests if no launcher has started any.

    The process group is initialised afterwards.

    Args:
        args: The training arguments.
        keywords: The user's keywords of ``lightning.Trainer``.
        model: The model; None if ``model_init`` has not been called yet.

    Raises:
        ModelError: If processes would be started for a model that they cannot share.
        TrainerSetupError: If keywords, arguments and launcher contradict each other, or the strategy is not supported.
            A ``ClusterEnvironment`` among the plugins counts as a launcher.
    """
    apply_cluster_environment(args, keywords)
    environment = user_environment(keywords)
    strategy = keywords.get("strategy", "auto")
    choice = choose_strategy(args, strategy)
    if problems := _environment_problems(args, keywords):
        raise TrainerSetupError("\n  ".join(problems))
    launch, device = args.launch, args.device
    wanted_nodes = int(keywords.get("num_nodes", launch.num_nodes))
    is_parallel = strategy != "auto" and not choice.one_device
    wanted = _device_count(keywords.get("devices", "auto"), device, launch, by_default=args.n_gpu if is_parallel else 1)
    sizes = read_parallel_sizes(args, strategy, choice.fsdp, nodes=wanted_nodes, devices=wanted)
    _leave_gpus(args, keywords, wanted * wanted_nodes)
    sequences = read_sequence_parallelism(args)
    if sequences is not None and (problem := sequences.check_world_size(wanted * wanted_nodes)):
        raise TrainerSetupError(problem)
    if wanted * wanted_nodes > 1:
        if choice.one_device:
            raise TrainerSetupError(
                f"{format_strategy(strategy)} is for one process, but `lightning` requests {wanted} devices on each of "
                f"{wanted_nodes} nodes. Remove `devices` and `num_nodes`, or set 'strategy': 'ddp'."
            )
        choose_backend(device, args.ddp_backend)
    if choice.start_method != "popen":
        _check_process_start(choice.start_method, strategy, launch, wanted_nodes, device)
        if wanted > 1:
            start = ProcessStart(choice.start_method, wanted)
            return ProcessLayout(launch, "one device", settings=choice.settings, hooks=choice.hooks, start=start)
    if launch.launcher is None and wanted * wanted_nodes > 1:
        check_model_sizes(model, None if choice.deepspeed else sizes, sequences)
        start_processes(wanted, wanted_nodes, mark=OWN_MARK)
        launch = args.launch
    _check_processes(wanted, wanted_nodes, launch)
    args.join_processes(device)
    partition_from_now_on(args)  # if `strategy` has set `deepspeed`, not yet done by the arguments' constructor
    return _placement_of_ranks(args, device, choice, sizes, environment)


def _placement_of_ranks(
    args: TrainingArguments,
    device: torch.device,
    choice: StrategyChoice,
    sizes: ParallelSizes | None,
    environment: ClusterEnvironment | None,
) -> ProcessLayout:
    """Return the placement of a run whose ranks are all there."""
    launch = args.launch
    name = _strategy_name(args, choice, launch)
    if sizes is not None and sizes.tp > 1 and name != "deepspeed":
        name = "tensor parallel"
    if choice.fsdp is not None and name != "deepspeed" and launch.world_size == 1:
        if not is_launched():
            raise TrainerSetupError(
                "`fsdp` shards a model over several processes, but the world size is only 1: Using fsdp only works in "
                "distributed training. Start more with `torchrun` or `lightning={'devices': ...}`, or do not set "
                "`fsdp`."
            )
        join_alone(args, device)  # what is left of more: their checkpoints are resumed
    if sizes is None and name == "fsdp2":
        sizes = ParallelSizes(dp_shard=launch.world_size)
    layout = ProcessLayout(
        launch,
        name,
        choice.fsdp,
        choice.settings,
        choice.hooks,
        rotation=rotation(args.parallelism_config),
        environment=environment,
    )
    return layout if sizes is None else with_mesh(layout, sizes, device)


def with_mesh(layout: ProcessLayout, sizes: ParallelSizes, device: torch.device) -> ProcessLayout:
    """Return ``layout`` with a device mesh of ``sizes``, on devices of the type of ``device``; every rank calls it."""
    mesh = create_device_mesh(sizes, device)
    layout = replace(layout, sizes=sizes, mesh=mesh)
    if layout.ranks_per_batch == 1:
        return layout
    return replace(layout, data_parallel_group=mesh[DATA_PARALLEL].get_group())


def _check_processes(wanted: int, wanted_nodes: int, launch: Launch) -> None:
    """Raise if ``wanted`` devices on each of ``wanted_nodes`` are not the processes that there are."""
    if (wanted, wanted_nodes) != (launch.local_world_size, launch.num_nodes):
        raise TrainerSetupError(
            f"`lightning` requests {wanted} devices on each of {wanted_nodes} nodes, but {launch.launcher} started "
            f"{launch.local_world_size} processes on each of {launch.num_nodes} (LOCAL_WORLD_SIZE, WORLD_SIZE). Do not "
            "pass `devices` and `num_nodes`, or start that many processes."
        )


def _strategy_name(args: TrainingArguments, choice: StrategyChoice, launch: Launch) -> str:
    if choice.deepspeed:
        return "deepspeed"
    if choice.fsdp is not None:
        return f"fsdp{choice.fsdp.version}"
    if launch.world_size > 1:
        return "ddp"
    return "data parallel" if args.n_gpu > 1 else "one device"


def presume_layout(args: TrainingArguments, keywords: Mapping[str, Any]) -> tuple[ProcessLayout, list[str]]:
    """Return where a run would take place, and why it cannot; no process is started or joined.

    For the limits of its strategy, which are reported together with what is wrong about ``keywords``.

    Args:
        args: The training arguments.
        keywords: The user's keywords of ``lightning.Trainer``, some of which are refused.
    """
    launch, problems = args.launch, _environment_problems(args, keywords)
    try:
        choice = choose_strategy(args, keywords.get("strategy", "auto"))
    except TrainerSetupError as error:
        return ProcessLayout(launch, "one device"), [named(problem) for problem in (str(error), *problems)]
    name = _strategy_name(args, choice, launch)
    return ProcessLayout(launch, name, choice.fsdp, choice.settings, choice.hooks), [*map(named, problems)]


def place_started(args: TrainingArguments, process_layout: ProcessLayout) -> ProcessLayout:
    """Return the placement in a process that ``train`` started, and initialise the process group."""
    join_as_started(args)
    return replace(process_layout, launch=args.launch, strategy="ddp", start=None)


def _check_process_start(
    method: str, strategy: str | Strategy, launch: Launch, nodes: int, device: torch.device
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
    if method == "fork" and is_initialized(device):
        name = device.type.upper()
        raise TrainerSetupError(
            f"{shown}, but {name} is initialised in this process, and a forked process cannot use it then. Create "
            f"{name} tensors and models only after `train`, or use 'ddp_spawn'."
        )


def _environment_problems(args: TrainingArguments, keywords: Mapping[str, Any]) -> list[str]:
    """Return what is wrong about the variables of ``accelerate launch`` and the user's ``accelerator``."""
    kind, problems = args.device.type, []
    found = [name for name in _UNSUPPORTED_ACCELERATE_VARIABLES if os.environ.get(name, "").lower() in ("1", "true")]
    if found:
        problems.append(
            f"{', '.join(found)} is set, probably by `accelerate launch`, but is not supported. Launch with "
            "`--multi_gpu` or `--use_fsdp`, or with `torchrun`."
        )
    accelerator, kinds = keywords.get("accelerator", "auto"), {"auto": kind, "gpu": _gpu_type(kind)}
    if not isinstance(accelerator, str) or kinds.get(accelerator, accelerator) != kind:
        problems.append(
            f"`lightning={{'accelerator': {accelerator!r}}}`: conflicts with the device of this run "
            f"({kind}, chosen from `use_cpu={args.use_cpu}` and the available devices). Remove it, or set `use_cpu`."
        )
    return problems


def _leave_gpus(args: TrainingArguments, keywords: Mapping[str, Any], processes: int) -> None:
    """Have this process use one GPU where the user's keywords say on what it runs, or each process has a GPU."""
    if processes > 1 or any(keywords.get(name, "auto") != "auto" for name in ("devices", "strategy")):
        args.use_one_gpu()


def _gpu_type(kind: str) -> str:
    """Return the device type that Lightning's ``"gpu"`` means in a run on a device of the type ``kind``."""
    return kind if kind in ("cuda", "mps") else "cuda"


def _device_count(devices: object, device: torch.device, launch: Launch, *, by_default: int) -> int:
    """Return the number of devices per node, each with a process, that ``devices`` requests.

    Args:
        devices: The user's keyword.
        device: The device of this process.
        launch: The processes that there are.
        by_default: How many ``"auto"`` requests in a single process.

    Raises:
        TrainerSetupError: If it is a list of devices, or not a number.
    """
    if devices == "auto":
        return max(launch.local_world_size, by_default)
    if devices in (-1, "-1"):
        on_devices = device.type not in ("cpu", "mps")
        return accelerator_module(device).device_count() if on_devices else launch.local_world_size
    if isinstance(devices, int | str) and not isinstance(devices, bool) and str(devices).isdigit() and int(devices):
        return int(devices)
    raise TrainerSetupError(
        f"`lightning={{'devices': {devices!r}}}`: pass the number of devices per node; select GPUs with "
        "CUDA_VISIBLE_DEVICES."
    )


def check_model_sizes(
    model: nn.Module | None, sizes: ParallelSizes | None, sequences: SequenceParallelism | None
) -> None:
    """Check that ``model`` has heads, matrices and attention that so many ranks can share.

    Args:
        model: The model; None if ``model_init`` has not been called yet.
        sizes: The sizes of the device mesh; None without one, and where DeepSpeed splits matrices, in uneven parts too.
        sequences: The sizes of sequence parallelism; None without it.

    Raises:
        ModelError: If they cannot, with all reasons.
    """
    if not isinstance(model, nn.Module) or is_presharded(model):  # what is no model is refused by its type
        return
    problems = [*sequence_parallel_limits(sequences, model)]
    if sizes is not None:
        problems += context_parallel_limits(sizes.cp, model)
        try:
            check_plan(model, sizes.tp)
        except ModelError as error:
            problems.append(str(error))
    if problems:
        raise ModelError("\n  ".join(problems))
