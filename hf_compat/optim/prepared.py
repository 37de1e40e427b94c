"""``prepare_optimizer``: a run's optimizer, its state on the device, as scripts see it behind accelerate's wrapper."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial, wraps
from operator import attrgetter
from typing import Any, Protocol
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from hf_compat.distributed.collectives import broadcast_object, get_rank, get_world_size
from hf_compat.nested import map_nested


class UpdateSteps(Protocol):
    """The accelerator's members that a wrapper uses."""

    @property
    def sync_gradients(self) -> bool:
        """Whether the current backward pass ends an update step."""
        ...

    @property
    def scaler(self) -> GradScaler | None:
        """The gradient scaler, if any."""
        ...


@dataclass(slots=True)
class _Wrapped:
    """The optimizer in a wrapper, and the accelerator of its run, if it has one."""

    optimizer: Optimizer
    accelerator: Callable[[], UpdateSteps | None] = lambda: None


_WRAPPERS: WeakKeyDictionary[Any, _Wrapped] = WeakKeyDictionary()
"""What is in each wrapper: outside of its attributes, which are the optimizer's."""
_INNER = property(lambda wrapper: _WRAPPERS[wrapper].optimizer, doc="The optimizer itself.")


def prepare_optimizer(optimizer: Any, device: torch.device, accelerator: UpdateSteps | None = None) -> Any:
    """Return ``optimizer`` with its state on ``device``, in a wrapper that shows it as ``optimizer``.

    The wrapper is an optimizer of the same class that shares all attributes with what it wraps, and alone holds it:
    either may be stepped, patched or read. Only the wrapper's ``step`` and ``zero_grad`` do nothing where no update
    step ends, and it steps by the gradient scaler. It has the other members of accelerate's wrapper too. Pickles and
    copies of it are wrappers.

    Args:
        optimizer: An optimizer. One that has an attribute ``optimizer``, such as a wrapper of the script's, keeps what
            it shows; a wrapper made here, and what is no optimizer of torch's, are returned as they are.
        device: The device of the run.
        accelerator: Tells whether the current backward pass ends an update step. Default: each does.

    References:
        As accelerate ``optimizer.py`` ``AcceleratedOptimizer``.
    """
    if not isinstance(optimizer, Optimizer):
        return optimizer
    if not _is_wrapper(optimizer):
        load_on_device(optimizer, device)
        if not (hasattr(optimizer.step, "__func__") or hasattr(optimizer.step, "_wrapped_by_lr_sched")):
            _show_as_method(optimizer, optimizer.step)
        if hasattr(optimizer, "optimizer"):
            return optimizer
        optimizer = _wrap(optimizer)
    if accelerator is not None:
        _WRAPPERS[optimizer].accelerator = ref(accelerator)
    return optimizer


def load_on_device(optimizer: Optimizer, device: torch.device) -> None:
    """Have ``optimizer`` load its own state from ``device``: torch casts it, and parameter groups become new dicts."""
    state: Any = map_nested(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, optimizer.state_dict())
    optimizer.load_state_dict(state)


def set_mode(optimizer: object, *, training: bool) -> None:
    """Put a schedule-free ``optimizer`` into training mode or evaluation mode, also one that DeepSpeed has wrapped."""
    name = "train" if training else "eval"
    wrapped = _WRAPPERS.get(optimizer) if isinstance(optimizer, Optimizer) else None
    inner: Any = optimizer if wrapped is None else wrapped.optimizer
    change = getattr(inner, name, None)
    while not callable(change) and (inner := getattr(inner, "optimizer", None)) is not None:  # two deep in DeepSpeed's
        change = getattr(inner, name, None)
    if callable(change):
        change()


def unwrap_optimizer(optimizer: Any) -> Any:
    """Return the optimizer in a wrapper that :func:`prepare_optimizer` has made; any other as it is."""
    return optimizer.optimizer if _is_wrapper(optimizer) else optimizer


