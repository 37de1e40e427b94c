"""Between states of which each process holds a part and whole ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

__all__ = ["placed_like", "placing", "whole"]


def whole(value: Any, *, keeps: bool) -> Any:
    """Return ``value`` with whole tensors in host memory; every process has to call it.

    One object stays one object, so weights that share memory do in the result.

    Args:
        value: Tensors and plain values in dicts, lists and tuples.
        keeps: Whether this process wants the result; the others take part and get dicts without tensors.
    """
    return _Gathering(keeps).whole(value)


class _Gathering:
    def __init__(self, keeps: bool) -> None:
        self._keeps = keeps
        self._done: dict[int, tuple[Any, Any]] = {}  # with the object itself, so that its id is not given away

    def whole(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in self._done:
                self._done[id(value)] = (value, self._gather(value))
            return self._done[id(value)][1]
        if isinstance(value, Mapping):
            items = ((key, self.whole(item)) for key, item in value.items())
            return {key: item for key, item in items if self._keeps or not isinstance(value[key], Tensor)}
        return type(value)(map(self.whole, value)) if type(value) in (list, tuple) else value

    def _gather(self, tensor: Tensor) -> Tensor | None:
        if not isinstance(tensor, DTensor):
            return tensor.detach().cpu() if self._keeps else None
        exchanged: Any = tensor.detach().to(tensor.device_mesh.device_type)  # it may be kept on the host
        gathered: Tensor = exchanged.full_tensor()
        return gathered.cpu() if self._keeps else None


def placed_like(target: Any, values: Tensor) -> Tensor:
    """Return the whole ``values``, the same on all processes, as ``target`` is placed; nothing is exchanged.

    Args:
        target: A tensor of the state that the values are for. Where it is a DTensor, values of another shape, such as
            an optimizer's means over rows, are whole on each process; so are single numbers, which stay tensors.
        values: ``target``'s shape mostly.
    """
    if not isinstance(target, DTensor) or isinstance(values, DTensor) or values.ndim == 0:
        return values
    same = values.shape == target.shape
    placements = target.placements if same else [Replicate()] * target.device_mesh.ndim
    values = values.to(target.device_mesh.device_type)
    return distribute_tensor(values, target.device_mesh, placements, src_data_rank=None)


@contextmanager
def placing(model: nn.Module) -> Iterator[None]:
    """Have ``model.load_state_dict``, whoever calls it, take whole values for parameters that are DTensors."""

    def place(module: nn.Module, state: dict[str, Any], *_: Any) -> None:
        targets = module.state_dict()
        state.update({name: placed_like(targets.get(name), value) for name, value in state.items()})

    hook = model.register_load_state_dict_pre_hook(place)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        hook.remove()
