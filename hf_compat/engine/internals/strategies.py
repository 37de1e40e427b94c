"""The private names of Lightning's strategies and launchers that hf_compat uses, each with its contract."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, Literal, TypeVar, cast

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.strategies.launchers.subprocess_script import _launch_process_observer
from lightning.pytorch.overrides.distributed import _register_ddp_comm_hook
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import (
    DDPStrategy,
    DeepSpeedStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    ParallelStrategy,
    Strategy,
    StrategyRegistry,
)
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from hf_compat.arguments.fsdp import FsdpSettings
from hf_compat.distributed.oom_consensus import vote

_CHOSEN_BY_TRAINER = ("module", "device_ids", "output_device")
"""Keywords of torch's DDP that are not the user's."""
_StrategyClass = TypeVar("_StrategyClass", bound=type[Strategy])

DEEPSPEED_NAMES = tuple(name for name, row in StrategyRegistry.items() if row["strategy"] is DeepSpeedStrategy)
"""Lightning's names of ``DeepSpeedStrategy`` with its options."""

_FOLLOWS_ARGUMENTS = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
"""Keys that Lightning fills in from its trainer, and a run from the training arguments."""
_LOSS_SCALE = ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")


def starts_no_processes(cls: _StrategyClass) -> _StrategyClass:
    """Return ``cls``, a class of strategies whose ranks are started already.

    Contract: Lightning calls ``_configure_launcher`` before it sets a strategy up; it creates, as ``_launcher``, what
    starts processes, and without one Lightning runs in this process.
    """

    def configure_launcher(self: Strategy) -> None:
        self._launcher = None

    cls._configure_launcher = configure_launcher  # type: ignore[method-assign]
    return cls


def replace_optimizer(strategy: Strategy, optimizer: Optimizer) -> None:
    """Have ``strategy`` step ``optimizer`` from now on, also in the middle of an update step.

    Contract: ``_lightning_optimizers`` has the wrappers that ``LightningModule.optimizers`` returns, made anew when
    ``optimizers`` is set. Manual optimization counts update steps by ``_on_before_step`` and ``_on_after_step``, which
    it sets on them before each batch.
    """
    former = strategy._lightning_optimizers
    strategy.optimizers = [optimizer]
    for before, now in zip(former, strategy._lightning_optimizers, strict=False):
        now._on_before_step, now._on_after_step = before._on_before_step, before._on_after_step


def calling_strategy() -> Strategy | None:
    """Return the strategy in the call stack, None if there is none.

    Contract: ``Strategy.save_checkpoint`` and ``Strategy.load_checkpoint`` call a ``CheckpointIO``, without a reference
    to the trainer.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if isinstance(caller := frame.f_locals.get("self"), Strategy):
            return caller
        frame = frame.f_back
    return None


def register_communication_hooks(strategy: DDPStrategy) -> None:
    """Register the communication hooks that the user chose on ``strategy.model``, the wrapper.

    Contract: Lightning's ``DDPStrategy`` stores each argument as an attribute with an underscore, and registers hooks
    by this function, but on GPUs alone; torch calls them with gloo too. ``teardown`` unwraps ``model``.
    """
    names = ("ddp_comm_state", "ddp_comm_hook", "ddp_comm_wrapper")
    _register_ddp_comm_hook(
        cast("DistributedDataParallel", strategy.model), **{name: getattr(strategy, f"_{name}") for name in names}
    )


def has_plain_ddp(strategy: Strategy) -> bool:
    """Return whether ``strategy`` has no settings of Lightning's ``DDPStrategy``.

    Contract: it stores each argument as an attribute with an underscore.
    """
    if not isinstance(strategy, DDPStrategy):
        return True
    plain = DDPStrategy()
    names = ("ddp_kwargs", "ddp_comm_state", "ddp_comm_hook", "ddp_comm_wrapper", "model_averaging_period")
    return all(getattr(strategy, f"_{name}") == getattr(plain, f"_{name}") for name in names)


def replace_strategy(pl_trainer: pl.Trainer, strategy: Strategy, precision: Precision) -> None:
    """Give ``pl_trainer``, which is in the ``setup`` of a fit, another strategy and precision plugin.

    Contract: ``trainer.strategy`` is the accelerator connector's; ``_lazy_init_strategy`` sets what its constructor
    does not know, and what follows ``setup`` reads it from the trainer. A strategy is connected to the module, and its
    environment is set up, before.
    """
    connector, module = pl_trainer._accelerator_connector, pl_trainer.lightning_module
    connector.strategy, connector.precision_plugin = strategy, precision
    connector._lazy_init_strategy()
    strategy.connect(module)
    strategy.setup_environment()


def parse_ddp_strategy(strategy: DDPStrategy) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return the user's keywords for torch's DDP and for Lightning's, and what is wrong about the latter.

    Contract: Lightning's ``DDPStrategy`` stores each argument as an attribute with an underscore.
    """
    hooks = ("ddp_comm_state", "ddp_comm_hook", "ddp_comm_wrapper", "model_averaging_period")
    problems = [*_keyword_problems(strategy._ddp_kwargs), *_hook_problems(strategy._ddp_comm_hook)]
    chosen = [name for name in hooks if getattr(strategy, f"_{name}") is not None]
    if chosen and strategy._ddp_comm_hook is None:
        problems.append(f"`{chosen[0]}` has no effect without `ddp_comm_hook`, pass that too")
    elif isinstance(strategy._ddp_comm_state, PostLocalSGDState) != ("model_averaging_period" in chosen):
        problems.append(
            "`model_averaging_period` and a `PostLocalSGDState` as `ddp_comm_state` need each other, pass both"
        )
    return dict(strategy._ddp_kwargs), {name: getattr(strategy, f"_{name}") for name in hooks}, problems