def scaled_step(scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> tuple[Any, bool]:
    """Step ``optimizer`` by ``scaler``, whose scale is updated.

    Returns:
        What the step returned, and whether it was skipped, because of an infinite gradient. A fused optimizer is called
        all the same, and leaves the weights; as with accelerate that counts as a step, so that the schedule goes on.
    """
    skipped, optimizer = True, unwrap_optimizer(optimizer)
    step, own = optimizer.step, vars(optimizer)  # hooks of torch's need its constructor, without which some do
    patched = own.get("step")

    @wraps(step)
    def noting(*args: Any, **kwargs: Any) -> Any:
        nonlocal skipped
        skipped = False
        return step(*args, **kwargs)

    own["step"] = noting
    try:
        output = scaler.step(optimizer, *args, **kwargs)
    finally:
        if patched is None:
            del own["step"]
        else:
            own["step"] = patched
    scaler.update()
    return output, skipped


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


class _InUpdates:
    """``step`` or ``zero_grad`` of a wrapper: the optimizer's own, which does nothing between two update steps.

    Args:
        kind: The class of the optimizer.
        name: The name of the method.
    """

    def __init__(self, kind: type, name: str) -> None:
        self._kind, self._name = kind, name

    def __get__(self, wrapper: Any, owner: type | None = None) -> Any:
        wrapped = None if wrapper is None else _WRAPPERS.get(wrapper)
        # Asked of the class, or of an optimizer of Lightning's, whose class derives from a wrapper's.
        if wrapped is None:
            method = getattr(self._kind, self._name)
            return method if wrapper is None else method.__get__(wrapper, owner)
        method, accelerator = getattr(wrapped.optimizer, self._name), wrapped.accelerator()
        if accelerator is None:
            return method
        if not accelerator.sync_gradients:
            return _instead_of(method, _do_nothing)
        scaler = accelerator.scaler if self._name == "step" else None
        return method if scaler is None else _instead_of(method, partial(scaled_step, scaler, wrapped.optimizer))

    def __set__(self, wrapper: Any, value: Any) -> None:
        vars(wrapper)[self._name] = value

    def __delete__(self, wrapper: Any) -> None:
        del vars(wrapper)[self._name]


def _instead_of(method: Callable[..., Any], action: Callable[..., Any]) -> Callable[..., None]:
    """Return what does ``action``; schedules take it for ``method``, as torch's need."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> None:
        action(*args, **kwargs)

    vars(call)["__func__"] = getattr(method, "__func__", method)
    return call


_MEMBERS: dict[str, Callable[[Any], Any]] = {
    "accelerator_state": attrgetter("state"),
    "device_placement": lambda accelerator: True,
    "gradient_state": attrgetter("gradient_state"),
    "scaler": attrgetter("scaler"),
    "step_was_skipped": attrgetter("optimizer_step_was_skipped"),
}
"""Attributes of accelerate's wrapper that an optimizer does not have → their values, of the accelerator."""


def _member(wrapper: Any, name: str, kind: type) -> Any:
    """Return the attribute ``name`` of accelerate's wrapper, which an optimizer of the class ``kind`` does not have.

    Raises:
        AttributeError: If that does not have it either.
    """
    wrapped = _WRAPPERS.get(wrapper)
    if wrapped is not None and name in ("train", "eval"):
        return partial(set_mode, wrapped.optimizer, training=name == "train")
    accelerator = None if wrapped is None else wrapped.accelerator()
    if accelerator is not None and name in _MEMBERS:
        return _MEMBERS[name](accelerator)
    if hasattr(kind, "__getattr__"):
        return kind.__getattr__(wrapper, name)
    raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}", name=name, obj=wrapper)


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    """Take the arguments of ``step`` and ``zero_grad``."""


def _wrap(optimizer: Optimizer) -> Any:
    kind = type(optimizer)
    members = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__reduce_ex__": lambda wrapper, protocol: (_wrap, (wrapper.optimizer,)),
        "optimizer": _INNER,
        "step": _InUpdates(kind, "step"),
        "zero_grad": _InUpdates(kind, "zero_grad"),
        "__getattr__": lambda wrapper, name: _member(wrapper, name, kind),
    }
    wrapper: Any = object.__new__(type(kind.__name__, (kind,), members))
    _WRAPPERS[wrapper] = _Wrapped(optimizer)
    object.__setattr__(wrapper, "__dict__", vars(optimizer))
    return wrapper


# Optimizer, schedule and gradient scaler of all ranks, made those of rank 0.


@dataclass(frozen=True, slots=True)
class _Sent:
    """A tensor on the CPU, and whether it was on the device of its parameter."""

    tensor: Tensor
    on_device: bool


