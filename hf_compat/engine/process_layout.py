"""Placement: from the launcher's ranks and the user's keywords to where a run takes place, and under which strategy."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.kubeflow import KubeflowEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.mpi import MPIEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.xla import XLAEnvironment
from lightning.pytorch.accelerators import Accelerator, CUDAAccelerator
from torch import nn

from hf_compat.arguments.deepspeed import partition_from_now_on
from hf_compat.arguments.fsdp import FsdpSettings
from hf_compat.arguments.parallelism import ParallelSizes, read_sequence_parallelism
from hf_compat.arguments.process_facts import find_launch
from hf_compat.arguments.sequence_parallelism import Rotation, rotation
from hf_compat.distributed.accelerators import accelerator_module, is_initialized
from hf_compat.distributed.launch import BY_TRAINER, OWN_MARK, Launch, is_launched
from hf_compat.distributed.processes import choose_backend, join_alone, process_group
from hf_compat.engine.internals.strategies import start_processes
from hf_compat.engine.keywords import named, naming_variables, user_plugins
from hf_compat.engine.rank_mesh import DATA_PARALLEL, LOSSES, create_device_mesh
from hf_compat.engine.ring_attention import context_parallel_limits
from hf_compat.engine.strategies.choice import (
    STRATEGY_TRAITS,
    StrategyChoice,
    StrategyTraits,
    choose_strategy,
    format_strategy,
    read_parallel_sizes,
)
from hf_compat.engine.strategies.deepspeed_engine import sequence_parallel_limits
from hf_compat.engine.strategies.sharding import check_plan
from hf_compat.errors import ModelError, TrainerSetupError
from hf_compat.model_facts import is_presharded

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import Strategy
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from hf_compat.arguments import TrainingArguments
    from hf_compat.arguments.sequence_parallelism import SequenceParallelism

# Lightning's `ClusterEnvironment`: the user's, or that of a launcher's ranks; and the signal of SLURM's limit.


def use_cluster_environment(
    environment: ClusterEnvironment, *, devices: int | None = None, num_nodes: int | None = None
) -> None:
    """Take ranks, world size and address from ``environment`` before there are training arguments.

    Call it first of all if the environment is a class of your own, or knows more than a launcher's variables do: then
    `TrainingArguments` know from the start which process this is. Where the environment reads a launcher's variables,
    as most of Lightning's do, nothing has to be called. It may be passed to the Trainer as well.

    Args:
        environment: A cluster environment of Lightning's, or of your own.
        devices: Number of processes per node, if it does not know.
        num_nodes: Number of nodes, if there are several.

    Raises:
        TrainerSetupError: If it contradicts the launcher's variables, or does not know which process this is.
    """
    _take(environment, devices, num_nodes)


def apply_cluster_environment(args: TrainingArguments, keywords: Mapping[str, Any]) -> None:
    """Take ranks and world size from a ``ClusterEnvironment`` among the plugins.

    What a launcher's variables do not say is written to torchrun's variables, which ``args.launch`` reads.

    Raises:
        TrainerSetupError: If it contradicts the launcher's variables, or if there are several.
    """
    environment = user_environment(keywords)
    if environment is None:
        return
    devices, nodes = keywords.get("devices"), keywords.get("num_nodes")
    if _take(environment, devices if type(devices) is int and devices > 0 else None, nodes and int(nodes)):
        args.choose_device_again()


def user_environment(keywords: Mapping[str, Any]) -> ClusterEnvironment | None:
    """Return the ``ClusterEnvironment`` among the plugins, None if there is none.

    Raises:
        TrainerSetupError: If there are several.
    """
    environments = [plugin for plugin in user_plugins(keywords) if isinstance(plugin, ClusterEnvironment)]
    if len(environments) > 1:
        names = ", ".join(type(each).__name__ for each in environments)
        raise TrainerSetupError(
            f"`lightning={{'plugins': [...]}}` contains several cluster environments, {names}. Keep one of them."
        )
    return environments[0] if environments else None


def _take(environment: ClusterEnvironment, devices: int | None, nodes: int | None) -> bool:
    """Write what ``environment`` says and no launcher's variables say; return whether anything was not known."""
    launch = _launch_by_variables()
    launched = launch if launch is not None and launch.launcher is not None else None
    if isinstance(environment, SLURMEnvironment) and launch is not None and launched is None:
        return False  # inside a job, but not started by srun: only its requeue settings are used
    if _is_lightnings_own(environment, launch):
        return False
    _check_kind(environment, launched)
    told = {name for name in _TOLD if name in os.environ}  # before it is asked: some set those of the rendezvous
    given = _answers(environment, launched, devices, nodes)
    if launched is not None:
        _check_agrees(environment, given, launched, told)
    elif given.world_size == 1:
        return False
    if launched is None or launched.launcher == "torchrun":
        _write_variables(given)
    elif process_group() is None:
        _write_rendezvous(given)
    return find_launch() != launch


