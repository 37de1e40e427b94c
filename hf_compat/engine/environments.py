"""From the launcher's variables, and what the user says of devices, to where a run takes place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy, Strategy

from hf_compat.arguments.fsdp import FsdpSettings, read_fsdp
from hf_compat.arguments.hardware import cuda_is_initialized
from hf_compat.arguments.launch import OWN_MARK, Launch
from hf_compat.arguments.parallelism import ParallelSizes, read_parallelism
from hf_compat.engine.clusters import take_cluster_environment
from hf_compat.engine.internals import ddp_choices, start_method, start_processes
from hf_compat.engine.internals_fsdp import fsdp_choices
from hf_compat.engine.internals_parallel import grid_of, parallel_choices
from hf_compat.errors import TrainerSetupError

__all__ = ["PLACING_KEYWORDS", "LaunchedEnvironment", "Placement", "Start", "place_run", "place_started"]

PLACING_KEYWORDS = ("accelerator", "devices", "num_nodes", "strategy")
"""Keywords of ``lightning.Trainer`` that say where a run takes place."""

_START_METHODS = {"ddp": "popen", "ddp_spawn": "spawn", "ddp_fork": "fork", "ddp_notebook": "fork"}
"""Lightning's name of DDP to how processes are started: the script anew, or by a method of multiprocessing."""

_UNUSED: dict[str, dict[str, Any]] = {
    "": {},
    "_find_unused_parameters_false": {"find_unused_parameters": False},
    "_find_unused_parameters_true": {"find_unused_parameters": True},
}

_DDP_NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "auto": ("popen", {}),
    **{f"{name}{end}": (method, given) for name, method in _START_METHODS.items() for end, given in _UNUSED.items()},
}
"""Strategy by name to how it starts processes, and the keywords of ``DistributedDataParallel`` it stands for."""

_FSDP_NAMES = ("fsdp", "fsdp_cpu_offload")
"""Names that Lightning has for ``FSDPStrategy()``, and for that with ``cpu_offload=True``."""

_ELSEWHERE = ("ACCELERATE_USE_MEGATRON_LM",)
"""What ``accelerate launch`` sets for strategies that are not carried out yet."""


_FSDP_VERSIONS: tuple[int, ...] = (1, 2)
"""Versions of FSDP that ``engine.strategies.STRATEGIES`` has a row for."""
_SHARDING = ("fsdp1", "fsdp2", "deepspeed", "tensor parallel")
"""Strategies under which a process holds only a part of the model."""


@dataclass(frozen=True, slots=True)
class Start:
    """Processes that ``train`` is to start, run in and end."""

    method: str
    """``"spawn"``, ``"fork"`` or ``"forkserver"``."""
    processes: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a run takes place."""

    launch: Launch
    strategy: str
    """A name in ``engine.strategies.STRATEGIES``."""
    shards_model: bool = False
    """Whether a process holds only a part of the model; its weights are then loaded once it is wrapped."""
    fsdp: FsdpSettings | None = None
    """How the model is sharded, if it is by FSDP."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Keywords of ``DistributedDataParallel`` that the user chose."""
    hooks: dict[str, Any] = field(default_factory=dict)
    """Keywords of Lightning's ``DDPStrategy`` that say how gradients are communicated."""
    start: Start | None = None
    """What ``train`` starts first; everything else takes place in this process."""
    tensor_parallel: int = 1
    """Neighbouring processes that see the same batches, each with a part of every matrix."""
    data_group: Any = None
    """The torch process group of those that see different batches; None for all."""

    @property
    def data_processes(self) -> int:
        """How many see different batches."""
        return self.launch.size // self.tensor_parallel

    @property
    def data_process(self) -> int:
        """The number of this one among those that see different batches."""
        return self.launch.rank // self.tensor_parallel


