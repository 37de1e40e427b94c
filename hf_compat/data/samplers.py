"""Samplers: the order in which samples are drawn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils.data import RandomSampler, Sampler, SequentialSampler

from hf_compat.data.columns import is_arrow_dataset
from hf_compat.errors import DataError
from hf_compat.metrics import has_length

__all__ = [
    "LengthGroupedSampler",
    "SeedableRandomSampler",
    "column_lengths",
    "eval_sampler",
    "length_grouped_indices",
    "measure_lengths",
    "train_sampler",
]


class SeedableRandomSampler(RandomSampler):
    """A random order that depends only on the seed and the epoch.

    It does not use the global generator, so that resuming in epoch ``e`` does not replay the epochs before.

    Args:
        data_source: The data set; only its length is used.
        replacement: Draw with replacement.
        num_samples: Samples per epoch. Default: the length of ``data_source``.
        generator: Reseeded in every epoch. Default: a new one.
        data_seed: Seed of epoch 0; epoch ``e`` has ``data_seed + e``. Default: torch's current initial seed.

    References:
        Same order as ``SeedableRandomSampler`` of accelerate ``data_loader.py``.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
        data_seed: int | None = None,
    ) -> None:
        super().__init__(data_source, replacement=replacement, num_samples=num_samples, generator=generator)
        self.initial_seed = torch.initial_seed() if data_seed is None else data_seed
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        """Return the indices of epoch ``epoch``; the epoch after it is the next one's once they are read."""
        if self.generator is None:
            self.generator = Generator(device=torch.get_default_device())
        self.generator.manual_seed(self.initial_seed + self.epoch)
        return itertools.chain(super().__iter__(), self._advance())

    def _advance(self) -> Iterator[int]:
        self.set_epoch(self.epoch + 1)
        yield from ()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next ``iter``."""
        self.epoch = epoch


def length_grouped_indices(
    lengths: Sequence[Any],
    batch_size: int,
    mega_batch_mult: int | None = None,
    generator: Generator | None = None,
) -> list[int]:
    """Return all indices in a random order in which neighbours have similar lengths.

    A random permutation is cut into mega-batches, each sorted from long to short. The longest sample of all comes
    first, so that an out-of-memory error comes in the first batch.

    Args:
        lengths: Length of each sample.
        batch_size: Samples to group by length.
        mega_batch_mult: Batches per mega-batch. Default: as many as make four mega-batches, from 1 to 50.
        generator: Draws the permutation. Default: the global generator.

    References:
        Same order as ``get_length_grouped_indices`` of transformers ``trainer_pt_utils.py``.
    """
    count = len(lengths)
    if mega_batch_mult is None:
        mega_batch_mult = max(1, min(count // (4 * batch_size), 50))
    size = mega_batch_mult * batch_size
    permutation = torch.randperm(count, generator=generator).tolist()
    mega_batches = [
        sorted(permutation[start : start + size], key=lambda index: lengths[index], reverse=True)
        for start in range(0, count, size)
    ]
    # A tensor's argmax, as fractional lengths that are equal in float32 count as equal upstream.
    longest = int(torch.tensor([lengths[mega_batch[0]] for mega_batch in mega_batches]).argmax())
    mega_batches[0][0], mega_batches[longest][0] = mega_batches[longest][0], mega_batches[0][0]
    return [index for mega_batch in mega_batches for index in mega_batch]


def column_lengths(dataset: Any, length_column_name: str) -> list[Any] | None:
    """Return the column of lengths of ``dataset``; None if it is no Arrow data set or has no such column."""
    if not is_arrow_dataset(dataset) or length_column_name not in dataset.column_names:
        return None
    return [value.item() if hasattr(value, "item") else value for value in dataset[length_column_name]]


def measure_lengths(dataset: Any, input_name: str) -> list[int]:
    """Return the length of the input ``input_name`` of each sample of ``dataset``, which is read once.

    Raises:
        DataError: If samples have no such input.
    """
    first = dataset[0]
    if not isinstance(first, Mapping) or input_name not in first:
        raise DataError(
            f"Samples have no {input_name!r} to measure their length by: add a column of lengths and set "
            "`length_column_name` to its name, or set `train_sampling_strategy='random'`."
        )
    return [len(sample[input_name]) for sample in dataset]


class LengthGroupedSampler(Sampler[int]):
    """A random order in which neighbours have similar lengths; see :func:`length_grouped_indices`.

    Args:
        batch_size: Samples to group by length.
        dataset: Read once, sample by sample, if there are no ``lengths``.
        lengths: Length of each sample.
        model_input_name: The input whose length is taken. Default: ``"input_ids"``.
        generator: Draws the order. Default: the global generator.

    Raises:
        DataError: If both ``dataset`` and ``lengths`` are None, or samples have no ``model_input_name``.
    """

    def __init__(
        self,
        batch_size: int,
        dataset: Any = None,
        lengths: Sequence[Any] | Tensor | None = None,
        model_input_name: str | None = None,
        generator: Generator | None = None,
    ) -> None:
        if lengths is None and dataset is None:
            raise DataError("`dataset=None, lengths=None`: pass the data set or its lengths.")
        if lengths is None:
            lengths = measure_lengths(dataset, model_input_name or "input_ids")
        self.batch_size = batch_size
        self.lengths: Sequence[Any] = lengths.tolist() if isinstance(lengths, Tensor) else lengths
        self.generator = generator

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        """Yield the indices of one epoch."""
        return iter(length_grouped_indices(self.lengths, self.batch_size, generator=self.generator))


def train_sampler(
    dataset: object,
    strategy: str,
    batch_size: int,
    *,
    length_column_name: str,
    model_input_name: str | None = None,
) -> Sampler[Any] | None:
    """Return the sampler of a train loader; None for a data set without length.

    Args:
        dataset: The training data set.
        strategy: A ``train_sampling_strategy``: ``"random"``, ``"sequential"`` or ``"group_by_length"``.
        batch_size: Samples to group by length, for ``"group_by_length"`` alone.
        length_column_name: Column of ``dataset`` with the length of each sample, if there is one.
        model_input_name: The input whose length is taken where there is no such column. Default: ``"input_ids"``.
    """
    if not has_length(dataset):
        return None
    if strategy == "group_by_length":
        lengths = column_lengths(dataset, length_column_name)
        return LengthGroupedSampler(batch_size, dataset=dataset, lengths=lengths, model_input_name=model_input_name)
    return SequentialSampler(dataset) if strategy == "sequential" else RandomSampler(dataset)


def eval_sampler(
    dataset: object,
    strategy: str,
    batch_size: int,
    *,
    length_column_name: str,
    model_input_name: str | None = None,
    seed: int | None = None,
) -> Sampler[Any] | None:
    """Return the sampler of an evaluation loader; None for a data set without length.

    In order, or grouped by length where training groups by length.

    Args:
        dataset: The evaluation data set.
        strategy: The ``train_sampling_strategy``.
        batch_size: Samples to group by length.
        length_column_name: As for :func:`train_sampler`.
        model_input_name: As for :func:`train_sampler`.
        seed: Seed of a generator for the grouping. Default: the global generator is used.
    """
    if not has_length(dataset):
        return None
    if strategy != "group_by_length":
        return SequentialSampler(dataset)
    return LengthGroupedSampler(
        batch_size,
        dataset=dataset,
        lengths=column_lengths(dataset, length_column_name),
        model_input_name=model_input_name,
        generator=None if seed is None else Generator().manual_seed(seed),
    )