def _launch_by_variables() -> Launch | None:
    """Return what a launcher's variables say; None if they do not say all, which an environment may know."""
    try:
        return find_launch()
    except TrainerSetupError:
        return None


def _is_lightnings_own(environment: ClusterEnvironment, launch: Launch | None) -> bool:
    """Return whether this is Lightning's default environment where it would do what the Trainer does."""
    if type(environment) is not LightningEnvironment or launch is None:
        return False
    if launch.launcher in (None, BY_TRAINER):
        return True
    told = (environment.local_rank(), environment.node_rank())
    return environment.creates_processes_externally and told == (launch.local_rank, launch.node_rank)


def _check_kind(environment: ClusterEnvironment, launched: Launch | None) -> None:
    """Refuse an environment of devices that are not supported, or in which Lightning starts processes."""
    if isinstance(environment, XLAEnvironment):
        raise TrainerSetupError(
            f"{_shown(environment)} is for TPUs, which are not supported. Remove it, and run on a CPU or on GPUs."
        )
    if type(environment) is LightningEnvironment or not environment.creates_processes_externally:
        reason = (
            f"{launched.launcher} has already started {launched.world_size}"
            if launched is not None
            else "the Trainer starts them itself, according to `devices`, and reads MASTER_ADDR and MASTER_PORT"
        )
        raise TrainerSetupError(
            f"{_shown(environment)} would make Lightning start processes, but {reason}. Remove it from the plugins."
        )


