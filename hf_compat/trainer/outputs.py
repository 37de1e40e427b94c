"""The outputs of an evaluation: accumulated over batches in linear time, and the results that users get."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from hf_compat.errors import DataError, LossError
from hf_compat.memory import mapped
from hf_compat.nested import leaves, map_nested, rebuild

# The outputs of all batches, concatenated in time and memory linear in the data.
#
# Values, dtypes and padding are those of transformers `trainer_pt_utils.py`, whose `EvalLoopContainer` copies all
# earlier batches at every batch; here they are copied twice: into blocks of host memory, and from there into one array
# of the right size, while the blocks are freed. So there is never much more than one copy of the outputs.


PAD_INDEX = -100
"""What predictions, labels and inputs of different lengths are padded with: upstream's ignored label."""

_MERGED_AT_ONCE = 512
"""Batches that are concatenated as soon as there are so many."""
_MERGED_AT_THE_END = 1 << 20
"""Bytes of outputs that are concatenated before they are copied to the CPU, since each copy waits for the device."""
_SMALLEST_BLOCK = 1 << 20
"""Bytes; only what is written takes memory."""
_BLOCKS_AT_LEAST = 16
"""Blocks that most of the outputs are in: while they are copied into one array, there is one block too much."""

_LeafT = TypeVar("_LeafT", Tensor, np.ndarray[Any, Any])
_TensorsT = TypeVar("_TensorsT")


def nested_detach(tensors: _TensorsT) -> _TensorsT:
    """Return ``tensors``, however nested, detached from the graph; other leaves are not changed."""
    detached: _TensorsT = map_nested(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, tensors)
    return detached


def nested_numpify(tensors: object) -> Any:
    """Return ``tensors``, however nested, as numpy arrays; bfloat16, which numpy does not have, as float32.

    Raises:
        LossError: If a leaf is not a tensor, or sparse.
    """
    return map_nested(_to_array, tensors)


