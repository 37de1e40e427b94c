"""Runs of two processes that one, two and three go on from: the numbers of the unbroken run, each sample once."""

import shutil
from collections import Counter

import pytest
import torch

from tests.scripts.elastic_script import OF_ANY_SIZE, ROWS
from tests.support.elastic import logs, request, samples, train_elastically, weights

pytest.importorskip("deepspeed")

SAME_WINDOWS = {"samples": 12, "dropout": 0.0}
"""Windows of 12 samples whatever the number of processes, and nothing that depends on a rank's random numbers."""
INTERRUPTED = 4
"""The update step of six, the first of the second epoch, after which the run of two processes ends."""
QUICK = ("zero_2", "zero_3")


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Return folders of unbroken runs and of interrupted ones on two processes, begun when they are first needed."""
    folder = tmp_path_factory.mktemp("begun")

    def runs(strategies):
        new = [name for name in strategies if not (folder / "whole" / name).exists()]
        parts = [request(folder / "part" / name, strategy=name, until=INTERRUPTED, **SAME_WINDOWS) for name in new]
        wholes = [request(folder / "whole" / name, strategy=name, **SAME_WINDOWS) for name in new]
        if new:
            train_elastically([*parts, *wholes], processes=2)
        return folder

    return runs


def check(begun, folder, strategies, processes):
    """Go on with ``processes`` processes, and fail unless they end as two that were not interrupted."""
    before = begun(strategies)
    for name in strategies:
        shutil.copytree(before / "part" / name, folder / name)
    train_elastically(
        [request(folder / name, strategy=name, **SAME_WINDOWS) for name in strategies], processes=processes
    )
    exactly = {"rtol": 0.0, "atol": 0.0}
    for name in strategies:
        whole = before / "whole" / name
        # Sums over other numbers of ranks are rounded otherwise.
        close = exactly if processes == 2 else {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(logs(folder / name), logs(whole), **close)
        torch.testing.assert_close(weights(folder / name), weights(whole), **close)
        assert samples(folder / name) == Counter(dict.fromkeys(range(ROWS), 2)), name


@pytest.mark.slow
def test_three_go_on_from_two_under_zero(begun, tmp_path):
    """DeepSpeed's partitions, of a row of parameters under ZeRO-2 and of each under ZeRO-3, are cut anew for three."""
    check(begun, tmp_path, QUICK, 3)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_as_the_unbroken_run(begun, tmp_path, processes):
    """Losses, gradient norms, learning rates and weights under every strategy; each sample once an epoch."""
    check(begun, tmp_path, tuple(OF_ANY_SIZE), processes)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 3])
def test_each_sample_once(tmp_path, processes):
    """With as many samples for each process, and so other windows, an epoch's rest is divided among those there are."""
    strategies = ("ddp", "fsdp2", "zero_1", "zero_3")
    train_elastically([request(tmp_path / name, strategy=name, until=3) for name in strategies], processes=2)
    train_elastically([request(tmp_path / name, strategy=name) for name in strategies], processes=processes)
    for name in strategies:
        assert samples(tmp_path / name) == Counter(dict.fromkeys(range(ROWS), 2)), name
        assert len(logs(tmp_path / name)) == 3 + (24 + 36) // (2 * processes), name


@pytest.mark.slow
def test_again_and_again(begun, tmp_path):
    """Three go on from two, one from three, and two from one, which saves at each end."""
    strategies = ("fsdp2", "zero_1", "zero_2", "zero_3")
    before = begun(strategies)
    for name in strategies:
        shutil.copytree(before / "part" / name, tmp_path / name)
    for processes, until in ((3, 5), (1, 6), (2, None)):
        fields = {"until": until, "fields": {"num_train_epochs": 3}, **SAME_WINDOWS}
        train_elastically(
            [request(tmp_path / name, strategy=name, **fields) for name in strategies], processes=processes
        )
    for name in strategies:
        assert samples(tmp_path / name) == Counter(dict.fromkeys(range(ROWS), 3)), name


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "accumulated"), [(1, 1), (2, 2)])
def test_each_sample_once_of_split_batches(tmp_path, processes, accumulated):
    """A batch that two ranks share is counted once: one rank, or other windows, go on at the sample after it."""
    fields = {"accelerator_config": {"split_batches": True}}
    train_elastically([request(tmp_path, until=3, fields=fields)], processes=2)
    fields["gradient_accumulation_steps"] = accumulated
    train_elastically([request(tmp_path, fields=fields)], processes=processes)
    assert samples(tmp_path) == Counter(dict.fromkeys(range(ROWS), 2))
    assert len(logs(tmp_path)) == 3 + (15 + 18) // accumulated + accumulated // 2
