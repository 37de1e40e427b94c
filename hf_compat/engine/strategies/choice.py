"""Which strategy a run is asked to take: by its arguments, and by the keyword ``strategy`` of ``lightning.Trainer``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy, Strategy

from hf_compat.arguments.fsdp.settings import FsdpSettings, read_fsdp
from hf_compat.arguments.parallelism import ParallelSizes, read_parallelism
from hf_compat.distributed.launch import Launch
from hf_compat.engine.internals.fsdp import parse_fsdp_strategy
from hf_compat.engine.internals.parallel import parse_model_parallel_strategy
from hf_compat.engine.internals.strategies import parse_ddp_strategy
from hf_compat.engine.internals.subprocesses import start_method
from hf_compat.errors import TrainerSetupError

__all__ = ["StrategyChoice", "choose_strategy", "format_strategy", "read_parallel_sizes"]

_START_METHODS = {"ddp": "popen", "ddp_spawn": "spawn", "ddp_fork": "fork", "ddp_notebook": "fork"}
"""Lightning's name of DDP to how processes are started: the script anew, or by a method of multiprocessing."""

_UNUSED: dict[str, dict[str, Any]] = {
    "": {},
    "_find_unused_parameters_false": {"find_unused_parameters": False},
    "_find_unused_parameters_true": {"find_unused_parameters": True},
}

_DDP_NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    f"{name}{end}": (method, given) for name, method in _START_METHODS.items() for end, given in _UNUSED.items()
}
"""Strategy by name to how it starts processes, and the keywords of ``DistributedDataParallel`` it stands for."""

_FSDP_NAMES = {"fsdp": False, "fsdp_cpu_offload": True}
"""Lightning's name of ``FSDPStrategy`` to whether it stands for ``cpu_offload=True``."""


@dataclass(frozen=True, slots=True)
class StrategyChoice:
    """What a run is asked to do with several processes, before it is known how many there are."""

    start_method: str = "popen"
    """How processes are started where none are: the script anew, or by a method of multiprocessing."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Keywords of ``DistributedDataParallel`` that the user chose."""
    hooks: dict[str, Any] = field(default_factory=dict)
    """Keywords of Lightning's ``DDPStrategy`` that say how gradients are communicated."""
    fsdp: FsdpSettings | None = None
    """How FSDP shards the model; None without it."""


def format_strategy(strategy: Any) -> str:
    """Return the user's ``strategy`` as an error shows it."""
    shown = repr(strategy) if isinstance(strategy, str) else f"{type(strategy).__name__}(...)"
    return f"`lightning={{'strategy': {shown}}}`"


def choose_strategy(args: Any, strategy: Any) -> StrategyChoice:
    """Return what ``args`` and ``strategy``, the user's keyword or ``"auto"``, say together.

    Raises:
        TrainerSetupError: If they contradict each other, or ask for what is not supported.
    """
    _refuse_deepspeed(strategy)
    fsdp = read_fsdp(args)
    asked = {"deepspeed": args.hf_deepspeed_config, "fsdp": fsdp, "parallelism_config": read_parallelism(args)}
    fields = [name for name, value in asked.items() if value is not None]
    if "deepspeed" in fields and len(fields) > 1:
        raise TrainerSetupError(f"`{fields[1]}` and `deepspeed` exclude each other: drop one of them.")
    beside, choice = _parse_keyword(strategy, args, fsdp)
    contradicted = [f"`{name}`" for name in fields if name not in beside]
    if contradicted:
        names = " and ".join(contradicted)
        raise TrainerSetupError(f"{format_strategy(strategy)} contradicts {names}: drop one of them.")
    _check_fsdp(choice.fsdp, args)
    return choice


def _parse_keyword(strategy: Any, args: Any, fsdp: FsdpSettings | None) -> tuple[tuple[str, ...], StrategyChoice]:
    """Return the fields that may ask for something beside ``strategy``, and the choice."""
    if isinstance(strategy, str) and strategy == "auto":
        return ("deepspeed", "fsdp", "parallelism_config"), StrategyChoice(fsdp=fsdp)
    if type(strategy) is ModelParallelStrategy:
        return ("fsdp", "parallelism_config"), StrategyChoice(fsdp=fsdp)
    if isinstance(strategy, str) and strategy in _FSDP_NAMES:
        return ("fsdp",), StrategyChoice(fsdp=_fsdp_of_name(strategy, fsdp))
    if type(strategy) is FSDPStrategy:
        return ("fsdp",), StrategyChoice(fsdp=_fsdp_of_instance(strategy, fsdp))
    return (), _ddp(strategy, args)