def _to_array(leaf: object) -> np.ndarray[Any, Any]:
    if not (isinstance(leaf, Tensor) and leaf.layout is torch.strided):
        raise _not_a_tensor(leaf)
    tensor = leaf.cpu()
    array: np.ndarray[Any, Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def _not_a_tensor(leaf: object) -> LossError:
    what = f"tensor of layout {leaf.layout}" if isinstance(leaf, Tensor) else type(leaf).__name__
    return LossError(
        f"The model's output holds a {what}, but only tensors can be accumulated, and none that is sparse: return "
        "such tensors, or add its key to `ignore_keys`."
    )


def _not_alike(first: str, other: object) -> DataError:
    return DataError.also(AssertionError)(
        f"The model returned a {first} for one batch and a {type(other).__name__} for another: "
        "return outputs of the same structure for all batches."
    )


def _concatenate(batches: list[Any], pad_index: int) -> Any:
    """Return ``batches``, nested alike with tensors of the same kinds, with these padded and concatenated."""
    first = batches[0]
    if len(batches) == 1:
        return first  # a tensor without dimensions gets one only when concatenated, as upstream
    expected = Tensor if isinstance(first, Tensor) else type(first)
    for batch in batches:
        if not isinstance(batch, expected):
            raise _not_alike(type(first).__name__, batch)
    if isinstance(first, list | tuple):
        return rebuild(first, [_concatenate(list(items), pad_index) for items in zip(*batches, strict=False)])
    if isinstance(first, Mapping):
        merged = {key: _concatenate([batch[key] for batch in batches], pad_index) for key in first}
        return type(first)(merged)  # type: ignore[call-arg]
    if not isinstance(first, Tensor):
        raise _not_a_tensor(first)
    return _concatenate_leaves(
        [batch if batch.ndim else batch[None] for batch in batches], pad_index, torch.cat, _full_tensor
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
    """Return ``arrays``, all of one kind or a pair of two, padded in the second dimension and concatenated."""
    if arrays[0].ndim == 1 or len({array.shape[1] for array in arrays}) == 1:
        return concatenate(arrays)
    rows, width = sum(len(array) for array in arrays), max(array.shape[1] for array in arrays)
    result = full_like(arrays[0], (rows, width, *arrays[0].shape[2:]), pad_index)
    start = 0
    for array in arrays:
        result[start : start + len(array), : array.shape[1]] = array
        start += len(array)
    return result


def _kind(leaf: Any) -> tuple[Any, ...]:
    """Return what has to be the same in leaves that may be concatenated in any order."""
    return (leaf.dtype, leaf.ndim, tuple(leaf.shape[2:])) if isinstance(leaf, Tensor | np.ndarray) else (type(leaf),)


def _compact(leaf: object) -> object:
    """Return ``leaf`` without a larger storage behind it: a slice would keep all the logits it is a view of."""
    if isinstance(leaf, Tensor) and leaf.layout is torch.strided and leaf.untyped_storage().nbytes() > leaf.nbytes:
        return leaf.clone(memory_format=torch.contiguous_format)
    return leaf


def _size(leaf: object) -> int:
    """Return the bytes of ``leaf``, 0 if it is no tensor."""
    return leaf.nbytes if isinstance(leaf, Tensor) else 0


def _is_on_host(tensors: object) -> bool:
    return all(leaf.device.type == "cpu" for leaf in leaves(tensors) if isinstance(leaf, Tensor))


class _Run:
    """Tensors of one kind in host memory, one behind the other in blocks, until they are padded and concatenated.

    Each has a dimension at least.

    Args:
        kind: What they have in common, by :func:`_kind`.
        pad_index: What shorter batches are padded with.
    """

    def __init__(self, kind: tuple[Any, ...], pad_index: int) -> None:
        self.kind, self._pad_index = kind, pad_index
        self._blocks: list[Tensor] = []
        self._parts: list[list[tuple[int, torch.Size]]] = []
        """Of each block: how many rows of which shape are in it, in order."""
        self._used = 0  # elements of the last block
        self._total = 0

    @classmethod
    def of(cls, tensor: Tensor, pad_index: int) -> _Run:
        """Return a run of ``tensor`` alone, which is not copied."""
        run = cls(_kind(tensor), pad_index)
        run._blocks, run._parts = [tensor.reshape(-1)], [[(len(tensor), tensor.shape[1:])]]
        run._used = run._total = tensor.numel()
        return run

    def add(self, tensor: Tensor) -> None:
        """Add a copy of ``tensor``, which may be on any device."""
        begin, count = self._used, tensor.numel()
        if not self._blocks or begin + count > len(self._blocks[-1]):
            size = max(count, self._total // _BLOCKS_AT_LEAST) * tensor.itemsize
            self._blocks.append(torch.frombuffer(mapped(max(size, _SMALLEST_BLOCK)), dtype=self.kind[0]))
            self._parts.append([])
            begin = 0
        self._used = begin + count
        self._total += count
        place = self._blocks[-1][begin : self._used]
        (place if tensor.ndim == 1 else place.view(tensor.shape)).copy_(
            tensor.detach() if tensor.requires_grad else tensor
        )
        parts, rows, shape = self._parts[-1], tensor.shape[0], tensor.shape[1:]
        if parts and parts[-1][1] == shape:
            parts[-1] = parts[-1][0] + rows, shape
        else:
            parts.append((rows, shape))

    def take(self) -> Iterator[Tensor]:
        """Yield the tensors, several of one shape as one; each block is freed as soon as they have been used."""
        blocks, parts = self._blocks[::-1], self._parts[::-1]
        self._blocks, self._parts, self._used, self._total = [], [], 0, 0
        while blocks:
            block, begin = blocks.pop(), 0
            for rows, shape in parts.pop():
                end = begin + rows * shape.numel()
                yield block[begin:end].view(rows, *shape)
                begin = end

    def joined(self) -> Tensor:
        """Take and return the tensors as one."""
        found = [part for parts in self._parts for part in parts]
        if len(found) == 1:
            return next(self.take())
        shape = [sum(rows for rows, _ in found), *found[0][1]]
        if len(shape) > 1:
            shape[1] = max(shape[0] for _, shape in found)
        joined, start = torch.empty(shape, dtype=self.kind[0]), 0
        for tensor in self.take():
            part = joined[start : start + len(tensor)]
            if tensor.shape[1:2] != part.shape[1:2]:
                part[:, tensor.shape[1] :] = tensor.new_full((), self._pad_index)
                part = part[:, : tensor.shape[1]]
            part.copy_(tensor)
            start += len(tensor)
        return joined


class _Rows:
    """One output of all batches.

    Tensors are concatenated as torch does, and the arrays that they become as numpy does, which promotes other types.

    Args:
        pad_index: What shorter batches are padded with.
    """

    def __init__(self, pad_index: int) -> None:
        self._pad_index = pad_index
        self._tensors: _Run | None = None
        self._arrays: _Run | None = None  # what was concatenated as tensors, and will be as arrays
        self._batches = 0
        self._is_scalar = False

    def add(self, tensor: object) -> None:
        """Add the output of one batch, a tensor on any device."""
        if not (isinstance(tensor, Tensor) and tensor.layout is torch.strided):
            is_other = self._batches and not isinstance(tensor, Tensor)
            raise _not_alike("Tensor", tensor) if is_other else _not_a_tensor(tensor)
        self._is_scalar = tensor.ndim == 0 and not self._batches
        self._batches += 1
        tensor = tensor if tensor.ndim else tensor[None]
        kind = _kind(tensor)
        if self._tensors is None:
            self._tensors = _Run(kind, self._pad_index)
        elif self._tensors.kind != kind:
            # The result depends on the order, so that there is one tensor at a time, as upstream.
            pair = [self._tensors.joined(), tensor.cpu()]
            joined = _concatenate_leaves(pair, self._pad_index, torch.cat, _full_tensor)
            self._tensors = _Run.of(joined, self._pad_index)
            return
        self._tensors.add(tensor)

    def end_tensors(self) -> None:
        """Concatenate what follows with what there is as arrays."""
        tensors, self._tensors = self._tensors, None
        if tensors is None:
            return
        kind = (_array_type(tensors.kind[0]), *tensors.kind[1:])
        if self._arrays is None:
            self._arrays = _Run(kind, self._pad_index)
        elif self._arrays.kind != kind:
            pair = [_to_array(run.joined()) for run in (self._arrays, tensors)]
            joined = _concatenate_leaves(pair, self._pad_index, np.concatenate, _full_array)
            self._arrays = _Run.of(torch.from_numpy(joined), self._pad_index)
            return
        for tensor in tensors.take():
            self._arrays.add(tensor)

    def array(self) -> np.ndarray[Any, Any]:
        """Return the output of all batches."""
        if self._arrays is not None:
            self.end_tensors()
        run = self._arrays or self._tensors
        assert run is not None, "there is a batch"
        array = _to_array(run.joined())
        self._arrays, self._tensors = _Run.of(torch.from_numpy(array), self._pad_index), None
        return array[0, ...] if self._is_scalar else array


def _array_type(dtype: torch.dtype) -> torch.dtype:
    """Return the type of the array that a tensor of this type becomes."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


class EvalAccumulator:
    """Accumulates the outputs of all batches of an evaluation and returns them as numpy arrays.

    Args:
        concat: Concatenate the batches; otherwise return a list of batches.
        padding_index: What shorter batches are padded with along the second dimension.
    """

    def __init__(self, concat: bool = True, padding_index: int = PAD_INDEX) -> None:
        self.concat = concat
        self.padding_index = padding_index
        # On the model's device, or a first batch that may be the only one:
        self._batches: list[Any] = []  # the last ones, fewer than are merged at once
        self._merged: list[Any] = []  # those before, of several batches each unless these differ
        self._rows: Any = None  # in host memory, nested as a batch
        self._apart: list[Any] = []  # without ``concat``: arrays, an item per batch

    def add(self, tensors: object) -> None:
        """Add the outputs of one batch: tensors, however nested, on any device.

        Raises:
            DataError: If batches differ in structure, or hold something other than tensors; if not now, then later.
        """
        rows = self._rows
        if type(rows) is _Rows and not (self._batches or self._merged) and type(tensors) is Tensor and tensors.is_cpu:
            rows.add(tensors)  # as nearly every batch
            return
        is_first = self._rows is None and not self._batches
        if self.concat and not (is_first or self._merged) and _is_on_host((self._batches, tensors)):
            # At once: small tensors that stay would keep the heap from using the memory of larger ones again.
            self._write([*self._batches, tensors])
            self._batches = []
            return
        self._batches.append(map_nested(_compact, tensors))
        if self.concat and len(self._batches) == _MERGED_AT_ONCE:
            self._merge()

    def _merge(self) -> None:
        """Concatenate the last batches where they are: many small tensors take memory, and time to free and to copy."""
        if len({tuple(map(_kind, leaves(batch))) for batch in self._batches}) == 1:
            self._batches = [_concatenate(self._batches, self.padding_index)]
        self._merged += self._batches
        self._batches = []

    def _write(self, batches: list[Any]) -> None:
        """Copy ``batches`` to the rows in host memory; they are freed one by one."""
        batches.reverse()
        while batches:
            batch = batches.pop()
            if self._rows is None:
                self._rows = map_nested(lambda _: _Rows(self.padding_index), batch)
            self._rows = self._extend(self._rows, batch)

    def _extend(self, rows: Any, batch: Any) -> Any:
        """Return ``rows``, nested as the batches before, with ``batch`` added."""
        if isinstance(rows, _Rows):
            rows.add(batch)
            return rows
        if not isinstance(batch, type(rows)):
            raise _not_alike(type(rows).__name__, batch)
        if isinstance(rows, Mapping):
            return type(rows)({key: self._extend(item, batch[key]) for key, item in rows.items()})  # type: ignore[call-arg]
        return rebuild(rows, [self._extend(item, part) for item, part in zip(rows, batch, strict=False)])

    def to_cpu_and_numpy(self) -> None:
        """Move the accumulated tensors to the CPU and free the device memory.

        Raises:
            DataError: If batches differ in structure.
            LossError: If they hold something other than tensors.
        """
        if not self.concat:
            self._apart.extend(nested_numpify(batch) for batch in self._batches)
            self._batches = []
            return
        self._move()
        for rows in () if self._rows is None else leaves(self._rows):
            rows.end_tensors()

    def _move(self) -> None:
        if self._batches and sum(map(_size, leaves(self._batches))) <= _MERGED_AT_THE_END:
            self._merge()
        self._write(self._merged)
        self._write(self._batches)

    def get_arrays(self) -> Any:
        """Return all outputs: arrays nested as in a batch, a list of them without ``concat``, None if there are none.

        Raises:
            DataError: If batches differ in structure.
            LossError: If they hold something other than tensors.
        """
        if not self.concat:
            self.to_cpu_and_numpy()
            return self._apart or None
        self._move()
        return None if self._rows is None else map_nested(_Rows.array, self._rows)


# Results of evaluation, prediction and training; fields and unpacking as in transformers `trainer_utils.py`.


Arrays = np.ndarray[Any, Any] | tuple[Any, ...]
"""An array with a row per sample, or a tuple of arrays, nested like the model's outputs."""


class EvalPrediction:
    """The argument of ``compute_metrics``; unpacks as ``predictions, label_ids[, inputs][, losses]``.

    Args:
        predictions: The model's outputs.
        label_ids: The labels.
        inputs: The main inputs. Default: not included.
        losses: A loss per sample. Default: not included.
    """

    def __init__(
        self, predictions: Arrays, label_ids: Arrays, inputs: Arrays | None = None, losses: Arrays | None = None
    ) -> None:
        self.predictions = predictions
        self.label_ids = label_ids
        self.inputs = inputs
        self.losses = losses
        extras = tuple(extra for extra in (inputs, losses) if extra is not None)
        self.elements: tuple[Arrays, ...] = (predictions, label_ids, *extras)

    def __iter__(self) -> Iterator[Arrays]:
        return iter(self.elements)

    def __getitem__(self, idx: int) -> Arrays:
        if not 0 <= idx < len(self.elements):
            raise IndexError(f"tuple index out of range: {idx}, but EvalPrediction has {len(self.elements)} elements.")
        return self.elements[idx]


class EvalLoopOutput(NamedTuple):
    """Result of ``evaluation_loop``."""

    predictions: Arrays | None
    label_ids: Arrays | None
    metrics: dict[str, float]
    num_samples: int


class PredictionOutput(NamedTuple):
    """Result of ``predict``."""

    predictions: Arrays | None
    label_ids: Arrays | None
    metrics: dict[str, float] | None


class TrainOutput(NamedTuple):
    """Result of ``train``."""

    global_step: int
    training_loss: float
    metrics: dict[str, float]


def note_prediction(error: Exception, prediction: EvalPrediction) -> None:
    """Add to ``error`` of ``compute_metrics`` what it mistakes in ``prediction``, its argument, if that is seen."""
    told = str(error)
    if isinstance(error, AttributeError) and error.obj is prediction:
        error.add_note(
            "`compute_metrics`: an `EvalPrediction` has the model's outputs as `predictions`, labels as `label_ids` "
            "and, if `include_for_metrics` names them, `inputs` and `losses`."
        )
    elif isinstance(error, TypeError) and error.__traceback__ is not None and error.__traceback__.tb_next is None:
        error.add_note(
            "`compute_metrics`: it is called with one argument, an `EvalPrediction`, and by name with `compute_result` "
            "under `batch_eval_metrics=True`. Unpack it inside: `predictions, labels = prediction`."
        )
    elif isinstance(error, ValueError) and re.match(r"(too many|not enough) values to unpack", told):
        parts = [
            name for name in ("predictions", "label_ids", "inputs", "losses") if vars(prediction)[name] is not None
        ]
        error.add_note(f"`compute_metrics`: an `EvalPrediction` unpacks into {', '.join(parts)} here.")
    elif isinstance(prediction.predictions, tuple) and re.search("tuple|list|inhomogeneous|same shape", told):
        error.add_note(
            f"`compute_metrics`: `predictions` are {len(prediction.predictions)} outputs of the model. Take one, "
            "`predictions[0]`, or have `ignore_keys` or `preprocess_logits_for_metrics` leave the others out."
        )
    elif isinstance(error, OverflowError):
        error.add_note(
            "`compute_metrics`: predictions and labels are padded with -100, which is no token. Replace it before "
            "decoding: `np.where(ids < 0, tokenizer.pad_token_id, ids)`."
        )
    elif (note := _note_of_shapes(told, prediction)) is not None:
        error.add_note(note)


def _note_of_shapes(told: str, prediction: EvalPrediction) -> str | None:
    """Return what shapes of ``prediction`` an error with the text ``told`` comes from, if that is seen."""
    predictions, labels = prediction.predictions, prediction.label_ids
    if not (isinstance(predictions, np.ndarray) and isinstance(labels, np.ndarray)):
        return None
    shape = f"`compute_metrics`: `predictions` are of shape {predictions.shape}"
    if np.issubdtype(predictions.dtype, np.floating) and "cannot be interpreted as an integer" in told:
        return (
            f"{shape}, logits and no tokens. Take `predictions.argmax(-1)`, or have a `Seq2SeqTrainer` generate: "
            "`predict_with_generate=True`."
        )
    if predictions.ndim == labels.ndim + 1 and re.search("broadcast|mix of|inconsistent|continuous", told):
        return f"{shape}, a number for each class, and `label_ids` of {labels.shape}. Take `predictions.argmax(-1)`."
    if (labels == PAD_INDEX).any() and re.search("mix of|inconsistent|not supported|not in|unknown", told):
        return (
            f"`compute_metrics`: `label_ids` are {PAD_INDEX} where nothing is scored. Leave these out: "
            f"`predictions[label_ids != {PAD_INDEX}]`."
        )
    return None


def note_logits(error: Exception, logits: object) -> None:
    """Add to ``error`` of ``preprocess_logits_for_metrics`` how it is called, or what ``logits`` are, if that is it."""
    if isinstance(error, TypeError) and error.__traceback__ is not None and error.__traceback__.tb_next is None:
        error.add_note("`preprocess_logits_for_metrics`: it is called with two arguments, `logits` and `labels`.")
    elif isinstance(logits, tuple) and re.search("tuple|list", str(error)):
        error.add_note(
            f"`preprocess_logits_for_metrics`: `logits` are {len(logits)} outputs of the model. Take one, `logits[0]`."
        )
