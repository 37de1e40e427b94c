"""The strategy of a run, from the training arguments and the keyword ``strategy`` of ``lightning.Trainer``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lightning.pytorch.strategies import (
    DDPStrategy,
    DeepSpeedStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    SingleDeviceStrategy,
    Strategy,
)

from hf_compat.arguments.deepspeed.requested import autotp_size, uses_deepspeed
from hf_compat.arguments.fields.unknown import nearest_value
from hf_compat.arguments.fsdp.fsdp_checks import device_limits
from hf_compat.arguments.fsdp.settings import FsdpSettings, read_fsdp
from hf_compat.arguments.parallelism import ParallelSizes, read_parallelism, world_size_problem
from hf_compat.engine.internals.strategies import (
    DEEPSPEED_NAMES,
    changed_options,
    overridden_names,
    parse_ddp_strategy,
    parse_fsdp_strategy,
    parse_model_parallel_strategy,
    plain_class,
    start_method,
)
from hf_compat.engine.strategy_options import refused_options
from hf_compat.engine.strategy_table import ABSTRACT, CLASSES, NAMES, is_of_ray, refused_strategy
from hf_compat.errors import TrainerSetupError

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["StrategyChoice", "choose_strategy", "format_strategy", "read_parallel_sizes"]

_START_METHODS = {"ddp": "popen", "ddp_spawn": "spawn", "ddp_fork": "fork", "ddp_notebook": "fork"}
"""Lightning's name of DDP → how processes are started: by running the script again, or a multiprocessing method."""

_UNUSED: dict[str, dict[str, Any]] = {
    "": {},
    "_find_unused_parameters_false": {"find_unused_parameters": False},
    "_find_unused_parameters_true": {"find_unused_parameters": True},
}

_DDP_NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    f"{name}{end}": (method, given) for name, method in _START_METHODS.items() for end, given in _UNUSED.items()
}
"""A strategy's name → how it starts processes, and its keywords of ``DistributedDataParallel``."""

_FSDP_NAMES = {"fsdp": False, "fsdp_cpu_offload": True}
"""Lightning's name of ``FSDPStrategy`` → its ``cpu_offload``."""
_ONE_DEVICE = "single_device"
"""Lightning's name of ``SingleDeviceStrategy``."""


@dataclass(frozen=True, slots=True)
class StrategyChoice:
    """The user's choice of a strategy, before the world size is known."""

    start_method: str = "popen"
    """How processes are started if no launcher did: by running the script again, or a multiprocessing method."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Keywords of ``DistributedDataParallel`` that the user chose."""
    hooks: dict[str, Any] = field(default_factory=dict)
    """Keywords of Lightning's ``DDPStrategy`` for communication hooks and model averaging."""
    fsdp: FsdpSettings | None = None
    """How FSDP shards the model; None without FSDP."""
    one_device: bool = False
    """Whether the run has to be in one process."""
    deepspeed: bool = False
    """Whether the run uses DeepSpeed."""


def format_strategy(strategy: object) -> str:
    """Return the user's ``strategy`` for an error message."""
    shown = repr(strategy) if isinstance(strategy, str) else f"{type(strategy).__name__}(...)"
    return f"`lightning={{'strategy': {shown}}}`"


def choose_strategy(args: TrainingArguments, strategy: str | Strategy) -> StrategyChoice:
    """Return the choice that ``args`` and ``strategy``, the user's keyword or ``"auto"``, make together.

    Raises:
        TrainerSetupError: If they contradict each other, or are not supported.
    """
    _refuse(strategy)
    fsdp = read_fsdp(args)
    sizes = read_parallelism(args)
    asked = {"deepspeed": uses_deepspeed(args), "fsdp": fsdp is not None, "parallelism_config": sizes is not None}
    fields = [name for name, is_set in asked.items() if is_set]
    if "deepspeed" in fields and fsdp is not None:
        raise TrainerSetupError("`fsdp` and `deepspeed` exclude each other: set only one of them.")
    if "deepspeed" in fields and sizes is not None and sizes.ranks_per_batch > 1:
        raise TrainerSetupError(
            f"`parallelism_config` with {sizes} and `deepspeed` exclude each other. Remove one of them, set "
            "`tensor_parallel.autotp_size` in the DeepSpeed config to split matrices, or `sp_size` to share sequences."
        )
    compatible, choice = _parse_keyword(strategy, args, fsdp)
    contradicted = [f"`{name}`" for name in fields if name not in compatible]
    if contradicted:
        names = " and ".join(contradicted)
        raise TrainerSetupError(f"{format_strategy(strategy)} contradicts {names}: set only one of them.")
    if problems := [*device_limits(args, choice.fsdp)]:
        raise TrainerSetupError("\n  ".join(problems))
    return replace(choice, deepspeed="deepspeed" in fields)


