"""What each process is given of batches and streams: the same as accelerate gives it."""

import itertools

import pytest
from accelerate.data_loader import BatchSamplerShard, IterableDatasetShard
from torch.utils.data import BatchSampler, SequentialSampler

from hf_compat.data.rank_batches import BatchShard, StreamShard
from hf_compat.errors import DataError
from tests.support.helpers import SizedStream

CASES = list(itertools.product(range(15), (1, 2, 4), (False, True), (1, 2, 3)))
"""Samples, batch size, whether the last is dropped, processes."""


def batches_of(count, size, drop_last):
    return BatchSampler(SequentialSampler(range(count)), batch_size=size, drop_last=drop_last)


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("split", [False, True])
def test_batches(split, even):
    """Batches and their number are accelerate's, for every process and every way to share out."""
    for count, size, drop_last, processes in CASES:
        if split and size % processes:
            continue
        for process in range(processes):
            given = batches_of(count, size, drop_last), processes, process
            theirs = BatchSamplerShard(*given, split_batches=split, even_batches=even)
            ours = BatchShard(
                given[0], num_processes=processes, process_index=process, split_batches=split, even_batches=even
            )
            case = (count, size, drop_last, processes, process)
            assert list(ours) == list(theirs), case
            assert len(ours) == len(theirs), case


class Lists:
    """Batches of changing sizes, as samplers of the user may give them."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        return (list(range(number + 1)) for number in range(self.count))


@pytest.mark.parametrize("even", [True, False])
def test_batches_of_changing_sizes(even):
    """Batches without a size of their own are repeated whole, not filled up."""
    for count, processes in itertools.product(range(8), (1, 2, 3)):
        for process in range(processes):
            theirs = BatchSamplerShard(Lists(count), processes, process, even_batches=even)
            ours = BatchShard(Lists(count), num_processes=processes, process_index=process, even_batches=even)
            assert list(ours) == list(theirs), (count, processes, process)


@pytest.mark.parametrize("split", [False, True])
def test_streams(split):
    """Samples of a stream and their number are accelerate's, for every process."""
    for count, size, drop_last, processes in CASES:
        if split and size % processes:
            continue
        for process in range(processes):
            rows = SizedStream([{"row": number} for number in range(count)])
            theirs = IterableDatasetShard(rows, size, drop_last, processes, process, split)
            ours = StreamShard(
                rows,
                batch_size=size,
                drop_last=drop_last,
                num_processes=processes,
                process_index=process,
                split_batches=split,
            )
            case = (count, size, drop_last, processes, process)
            assert list(ours) == list(theirs), case
            assert len(ours) == len(theirs), case


def test_a_batch_that_cannot_be_split():
    """A batch size that is no multiple of the processes is refused by name."""
    with pytest.raises(DataError, match=r"split_batches=True.*batch size is 3.*multiple of 2"):
        BatchShard(batches_of(6, 3, False), num_processes=2, process_index=0, split_batches=True)


@pytest.mark.parametrize(
    ("count", "settings", "even"),
    [
        pytest.param(8, {}, True, id="filled up"),
        pytest.param(8, {"even_batches": False}, True, id="divides evenly"),
        pytest.param(9, {"even_batches": False}, False, id="one batch over"),
    ],
)
def test_shards_know_whether_they_are_even(count, settings, even):
    """A training whose processes would make different numbers of update steps can be told beforehand."""
    assert BatchShard(batches_of(count, 2, False), num_processes=2, process_index=0, **settings).is_even is even


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("split", [False, True])
def test_shards_know_whether_they_are_gatherable(split, even):
    """An evaluation whose processes would get different numbers of samples can be told beforehand."""
    for count, size, drop_last, processes in CASES:
        if split and size % processes:
            continue
        settings = {"num_processes": processes, "split_batches": split, "even_batches": even}
        batches = batches_of(count, size, drop_last)
        shards = [BatchShard(batches, process_index=process, **settings) for process in range(processes)]
        sizes = {tuple(map(len, shard)) for shard in shards}
        case = (count, size, drop_last, processes)
        assert all(shard.is_gatherable == (len(sizes) == 1) for shard in shards), case
