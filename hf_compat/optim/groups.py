"""Weight decay groups: the parameters with weight decay and those without."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor

__all__ = ["decay_parameter_names", "groups_by_mesh", "parameter_groups"]

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