def _parse_keyword(
    strategy: str | Strategy, args: TrainingArguments, fsdp: FsdpSettings | None
) -> tuple[tuple[str, ...], StrategyChoice]:
    """Return the fields that may be set together with ``strategy``, and the choice."""
    if isinstance(strategy, str) and strategy == "auto":
        return ("deepspeed", "fsdp", "parallelism_config"), StrategyChoice(fsdp=fsdp)
    kind = plain_class(strategy)
    if strategy in DEEPSPEED_NAMES or kind is DeepSpeedStrategy:
        return ("deepspeed", "parallelism_config"), StrategyChoice()
    if kind is ModelParallelStrategy:
        return ("fsdp", "parallelism_config"), StrategyChoice(fsdp=fsdp)
    if isinstance(strategy, str) and strategy in _FSDP_NAMES:
        return ("fsdp",), StrategyChoice(fsdp=_fsdp_of_name(strategy, fsdp))
    if isinstance(strategy, FSDPStrategy) and kind is FSDPStrategy:
        return ("fsdp",), StrategyChoice(fsdp=_fsdp_of_instance(strategy, fsdp))
    if strategy == _ONE_DEVICE or kind is SingleDeviceStrategy:
        _check_device(strategy, args)
        return (), StrategyChoice(one_device=True)
    return (), _ddp(strategy, args)


def _refuse(strategy: str | Strategy) -> None:
    """Refuse classes and options by the tables, and subclasses whose methods no run would call."""
    refused = refused_strategy(strategy if isinstance(strategy, str) else plain_class(strategy).__name__)
    overridden = overridden_names(strategy) if isinstance(strategy, Strategy) and not is_of_ray(strategy) else []
    if overridden and (refused is None or refused.note == ABSTRACT):
        raise TrainerSetupError(
            f"{format_strategy(strategy)} is not supported: hf_compat uses its own strategy classes, which never call "
            f"your `{'`, `'.join(overridden)}`. Pass Lightning's class with the arguments that you need, and override "
            "methods of the Trainer; or write a Lightning callback."
        )
    if refused is not None:
        raise TrainerSetupError(f"{format_strategy(strategy)} is not supported: {refused.note}. Use {refused.instead}.")
    if isinstance(strategy, Strategy):
        options = refused_options(plain_class(strategy).__name__)
        changed = [
            f"`{name}` is not supported, because {options[name].note}: use {options[name].instead}"
            for name in changed_options(strategy, options)
        ]
        if changed:
            raise TrainerSetupError(f"{format_strategy(strategy)}: {'; '.join(changed)}.")


def _check_device(strategy: str | Strategy, args: TrainingArguments) -> None:
    """Refuse a single device beside others, or one that is not the arguments'."""
    launch = args.launch
    if launch.world_size > 1:
        raise TrainerSetupError(
            f"{format_strategy(strategy)} is for one process, but {launch.launcher} has started {launch.world_size}, "
            "and each would train its own copy. Remove it, or start one process."
        )
    if isinstance(strategy, Strategy):
        device, wanted = args.device, strategy.root_device
        if device.type != wanted.type or (wanted.index or 0) != (device.index or 0):
            raise TrainerSetupError(
                f"{format_strategy(strategy)} is for {wanted}, but the run is on {device} (chosen from `use_cpu` and "
                "the available devices). Remove it, set `use_cpu`, or select a GPU with CUDA_VISIBLE_DEVICES."
            )


def _fsdp_of_name(strategy: str, fsdp: FsdpSettings | None) -> FsdpSettings:
    offloads = _FSDP_NAMES[strategy]
    if fsdp is not None and (fsdp.version == 2 or (offloads and not fsdp.cpu_offload)):
        raise TrainerSetupError(f"{format_strategy(strategy)} contradicts `fsdp_config`: set only one of them.")
    return fsdp or FsdpSettings(cpu_offload=offloads)


def _fsdp_of_instance(strategy: FSDPStrategy, fsdp: FsdpSettings | None) -> FsdpSettings:
    settings, problems = parse_fsdp_strategy(strategy)
    if fsdp is not None:
        problems.append("`fsdp` is set too, set only one of them")
    if problems:
        raise TrainerSetupError(f"{format_strategy(strategy)}: {'; '.join(problems)}.")
    return settings


