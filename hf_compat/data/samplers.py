"""In which order samples are drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils.data import RandomSampler, Sampler

from hf_compat.data.columns import is_arrow_dataset
from hf_compat.errors import DataError

__all__ = ["LengthGroupedSampler", "SeedableRandomSampler", "length_grouped_indices", "lengths_of"]


class SeedableRandomSampler(RandomSampler):
    """A random order that follows from a seed and the epoch alone.

    It draws nothing from the global generator, so that resuming in epoch ``e`` needs none of the epochs before.

    Args:
        data_source: What is drawn from; only its length counts.
        replacement: Draw with replacement.
        num_samples: Samples per epoch. Default: as many as there are.
        generator: Reseeded in every epoch. Default: one of its own.
        data_seed: Seed of epoch 0; epoch ``e`` has ``data_seed + e``. Default: torch's initial seed now.

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
        """Yield the indices of epoch ``epoch``; once through, go on to the next."""
        if self.generator is None:
            self.generator = Generator(device=torch.get_default_device())
        self.generator.manual_seed(self.initial_seed + self.epoch)
        yield from super().__iter__()
        self.set_epoch(self.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Make the next ``iter`` go through epoch ``epoch``."""
        self.epoch = epoch


def length_grouped_indices(
    lengths: Sequence[Any],
    batch_size: int,
    mega_batch_mult: int | None = None,
    generator: Generator | None = None,
) -> list[int]:
    """Return all indices in a random order in which neighbours are of similar length.

    A random permutation is cut into mega-batches, each sorted from long to short. The longest sample of all comes
    first, so that a batch too large for the memory fails at once.

    Args:
        lengths: Length of each sample.
        batch_size: Samples that are to be of similar length.
        mega_batch_mult: Batches per mega-batch. Default: as many as make four mega-batches, from 1 to 50.
        generator: Where the permutation comes from. Default: the global generator.

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


def lengths_of(dataset: Any, length_column_name: str) -> list[Any] | None:
    """Return the lengths that ``dataset``'s own column gives; None if it is no Arrow data set or has no such column."""
    if not is_arrow_dataset(dataset) or length_column_name not in dataset.column_names:
        return None
    return [value.item() if hasattr(value, "item") else value for value in dataset[length_column_name]]


def _measured(dataset: Any, input_name: str) -> list[int]:
    first = dataset[0]
    if not isinstance(first, Mapping) or input_name not in first:
        raise DataError(
            f"Samples have no {input_name!r} to group by the length of: add a column of lengths and name it in "
            "`length_column_name`, or do not group by length."
        )
    return [len(sample[input_name]) for sample in dataset]


class LengthGroupedSampler(Sampler[int]):
    """A random order in which neighbours are of similar length; see :func:`length_grouped_indices`.

    Args:
        batch_size: Samples that are to be of similar length.
        dataset: Measured once, sample by sample, if there are no ``lengths``.
        lengths: Length of each sample.
        model_input_name: What is measured. Default: ``"input_ids"``.
        generator: Where the order comes from. Default: the global generator.

    Raises:
        DataError: If there are neither lengths nor samples that can be measured.
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
            lengths = _measured(dataset, model_input_name or "input_ids")
        self.batch_size = batch_size
        self.lengths: Sequence[Any] = lengths.tolist() if isinstance(lengths, Tensor) else lengths
        self.generator = generator

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        """Yield the indices of one epoch."""
        return iter(length_grouped_indices(self.lengths, self.batch_size, generator=self.generator))
