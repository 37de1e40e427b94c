"""The strategy of a run, from the training arguments and the keyword ``strategy`` of ``lightning.Trainer``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch.plugins import CheckpointIO, Precision
from lightning.pytorch.strategies import (
    DDPStrategy,
    DeepSpeedStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    SingleDeviceStrategy,
    Strategy,
    StrategyRegistry,
)
from torch import nn
from torch.distributed.tensor import DTensor

from hf_compat.arguments.checks import config_contradictions, field_contradictions
from hf_compat.arguments.deepspeed import autotp_size, config_in_use, uses_deepspeed
from hf_compat.arguments.fsdp import FsdpSettings, device_limits, node_limits, read_fsdp
from hf_compat.arguments.parallelism import (
    ParallelSizes,
    read_parallelism,
    read_sequence_parallelism,
    world_size_problem,
)
from hf_compat.arguments.problems import nearest_value
from hf_compat.checkpoint.background import is_requested
from hf_compat.distributed.processes import import_deepspeed
from hf_compat.engine.internals.strategies import (
    DEEPSPEED_NAMES,
    changed_options,
    overridden_names,
    parse_ddp_strategy,
    parse_deepspeed_strategy,
    parse_fsdp_strategy,
    parse_model_parallel_strategy,
    parts_of_strategy,
    plain_class,
    start_method,
)
from hf_compat.engine.keywords import user_plugins
from hf_compat.engine.moving import is_spread
from hf_compat.engine.precision import FullPrecision
from hf_compat.engine.rank_mesh import TENSOR_PARALLEL
from hf_compat.engine.ring_attention import context_parallel_limits
from hf_compat.engine.strategies.deepspeed_engine import sequence_parallel_limits
from hf_compat.engine.strategy_table import (
    ABSTRACT,
    REFUSED_STRATEGIES,
    Refusal,
    is_of_ray,
)
from hf_compat.errors import TrainerSetupError
from hf_compat.model_facts import indivisible_heads, is_peft_model, presharded_size
from hf_compat.optim.optimizers import plain_name

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments
    from hf_compat.arguments.deepspeed import HfTrainerDeepSpeedConfig
    from hf_compat.arguments.sequence_parallelism import SequenceParallelism

# The arguments of a Trainer that each strategy does not support.


_HEADS = {
    "q_proj": "num_attention_heads",
    "k_proj": "num_key_value_heads",
    "v_proj": "num_key_value_heads",
}
"""A module of an attention layer → the number in the config of the heads that it computes."""


def deepspeed_limits(request: StrategyRequest) -> list[str]:
    """Return a message for each argument that is not supported with DeepSpeed."""
    args, precision, deepspeed = request.args, request.precision, config_in_use(request.args)
    config, sequences = deepspeed.config, read_sequence_parallelism(args)
    problems = [*field_contradictions(args)]
    problems += _tensor_parallel_problems(deepspeed, sequences, request.model)
    problems += config_contradictions(args, in_background=is_requested(args))
    problems += sequence_parallel_limits(sequences, request.model)
    if not isinstance(precision, FullPrecision):
        problems.append(
            f"`lightning={{'plugins': [{type(precision).__name__}]}}` is not supported with `deepspeed`: its config "
            "sets the precision. Remove the plugin."
        )
    optim = str(plain_name(args.optim))
    if "optimizer" in config and not optim.startswith("adamw"):
        problems.append(f"`optim={optim!r}`: the DeepSpeed config has an `optimizer` too. Set only one of them.")
    return problems


def _tensor_parallel_problems(
    config: HfTrainerDeepSpeedConfig, sequences: SequenceParallelism | None, model: nn.Module | None
) -> Iterator[str]:
    """Yield a message for each setting beside which DeepSpeed's tensor parallelism, if ``config`` has it, fails."""
    size = config.tensor_parallel_size
    if size == 1:
        return
    name = f"`tensor_parallel.autotp_size={size}` in the DeepSpeed config"
    if is_peft_model(model):
        yield (
            f"{name} is not supported with the adapters of a peft model, whose parameters DeepSpeed does not find "
            "again once it has split the matrices below them. Merge the adapters, or use ZeRO-3 in its place."
        )
    if config.is_zero3():
        yield (
            f"{name} is not supported with ZeRO-3, which refuses the samples of an update step that the Trainer fills "
            "in, also that of transformers. Set `zero_optimization.stage` to 0, 1 or 2, or remove `tensor_parallel`."
        )
    if sequences is not None:
        yield (
            f"{name} is not supported with `sp_size={sequences.size}` in `parallelism_config`: DeepSpeed takes the "
            "groups of ranks of one of them only. Remove one."
        )


