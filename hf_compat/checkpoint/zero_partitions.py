"""Weights and optimizer states of a ZeRO optimizer by parameter, read from and cut into the flat parts of its ranks.

A ZeRO optimizer has its parameters in groups, each one flat tensor. Under ZeRO-1 and 2 the parameters of a group lie in
one flat tensor, cut into a part for each rank; under ZeRO-3 each parameter is cut into a part for each rank, and a
rank's parts are concatenated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_compat.errors import CheckpointError

Shapes = Mapping[str, Sequence[int]]
"""Name → shape of the parameters of a group, in the order in which they lie."""
_ALIGNMENT = 2
"""DeepSpeed fills a group up to a multiple of so many numbers a rank, under ZeRO-1 and ZeRO-2."""

LATEST_NAME = "latest"
"""The file with the name of the folder that contains DeepSpeed's files."""
_FILE = re.compile(r"(?:(?:bf16_|fp16_)?zero_pp_rank_([0-9]+)_)?mp_rank_([0-9]+)_(model|optim)_states\.pt")


@dataclass(frozen=True)
class Partitions:
    """The saved states of all ranks of a ZeRO optimizer.

    Raises:
        CheckpointError: From every method, if the parts of the ranks are not those of the parameters.
    """

    ranks: Sequence[Mapping[str, Any]]
    """The optimizer's state dict of each rank."""
    shapes: Sequence[Shapes]
    """The parameters of each group."""

    @property
    def are_of_each_parameter(self) -> bool:
        """Whether each rank has a part of each parameter, as under ZeRO-3, not one of all of a group together."""
        return "fp32_flat_groups" in self.ranks[0]

    @property
    def weights_key(self) -> str:
        """The entry of a rank's state dict with its parts of the weights in full precision."""
        return "fp32_flat_groups" if self.are_of_each_parameter else "single_partition_of_fp32_groups"

    @property
    def optimizer_key(self) -> str:
        """The entry of a rank's state dict with the state dict of the optimizer inside ZeRO's."""
        return "optimizer_state_dict" if self.are_of_each_parameter else "base_optimizer_state"

    def weights(self) -> dict[str, Tensor]:
        """Return the trainable parameters in full precision, by name."""
        return {name: self.weight(name).view(tuple(shape)) for group in self.shapes for name, shape in group.items()}

    def weight(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the elements from ``start`` to ``stop``, by default all, of a parameter in full precision, flat."""
        group, _ = self._places[name]
        return self._cut([self._group(rank[self.weights_key], group) for rank in self.ranks], name, start, stop)

    def optimizer(self) -> dict[str, Any]:
        """Return the state dict of the optimizer by parameter name, as if it had never been partitioned."""
        state = {
            name: {
                key: self.state(key, name).view(tuple(shape)) if is_partitioned(value) else _of_each(key, value)
                for key, value in self.common_state(name).items()
            }
            for group in self.shapes
            for name, shape in group.items()
            if self.common_state(name)
        }
        groups = [
            {**options, "params": [name for number in options["params"] for name in self.shapes[number]]}
            for options in self.options
        ]
        return {"state": state, "param_groups": groups}

    @property
    def problem(self) -> str | None:
        """Why the optimizer's state cannot be read, None if it can."""
        if isinstance(self.ranks[0][self.optimizer_key], list):
            return "with `elastic_checkpoint` DeepSpeed does not save the optimizer's options"
        return None

    @property
    def options(self) -> list[dict[str, Any]]:
        """The optimizer's parameter groups, whose ``params`` are the numbers of groups in ``shapes``."""
        groups: list[dict[str, Any]] = self._saved[0]["param_groups"]
        return groups

    def common_state(self, name: str) -> Mapping[str, Any]:
        """Return what rank 0 has in the optimizer for the group of a parameter; what is partitioned is its part."""
        group, _ = self._places[name]
        state: Mapping[str, Any] = self._saved[0]["state"].get(group, {})
        return state

    def state(self, key: str, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the elements from ``start`` to ``stop``, by default all, of a parameter's partitioned state, flat."""
        group, _ = self._places[name]
        return self._cut([saved["state"][group][key] for saved in self._saved], name, start, stop)

    @property
    def _saved(self) -> list[dict[str, Any]]:
        return [rank[self.optimizer_key] for rank in self.ranks]

    def _group(self, groups: Any, number: int) -> Tensor:
        if len(groups) != len(self.shapes):
            raise CheckpointError(
                f"DeepSpeed's partitions have {len(groups)} parameter groups, but there are names for "
                f"{len(self.shapes)}: the files do not all come from one save."
            )
        part: Tensor = groups[number]
        return part

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        """Each parameter's group, and its offset: in a part under ZeRO-3, else in all parts concatenated."""
        places = {}
        for number, shapes in enumerate(self.shapes):
            offset = 0
            for (name, shape), padding in zip(shapes.items(), self._paddings(number), strict=True):
                places[name] = (number, offset)
                size = math.prod(shape)
                offset += math.ceil(size / len(self.ranks)) if self.are_of_each_parameter else size + padding
        return places

    def _paddings(self, number: int) -> Sequence[int]:
        """Return how many numbers follow each parameter of a group, to align the next."""
        paddings = self.ranks[0].get("param_alignment_paddings")
        return [0] * len(self.shapes[number]) if paddings is None else paddings[number]

    def _cut(self, parts: Sequence[Tensor], name: str, start: int, stop: int | None) -> Tensor:
        """Return elements of a parameter from the part that each rank has of its group."""
        number, offset = self._places[name]
        least, most = self._sizes[number]
        found = sum(part.numel() for part in parts)
        if not least <= found <= most or (self.are_of_each_parameter and len({part.numel() for part in parts}) > 1):
            names = list(self.shapes[number])
            raise CheckpointError(
                f"DeepSpeed's partitions have {found} elements for "
                f"{', '.join(names[:3])}{', ...' * (len(names) > 3)}, which have {least}: the files are damaged, do "
                "not all come from one save, or have values on another disk (NVMe)."
            )
        size = math.prod(self.shapes[number][name])
        cut = _parts_of_each if self.are_of_each_parameter else _parts_in_a_row
        pieces = list(cut(parts, size, offset, start, size if stop is None else stop))
        return torch.cat(pieces) if pieces else parts[0].new_empty(0)

    @cached_property
    def _sizes(self) -> list[tuple[int, int]]:
        """The least and the largest number of elements in all parts of a group together."""
        sizes, ranks = [], len(self.ranks)
        for number, shapes in enumerate(self.shapes):
            numbers = [math.prod(shape) for shape in shapes.values()]
            if self.are_of_each_parameter:
                least = most = sum(math.ceil(size / ranks) for size in numbers) * ranks
            else:
                paddings = self._paddings(number)
                least = sum(numbers) + sum(paddings[:-1])
                most = least + sum(paddings[-1:]) + _ALIGNMENT * ranks - 1
            sizes.append((least, most))
        return sizes


def _parts_in_a_row(parts: Sequence[Tensor], size: int, offset: int, start: int, stop: int) -> Iterator[Tensor]:
    begin = 0
    for part in parts:
        first, last = max(offset + start, begin), min(offset + stop, begin + part.numel())
        if first < last:
            yield part.flatten()[first - begin : last - begin]
        begin += part.numel()


def _parts_of_each(parts: Sequence[Tensor], size: int, offset: int, start: int, stop: int) -> Iterator[Tensor]:
    for rank, part in enumerate(parts):
        begin, end = range_of_each(size, rank, len(parts))
        first, last = max(start, begin), min(stop, end)
        if first < last:
            yield part.flatten()[offset + first - begin : offset + last - begin]


def joined(parts: Sequence[Tensor], size: int, start: int = 0, stop: int | None = None) -> Tensor:
    """Return the elements from ``start`` to ``stop``, by default all, of ``size``, of which each rank has a part."""
    found = list(_parts_of_each(parts, size, 0, start, size if stop is None else stop))
    return torch.cat(found) if found else parts[0].new_empty(0)


def range_of_each(size: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return the first element, and the one after the last, that a rank has of ``size`` elements under ZeRO-3."""
    length = math.ceil(size / ranks)
    return min(rank * length, size), min((rank + 1) * length, size)


@dataclass(frozen=True)
class Piece:
    """Elements of a parameter that lie in a rank's part of a group."""

    name: str
    start: int
    stop: int
    at: int
    """The first one's place in the part."""


def pieces_in_a_row(shapes: Shapes, paddings: Sequence[int], *, size: int, rank: int) -> list[Piece]:
    """Return what lies in the part of ``rank``, of ``size`` elements, under ZeRO-1 and 2.

    Args:
        shapes: The group's parameters.
        paddings: How many numbers follow each parameter.
        size: Elements of a part.
        rank: The rank.
    """
    pieces, offset, begin = [], -rank * size, 0
    for (name, shape), padding in zip(shapes.items(), paddings, strict=True):
        numel = math.prod(shape)
        start, stop = max(-offset, begin), min(size - offset, numel)
        if start < stop:
            pieces.append(Piece(name, start, stop, offset + start))
        offset += numel + padding
    return pieces


def pieces_of_each(shapes: Shapes, *, rank: int, ranks: int) -> list[Piece]:
    """Return what lies in the part of ``rank`` under ZeRO-3."""
    pieces, offset = [], 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        pieces.append(Piece(name, *range_of_each(size, rank, ranks), offset))
        offset += math.ceil(size / ranks)
    return pieces


def filled(size: int, pieces: Sequence[Piece], cut: Callable[[str, int, int], Tensor], *, dtype: torch.dtype) -> Tensor:
    """Return a part of ``size`` elements: its ``pieces`` from ``cut``, called with name, start and stop, else 0."""
    part = torch.zeros(size, dtype=dtype)
    for piece in pieces:
        part[piece.at : piece.at + piece.stop - piece.start] = cut(piece.name, piece.start, piece.stop)
    return part


def is_partitioned(value: object) -> bool:
    """Return whether a value of an optimizer's state has an element for each of the parameters'."""
    return isinstance(value, Tensor) and value.dim() > 0


def _of_each(key: str, value: Any) -> Any:
    """Return what all parameters of a group have in common; torch's Adam counts steps in a tensor."""
    if key == "step":
        return torch.tensor(float(value))
    return value.clone() if isinstance(value, Tensor) else value


@dataclass(frozen=True)
class StateFiles:
    """The files with the states of the model, and with those of the optimizer, by rank."""

    models: list[Path]
    optimizers: list[Path]


def engine_folder(folder: Path, latest: str = LATEST_NAME) -> Path | None:
    """Return the folder in ``folder`` with the files of DeepSpeed's last save in it, None if there is none.

    Args:
        folder: The checkpoint.
        latest: The file with the folder's name.

    Raises:
        CheckpointError: If the name is not that of a folder there.
    """
    path = folder / latest
    if not path.is_file():
        return None
    name = path.read_text(encoding="utf-8").strip()
    found = folder / name
    if not name or Path(name).name != name or not found.is_dir():
        raise CheckpointError(f"`{path}` contains `{name}`, which is not a folder next to it.")
    return found


def state_files(folder: Path) -> StateFiles:
    """Return the files in ``folder`` with the states of all ranks.

    Raises:
        CheckpointError: If files are missing, or contain parts of a model that is not whole on a rank.
    """
    found: dict[str, dict[int, Path]] = {"model": {}, "optim": {}}
    for path in folder.glob("*_states.pt"):
        match = _FILE.fullmatch(path.name)
        if match is None or int(match[2]) != 0:
            raise CheckpointError(
                f"`{path}` has a part of a model that is split over ranks (experts, a pipeline, tensor "
                "parallelism), which is not supported. Save the whole model in the run, and convert that."
            )
        found[match[3]][int(match[1] or 0)] = path
    for kind, files in found.items():
        missing = set(range(len(files))) - set(files)
        if missing or (kind == "model" and not files):
            raise CheckpointError(
                f"`{folder}` is incomplete: it has no `*_{kind}_states.pt` of rank {min(missing, default=0)}. Each "
                "node writes the files of its own ranks. Copy the files of all nodes into one folder."
            )
    models, optimizers = ([files[rank] for rank in sorted(files)] for files in found.values())
    return StateFiles(models, optimizers)