def share_states(optimizer: Optimizer | None, scheduler: Any, scaler: Any) -> None:
    """Give every rank rank 0's states of optimizer, schedule and scaler; every rank has to call it.

    They are sent parameter by parameter, by way of the CPU.

    Args:
        optimizer: The optimizer, of the same unsharded parameters on all ranks; None if no rank has one.
        scheduler: The schedule, if any.
        scaler: The gradient scaler, if any.
    """
    if get_world_size() == 1:
        return
    for group in [] if optimizer is None else optimizer.param_groups:
        device = group["params"][0].device if group["params"] else torch.device("cpu")
        group.update(_from_main({name: value for name, value in group.items() if name != "params"}, device))
        for parameter in group["params"]:
            state = _from_main(optimizer.state.pop(parameter, None), parameter.device)  # type: ignore[union-attr]
            if state:
                optimizer.state[parameter] = state  # type: ignore[union-attr]
    for part in (scheduler, scaler):
        if part is not None:
            part.load_state_dict(_from_main(part.state_dict(), torch.device("cpu")))


def _from_main(value: object, device: torch.device) -> Any:
    """Return rank 0's ``value``; its tensors that were on ``device`` are on this rank's ``device``."""

    def send(leaf: object) -> object:
        return _Sent(leaf.cpu(), leaf.device == device) if isinstance(leaf, Tensor) else leaf

    def receive(leaf: object) -> object:
        if not isinstance(leaf, _Sent):
            return leaf
        return leaf.tensor.to(device) if leaf.on_device else leaf.tensor

    return map_nested(receive, broadcast_object(map_nested(send, value) if get_rank() == 0 else None))


# Weight decay groups: the parameters with weight decay and those without.


_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


def _names_outside_layer_norms(module: nn.Module) -> Iterator[str]:
    """Yield parameter names, those of submodules first; a tied parameter under each of its names."""
    for name, child in module.named_children():
        if not isinstance(child, nn.LayerNorm):
            yield from (f"{name}.{inner}" for inner in _names_outside_layer_norms(child))
    yield from module._parameters


def decay_parameter_names(model: nn.Module) -> list[str]:
    """Return the names of the parameters of ``model`` with weight decay.

    All but those of an ``nn.LayerNorm`` and those whose name, in lower case, contains ``bias``, ``layernorm`` or
    ``rmsnorm``, or has a component that is ``norm`` or ends in ``_norm``. So ``q_norm.weight`` has no weight decay,
    while a ``GroupNorm`` called ``gn`` has.

    References:
        Same names in the same order as ``Trainer.get_decay_parameter_names`` of transformers 4.53 and later.
    """
    return [name for name in _names_outside_layer_norms(model) if not _NO_DECAY.search(name.lower())]


def parameter_groups(
    model: nn.Module, weight_decay: float, decay_names: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """Return the parameter groups of ``model``'s trainable parameters: with weight decay, then without.

    Empty groups are kept, so that the optimizer's state dict always has the same layout.

    Args:
        model: Its parameters are taken in the order of ``named_parameters``.
        weight_decay: Weight decay of the first group; the second has 0.
        decay_names: Names of the parameters with weight decay. Default: :func:`decay_parameter_names`.
    """
    decayed = frozenset(decay_parameter_names(model) if decay_names is None else decay_names)
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    return [
        {"params": [item for name, item in trainable if name in decayed], "weight_decay": weight_decay},
        {"params": [item for name, item in trainable if name not in decayed], "weight_decay": 0.0},
    ]


def groups_by_mesh(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return parameter groups of which each is on one device mesh, or on none; ``groups`` if all are on the same.

    Args:
        groups: With their parameters under ``params``, in the order that is kept.

    References:
        As ``Trainer.create_optimizer`` of transformers 5.24.
    """
    meshes = [[item.device_mesh if isinstance(item, DTensor) else None for item in group["params"]] for group in groups]
    if len({mesh for of_group in meshes for mesh in of_group}) <= 1:
        return groups
    return [
        {**group, "params": [item for item, on in zip(group["params"], of_group, strict=True) if on == mesh]}
        for group, of_group in zip(groups, meshes, strict=True)
        for mesh in dict.fromkeys(of_group)
    ]