class LaunchedEnvironment(ClusterEnvironment):
    """Processes that are there already, whoever started them.

    Args:
        launch: Which one this is.
    """

    def __init__(self, launch: Launch) -> None:
        super().__init__()
        self._launch = launch

    @property
    def creates_processes_externally(self) -> bool:
        """True: Lightning is to start none."""
        return True

    @property
    def main_address(self) -> str:
        """Host of process 0."""
        return self._launch.address

    @property
    def main_port(self) -> int:
        """Where process 0 listens."""
        return self._launch.port

    @staticmethod
    def detect() -> bool:
        """Return False: it is passed in, never found."""
        return False

    def world_size(self) -> int:
        """Return the number of processes."""
        return self._launch.size

    def set_world_size(self, size: int) -> None:
        """Do nothing: the launcher has decided."""

    def global_rank(self) -> int:
        """Return the number of this process among all."""
        return self._launch.rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the launcher has decided."""

    def local_rank(self) -> int:
        """Return the number of this process on its node."""
        return self._launch.local_rank

    def node_rank(self) -> int:
        """Return the number of this node."""
        return self._launch.node_rank


def place_run(args: Any, keywords: Mapping[str, Any]) -> Placement:
    """Return where a run takes place; where several processes are asked for and none started, start them.

    The processes know each other afterwards.

    Args:
        args: The training arguments.
        keywords: The user's keywords of ``lightning.Trainer``.

    Raises:
        TrainerSetupError: If keywords, arguments and launcher contradict each other, or ask for a strategy that is not
            carried out. A ``ClusterEnvironment`` among the plugins counts as a launcher.
    """
    take_cluster_environment(args, keywords)
    given, fsdp = keywords.get("strategy", "auto"), read_fsdp(args)
    _check_deepspeed(given, args)
    chosen, by_lightning = given, type(given) is ModelParallelStrategy
    if given in _FSDP_NAMES or type(given) is FSDPStrategy:
        chosen, fsdp = "auto", _chosen_fsdp(given, fsdp)
    method, settings, hooks = _ddp_settings("auto" if by_lightning else chosen, args)
    _check_fsdp(fsdp, args)
    _check_elsewhere()
    _check_accelerator(args, keywords.get("accelerator", "auto"))
    launch = args.launch
    wanted_nodes = int(keywords.get("num_nodes", launch.nodes))
    wanted = _device_count(keywords.get("devices", "auto"), args, launch)
    if method != "popen":
        _check_start(method, given, launch, wanted_nodes, args)
        if wanted > 1:
            return Placement(launch, "one device", settings=settings, hooks=hooks, start=Start(method, wanted))
    if launch.launcher is None and wanted * wanted_nodes > 1:
        start_processes(wanted, wanted_nodes, mark=OWN_MARK)
        launch = args.launch
    if (wanted, wanted_nodes) != (launch.local_size, launch.nodes):
        raise TrainerSetupError(
            f"`lightning` asks for {wanted} devices on each of {wanted_nodes} nodes, but {launch.launcher} started "
            f"{launch.local_size} processes on each of {launch.nodes} (LOCAL_WORLD_SIZE, WORLD_SIZE): leave `devices` "
            "and `num_nodes` out, or start as many processes."
        )
    args.join_processes(args.device)
    sizes = _given_sizes(given, args, launch) if by_lightning else read_parallelism(args)
    if sizes is not None:
        _check_sizes(sizes, fsdp, launch)
        group = grid_of(sizes.data, sizes.tensor, args.device)["data_parallel"].get_group()
        return Placement(launch, "tensor parallel", True, fsdp, tensor_parallel=sizes.tensor, data_group=group)
    name = _strategy_name(args, fsdp, launch)
    return Placement(launch, name, name in _SHARDING, fsdp, settings, hooks)


def _given_sizes(strategy: ModelParallelStrategy, args: Any, launch: Launch) -> ParallelSizes:
    """Return the grid of processes that the user's ``strategy`` says.

    Raises:
        TrainerSetupError: If it says something that cannot be kept, or ``parallelism_config`` another one.
    """
    data, tensor, problems = parallel_choices(strategy)
    sizes = ParallelSizes(launch.nodes if data == "auto" else data, launch.local_size if tensor == "auto" else tensor)
    if sizes.tensor == 1:
        problems.append("without a `tensor_parallel_size` above 1 this is FSDP: set `fsdp=True` and `fsdp_config`")
    if read_parallelism(args) not in (None, sizes):
        problems.append(f"`parallelism_config={args.parallelism_config!r}` says otherwise: set only one of them")
    if problems:
        raise TrainerSetupError(f"`lightning={{'strategy': ModelParallelStrategy(...)}}`: {'; '.join(problems)}.")
    return sizes


def _check_sizes(sizes: ParallelSizes, fsdp: FsdpSettings | None, launch: Launch) -> None:
    if sizes.total != launch.size:
        raise TrainerSetupError(
            f"{sizes.data} processes with different batches times {sizes.tensor} that split each matrix "
            f"(`parallelism_config`'s `dp_shard_size` and `tp_size`, or `ModelParallelStrategy`'s sizes) make "
            f"{sizes.total}, but the run has {launch.size}: start as many, or change the sizes."
        )
    if fsdp is not None and (sizes.data == 1 or fsdp.version != 2 or fsdp.state_dict_type != "full"):
        raise TrainerSetupError(
            f"`fsdp` beside a tensor parallel size of {sizes.tensor}: that needs a `dp_shard_size` above 1, here "
            f"{sizes.data}, and in `fsdp_config` `version` 2, here {fsdp.version}, and `state_dict_type` "
            f"'FULL_STATE_DICT', here {fsdp.state_dict_type!r}. Change them, or drop `fsdp`."
        )


def _strategy_name(args: Any, fsdp: FsdpSettings | None, launch: Launch) -> str:
    if args.hf_deepspeed_config is not None:
        if fsdp is not None:
            raise TrainerSetupError("`fsdp` and `deepspeed` exclude each other: drop one of them.")
        return "deepspeed"
    if fsdp is None:
        return "one device" if launch.size == 1 else "ddp"
    if launch.size == 1:
        raise TrainerSetupError(
            "`fsdp` shards a model over several processes, and there is only this one: start more, with `torchrun` or "
            "`lightning={'devices': ...}`, or drop it."
        )
    if fsdp.version not in _FSDP_VERSIONS:
        raise TrainerSetupError(f"`fsdp`: version {fsdp.version} of FSDP is not supported yet; drop it.")
    return f"fsdp{fsdp.version}"


def _chosen_fsdp(strategy: Any, fsdp: FsdpSettings | None) -> FsdpSettings:
    """Return how ``strategy``, a name or an instance of Lightning's, shards the model; ``fsdp``, if that says it."""
    if isinstance(strategy, str):
        if fsdp is not None and (fsdp.version == 2 or (strategy == "fsdp_cpu_offload" and not fsdp.cpu_offload)):
            raise TrainerSetupError(
                f"`lightning={{'strategy': {strategy!r}}}` contradicts `fsdp_config`: leave one of them out."
            )
        return fsdp or FsdpSettings(cpu_offload=strategy == "fsdp_cpu_offload")
    settings, problems = fsdp_choices(strategy)
    if fsdp is not None:
        problems.append("it and `fsdp` both say how to shard, leave one of them out")
    if problems:
        raise TrainerSetupError(f"`lightning={{'strategy': FSDPStrategy(...)}}`: {'; '.join(problems)}.")
    return settings


