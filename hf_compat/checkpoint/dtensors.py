"""Between sharded and full state dicts: gathering DTensors, and distributing full tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

__all__ = ["distribute_like", "distributing_on_load", "full_tensors", "untied"]


def full_tensors(value: Any, *, keeps: bool) -> Any:
    """Return a copy of ``value`` with full tensors in host memory, which share nothing with it; every rank calls it.

    One object stays one object, so weights that share memory share it in the result.

    Args:
        value: Tensors and plain values in dicts, lists and tuples.
        keeps: Whether this rank gets the result; other ranks take part and get dicts without tensors.
    """
    return _Gathering(keeps).full_tensors(value)


class _Gathering:
    def __init__(self, keeps: bool) -> None:
        self._keeps = keeps
        self._done: dict[int, tuple[Any, Any]] = {}  # with the original, whose id must not be reused meanwhile

    def full_tensors(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in self._done:
                self._done[id(value)] = (value, self._gather(value))
            return self._done[id(value)][1]
        if isinstance(value, Mapping):
            items = ((key, self.full_tensors(item)) for key, item in value.items())
            return {key: item for key, item in items if self._keeps or not isinstance(value[key], Tensor)}
        return type(value)(map(self.full_tensors, value)) if type(value) in (list, tuple) else value

    def _gather(self, tensor: Tensor) -> Tensor | None:
        if not isinstance(tensor, DTensor):
            return tensor.detach().to("cpu", copy=True) if self._keeps else None
        exchanged: Any = tensor.detach().to(tensor.device_mesh.device_type)  # it may be offloaded to the host
        gathered: Tensor = exchanged.full_tensor()
        return gathered.to("cpu", copy=True) if self._keeps else None  # a replicated one is gathered without a copy


def untied(state: dict[str, Any]) -> dict[str, Any]:
    """Return ``state`` with a tensor of its own for each name."""
    kept: set[int] = set()

    def own(value: Any) -> Any:
        is_again = isinstance(value, Tensor) and id(value) in kept
        kept.add(id(value))
        return value.clone() if is_again else value

    return {name: own(value) for name, value in state.items()}


def distribute_like(target: object, values: Tensor) -> Tensor:
    """Return the full tensor ``values``, equal on all ranks, placed as ``target`` is; without communication.

    Args:
        target: The tensor of a state dict that the values are for. Where it is a DTensor, values of another shape, such
            as an optimizer's means over rows, are replicated; scalars stay plain tensors.
        values: Mostly of ``target``'s shape.
    """
    if not isinstance(target, DTensor) or isinstance(values, DTensor) or values.ndim == 0:
        return values
    same = values.shape == target.shape
    placements = target.placements if same else [Replicate()] * target.device_mesh.ndim
    values = values.to(target.device_mesh.device_type)
    return distribute_tensor(values, target.device_mesh, placements, src_data_rank=None)


@contextmanager
def distributing_on_load(model: nn.Module) -> Iterator[None]:
    """Context in which ``model.load_state_dict`` accepts full tensors for parameters that are DTensors."""

    def place(module: nn.Module, state: dict[str, Any], *_: Any) -> None:
        targets = module.state_dict()
        state.update({name: distribute_like(targets.get(name), value) for name, value in state.items()})

    hook = model.register_load_state_dict_pre_hook(place)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        hook.remove()
