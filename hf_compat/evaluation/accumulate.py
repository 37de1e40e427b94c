"""The outputs of all batches, concatenated in time and memory linear in the data.

Values, dtypes and padding are those of transformers ``trainer_pt_utils.py``, whose ``EvalLoopContainer`` copies all
earlier batches at every batch; here they are concatenated once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from hf_compat.errors import DataError, LossError
from hf_compat.nested import leaves, map_nested, rebuild

__all__ = ["PAD_INDEX", "EvalAccumulator", "nested_detach", "nested_numpify"]

PAD_INDEX = -100
"""What predictions, labels and inputs of different lengths are padded with: upstream's ignored label."""

_MERGED_AT_ONCE = 512
"""Batches that are concatenated as soon as there are so many."""
_MERGED_AT_THE_END = 1 << 20
"""Bytes of outputs that are concatenated before they are copied to the CPU, since each copy waits for the device."""

_LeafT = TypeVar("_LeafT", Tensor, np.ndarray[Any, Any])
_TensorsT = TypeVar("_TensorsT")


def nested_detach(tensors: _TensorsT) -> _TensorsT:
    """Return ``tensors``, however nested, detached from the graph; other leaves are not changed."""
    detached: _TensorsT = map_nested(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, tensors)
    return detached


def nested_numpify(tensors: object) -> Any:
    """Return ``tensors``, however nested, as numpy arrays; bfloat16, which numpy does not have, as float32.

    Raises:
        LossError: If a leaf is not a tensor.
    """
    return map_nested(_to_array, tensors)