def _check_fsdp(fsdp: FsdpSettings | None, args: Any) -> None:
    """Refuse what version 1 of FSDP cannot do here, or at all."""
    if fsdp is None or fsdp.version == 2:
        return
    problems = []
    if args.device.type == "cpu" and fsdp.cpu_offload:
        problems.append("`fsdp`: offloading to the host needs a GPU to compute on; drop 'offload' and `cpu_offload`.")
    if args.device.type == "cpu" and args.mixed_precision == "fp16":
        problems.append("`fp16=True`: gradients of sharded parameters are scaled on GPUs only; set `bf16=True`.")
    if fsdp.sharding == "no_shard" and fsdp.state_dict_type == "sharded":
        problems.append(
            "`fsdp`: with 'no_shard' there are no shards to save; set 'state_dict_type': 'FULL_STATE_DICT'."
        )
    if problems:
        raise TrainerSetupError("\n  ".join(problems))


def place_started(args: Any, placement: Placement) -> Placement:
    """Return where a run takes place in a process that ``train`` started; the processes know each other afterwards."""
    args.choose_device_again()
    args.join_processes(args.device)
    return replace(placement, launch=args.launch, strategy="ddp", start=None)


def _check_start(method: str, strategy: Any, launch: Launch, nodes: int, args: Any) -> None:
    """Refuse to start processes where there are some, where they cannot be reached, and where they could not work."""
    shown = f"`lightning={{'strategy': {_shown(strategy)}}}` starts processes by {method!r}"
    if launch.launcher is not None:
        raise TrainerSetupError(
            f"{shown}, but {launch.launcher} has started {launch.size}: leave `strategy` out, or start the script "
            "with plain `python`."
        )
    if nodes > 1:
        raise TrainerSetupError(f"{shown}, on this node alone, not on {nodes}: start the script with `torchrun`.")
    if read_fsdp(args) is not None or args.hf_deepspeed_config is not None:
        raise TrainerSetupError(
            f"{shown} for `train` alone, each with a whole model that comes back, but `fsdp` or `deepspeed` gives each "
            "a part: start the script with `torchrun`, or drop them."
        )
    if method == "fork" and args.device.type == "cuda" and cuda_is_initialized():
        raise TrainerSetupError(
            f"{shown}, in which CUDA cannot be used: this process uses it already. Move what uses it (tensors, models "
            "on a GPU) behind `train`, or choose 'ddp_spawn'."
        )


