"""``prepare_optimizer``: a run's optimizer, its state on the device, as scripts see it behind accelerate's wrapper."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

from hf_compat.nested import map_nested

__all__ = ["load_on_device", "prepare_optimizer", "unwrap_optimizer"]

_WRAPPED: WeakKeyDictionary[Any, Optimizer] = WeakKeyDictionary()
"""What is in each wrapper: outside of its attributes, which are the optimizer's."""
_INNER = property(lambda wrapper: _WRAPPED[wrapper], doc="The optimizer itself.")


def prepare_optimizer(optimizer: Any, device: torch.device) -> Any:
    """Return ``optimizer`` with its state on ``device``, in a wrapper that shows it as ``optimizer``.

    The wrapper is an optimizer of the same class that shares all attributes with what it wraps, and alone holds it:
    either may be stepped, patched or read. Pickles and copies of it are wrappers too.

    Args:
        optimizer: An optimizer. One that has an attribute ``optimizer``, such as a wrapper of the script's, keeps what
            it shows; a wrapper made here, and what is no optimizer of torch's, are returned as they are.
        device: The device of the run.

    References:
        As accelerate ``optimizer.py`` ``AcceleratedOptimizer``.
    """
    if not isinstance(optimizer, Optimizer) or _is_wrapper(optimizer):
        return optimizer
    load_on_device(optimizer, device)
    if not (hasattr(optimizer.step, "__func__") or hasattr(optimizer.step, "_wrapped_by_lr_sched")):
        _show_as_method(optimizer, optimizer.step)
    return optimizer if hasattr(optimizer, "optimizer") else _wrap(optimizer)


def load_on_device(optimizer: Optimizer, device: torch.device) -> None:
    """Have ``optimizer`` load its own state from ``device``: torch casts it, and parameter groups become new dicts."""
    state: Any = map_nested(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, optimizer.state_dict())
    optimizer.load_state_dict(state)


def unwrap_optimizer(optimizer: Any) -> Any:
    """Return the optimizer in a wrapper that :func:`prepare_optimizer` has made; any other as it is."""
    return optimizer.optimizer if _is_wrapper(optimizer) else optimizer


def _is_wrapper(optimizer: object) -> bool:
    """Return whether the class of ``optimizer``, not one that it derives from, is a wrapper's."""
    return vars(type(optimizer)).get("optimizer") is _INNER


def _show_as_method(optimizer: Any, patched: Callable[[Any], Any]) -> None:
    """Let schedules take a function that the script has put in the place of ``step`` for a method, as torch's need.

    Accelerate's wrapper has a method, which calls the function with a closure, None from the Trainer.
    """

    @wraps(patched)
    def step(closure: Any = None) -> Any:
        return patched(closure)

    vars(step)["__func__"] = lambda _, closure=None: patched(closure)
    optimizer.step = step


def _wrap(optimizer: Optimizer) -> Any:
    kind = type(optimizer)
    members = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__reduce_ex__": lambda wrapper, protocol: (_wrap, (wrapper.optimizer,)),
        "optimizer": _INNER,
    }
    wrapper: Any = object.__new__(type(kind.__name__, (kind,), members))
    _WRAPPED[wrapper] = optimizer
    object.__setattr__(wrapper, "__dict__", vars(optimizer))
    return wrapper