def _keyword_problems(names: Iterable[str]) -> Iterator[str]:
    """Yield what is wrong about the names of keywords for torch's DDP."""
    known = [*inspect.signature(DistributedDataParallel.__init__).parameters][1:]
    for name in names:
        if name not in known:
            free = ", ".join(each for each in known if each not in _CHOSEN_BY_TRAINER)
            yield f"`{name}` is not a keyword of `DistributedDataParallel`, use {free}"
        elif name in _CHOSEN_BY_TRAINER:
            yield f"`{name}` is chosen by the Trainer, do not pass it"


def _hook_problems(hook: object) -> Iterator[str]:
    """Yield what is wrong about a communication hook."""
    if hook is None:
        return
    text = f"`ddp_comm_hook={hook!r}` must be a function of a state and a `GradBucket`, such as torch's"
    if not callable(hook):
        yield text
        return
    try:
        inspect.signature(hook).bind(None, None)
    except TypeError:
        yield text
    except ValueError:  # it tells no signature
        pass


def changed_options(strategy: Strategy, names: Iterable[str]) -> list[str]:
    """Return those of ``names``, arguments of the constructor of Lightning's class, that are not at their default.

    Contract: Lightning's strategies store such an argument under its name, with or without an underscore, or in
    ``kwargs``; ``DeepSpeedStrategy`` gives ``logging_level`` to DeepSpeed's logger.
    """
    defaults = inspect.signature(cast("Any", plain_class(strategy)).__init__).parameters
    stored: dict[str, Any] = {**vars(strategy).get("kwargs", {}), **vars(strategy)}
    stored["logging_level"] = logging.getLogger("DeepSpeed").level

    def value(name: str) -> object:
        return stored.get(f"_{name}", stored.get(name, defaults[name].default))

    return [name for name in names if value(name) != defaults[name].default]


_NO_OVERRIDES = {"__init__", "__new__", "_abc_impl", "strategy_name"}
"""What a class may define without changing what its instances do in a run."""


def plain_class(strategy: object) -> type:
    """Return the class of ``strategy``, or the first that Lightning defines of those that it inherits from.

    Contract: Lightning's strategies are defined in ``lightning.pytorch.strategies``.
    """
    return next((kind for kind in type(strategy).__mro__ if _is_lightnings(kind)), type(strategy))


def overridden_names(strategy: object) -> list[str]:
    """Return the names of Lightning's class that ``strategy``, or its classes, define anew besides a constructor.

    Names that Lightning's class does not have override nothing: helpers, and the marks that libraries leave on classes.
    """
    kinds = type(strategy).__mro__
    plain = plain_class(strategy)
    own = [vars(kind) for kind in kinds[: kinds.index(plain)]]
    assigned = {name: value for name, value in vars(strategy).items() if inspect.isroutine(getattr(plain, name, None))}
    return sorted(
        {name for names in (*own, assigned) for name, value in names.items() if _overrides(plain, name, value)}
    )


def _overrides(plain: type, name: str, value: object) -> bool:
    if name in _NO_OVERRIDES or not hasattr(plain, name):
        return False
    return not name.startswith("__") or callable(value)


def _is_lightnings(kind: type) -> bool:
    return issubclass(kind, Strategy) and kind.__module__.startswith("lightning.")


