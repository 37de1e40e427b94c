"""The private names of Lightning's strategies that hf_compat uses, each with its contract."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

import lightning.pytorch as pl
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import DDPStrategy, Strategy

__all__ = [
    "calling_strategy",
    "has_plain_ddp",
    "parse_ddp_strategy",
    "register_communication_hooks",
    "replace_strategy",
    "starts_no_processes",
]

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

    Contract: Lightning's ``DDPStrategy`` does that in ``_register_ddp_hooks``; ``teardown`` unwraps ``model``.
    """
    strategy._register_ddp_hooks()


def has_plain_ddp(strategy: Strategy) -> bool:
    """Return whether ``strategy`` has no settings of Lightning's ``DDPStrategy``.

    Contract: it stores each argument as an attribute with an underscore.
    """
    if not isinstance(strategy, DDPStrategy):
        return True
    plain = DDPStrategy()
    names = ("ddp_kwargs", "ddp_comm_state", "ddp_comm_hook", "ddp_comm_wrapper", "model_averaging_period")
    return all(getattr(strategy, f"_{name}") == getattr(plain, f"_{name}") for name in names)


def replace_strategy(trainer: pl.Trainer, strategy: Strategy, precision: Precision) -> None:
    """Give ``trainer``, which is in the ``setup`` of a fit, another strategy and precision plugin.

    Contract: ``trainer.strategy`` is the accelerator connector's; ``_lazy_init_strategy`` sets what its constructor
    does not know, and what follows ``setup`` asks the trainer for it. A strategy is connected to the module, and its
    environment is set up, before.
    """
    connector, module = trainer._accelerator_connector, trainer.lightning_module
    connector.strategy, connector.precision_plugin = strategy, precision
    connector._lazy_init_strategy()
    strategy.connect(module)
    strategy.setup_environment()


def parse_ddp_strategy(strategy: DDPStrategy) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return the user's keywords for torch's DDP and for Lightning's, and which arguments are not supported.

    Contract: Lightning's ``DDPStrategy`` stores each argument as an attribute with an underscore.
    """
    hooks = ("ddp_comm_state", "ddp_comm_hook", "ddp_comm_wrapper", "model_averaging_period")
    plain = DDPStrategy()
    instead = {
        "process_group_backend": "set `TrainingArguments(ddp_backend=...)` instead of `process_group_backend`",
        "timeout": "set `TrainingArguments(ddp_timeout=...)` instead of `timeout`",
        "parallel_devices": "`parallel_devices` is not supported, do not pass it",
        "checkpoint_io": "`checkpoint_io` is not supported, do not pass it",
    }
    problems = [text for name, text in instead.items() if getattr(strategy, f"_{name}") != getattr(plain, f"_{name}")]
    if strategy.cluster_environment is not None:
        problems.append("`cluster_environment` is not supported, do not pass it: the launcher's variables are used")
    return dict(strategy._ddp_kwargs), {name: getattr(strategy, f"_{name}") for name in hooks}, problems
