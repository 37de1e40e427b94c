"""Samplers: the order in which samples are drawn."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils.data import RandomSampler, Sampler, SequentialSampler

from hf_compat.data.collators import is_arrow_dataset
from hf_compat.errors import DataError
from hf_compat.metrics import has_length


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

    Raises:
        DataError: If the data set is empty and the order is not its own.
    """
    if not has_length(dataset):
        return None
    if strategy != "sequential" and not len(dataset):
        raise DataError("`train_dataset` is empty. Pass at least one sample.")
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
    world_size: int = 1,
) -> Sampler[Any] | None:
    """Return the sampler of an evaluation loader; None for a data set without length.

    In order, which several ranks leave to the loader, or grouped by length where training groups by length.

    Args:
        dataset: The evaluation data set.
        strategy: The ``train_sampling_strategy``.
        batch_size: Samples to group by length.
        length_column_name: As for :func:`train_sampler`.
        model_input_name: As for :func:`train_sampler`.
        seed: Seed of a generator for the grouping. Default: the global generator is used.
        world_size: Ranks that evaluate.
    """
    if not has_length(dataset):
        return None
    if strategy != "group_by_length":
        return SequentialSampler(dataset) if world_size <= 1 else None
    return LengthGroupedSampler(
        batch_size,
        dataset=dataset,
        lengths=column_lengths(dataset, length_column_name),
        model_input_name=model_input_name,
        generator=None if seed is None else Generator().manual_seed(seed),
    )


# Batches of roughly equal cost per rank: few long samples or many short ones.


_ATTENTION_WEIGHT = 0.001
"""Cost of attention per squared token, relative to the cost of one token."""
_MOVES_PER_GROUP = 30
TRANSFORMERS_SEED = 42
"""Seed of the order of samples in every run of transformers."""