def parts_of_strategy(strategy: Strategy) -> dict[str, Any]:
    """Return the plugins that ``strategy`` was given, by the names of its arguments.

    Contract: Lightning's ``Strategy`` stores ``checkpoint_io`` and ``precision_plugin`` as attributes with an
    underscore, and ``ParallelStrategy`` ``cluster_environment``; the accelerator connector takes them for plugins.
    """
    parts = {
        "checkpoint_io": strategy._checkpoint_io,
        "precision_plugin": strategy._precision_plugin,
        "cluster_environment": getattr(strategy, "cluster_environment", None),
    }
    return {name: part for name, part in parts.items() if part is not None}


def parse_deepspeed_strategy(strategy: DeepSpeedStrategy) -> dict[str, Any]:
    """Return the DeepSpeed config of the user's ``strategy``, with ``"auto"`` for what the training arguments say.

    Contract: Lightning's ``DeepSpeedStrategy`` makes ``config`` of its arguments in the constructor, or takes the
    user's; in a set-up it adds batch size, accumulation and clipping of its trainer, and a section for the precision
    with the loss-scaling options, which are attributes of their names.
    """
    config: dict[str, Any] = copy.deepcopy(strategy.config)  # type: ignore[arg-type]
    scaling = {name: getattr(strategy, name) for name in _LOSS_SCALE}
    return {
        "zero_optimization": {"stage": 0},
        **dict.fromkeys(_FOLLOWS_ARGUMENTS, "auto"),
        "fp16": {"enabled": "auto", **scaling},
        "bf16": {"enabled": "auto"},
        **config,
    }


def parse_fsdp_strategy(strategy: FSDPStrategy) -> tuple[FsdpSettings, list[str]]:
    """Return the settings of the user's ``strategy``, and which keywords and policies are not supported.

    Contract: Lightning's ``FSDPStrategy`` stores ``sharding_strategy`` and ``cpu_offload`` as torch's objects, full or
    sharded state dicts in ``_state_dict_type``, activation checkpointing in ``_activation_checkpointing_kwargs``, and
    the wrapper's other keywords in ``kwargs``, with a set of layers as ``ModuleWrapPolicy``.
    """
    given = {name: value for name, value in strategy.kwargs.items() if name != "device_mesh"}
    policy, prefetch = given.pop("auto_wrap_policy", None), given.pop("backward_prefetch", None)
    checkpointing = dict(strategy._activation_checkpointing_kwargs)
    layers = _layers_of(policy)
    flags = ("forward_prefetch", "limit_all_gathers", "use_orig_params", "sync_module_states")
    values = {name: bool(given.pop(name)) for name in flags if name in given}
    by_size = isinstance(policy, partial) and policy.func is size_based_auto_wrap_policy
    least = policy.keywords.get("min_num_params", 10**8) if by_size else 0
    problems = [f"`{name}` is not supported, do not pass it" for name in given]
    if policy is not None and layers is None and not by_size:
        problems.append("`auto_wrap_policy` must be a set of layer classes, or torch's size-based policy")
    if checkpointing and (layers is None or _layers_of(checkpointing.get("auto_wrap_policy")) != layers):
        problems.append("`activation_checkpointing_policy` must be the layers of `auto_wrap_policy`")
    return FsdpSettings(
        version=1,
        sharding=strategy.sharding_strategy.name.lower().removeprefix("_"),  # type: ignore[arg-type]
        wrapping="size" if by_size else "transformer" if layers else "none",
        layer_classes=layers or (),
        min_num_params=least,
        cpu_offload=strategy.cpu_offload is not None and strategy.cpu_offload.offload_params,
        state_dict_type=strategy._state_dict_type,
        activation_checkpointing=bool(checkpointing),
        backward_prefetch=None if prefetch is None else prefetch.name.lower(),
        **values,
    ), problems


def _layers_of(policy: object) -> tuple[str, ...] | None:
    if not isinstance(policy, ModuleWrapPolicy):
        return None
    return tuple(sorted(layer.__name__ for layer in policy._module_classes))


def set_up_with_mesh(strategy: ModelParallelStrategy, mesh: DeviceMesh) -> None:
    """Set up the environment of ``strategy`` as Lightning does, with ``mesh`` in place of Lightning's own.

    Contract: ``ModelParallelStrategy.setup_environment`` calls its parent's, then ``_setup_distributed``, and sets
    ``_device_mesh`` of the strategy and of its module.
    """
    ParallelStrategy.setup_environment(strategy)
    strategy._setup_distributed()
    assert strategy.lightning_module is not None, "connected by the trainer"
    strategy._device_mesh = strategy.lightning_module._device_mesh = mesh


