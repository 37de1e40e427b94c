"""The private names of Lightning's strategies that hf_compat uses, each with its contract."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar, cast

import lightning.pytorch as pl
from lightning.pytorch.overrides.distributed import _register_ddp_comm_hook
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import DDPStrategy, Strategy
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

__all__ = [
    "calling_strategy",
    "changed_options",
    "has_plain_ddp",
    "overridden_names",
    "parse_ddp_strategy",
    "parts_of_strategy",
    "plain_class",
    "register_communication_hooks",
    "replace_optimizer",
    "replace_strategy",
    "starts_no_processes",
]

_CHOSEN_BY_TRAINER = ("module", "device_ids", "output_device")
"""Keywords of torch's DDP that are not the user's."""
_StrategyClass = TypeVar("_StrategyClass", bound=type[Strategy])


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


def _keyword_problems(given: Iterable[str]) -> Iterator[str]:
    """Yield what is wrong about the names of keywords for torch's DDP."""
    known = [*inspect.signature(DistributedDataParallel.__init__).parameters][1:]
    for name in given:
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