class BatchRebalanceSampler(Sampler[list[int]]):
    """The batches of one rank, of sizes such that all ranks take about as long for theirs.

    The samples of an update step are sorted by length and cut into as many groups as there are batches on all ranks.
    A group of ``n`` samples of at most ``L`` tokens costs ``n * L + 0.001 * n * L**2``, its padding included; the cuts
    are moved until no move helps. The costliest groups are the ranks' first batches, the next their second. Every rank
    computes this by itself, with the same result. The order of samples depends on ``seed`` and the epoch alone.

    Args:
        lengths: Tokens of each sample.
        effective_batch_size: Samples of an update step, of all ranks and batches.
        dp_size: Data-parallel world size.
        grad_accum: Batches of an update step on each rank.
        shuffle: Draw another order in each epoch.
        seed: Seed of epoch 0; epoch ``e`` has ``seed + e``.
        rank: Data-parallel rank.
        drop_last: Drop the samples that are left over at the end of an epoch. Otherwise they are an update step of
            their own, filled up with the first of the epoch if they are fewer than its batches.

    Raises:
        DataError: If an update step has more batches than samples.

    References:
        Same batches as ``BatchRebalanceSampler`` of transformers ``trainer_pt_utils.py``.
    """

    def __init__(
        self,
        lengths: Sequence[Any],
        effective_batch_size: int,
        dp_size: int,
        grad_accum: int,
        shuffle: bool = True,
        seed: int = 42,
        rank: int = 0,
        drop_last: bool = True,
    ) -> None:
        if not 1 <= dp_size * grad_accum <= effective_batch_size:
            raise DataError(
                f"`effective_batch_size={effective_batch_size}`: an update step of {dp_size} ranks with {grad_accum} "
                "batches each needs at least as many samples. Make it larger."
            )
        self.lengths = list(lengths)
        self.effective_batch_size = effective_batch_size
        self.dp_size = dp_size
        self.grad_accum = grad_accum
        self.shuffle = shuffle
        self.seed = seed
        self.rank = rank
        self.drop_last = drop_last
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next ``iter``."""
        self.epoch = epoch

    def __len__(self) -> int:
        full, rest = divmod(len(self.lengths), self.effective_batch_size)
        return (full + int(rest > 0 and not self.drop_last)) * self.grad_accum

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the indices of each batch of this rank in epoch ``epoch``."""
        order = list(range(len(self.lengths)))
        if self.shuffle:
            order = torch.randperm(len(order), generator=torch.Generator().manual_seed(self.seed + self.epoch)).tolist()
        for start in range(0, len(self) // self.grad_accum * self.effective_batch_size, self.effective_batch_size):
            step = order[start : start + self.effective_batch_size]
            missing = max(self.dp_size * self.grad_accum - len(step), 0)
            yield from self._batches([*step, *itertools.islice(itertools.cycle(order), missing)])

    def _batches(self, step: list[int]) -> list[list[int]]:
        """Return this rank's batches of an update step with the samples ``step``."""
        step = sorted(step, key=lambda index: self.lengths[index], reverse=True)
        cuts = _Cuts([self.lengths[index] for index in step], self.dp_size, self.grad_accum)
        cuts.balance(max(cuts.groups * _MOVES_PER_GROUP, self.effective_batch_size))
        ends = list(itertools.accumulate(cuts.best))
        ranked = cuts.by_cost(cuts.costs(cuts.best))
        own = ranked[self.rank :: self.dp_size]
        return [step[ends[group] - cuts.best[group] : ends[group]] for group in own]


def is_balanced(sampler: object) -> bool:
    """Return whether ``sampler`` yields this rank's batches, ours or transformers' own."""
    theirs = getattr(sys.modules.get("transformers.trainer_pt_utils"), "BatchRebalanceSampler", BatchRebalanceSampler)
    return isinstance(sampler, BatchRebalanceSampler | theirs)


def balanced_sampler(
    dataset: Any,
    batch_size: int,
    grad_accum: int,
    *,
    length_column_name: str,
    model_input_name: str | None,
    ranks: tuple[int, int],
    drop_last: bool,
    seed: int = TRANSFORMERS_SEED,
) -> BatchRebalanceSampler:
    """Return the sampler of ``train_sampling_strategy="batch_rebalance"``.

    Args:
        dataset: The training data set; read once, sample by sample, if it has no column of lengths.
        batch_size: Samples per device and batch, on average.
        grad_accum: Batches of an update step on each rank.
        length_column_name: Column of ``dataset`` with the length of each sample, if there is one.
        model_input_name: The input whose length is taken where there is no such column. Default: ``"input_ids"``.
        ranks: Data-parallel rank and world size.
        drop_last: Drop the samples that are left over at the end of an epoch.
        seed: Seed of the order of samples.

    Raises:
        DataError: If there is no such column, and samples have no such input.
    """
    if is_arrow_dataset(dataset) and length_column_name in dataset.column_names:
        column = dataset[length_column_name]
        # A list of tensors without dimensions stays one: their costs are float32, as upstream's, and may be equal.
        lengths = column.tolist() if isinstance(column, torch.Tensor) else list(column)
    else:
        lengths = measure_lengths(dataset, model_input_name or "input_ids")
    rank, size = ranks
    return BatchRebalanceSampler(
        lengths, batch_size * grad_accum * size, size, grad_accum, seed=seed, rank=rank, drop_last=drop_last
    )


class _Cuts:
    """The sizes of consecutive groups of samples, moved one sample at a time from the costliest group to the cheapest.

    Args:
        lengths: Tokens of each sample, from many to few; at least as many samples as groups.
        dp_size: Groups that are trained on at the same time, one on each rank.
        grad_accum: How many times that is.

    Attributes:
        groups: Their number.
        sizes: Samples in each group, at present.
        best: The sizes whose costs differed least.
    """

    def __init__(self, lengths: list[Any], dp_size: int, grad_accum: int) -> None:
        self.groups = dp_size * grad_accum
        each, more = divmod(len(lengths), self.groups)
        self.sizes = [each + int(group < more) for group in range(self.groups)]
        self.best = list(self.sizes)
        self._lengths = lengths
        self._dp_size = dp_size
        self._settled: set[int] = set()

    def costs(self, sizes: list[int]) -> list[Any]:
        """Return the cost of each group if they have ``sizes``."""
        starts = itertools.accumulate(sizes, initial=0)
        return [_cost(size, self._lengths[start]) for size, start in zip(sizes, starts, strict=False)]

    @staticmethod
    def by_cost(costs: list[Any]) -> list[int]:
        """Return the groups, the costliest first."""
        return sorted(range(len(costs)), key=lambda group: costs[group], reverse=True)

    def balance(self, moves: int) -> None:
        """Move samples until no move helps, sizes come back, or ``moves`` are made."""
        seen: set[tuple[int, ...]] = set()
        least: Any = float("inf")
        for _ in range(moves):
            free = [group for group in range(self.groups) if group not in self._settled]
            if tuple(self.sizes) in seen or len(free) <= 1:
                return
            seen.add(tuple(self.sizes))
            costs = self.costs(self.sizes)
            largest = max(free, key=lambda group: costs[group])
            smallest = min(free, key=lambda group: costs[group])
            if costs[largest] - costs[smallest] < least:
                least, self.best = costs[largest] - costs[smallest], list(self.sizes)
            if costs[largest] == costs[smallest]:
                return
            if self.sizes[largest] > 1:
                self.sizes[largest] -= 1
                self.sizes[smallest] += 1
            else:
                self._settle(largest, costs)

    def _settle(self, largest: int, costs: list[Any]) -> None:
        """Leave the group ``largest``, of one sample, and those trained on at the same time as they are.

        The others of these may take samples from cheaper groups before, up to the cost of ``largest``: who is done
        earlier waits for it.
        """
        ranked = self.by_cost(costs)
        first = ranked.index(largest) // self._dp_size * self._dp_size
        # The order of a set is the one in which transformers lets them take samples.
        together = set(ranked[first : first + self._dp_size])
        for group in together:
            if group not in self._settled and group != largest:
                self._fill(group, together, costs[largest])
        self._settled |= together

    def _fill(self, group: int, together: set[int], most: Any) -> None:
        """Give ``group`` samples of groups not ``together`` with it, as long as it costs at most ``most``."""
        while True:
            first = self._lengths[sum(self.sizes[:group])]
            givers = [
                other
                for other in range(self.groups)
                if other not in self._settled and other not in together and self.sizes[other] > 1
            ]
            if _cost(self.sizes[group] + 1, first) > most or not givers:
                return
            costs = self.costs(self.sizes)
            self.sizes[min(givers, key=lambda other: costs[other])] -= 1
            self.sizes[group] += 1


def _cost(size: int, longest: Any) -> Any:
    return size * longest + _ATTENTION_WEIGHT * size * longest * longest
