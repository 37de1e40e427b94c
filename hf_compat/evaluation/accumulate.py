"""The results of all batches as one array each, gathered in time and memory that grow with the data, no faster.

Values, dtypes and padding are those of transformers ``trainer_pt_utils.py``, whose ``EvalLoopContainer`` copies all
earlier batches at every batch; here they are kept apart and joined once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_compat.errors import DataError
from hf_compat.nested import map_nested, rebuild

__all__ = ["EvalAccumulator", "nested_detach", "nested_numpify"]

PADDING = -100


def nested_detach(tensors: Any) -> Any:
    """Return ``tensors``, however nested, cut off from the graph; what is no tensor stays."""
    return map_nested(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, tensors)


def nested_numpify(tensors: Any) -> Any:
    """Return ``tensors``, however nested, as numpy arrays on the host; bfloat16, which numpy lacks, as float32.

    Raises:
        DataError: If something in it is no tensor.
    """
    return map_nested(_to_array, tensors)


def _to_array(leaf: Any) -> np.ndarray[Any, Any]:
    if not isinstance(leaf, Tensor):
        raise DataError(f"An evaluation result holds a {type(leaf).__name__}: only tensors can be kept.")
    host = leaf.cpu()
    array: np.ndarray[Any, Any] = (host.float() if host.dtype == torch.bfloat16 else host).numpy()
    return array


def _join(batches: list[Any], padding: int) -> Any:
    """Return ``batches``, all nested alike, as one: each tensor or array joined with its counterparts."""
    first = batches[0]
    if len(batches) == 1:
        return first  # as it is: only a join gives a tensor without dimensions its first
    expected = Tensor if isinstance(first, Tensor) else type(first)
    odd = next((batch for batch in batches if not isinstance(batch, expected)), None)
    if odd is not None:
        raise DataError(
            f"One batch gave a {type(first).__name__}, another a {type(odd).__name__}: "
            "evaluation results of all batches must be nested alike."
        )
    if isinstance(first, list | tuple):
        return rebuild(first, [_join(list(items), padding) for items in zip(*batches, strict=False)])
    if isinstance(first, Mapping):
        joined = {key: _join([batch[key] for batch in batches], padding) for key in first}
        return type(first)(joined)  # type: ignore[call-arg]
    if isinstance(first, Tensor):
        return _join_leaves(
            [batch if batch.ndim else batch[None] for batch in batches], padding, torch.cat, _filled_tensor
        )
    if isinstance(first, np.ndarray):
        return _join_leaves([np.atleast_1d(batch) for batch in batches], padding, np.concatenate, _filled_array)
    raise DataError(f"An evaluation result holds a {type(first).__name__}: only tensors can be joined over batches.")


def _filled_tensor(like: Tensor, shape: tuple[int, ...], value: int) -> Tensor:
    return like.new_full(shape, value)


def _filled_array(like: np.ndarray[Any, Any], shape: tuple[int, ...], value: int) -> np.ndarray[Any, Any]:
    return np.full_like(like, value, shape=shape)


def _join_leaves(leaves: list[Any], padding: int, concatenate: Any, filled: Any) -> Any:
    """Return ``leaves``, of at least one dimension each, as one."""
    kinds = {(leaf.dtype, leaf.ndim, tuple(leaf.shape[2:])) for leaf in leaves}
    if len(kinds) > 1 and len(leaves) > 2:
        # Of several dtypes or shapes: what comes out depends on the order of joining, so it is upstream's order.
        return reduce(lambda one, other: _join_leaves([one, other], padding, concatenate, filled), leaves)
    first = leaves[0]
    if first.ndim == 1 or len({leaf.shape[1] for leaf in leaves}) == 1:
        return concatenate(leaves)
    rows, width = sum(len(leaf) for leaf in leaves), max(leaf.shape[1] for leaf in leaves)
    result = filled(first, (rows, width, *first.shape[2:]), padding)
    start = 0
    for leaf in leaves:
        result[start : start + len(leaf), : leaf.shape[1]] = leaf
        start += len(leaf)
    return result


def _compact(leaf: Any) -> Any:
    """Return ``leaf`` in memory of its own size: a slice would keep the whole logits it was cut from alive."""
    if isinstance(leaf, Tensor) and leaf.layout is torch.strided and leaf.untyped_storage().nbytes() > leaf.nbytes:
        return leaf.clone(memory_format=torch.contiguous_format)
    return leaf


def _to_host(leaf: Any) -> Any:
    return leaf.cpu() if isinstance(leaf, Tensor) else leaf


class EvalAccumulator:
    """Keeps what every batch of an evaluation gives, and gives it back as numpy arrays.

    Args:
        concat: Whether the batches are joined into one array each; else they are given back as a list of batches.
        padding_index: What narrower batches are padded with along the second dimension.
    """

    def __init__(self, concat: bool = True, padding_index: int = PADDING) -> None:
        self.concat = concat
        self.padding_index = padding_index
        self._batches: list[Any] = []  # tensors, where the model left them
        self._chunks: list[Any] = []  # arrays: one item per move to the host, or per batch without ``concat``

    def add(self, tensors: Any) -> None:
        """Keep the results of one batch: tensors, however nested, on any device."""
        self._batches.append(map_nested(_compact, tensors))

    def to_cpu_and_numpy(self) -> None:
        """Move what is kept to the host, and give the device its memory back.

        Raises:
            DataError: If batches are nested differently, or hold something other than tensors.
        """
        if not self._batches:
            return
        if self.concat:
            # Joined as tensors, for torch's rules of promotion, but on the host: the device may be full.
            joined = _join([map_nested(_to_host, batch) for batch in self._batches], self.padding_index)
            self._chunks.append(nested_numpify(joined))
        else:
            self._chunks.extend(nested_numpify(batch) for batch in self._batches)
        self._batches = []

    def get_arrays(self) -> Any:
        """Return everything that was added: arrays nested as a batch is, or a list of such; None if nothing was.

        Raises:
            DataError: If batches are nested differently, or hold something other than tensors.
        """
        self.to_cpu_and_numpy()
        if not self._chunks:
            return None
        if not self.concat:
            return self._chunks
        self._chunks = [_join(self._chunks, self.padding_index)]
        return self._chunks[0]