def data_parallel_limits(request: StrategyRequest) -> list[str]:
    """Return a message for each argument that is not supported with several GPUs in one process."""
    args, model = request.args, request.model
    if "underflow_overflow" not in args.debug or (model is not None and is_spread(model, args.device)):
        return []
    return [
        f"`debug='underflow_overflow'` is not supported under DP, with {args.n_gpu} GPUs in one process: its hooks "
        "would not be those of the replicas. Start the script with `torchrun`, or set CUDA_VISIBLE_DEVICES to one GPU."
    ]


def fsdp_limits(request: StrategyRequest) -> list[str]:
    """Return a message for each argument that is not supported with FSDP, or with tensor parallelism."""
    args, settings, problems = request.args, request.fsdp, list[str]()
    if request.sizes.tp > 1 and args.mixed_precision == "fp16":
        problems.append(_float16_problem(f"`tp_size={request.sizes.tp}`"))
    if settings is None:  # tensor parallelism only
        return problems
    problems += node_limits(args)
    if is_peft_model(request.model) and settings.state_dict_type == "sharded":
        problems.append(
            "`model`: the adapters of a peft model can only be saved as a full state dict. Set "
            "`fsdp_config={'state_dict_type': 'FULL_STATE_DICT'}`."
        )
    if request.has_optimizers:
        problems.append(
            "Passing `optimizers` is not allowed if PyTorch FSDP is enabled: it was created with the full parameters, "
            "which FSDP replaces by shards. Override `create_optimizer`, or pass `optimizer_cls_and_kwargs`."
        )
    problems += context_parallel_limits(request.sizes.cp, request.model)
    return problems


def presharded_limits(request: StrategyRequest) -> list[str]:
    """Return a message for heads that ranks cannot share, and for float16 of parameters on several device meshes."""
    sizes = {name: presharded_size(request.model, name) for name in ("tp_size", "ep_size")}
    problems = [*_divided_heads(request.model, sizes["tp_size"])]
    if request.args.mixed_precision == "fp16" and max(sizes.values()) > 1:
        split = " and ".join(f"`{name}={size}`" for name, size in sizes.items() if size > 1)
        problems.append(_float16_problem(f"a model that was loaded with {split}"))
    return problems


def _float16_problem(split: str) -> str:
    """Return the message that float16 is not supported with the sizes in ``split``, by which parameters are split."""
    return (
        f"`fp16=True` is not supported with {split}: gradients on several device meshes are not unscaled before they "
        "are clipped. Set `bf16=True` instead."
    )


def _divided_heads(model: nn.Module | None, size: int) -> Iterator[str]:
    """Yield a message if the ``size`` ranks that split matrices of attention have parts of heads."""
    if model is None or size == 1:
        return
    split = {name.split(".")[-2] for name, item in model.named_parameters() if "." in name and _is_split(item)}
    computed = {_HEADS[name] for name in _HEADS.keys() & split}
    wrong = [f"`{name}={count}`" for name, count in indivisible_heads(model, size) if name in computed]
    if wrong:
        yield (
            f"`model`: {type(model).__name__} was loaded with `tp_size={size}`, which does not divide "
            f"{' and '.join(wrong)} of its config: each rank would have parts of heads. Load it with another `tp_size`."
        )


def _is_split(parameter: nn.Parameter) -> bool:
    if not isinstance(parameter, DTensor):
        return False
    names = parameter.device_mesh.mesh_dim_names or (TENSOR_PARALLEL,)  # without names it is by a `tp_plan`
    return any(
        name == TENSOR_PARALLEL and placement.is_shard()
        for name, placement in zip(names, parameter.placements, strict=False)
    )


# Properties of each strategy that are known by its name, before it is created, and what it does not support.


@dataclass(frozen=True, slots=True)
class StrategyRequest:
    """The arguments of a Trainer that a strategy may not support."""

    args: TrainingArguments
    """The training arguments."""
    model: nn.Module | None
    """The model; None if ``model_init`` has not been called yet."""
    has_optimizers: bool
    """Whether an optimizer or a schedule was passed to the Trainer."""
    precision: Precision
    """Lightning's precision plugin."""
    fsdp: FsdpSettings | None
    """How FSDP shards the model; None without FSDP."""
    sizes: ParallelSizes
    """The sizes of the device mesh; all 1 without one."""


def _none(request: StrategyRequest) -> list[str]:
    return []


def _never(args: TrainingArguments) -> bool:
    return False