def _to_array(leaf: object) -> np.ndarray[Any, Any]:
    if not isinstance(leaf, Tensor):
        raise LossError(
            f"The model's output holds a {type(leaf).__name__}, but only tensors can be accumulated: return "
            "tensors, or add its key to `ignore_keys`."
        )
    tensor = leaf.cpu()
    array: np.ndarray[Any, Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def _concatenate(batches: list[Any], pad_index: int) -> Any:
    """Return ``batches``, all nested alike, with their tensors or arrays padded and concatenated."""
    first = batches[0]
    if len(batches) == 1:
        return first  # a tensor without dimensions gets one only when concatenated, as upstream
    expected = Tensor if isinstance(first, Tensor) else type(first)
    odd = next((batch for batch in batches if not isinstance(batch, expected)), None)
    if odd is not None:
        raise DataError(
            f"The model returned a {type(first).__name__} for one batch and a {type(odd).__name__} for another: return "
            "outputs of the same structure for all batches."
        )
    if isinstance(first, list | tuple):
        return rebuild(first, [_concatenate(list(items), pad_index) for items in zip(*batches, strict=False)])
    if isinstance(first, Mapping):
        merged = {key: _concatenate([batch[key] for batch in batches], pad_index) for key in first}
        return type(first)(merged)  # type: ignore[call-arg]
    if isinstance(first, Tensor):
        return _concatenate_leaves(
            [batch if batch.ndim else batch[None] for batch in batches], pad_index, torch.cat, _full_tensor
        )
    if isinstance(first, np.ndarray):
        return _concatenate_leaves([np.atleast_1d(batch) for batch in batches], pad_index, np.concatenate, _full_array)
    raise LossError(
        f"The model's output holds a {type(first).__name__}, but only tensors can be accumulated: return "
        "tensors, or add its key to `ignore_keys`."
    )


def _full_tensor(like: Tensor, shape: tuple[int, ...], value: int) -> Tensor:
    return like.new_full(shape, value)


def _full_array(like: np.ndarray[Any, Any], shape: tuple[int, ...], value: int) -> np.ndarray[Any, Any]:
    return np.full_like(like, value, shape=shape)


def _concatenate_leaves(
    arrays: list[_LeafT],
    pad_index: int,
    concatenate: Callable[[list[_LeafT]], _LeafT],
    full_like: Callable[[_LeafT, tuple[int, ...], int], _LeafT],
) -> _LeafT:
    """Return ``arrays``, of at least one dimension each, padded in the second one and concatenated."""
    if len(set(map(_kind, arrays))) > 1 and len(arrays) > 2:
        # With several dtypes or shapes the result depends on the order, so concatenate pairwise, as upstream.
        return reduce(lambda one, other: _concatenate_leaves([one, other], pad_index, concatenate, full_like), arrays)
    if arrays[0].ndim == 1 or len({array.shape[1] for array in arrays}) == 1:
        return concatenate(arrays)
    rows, width = sum(len(array) for array in arrays), max(array.shape[1] for array in arrays)
    result = full_like(arrays[0], (rows, width, *arrays[0].shape[2:]), pad_index)
    start = 0
    for array in arrays:
        result[start : start + len(array), : array.shape[1]] = array
        start += len(array)
    return result


def _kind(leaf: Any) -> object:
    """Return what has to be the same in leaves that may be concatenated in any order."""
    return (leaf.dtype, leaf.ndim, tuple(leaf.shape[2:])) if isinstance(leaf, Tensor | np.ndarray) else type(leaf)


def _compact(leaf: object) -> object:
    """Return ``leaf`` without a larger storage behind it: a slice would keep all the logits it is a view of."""
    if isinstance(leaf, Tensor) and leaf.layout is torch.strided and leaf.untyped_storage().nbytes() > leaf.nbytes:
        return leaf.clone(memory_format=torch.contiguous_format)
    return leaf


def _size(leaf: object) -> int:
    """Return the bytes of ``leaf``, 0 if it is no tensor."""
    return leaf.nbytes if isinstance(leaf, Tensor) else 0


def _to_cpu(leaf: object) -> object:
    return leaf.cpu() if isinstance(leaf, Tensor) else leaf


class EvalAccumulator:
    """Accumulates the outputs of all batches of an evaluation and returns them as numpy arrays.

    Args:
        concat: Concatenate the batches; otherwise return a list of batches.
        padding_index: What shorter batches are padded with along the second dimension.
    """

    def __init__(self, concat: bool = True, padding_index: int = PAD_INDEX) -> None:
        self.concat = concat
        self.padding_index = padding_index
        # Tensors on the model's device:
        self._batches: list[Any] = []  # the last ones, fewer than are merged at once
        self._merged: list[Any] = []  # those before, of several batches each unless these differ
        self._chunks: list[Any] = []  # arrays: one item per move to the CPU, or per batch without ``concat``

    def add(self, tensors: object) -> None:
        """Add the outputs of one batch: tensors, however nested, on any device."""
        self._batches.append(map_nested(_compact, tensors))
        if self.concat and len(self._batches) == _MERGED_AT_ONCE:
            self._merge()

    def _merge(self) -> None:
        """Concatenate the last batches where they are: many small tensors take memory, and time to free and to copy."""
        if len({tuple(map(_kind, leaves(batch))) for batch in self._batches}) == 1:
            self._batches = [_concatenate(self._batches, self.padding_index)]
        self._merged += self._batches
        self._batches = []

    def to_cpu_and_numpy(self) -> None:
        """Move the accumulated tensors to the CPU and free the device memory.

        Raises:
            DataError: If batches differ in structure.
            LossError: If they hold something other than tensors.
        """
        if self.concat and self._batches and sum(map(_size, leaves(self._batches))) <= _MERGED_AT_THE_END:
            self._merge()
        batches = self._merged + self._batches
        if not batches:
            return
        if self.concat:
            # Concatenated as tensors, for torch's type promotion, but more than a little on the CPU: the device may
            # be full.
            merged = _concatenate([map_nested(_to_cpu, batch) for batch in batches], self.padding_index)
            self._chunks.append(nested_numpify(merged))
        else:
            self._chunks.extend(nested_numpify(batch) for batch in batches)
        self._merged, self._batches = [], []

    def get_arrays(self) -> Any:
        """Return all outputs: arrays nested as in a batch, a list of them without ``concat``, None if there are none.

        Raises:
            DataError: If batches differ in structure.
            LossError: If they hold something other than tensors.
        """
        self.to_cpu_and_numpy()
        if not self._chunks:
            return None
        if not self.concat:
            return self._chunks
        self._chunks = [_concatenate(self._chunks, self.padding_index)]
        return self._chunks[0]