def _shown(strategy: Any) -> str:
    return repr(strategy) if isinstance(strategy, str) else type(strategy).__name__


def _ddp_settings(strategy: Any, args: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return what the keyword ``strategy`` says of DDP: start method, keywords of torch's class, and of Lightning's."""
    if isinstance(strategy, str) and strategy in _DDP_NAMES:
        method, settings = _DDP_NAMES[strategy]
        hooks: dict[str, Any] = {}
    elif type(strategy) is DDPStrategy:
        method = start_method(strategy)
        settings, hooks, problems = ddp_choices(strategy)
        if problems:
            raise TrainerSetupError(f"`lightning={{'strategy': DDPStrategy(...)}}`: {'; '.join(problems)}.")
    else:
        kind = "" if isinstance(strategy, str | Strategy) else " It is neither a name nor a strategy."
        raise TrainerSetupError(
            f"`lightning={{'strategy': {_shown(strategy)}}}` is not supported yet.{kind} Choose one of "
            f"{', '.join(map(repr, (*_DDP_NAMES, *_FSDP_NAMES)))}, or pass Lightning's `DDPStrategy`, `FSDPStrategy` "
            "or `ModelParallelStrategy`."
        )
    asked, given = args.ddp_find_unused_parameters, settings.get("find_unused_parameters")
    if None not in (asked, given) and asked != given:
        raise TrainerSetupError(
            f"`ddp_find_unused_parameters={asked}` contradicts `find_unused_parameters={given}` of `lightning`'s "
            "`strategy`: set only one of them."
        )
    return method, settings, hooks


def _check_deepspeed(strategy: Any, args: Any) -> None:
    shown = strategy if isinstance(strategy, str) else type(strategy).__name__
    if shown.lower().startswith("deepspeed"):
        stage = next((digit for digit in "123" if f"stage_{digit}" in shown), "2")
        raise TrainerSetupError(
            f"`lightning={{'strategy': {shown!r}}}`: leave it out and say what DeepSpeed is to do in "
            f"`TrainingArguments(deepspeed={{'zero_optimization': {{'stage': {stage}}}}})`, as its config or its path."
        )
    if args.hf_deepspeed_config is not None and strategy != "auto":
        raise TrainerSetupError(f"`lightning={{'strategy': {shown!r}}}` contradicts `deepspeed`: drop one of them.")


def _check_elsewhere() -> None:
    asked = [name for name in _ELSEWHERE if os.environ.get(name, "").lower() in ("1", "true")]
    if asked:
        raise TrainerSetupError(
            f"{', '.join(asked)} is set, by `accelerate launch` perhaps, but is not supported yet: launch with "
            "`--multi_gpu` or `--use_fsdp`, or with `torchrun`."
        )


def _check_accelerator(args: Any, accelerator: Any) -> None:
    kinds = {"auto": args.device.type, "gpu": "cuda"}
    if not isinstance(accelerator, str) or kinds.get(accelerator, accelerator) != args.device.type:
        raise TrainerSetupError(
            f"`lightning={{'accelerator': {accelerator!r}}}`: the run is on {args.device.type}, as `use_cpu="
            f"{args.use_cpu}` and this machine decide. Leave it out, or set `use_cpu`."
        )


def _device_count(devices: Any, args: Any, launch: Launch) -> int:
    """Return the devices of one node that ``devices`` asks for.

    Raises:
        TrainerSetupError: If it names devices one by one, or is no number.
    """
    if devices == "auto":
        return launch.local_size
    if devices in (-1, "-1"):
        return torch.cuda.device_count() if args.device.type == "cuda" else launch.local_size
    if isinstance(devices, int | str) and not isinstance(devices, bool) and str(devices).isdigit() and int(devices):
        return int(devices)
    raise TrainerSetupError(
        f"`lightning={{'devices': {devices!r}}}`: pass how many there are to be on each node; choose which GPUs with "
        "CUDA_VISIBLE_DEVICES."
    )