def _always(args: TrainingArguments) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class StrategyTraits:
    """Properties of a strategy; the defaults are those of a single device."""

    shards_model: bool = False
    """The model is sharded: a checkpoint's weights are loaded after it is wrapped."""
    places_model: bool = True
    """The Trainer moves the model to its device; otherwise the strategy does, unit by unit."""
    has_engine: bool = False
    """An engine owns weights, optimizer and schedule; ``resume_engine`` loads them together."""
    own_precision: bool = False
    """The engine handles mixed precision: no gradient scaler, no autocast around the loss."""
    own_casts: bool = False
    """The strategy casts parameters, inputs and outputs for mixed precision: no autocast around the forward pass."""
    recounts_parameters: bool = False
    """The number of parameters on a rank changes from batch to batch."""
    flat_shards: bool = False
    """Gradients are shards of flat parameters: the gradient scaler checks for infinite ones on all ranks."""
    input_dtype: Callable[[TrainingArguments], torch.dtype | None] | None = None
    """Training arguments → dtype that floating-point inputs are cast to, None for no cast; None: the precision's."""
    groups_by_mesh: bool = False
    """The optimizer's parameter groups are divided by device mesh, since its kernels are for tensors of one."""
    shards_as_it_loads: Callable[[TrainingArguments], bool] = _never
    """Training arguments → whether ``from_pretrained`` shards the model, so that saving needs the strategy."""
    limits: Callable[[StrategyRequest], list[str]] = _none
    """Request of a Trainer → a message for each of its arguments that is not supported."""


def _engine_dtype(args: TrainingArguments) -> torch.dtype | None:
    return config_in_use(args).dtype()


def _is_zero3(args: TrainingArguments) -> bool:
    return bool(config_in_use(args).is_zero3())


STRATEGY_TRAITS: dict[str, StrategyTraits] = {
    "one device": StrategyTraits(),
    "data parallel": StrategyTraits(limits=data_parallel_limits),
    "ddp": StrategyTraits(),
    "fsdp1": StrategyTraits(shards_model=True, places_model=False, flat_shards=True, limits=fsdp_limits),
    "fsdp2": StrategyTraits(shards_model=True, places_model=False, own_casts=True, limits=fsdp_limits),
    "tensor parallel": StrategyTraits(shards_model=True, places_model=False, limits=fsdp_limits),
    "presharded": StrategyTraits(
        shards_model=True,
        places_model=False,
        groups_by_mesh=True,
        shards_as_it_loads=_always,
        limits=presharded_limits,
    ),
    "deepspeed": StrategyTraits(
        shards_model=True,
        places_model=False,
        has_engine=True,
        own_precision=True,
        recounts_parameters=True,
        input_dtype=_engine_dtype,
        shards_as_it_loads=_is_zero3,
        limits=deepspeed_limits,
    ),
}
"""``ProcessLayout.strategy`` → its properties."""


# The options of Lightning's strategy classes that are refused.


_DEVICES = {
    "accelerator": Refusal("the training arguments choose the device", "`use_cpu`, or CUDA_VISIBLE_DEVICES"),
    "parallel_devices": Refusal("the training arguments choose the devices", "`use_cpu`, or CUDA_VISIBLE_DEVICES"),
}
_PROCESSES = {
    "process_group_backend": Refusal(
        "the training arguments initialise the process group", "`TrainingArguments(ddp_backend=...)`"
    ),
    "timeout": Refusal("the training arguments initialise the process group", "`TrainingArguments(ddp_timeout=...)`"),
}

_KINDS: dict[str, type] = {
    "checkpoint_io": CheckpointIO,
    "cluster_environment": ClusterEnvironment,
    "precision_plugin": Precision,
}
"""Argument of a strategy → the kind of plugin that it is."""

REFUSED_OPTIONS: dict[str, dict[str, Refusal]] = {
    "DDPStrategy": {**_DEVICES, **_PROCESSES},
    "DeepSpeedStrategy": {
        **_DEVICES,
        **_PROCESSES,
        "precision_plugin": Refusal("the DeepSpeed config sets the precision", "`bf16`, `fp16` or `precision`"),
        "remote_device": Refusal(
            "the model is there before the strategy", "`offload_parameters=True` to keep its weights elsewhere"
        ),
        "logging_level": Refusal("DeepSpeed logs at the level of the Trainer", "`TrainingArguments(log_level=...)`"),
        "load_full_weights": Refusal(
            "checkpoints are those of the Trainer", "`from_pretrained` to begin with the weights of a file"
        ),
        "exclude_frozen_parameters": Refusal(
            "checkpoints are those of transformers, which leave frozen parameters out of adapters only",
            "a peft model, or leave it out",
        ),
    },
    "FSDPStrategy": {
        **_DEVICES,
        **_PROCESSES,
        "checkpoint_io": Refusal("sharded checkpoints are written by `torch.distributed.checkpoint`", "no plugin"),
        "precision_plugin": Refusal("the training arguments set the precision", "`bf16`, `fp16` or `precision`"),
        "mixed_precision": Refusal("the training arguments set the precision", "`bf16`, `fp16` or `precision`"),
        "device_mesh": Refusal(
            "the mesh is that of all ranks, for hybrid sharding nodes by ranks of a node",
            "`sharding_strategy='HYBRID_SHARD'`",
        ),
    },
    "ModelParallelStrategy": _PROCESSES,
    "SingleDeviceStrategy": {"accelerator": _DEVICES["accelerator"]},
}
"""Each strategy class that works → the arguments of its constructor that are refused off their defaults → why."""


