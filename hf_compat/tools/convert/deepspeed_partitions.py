"""Weights and optimizer states by parameter, consolidated from the flat partitions of DeepSpeed's ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_compat.errors import CheckpointError

__all__ = ["Partitions", "cut_by_parameter"]

_Shapes = Mapping[str, tuple[int, ...]]
_Cut = Callable[[Sequence[Tensor], int], dict[str, Tensor]]
"""From the part of each rank, and the number of the group, to each parameter's values."""
_ALIGNMENT = 2
"""DeepSpeed fills a group up to a multiple of so many numbers a rank, under ZeRO-1 and ZeRO-2."""


@dataclass(frozen=True)
class Partitions:
    """The saved states of all ranks of a ZeRO optimizer: its parameters are in groups, each one flat tensor.

    Raises:
        CheckpointError: If the parts of the ranks are not those of the parameters.
    """

    ranks: Sequence[Mapping[str, Any]]
    """The optimizer's state dict of each rank."""
    shapes: Sequence[_Shapes]
    """Name → shape of the parameters of each group, in the order in which they were flattened."""

    @property
    def are_of_each_parameter(self) -> bool:
        """Whether each rank has a part of each parameter, as under ZeRO-3, not one of all of a group together."""
        return "fp32_flat_groups" in self.ranks[0]

    def weights(self) -> dict[str, Tensor]:
        """Return the trainable parameters in full precision, by name."""
        key = "fp32_flat_groups" if self.are_of_each_parameter else "single_partition_of_fp32_groups"
        found: dict[str, Tensor] = {}
        for number in range(len(self.shapes)):
            found |= self._cut([self._group(rank[key], number) for rank in self.ranks], number)
        return found

    def optimizer(self) -> dict[str, Any]:
        """Return the state dict of the optimizer by parameter name, as if it had never been partitioned."""
        key = "optimizer_state_dict" if self.are_of_each_parameter else "base_optimizer_state"
        saved = [rank[key] for rank in self.ranks]
        state: dict[str, dict[str, Any]] = {}
        for number in range(len(self.shapes)):
            state |= self._states([each["state"].get(number, {}) for each in saved], number)
        groups = [
            {**group, "params": [name for number in group["params"] for name in self.shapes[number]]}
            for group in saved[0]["param_groups"]
        ]
        return {"state": state, "param_groups": groups}

    def _group(self, groups: Any, number: int) -> Tensor:
        if len(groups) != len(self.shapes):
            raise CheckpointError(
                f"DeepSpeed's partitions have {len(groups)} parameter groups, but there are names for "
                f"{len(self.shapes)}: the files do not all come from one save."
            )
        part: Tensor = groups[number]
        return part

    def _states(self, entries: Sequence[Mapping[str, Any]], number: int) -> dict[str, dict[str, Any]]:
        """Return the state of each parameter of a group from what each rank has for the group."""
        made: dict[str, dict[str, Any]] = {name: {} for name in self.shapes[number]} if entries[0] else {}
        for key, value in entries[0].items():
            if isinstance(value, Tensor) and value.dim() > 0:
                parts = self._cut([entry[key] for entry in entries], number)
            else:
                parts = {name: _scalar(key, value) for name in made}
            for name, part in parts.items():
                made[name][key] = part
        return made

    @property
    def _cut(self) -> _Cut:
        return self._cut_each if self.are_of_each_parameter else self._cut_whole

    def _cut_whole(self, parts: Sequence[Tensor], number: int) -> dict[str, Tensor]:
        """Return parameters that lie one after the other, with what they are filled up to, in all parts together."""
        shapes = self.shapes[number]
        all_paddings = self.ranks[0].get("param_alignment_paddings")
        paddings = [0] * len(shapes) if all_paddings is None else all_paddings[number]
        flat = torch.cat([part.flatten() for part in parts])
        needed = sum(map(math.prod, shapes.values())) + sum(paddings)
        if not needed - sum(paddings[-1:]) <= flat.numel() < needed + _ALIGNMENT * len(parts):
            raise _does_not_fit(flat.numel(), needed, shapes)
        found, start = {}, 0
        for (name, shape), padding in zip(shapes.items(), paddings, strict=True):
            end = start + math.prod(shape)
            found[name] = flat[start:end].view(shape).clone()
            start = end + padding
        return found

    def _cut_each(self, parts: Sequence[Tensor], number: int) -> dict[str, Tensor]:
        shapes = self.shapes[number]
        sizes = [math.ceil(math.prod(shape) / len(parts)) for shape in shapes.values()]
        if any(part.numel() != sum(sizes) for part in parts):
            raise _does_not_fit(sum(part.numel() for part in parts), sum(sizes) * len(parts), shapes)
        by_rank = [torch.split(part.flatten(), sizes) for part in parts]
        return {
            name: cut_by_parameter([own[place] for own in by_rank], shape)
            for place, (name, shape) in enumerate(shapes.items())
        }


def cut_by_parameter(parts: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """Return a tensor of ``shape`` from the part that each rank has of it, the last ones filled up."""
    return torch.cat([part.flatten() for part in parts])[: math.prod(shape)].view(tuple(shape)).clone()


def _scalar(key: str, value: Any) -> Any:
    """Return what all parameters of a group have in common; torch's Adam counts steps in a tensor."""
    if key == "step":
        return torch.tensor(float(value))
    return value.clone() if isinstance(value, Tensor) else value


def _does_not_fit(found: int, needed: int, shapes: _Shapes) -> CheckpointError:
    return CheckpointError(
        f"DeepSpeed's partitions have {found} elements for "
        f"{', '.join(list(shapes)[:3])}{', ...' * (len(shapes) > 3)}, which have {needed}: the files are damaged, do "
        "not all come from one save, or have values on another disk (NVMe)."
    )
