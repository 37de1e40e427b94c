"""Placement: the launcher's ranks and the user's keywords to where a run takes place and under which strategy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hf_compat.arguments.fsdp.settings import FsdpSettings
from hf_compat.distributed.devices import cuda_is_initialized
from hf_compat.distributed.launch import OWN_MARK, Launch
from hf_compat.engine.clusters import take_cluster_environment
from hf_compat.engine.internals.parallel import grid_of
from hf_compat.engine.internals.subprocesses import start_processes
from hf_compat.engine.strategies.choice import read_choice, read_grid, shown_strategy
from hf_compat.engine.strategies.facts import STRATEGY_FACTS, StrategyFacts
from hf_compat.errors import TrainerSetupError

__all__ = ["Placement", "ProcessStart", "place_run", "place_started"]

_ELSEWHERE = ("ACCELERATE_USE_MEGATRON_LM",)
"""What ``accelerate launch`` sets for strategies that are not supported yet."""


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """Processes that ``train`` is to start, run in and end."""

    method: str
    """``"spawn"``, ``"fork"`` or ``"forkserver"``."""
    processes: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a run takes place."""

    launch: Launch
    strategy: str
    """A name in ``engine.strategies.facts.STRATEGY_FACTS``."""
    fsdp: FsdpSettings | None = None
    """How the model is sharded, if it is by FSDP."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Keywords of ``DistributedDataParallel`` that the user chose."""
    hooks: dict[str, Any] = field(default_factory=dict)
    """Keywords of Lightning's ``DDPStrategy`` that say how gradients are communicated."""
    start: ProcessStart | None = None
    """What ``train`` starts first; everything else takes place in this process."""
    tensor_parallel: int = 1
    """Neighbouring processes that see the same batches, each with a part of every matrix."""
    data_parallel_group: Any = None
    """The torch process group of those that see different batches; None for all."""

    @property
    def facts(self) -> StrategyFacts:
        """What is known of the strategy before there is one."""
        return STRATEGY_FACTS[self.strategy]

    @property
    def data_parallel_size(self) -> int:
        """How many see different batches."""
        return self.launch.world_size // self.tensor_parallel

    @property
    def data_parallel_rank(self) -> int:
        """The number of this one among those that see different batches."""
        return self.launch.rank // self.tensor_parallel


def place_run(args: Any, keywords: Mapping[str, Any]) -> Placement:
    """Return where a run takes place; where several processes are asked for and none started, start them.

    The processes know each other afterwards.

    Args:
        args: The training arguments.
        keywords: The user's keywords of ``lightning.Trainer``.

    Raises:
        TrainerSetupError: If keywords, arguments and launcher contradict each other, or ask for a strategy that is not
            supported. A ``ClusterEnvironment`` among the plugins counts as a launcher.
    """
    take_cluster_environment(args, keywords)
    strategy = keywords.get("strategy", "auto")
    choice = read_choice(args, strategy)
    _check_elsewhere()
    _check_accelerator(args, keywords.get("accelerator", "auto"))
    launch = args.launch
    wanted_nodes = int(keywords.get("num_nodes", launch.num_nodes))
    wanted = _device_count(keywords.get("devices", "auto"), args, launch)
    if choice.start_method != "popen":
        _check_start(choice.start_method, strategy, launch, wanted_nodes, args)
        if wanted > 1:
            start = ProcessStart(choice.start_method, wanted)
            return Placement(launch, "one device", settings=choice.settings, hooks=choice.hooks, start=start)
    if launch.launcher is None and wanted * wanted_nodes > 1:
        start_processes(wanted, wanted_nodes, mark=OWN_MARK)
        launch = args.launch
    if (wanted, wanted_nodes) != (launch.local_world_size, launch.num_nodes):
        raise TrainerSetupError(
            f"`lightning` asks for {wanted} devices on each of {wanted_nodes} nodes, but {launch.launcher} started "
            f"{launch.local_world_size} processes on each of {launch.num_nodes} (LOCAL_WORLD_SIZE, WORLD_SIZE): leave "
            "`devices` and `num_nodes` out, or start as many processes."
        )
    args.join_processes(args.device)
    grid = read_grid(args, strategy, choice.fsdp, launch)
    if grid is not None:
        group = grid_of(grid.data, grid.tensor, args.device)["data_parallel"].get_group()
        return Placement(launch, "tensor parallel", choice.fsdp, tensor_parallel=grid.tensor, data_parallel_group=group)
    return Placement(launch, _strategy_name(args, choice.fsdp, launch), choice.fsdp, choice.settings, choice.hooks)


def _strategy_name(args: Any, fsdp: FsdpSettings | None, launch: Launch) -> str:
    if args.hf_deepspeed_config is not None:
        return "deepspeed"
    if fsdp is None:
        return "one device" if launch.world_size == 1 else "ddp"
    if launch.world_size == 1:
        raise TrainerSetupError(
            "`fsdp` shards a model over several processes, and there is only this one: start more, with `torchrun` or "
            "`lightning={'devices': ...}`, or drop it."
        )
    return f"fsdp{fsdp.version}"


def place_started(args: Any, placement: Placement) -> Placement:
    """Return where a run takes place in a process that ``train`` started; the processes know each other afterwards."""
    args.choose_device_again()
    args.join_processes(args.device)
    return replace(placement, launch=args.launch, strategy="ddp", start=None)


def _check_start(method: str, strategy: Any, launch: Launch, nodes: int, args: Any) -> None:
    """Refuse to start processes where there are some, where they cannot be reached, and where they could not work."""
    shown = f"{shown_strategy(strategy)} starts processes by {method!r}"
    if launch.launcher is not None:
        raise TrainerSetupError(
            f"{shown}, but {launch.launcher} has started {launch.world_size}: leave `strategy` out, or start the "
            "script with plain `python`."
        )
    if nodes > 1:
        raise TrainerSetupError(f"{shown}, on this node alone, not on {nodes}: start the script with `torchrun`.")
    if method == "fork" and args.device.type == "cuda" and cuda_is_initialized():
        raise TrainerSetupError(
            f"{shown}, in which CUDA cannot be used: this process uses it already. Move what uses it (tensors, models "
            "on a GPU) behind `train`, or choose 'ddp_spawn'."
        )


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
        return launch.local_world_size
    if devices in (-1, "-1"):
        return torch.cuda.device_count() if args.device.type == "cuda" else launch.local_world_size
    if isinstance(devices, int | str) and not isinstance(devices, bool) and str(devices).isdigit() and int(devices):
        return int(devices)
    raise TrainerSetupError(
        f"`lightning={{'devices': {devices!r}}}`: pass how many there are to be on each node; choose which GPUs with "
        "CUDA_VISIBLE_DEVICES."
    )