def strategy_spelled_out(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return ``keywords`` with what ``strategy`` stands for, and why that cannot be.

    As in Lightning a name may be in capitals, or one that a user has registered with `StrategyRegistry`, and plugins
    may be handed to a strategy.
    """
    meant, strategy = dict(keywords), keywords.get("strategy")
    if isinstance(strategy, str):
        strategy = strategy.lower()
        if strategy not in (*STRATEGY_NAMES, *REFUSED_STRATEGIES) and strategy in StrategyRegistry:
            strategy = StrategyRegistry.get(strategy)
        meant["strategy"] = strategy
    if not isinstance(strategy, Strategy):
        return meant, []
    skipped = REFUSED_OPTIONS.get(plain_class(strategy).__name__, {})  # there is an error when the strategy is read
    parts = {name: part for name, part in parts_of_strategy(strategy).items() if name not in skipped}
    plugins = user_plugins(keywords)
    problems = [
        f"`lightning={{'strategy': {type(strategy).__name__}({name}=...), 'plugins': [{type(other).__name__}]}}` both "
        f"set the {name.replace('_', ' ')}: choose one of them."
        for name in parts
        for other in plugins
        if isinstance(other, _KINDS[name])
    ]
    if parts:
        meant["plugins"] = [*plugins, *parts.values()]
    return meant, problems


def deepspeed_meant(strategy: object, *, use_cpu: bool) -> dict[str, Any] | None:
    """Return the DeepSpeed config that the keyword ``strategy`` stands for; None if it is another strategy.

    Args:
        strategy: The user's strategy, a name or an instance.
        use_cpu: Whether the run is on the CPU, whatever devices there are; DeepSpeed detects its device on import.

    Raises:
        MissingPackageError: If DeepSpeed is not installed.
    """
    if isinstance(strategy, str) and strategy in DEEPSPEED_NAMES:
        import_deepspeed(torch.device("cpu" if use_cpu else "cuda"))
        strategy = StrategyRegistry.get(strategy)
    return parse_deepspeed_strategy(strategy) if isinstance(strategy, DeepSpeedStrategy) else None


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
STRATEGY_NAMES = ("auto", *_DDP_NAMES, *DEEPSPEED_NAMES, *_FSDP_NAMES, _ONE_DEVICE)
"""What the keyword ``strategy`` may say, besides what a user has registered."""


@dataclass(frozen=True, slots=True)
class StrategyChoice:
    """The user's choice of a strategy, before the world size is known."""

    start_method: str = "popen"
    """How processes are started if no launcher did: by running the script again, or a multiprocessing method."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Keywords of ``DistributedDataParallel`` that the user chose."""
    ddp_hooks: dict[str, Any] = field(default_factory=dict)
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
    refused = REFUSED_STRATEGIES.get(strategy if isinstance(strategy, str) else plain_class(strategy).__name__)
    overridden = overridden_names(strategy) if isinstance(strategy, Strategy) and not is_of_ray(strategy) else []
    if overridden and (refused is None or refused.reason == ABSTRACT):
        raise TrainerSetupError(
            f"{format_strategy(strategy)} is not supported: hf_compat uses its own strategy classes, which never call "
            f"your `{'`, `'.join(overridden)}`. Pass Lightning's class with the arguments that you need, and override "
            "methods of the Trainer; or write a Lightning callback."
        )
    if refused is not None:
        raise TrainerSetupError(
            f"{format_strategy(strategy)} is not supported: {refused.reason}. Use {refused.instead}."
        )
    if isinstance(strategy, Strategy):
        options = REFUSED_OPTIONS.get(plain_class(strategy).__name__, {})
        changed = [
            f"`{name}` is not supported, because {options[name].reason}: use {options[name].instead}"
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
        raise TrainerSetupError(
            f"{nearest_value(strategy, STRATEGY_NAMES).capitalize()}{format_strategy(strategy)} is not supported. Pass "
            f"one of {', '.join(map(repr, STRATEGY_NAMES))}, or "
            f"{', '.join(f'`{name}`' for name in REFUSED_OPTIONS)} of `lightning.pytorch.strategies`."
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
