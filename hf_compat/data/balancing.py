"""Batches of roughly equal cost per rank: few long samples or many short ones."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler

from hf_compat.data.columns import is_arrow_dataset
from hf_compat.data.samplers import measure_lengths
from hf_compat.errors import DataError

__all__ = ["TRANSFORMERS_SEED", "BatchRebalanceSampler", "balanced_sampler", "is_balanced"]

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