def _answers(
    environment: ClusterEnvironment, launched: Launch | None, devices: int | None, nodes: int | None
) -> Launch:
    """Return what ``environment`` says, read in the order in which Lightning reads it."""
    try:
        if launched is not None or devices is not None:
            of_node = launched.local_world_size if launched is not None else devices or 1
            environment.set_global_rank(environment.node_rank() * of_node + environment.local_rank())
            environment.set_world_size(launched.world_size if launched is not None else of_node * (nodes or 1))
        size = environment.world_size()
        of_node = _local_world_size(environment, size, launched, devices, nodes)
        environment.validate_settings(of_node, size // of_node)
        given = Launch(
            launcher=type(environment).__name__,
            world_size=size,
            rank=environment.global_rank(),
            local_rank=environment.local_rank(),
            local_world_size=of_node,
            **_address(environment, launched),
        )
        node = environment.node_rank()
    except (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise TrainerSetupError(
            f"{_shown(environment)} cannot tell which process this is ({type(error).__name__}: {error}). Start the "
            "script as its cluster does, or remove it from the plugins."
        ) from error
    # MPIEnvironment numbers nodes by the names of their hosts; a launcher's variables know better.
    if (launched is None or not isinstance(environment, MPIEnvironment)) and given.rank != (
        node * given.local_world_size + given.local_rank
    ):
        raise TrainerSetupError(
            f"{_shown(environment)} says that rank {given.rank} of {size} is local rank {given.local_rank} of node "
            f"{node}, which is impossible with {given.local_world_size} processes per node. Pass `num_nodes` too, and "
            "make the ranks on a node consecutive."
        )
    return given


def _local_world_size(
    environment: ClusterEnvironment, size: int, launched: Launch | None, devices: int | None, nodes: int | None
) -> int:
    if isinstance(environment, KubeflowEnvironment):
        return 1  # a pod has one process
    if launched is not None:
        return launched.local_world_size
    return max(size // nodes, 1) if nodes else devices or size


def _address(environment: ClusterEnvironment, launched: Launch | None) -> dict[str, Any]:
    """Return address and port of the rendezvous, which is over if there is a process group."""
    told = {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    chooses = isinstance(environment, MPIEnvironment)  # any free port
    if launched is not None and (process_group() is not None or (told and chooses)):
        return {"address": launched.address, "port": launched.port}
    return {"address": environment.main_address, "port": environment.main_port}


_TOLD = {"MASTER_ADDR": "address", "MASTER_PORT": "port", "LOCAL_WORLD_SIZE": "processes per node"}
"""Variables without which a launch has a guess of this fact, which a cluster environment may know better."""


def _check_agrees(environment: ClusterEnvironment, launch: Launch, launched: Launch, told: set[str]) -> None:
    """Refuse an environment that says something else than the launcher's variables.

    Args:
        environment: The environment.
        launch: What it says.
        launched: What the variables say.
        told: Those of ``_TOLD`` that are set.
    """
    answers, variables = _facts(launch), _facts(launched)
    variables |= {fact: answers[fact] for name, fact in _TOLD.items() if name not in told}
    if answers != variables:
        raise TrainerSetupError(
            f"{_shown(environment)} returns {answers}, but {launched.launcher} has set {variables}. Remove it from the "
            "plugins, or correct it."
        )


def _facts(launch: Launch) -> dict[str, Any]:
    return {
        "world size": launch.world_size,
        "rank": launch.rank,
        "local rank": launch.local_rank,
        "processes per node": launch.local_world_size,
        "address": launch.address,
        "port": launch.port,
    }


def _write_variables(launch: Launch) -> None:
    """Write torchrun's variables."""
    _write_rendezvous(launch)
    numbers = {
        "WORLD_SIZE": launch.world_size,
        "RANK": launch.rank,
        "LOCAL_RANK": launch.local_rank,
        "LOCAL_WORLD_SIZE": launch.local_world_size,
    }
    os.environ.update({name: str(number) for name, number in numbers.items()})


def _write_rendezvous(launch: Launch) -> None:
    os.environ.update({"MASTER_ADDR": launch.address, "MASTER_PORT": str(launch.port)})


def _shown(environment: ClusterEnvironment) -> str:
    return f"`lightning={{'plugins': [{type(environment).__name__}()]}}`"


def slurm_signal(plugins: Iterable[Any]) -> int | None:
    """Return the signal on which a SLURM job is requeued, None if it is not.

    Args:
        plugins: Plugins of ``lightning.Trainer``. A ``SLURMEnvironment`` among them sets the signal, or with
            ``auto_requeue=False`` disables requeueing. Default inside a SLURM job: SIGUSR1.
    """
    if "SLURM_JOB_ID" not in os.environ:
        return None
    for plugin in plugins:
        if isinstance(plugin, SLURMEnvironment):
            return plugin.requeue_signal if plugin.auto_requeue else None
    return getattr(signal, "SIGUSR1", None)


class LaunchedEnvironment(ClusterEnvironment):
    """Processes that a launcher, or the Trainer, has started already.

    Args:
        launch: The ranks and world size of this process.
        cluster: The user's environment, which says the same, and is torn down when Lightning is done.
    """

    def __init__(self, launch: Launch, cluster: ClusterEnvironment | None = None) -> None:
        super().__init__()
        self._launch = launch
        self._cluster = cluster

    @property
    def creates_processes_externally(self) -> bool:
        """True: Lightning starts no processes."""
        return True

    @property
    def main_address(self) -> str:
        """The host of rank 0."""
        return self._launch.address

    @property
    def main_port(self) -> int:
        """The port that rank 0 listens on."""
        return self._launch.port

    @staticmethod
    def detect() -> bool:
        """Return False: it is passed in, never detected."""
        return False

    def world_size(self) -> int:
        """Return the world size."""
        return self._launch.world_size

    def set_world_size(self, size: int) -> None:
        """Do nothing: the launcher has set it."""

    def global_rank(self) -> int:
        """Return the rank of this process."""
        return self._launch.rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the launcher has set it."""

    def local_rank(self) -> int:
        """Return the local rank of this process."""
        return self._launch.local_rank

    def node_rank(self) -> int:
        """Return the rank of this node."""
        return self._launch.node_rank

    def teardown(self) -> None:
        """Tell the user's environment; Lightning's default one would delete WORLD_SIZE, which is still needed."""
        if self._cluster is not None and type(self._cluster) is not LightningEnvironment:
            self._cluster.teardown()


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
    """A name in ``engine.strategies.choice.STRATEGY_TRAITS``."""
    fsdp: FsdpSettings | None = None
    """How FSDP shards the model; None without FSDP."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Keywords of ``DistributedDataParallel`` that the user chose."""
    ddp_hooks: dict[str, Any] = field(default_factory=dict)
    """Keywords of Lightning's ``DDPStrategy`` for communication hooks and model averaging."""
    start: ProcessStart | None = None
    """How ``train`` starts its processes; None if it runs in this process."""
    sizes: ParallelSizes = ParallelSizes()  # noqa: RUF009 - a frozen value
    """The sizes of the device mesh; all 1 without one."""
    mesh: DeviceMesh | None = None
    """The device mesh; None without one."""
    sequences: SequenceParallelism | None = None
    """How ranks share sequences under DeepSpeed; None if they do not."""
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
            settings, hooks = choice.settings, choice.ddp_hooks
            return ProcessLayout(launch, "one device", settings=settings, ddp_hooks=hooks, start=start)
    if launch.launcher is None and wanted * wanted_nodes > 1:
        check_model_sizes(model, None if choice.deepspeed else sizes, sequences)
        start_processes(wanted, wanted_nodes, mark=OWN_MARK)
        args.choose_device_again()  # as one of several this process has another one: `cpu:0`
        launch, device = args.launch, args.device
    _check_processes(wanted, wanted_nodes, launch)
    args.join_processes(device)
    partition_from_now_on(args)  # if `strategy` has set `deepspeed`, not yet done by the arguments' constructor
    return replace(_placement_of_ranks(args, device, choice, sizes, environment), sequences=sequences)


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
        join_alone(device, backend=args.ddp_backend)  # what is left of more: their checkpoints are resumed
    if sizes is None and name == "fsdp2":
        sizes = ParallelSizes(dp_shard=launch.world_size)
    layout = ProcessLayout(
        launch,
        name,
        choice.fsdp,
        choice.settings,
        choice.ddp_hooks,
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
    sequences = read_sequence_parallelism(args)
    layout = ProcessLayout(launch, name, choice.fsdp, choice.settings, choice.ddp_hooks, sequences=sequences)
    return layout, [*map(named, problems)]


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


# Lightning's accelerator for the device of a run: its own, or for other devices one over their module of torch.


_OF_LIGHTNING = {"cpu": "cpu", "mps": "mps"}
"""Device type → the name of Lightning's accelerator, where that is used as it is."""


def lightning_accelerator(device: torch.device) -> str | Accelerator:
    """Return the keyword ``accelerator`` of ``lightning.Trainer`` for ``device``."""
    if device.type == "cuda":
        return TrainersCUDA()
    name = _OF_LIGHTNING.get(device.type)
    return _accelerator_class(device.type)() if name is None else name


class TrainersCUDA(CUDAAccelerator):
    """CUDA devices whose memory cache, precision switches and environment variables are left alone.

    Lightning's own empties the cache whenever a fit or an evaluation starts or ends, after which every allocation waits
    for the device; it reads a switch of torch's that raises once the newer one is set; it logs the visible devices each
    time; and it wants each process to see the GPUs of all local ranks, where a launcher may show it its own alone.
    """

    def setup_device(self, device: torch.device) -> None:
        """Make ``device`` the current one."""
        torch.cuda.set_device(device)

    def setup(self, pl_trainer: pl.Trainer) -> None:
        """Do nothing."""

    def teardown(self) -> None:
        """Do nothing."""

    @staticmethod
    def parse_devices(devices: int | list[int]) -> list[int]:  # type: ignore[override]
        """Return the indices of ``devices``, which are indices or a number of local ranks."""
        return list(range(devices)) if isinstance(devices, int) else devices


@cache
def _accelerator_class(device_type: str) -> type[Accelerator]:
    """Return the accelerator of a device type; Lightning calls most of its methods on the class."""
    module = accelerator_module(device_type)

    class TorchAccelerator(Accelerator):
        """Devices of a type that Lightning does not know, by their module of torch."""

        def setup_device(self, device: torch.device) -> None:
            """Make ``device`` the current one."""
            module.set_device(device)

        def teardown(self) -> None:
            """Do nothing: memory is freed where the Trainer frees it."""

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            """Return the statistics of the device's allocator."""
            return dict(module.memory_stats(device))

        @staticmethod
        def parse_devices(devices: Any) -> list[int]:
            """Return the indices of ``devices``, which are indices or a number of devices."""
            return list(devices) if isinstance(devices, list | tuple) else list(range(int(devices)))

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            """Return the devices of the indices ``devices``."""
            return [torch.device(device_type, index) for index in devices]

        @staticmethod
        def auto_device_count() -> int:
            """Return the number of devices of this machine."""
            return int(module.device_count())

        @staticmethod
        def is_available() -> bool:
            """Return whether this machine has such a device."""
            return bool(module.is_available())

        @staticmethod
        def name() -> str:
            """Return the device type."""
            return device_type

    return TorchAccelerator