def parse_model_parallel_strategy(
    strategy: ModelParallelStrategy,
) -> tuple[int | Literal["auto"], int | Literal["auto"]]:
    """Return data- and tensor-parallel size of the user's ``strategy``.

    Contract: Lightning's ``ModelParallelStrategy`` stores each argument as an attribute with an underscore.
    """
    return strategy._data_parallel_size, strategy._tensor_parallel_size


def start_method(strategy: DDPStrategy) -> str:
    """Return how ``strategy`` starts processes: ``"popen"`` (runs the script again) or a multiprocessing method.

    Contract: Lightning's ``DDPStrategy`` stores it as ``_start_method``, by default None.
    """
    return strategy._start_method or "popen"


def start_processes(count: int, num_nodes: int, *, mark: str) -> None:
    """Run this script ``count - 1`` more times, with this process as local rank 0; all are killed if one fails.

    Contract: the launcher of Lightning's DDP runs ``sys.argv`` again with LOCAL_RANK, NODE_RANK, WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT set, and sets them here too; its observer kills all processes when one has failed.

    Args:
        count: Number of processes on this node.
        num_nodes: Number of nodes; the user starts the script on each.
        mark: Environment variable that marks processes started by the Trainer.
    """
    environment = LightningEnvironment()
    launcher = _SubprocessScriptLauncher(environment, count, num_nodes)
    os.environ.update({mark: "1", "LOCAL_WORLD_SIZE": str(count)})
    launcher._call_children_scripts()
    if launcher.procs:
        _launch_process_observer(launcher.procs)


# Collectives of torch and DeepSpeed that begin with a vote, for engines that communicate in every layer.
#
# Sharded models gather parameters and reduce gradients all through forward and backward pass, inside libraries. While
# an attempt is under way, the ranks vote ahead of each of these collectives on whether one of them has failed: see
# :mod:`hf_compat.distributed.oom_consensus`.


_MODULES = (
    *("torch.distributed", "torch.distributed.tensor._collective_utils", "deepspeed.comm"),
    "transformers.distributed.expert_parallel",
)
"""Modules in which libraries look collectives up at each call, or have imported them by name."""
_OPERATORS = ("_c10d_functional", "_dtensor")
"""Namespaces of ``torch.ops`` whose operators functional collectives call, as do the gradients of these."""
_COLLECTIVES = (
    *("all_gather", "all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_gather_object"),
    *("all_gather_single", "all_gather_tensor", "all_reduce", "all_reduce_coalesced", "all_to_all"),
    *("all_to_all_single", "allgather_fn", "barrier", "broadcast", "broadcast_object_list", "gather"),
    *("gather_object", "monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_fn"),
    *("reduce_scatter_single", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "scatter"),
    *("scatter_object_list", "shard_dim_alltoall"),
)
"""Their names, of several releases."""


@contextmanager
def voted_collectives() -> Iterator[None]:
    """Context in which the collectives of training begin with a vote of the attempt under way; every rank enters it.

    Threads that Python has started, such as those of background saves, communicate at their own times, without a vote;
    backward passes on GPUs run in threads of torch's.
    """
    main = threading.get_ident()
    replaced: list[tuple[ModuleType, str, Any]] = []
    modules: list[ModuleType] = [sys.modules[name] for name in _MODULES if name in sys.modules]
    operators: list[ModuleType] = [getattr(torch.ops, name) for name in _OPERATORS]
    for module, name in itertools.product((*modules, *operators), _COLLECTIVES):
        if callable(function := getattr(module, name, None)):
            replaced.append((module, name, function))
            setattr(module, name, (_VotedOperator if module in operators else _voted)(function, main))
    try:
        yield
    finally:
        for module, name, function in replaced:
            setattr(module, name, function)


class _VotedOperator:
    """An operator of torch that begins with a vote; its overloads are the operator's own.

    Contract: ``torch.distributed._functional_collectives``, and since torch 2.13 the gradients that it registers, look
    operators up in ``torch.ops`` at each call.

    Args:
        operator: The operator.
        main: The thread that trains.
    """

    def __init__(self, operator: Any, main: int) -> None:
        self._operator = operator
        self._call = _voted(operator, main)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operator, name)


def _voted(function: Callable[..., Any], main: int) -> Callable[..., Any]:
    @functools.wraps(function)
    def voted(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == main or _is_of_torch(threading.current_thread()):
            vote()
        return function(*args, **kwargs)

    return voted


def _is_of_torch(thread: threading.Thread) -> bool:
    """Return whether ``thread`` was not started by Python, which gives it a substitute of this name."""
    return thread.name.startswith("Dummy-")
