"""Optimizer, schedule and gradient scaler of all ranks, made those of rank 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hf_compat.distributed.collectives import broadcast_object, get_rank, get_world_size
from hf_compat.nested import map_nested

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["share_states"]


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