def _refuse_deepspeed(strategy: Any) -> None:
    name = strategy if isinstance(strategy, str) else type(strategy).__name__
    if name.lower().startswith("deepspeed"):
        stage = next((digit for digit in "123" if f"stage_{digit}" in name), "2")
        raise TrainerSetupError(
            f"{format_strategy(strategy)}: leave it out and say what DeepSpeed is to do in "
            f"`TrainingArguments(deepspeed={{'zero_optimization': {{'stage': {stage}}}}})`, as its config or its path."
        )


def _fsdp_of_name(strategy: str, fsdp: FsdpSettings | None) -> FsdpSettings:
    offloads = _FSDP_NAMES[strategy]
    if fsdp is not None and (fsdp.version == 2 or (offloads and not fsdp.cpu_offload)):
        raise TrainerSetupError(f"{format_strategy(strategy)} contradicts `fsdp_config`: leave one of them out.")
    return fsdp or FsdpSettings(cpu_offload=offloads)


def _fsdp_of_instance(strategy: FSDPStrategy, fsdp: FsdpSettings | None) -> FsdpSettings:
    settings, problems = parse_fsdp_strategy(strategy)
    if fsdp is not None:
        problems.append("it and `fsdp` both say how to shard, leave one of them out")
    if problems:
        raise TrainerSetupError(f"{format_strategy(strategy)}: {'; '.join(problems)}.")
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


def _ddp(strategy: Any, args: Any) -> StrategyChoice:
    """Return what ``strategy`` says of DDP."""
    if isinstance(strategy, str) and strategy in _DDP_NAMES:
        choice = StrategyChoice(*_DDP_NAMES[strategy])
    elif type(strategy) is DDPStrategy:
        settings, hooks, problems = parse_ddp_strategy(strategy)
        if problems:
            raise TrainerSetupError(f"{format_strategy(strategy)}: {'; '.join(problems)}.")
        choice = StrategyChoice(start_method(strategy), settings, hooks)
    else:
        kind = "" if isinstance(strategy, str | Strategy) else " It is neither a name nor a strategy."
        raise TrainerSetupError(
            f"{format_strategy(strategy)} is not supported yet.{kind} Choose one of "
            f"{', '.join(map(repr, ('auto', *_DDP_NAMES, *_FSDP_NAMES)))}, or pass Lightning's `DDPStrategy`, "
            "`FSDPStrategy` or `ModelParallelStrategy`."
        )
    asked, given = args.ddp_find_unused_parameters, choice.settings.get("find_unused_parameters")
    if None not in (asked, given) and asked != given:
        raise TrainerSetupError(
            f"`ddp_find_unused_parameters={asked}` contradicts `find_unused_parameters={given}` of `lightning`'s "
            "`strategy`: set only one of them."
        )
    return choice


def read_parallel_sizes(args: Any, strategy: Any, fsdp: FsdpSettings | None, launch: Launch) -> ParallelSizes | None:
    """Return how the processes of ``launch`` split each matrix of the model; None if matrices stay whole.

    Raises:
        TrainerSetupError: If ``args`` and the user's ``strategy`` contradict each other, or do not fit the processes.
    """
    sizes = read_parallelism(args)
    if type(strategy) is ModelParallelStrategy:
        sizes = _sizes_of_instance(strategy, args, launch)
    if sizes is None:
        return None
    if sizes.total != launch.world_size:
        raise TrainerSetupError(
            f"{sizes.data} processes with different batches times {sizes.tensor} that split each matrix "
            f"(`parallelism_config`'s `dp_shard_size` and `tp_size`, or `ModelParallelStrategy`'s sizes) make "
            f"{sizes.total}, but the run has {launch.world_size}: start as many, or change the sizes."
        )
    if fsdp is not None and (sizes.data == 1 or fsdp.version != 2 or fsdp.state_dict_type != "full"):
        raise TrainerSetupError(
            f"`fsdp` beside a tensor parallel size of {sizes.tensor}: that needs a `dp_shard_size` above 1, here "
            f"{sizes.data}, and in `fsdp_config` `version` 2, here {fsdp.version}, and `state_dict_type` "
            f"'FULL_STATE_DICT', here {fsdp.state_dict_type!r}. Change them, or drop `fsdp`."
        )
    return sizes


def _sizes_of_instance(strategy: ModelParallelStrategy, args: Any, launch: Launch) -> ParallelSizes:
    data, tensor, problems = parse_model_parallel_strategy(strategy)
    sizes = ParallelSizes(
        launch.num_nodes if data == "auto" else data, launch.local_world_size if tensor == "auto" else tensor
    )
    if sizes.tensor == 1:
        problems.append("without a `tensor_parallel_size` above 1 this is FSDP: set `fsdp=True` and `fsdp_config`")
    if read_parallelism(args) not in (None, sizes):
        problems.append(f"`parallelism_config={args.parallelism_config!r}` says otherwise: set only one of them")
    if problems:
        raise TrainerSetupError(f"{format_strategy(strategy)}: {'; '.join(problems)}.")
    return sizes