def _ddp(strategy: str | Strategy, args: TrainingArguments) -> StrategyChoice:
    """Return the choice of a DDP strategy."""
    if isinstance(strategy, str) and strategy in _DDP_NAMES:
        choice = StrategyChoice(*_DDP_NAMES[strategy])
    elif isinstance(strategy, DDPStrategy) and plain_class(strategy) is DDPStrategy:
        settings, hooks, problems = parse_ddp_strategy(strategy)
        if problems:
            raise TrainerSetupError(f"{format_strategy(strategy)}: {'; '.join(problems)}.")
        choice = StrategyChoice(start_method(strategy), settings, hooks)
    else:
        names = [name for name, one in NAMES.items() if one.works]
        raise TrainerSetupError(
            f"{nearest_value(strategy, names).capitalize()}{format_strategy(strategy)} is not supported. Pass one of "
            f"{', '.join(map(repr, names))}, or "
            f"{', '.join(f'`{name}`' for name, one in CLASSES.items() if one.works)} of `lightning.pytorch.strategies`."
        )
    field, keyword = args.ddp_find_unused_parameters, choice.settings.get("find_unused_parameters")
    if None not in (field, keyword) and field != keyword:
        raise TrainerSetupError(
            f"`ddp_find_unused_parameters={field}` contradicts `find_unused_parameters={keyword}` of `lightning`'s "
            "`strategy`: set only one of them."
        )
    return choice


def read_parallel_sizes(
    args: TrainingArguments, strategy: str | Strategy, fsdp: FsdpSettings | None, *, nodes: int, devices: int
) -> ParallelSizes | None:
    """Return the sizes of the device mesh that ``args`` or the user's ``strategy`` request; None without one.

    Args:
        args: The training arguments.
        strategy: The user's keyword.
        fsdp: How FSDP shards the model; None without FSDP.
        nodes: Number of nodes.
        devices: Number of processes on each.

    Raises:
        TrainerSetupError: If they contradict each other, or do not multiply to the world size.
    """
    sizes = read_parallelism(args)
    if isinstance(strategy, ModelParallelStrategy):
        sizes = _sizes_of_instance(strategy, args, nodes, devices)
    if (tensor := autotp_size(args)) > 1:
        return _sizes_under_deepspeed(tensor, nodes * devices)
    if sizes is None:
        return None
    if problem := world_size_problem(sizes, nodes * devices):
        where = "`parallelism_config`" if strategy == "auto" else format_strategy(strategy)
        raise TrainerSetupError(f"{where}: {problem}")
    if fsdp is not None:
        _check_sharding(sizes, fsdp)
    if sizes.cp > 1 and (kind := args.device.type) != "cuda":
        raise TrainerSetupError(
            f"`parallelism_config`: `cp_size={sizes.cp}` needs GPUs, but the run is on {kind}: torch's "
            "ring attention is made of CUDA's kernels. Remove it, or run on GPUs."
        )
    return sizes


def _sizes_under_deepspeed(tensor: int, world_size: int) -> ParallelSizes:
    """Return the sizes of ``world_size`` ranks of which DeepSpeed has ``tensor`` share each matrix and each batch."""
    if world_size % tensor:
        raise TrainerSetupError(
            f"`tensor_parallel.autotp_size={tensor}` in the DeepSpeed config does not divide the world size, which is "
            f"{world_size}. Start a multiple of {tensor} processes, or set another size."
        )
    return ParallelSizes(dp_replicate=world_size // tensor, tp=tensor)


def _check_sharding(sizes: ParallelSizes, fsdp: FsdpSettings) -> None:
    """Refuse settings of FSDP that it does not have over a device mesh of ``sizes``."""
    needs: dict[str, object] = {}
    if sizes.dp_shard == sizes.cp == 1:
        needs["`dp_shard_size` above 1"] = sizes.dp_shard
    if fsdp.version != 2:
        needs["`version` 2 in `fsdp_config`"] = fsdp.version
    if sizes.tp > 1 and fsdp.state_dict_type != "full":
        needs["`state_dict_type` 'FULL_STATE_DICT' in `fsdp_config`"] = repr(fsdp.state_dict_type)
    if needs:
        wanted = " and ".join(f"{need} (now {value})" for need, value in needs.items())
        raise TrainerSetupError(f"`fsdp` with {sizes} needs {wanted}. Set them, or do not set `fsdp`.")


def _sizes_of_instance(
    strategy: ModelParallelStrategy, args: TrainingArguments, nodes: int, devices: int
) -> ParallelSizes:
    (data, tensor), problems = parse_model_parallel_strategy(strategy), list[str]()
    sizes = ParallelSizes(dp_shard=nodes if data == "auto" else data, tp=devices if tensor == "auto" else tensor)
    if sizes.tp == 1:
        problems.append("with `tensor_parallel_size=1` it is FSDP: set `fsdp=True` and `fsdp_config` instead")
    if read_parallelism(args) not in (None, sizes):
        problems.append(f"`parallelism_config={args.parallelism_config!r}` contradicts it, set only one of them")
    if problems:
        raise TrainerSetupError(f"{format_strategy(strategy)}: {'; '.join(problems)}.")
    return sizes
