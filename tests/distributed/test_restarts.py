"""A rank is killed, its launcher starts all of them again, and they end with the weights of the run that was not."""

import signal
import sys

import pytest
import torch

from tests.scripts.elastic_script import PROCESSES, STRATEGIES
from tests.support.combinations import KILLED_IN_THE_BACKGROUND, MOMENTS
from tests.support.elastic import SCRIPT, assert_same_end, logs, request, train_elastically, weights
from tests.support.launchers import launcher, pod
from tests.support.processes import finish, free_port, start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills processes")

STARTED_BY = {"ddp": "torchrun on nodes", "fsdp2": "PyTorchJob", "zero_3": "torchrun on nodes"}
"""Strategy → what starts its two nodes."""
TOGETHER = (
    *(("ddp",), ("fsdp1", "fsdp2"), ("zero_1", "zero_2", "zero_3"), ("hsdp",)),
    *(("tensor",), ("loaded",), ("sequences",), ("split",)),
)
"""Strategies that are run in one launch; the launchers of the page start ranks again three times."""


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Return a function from a strategy to the folder of a run under it that nothing happens to."""
    folder = tmp_path_factory.mktemp("unbroken")

    def of(strategy):
        (names,) = (names for names in TOGETHER if strategy in names)
        if not (folder / strategy).exists():
            train_elastically([request(folder / name, strategy=name) for name in names], processes=PROCESSES[strategy])
        return folder / strategy

    return of


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Return a function from a strategy and a moment to the folder of a run whose rank was killed then."""
    folder = tmp_path_factory.mktemp("killed")

    def of(strategy, moment, among=tuple(STRATEGIES), **given):
        names = [name for together in TOGETHER for name in together if strategy in together and name in among]
        place = folder / "-".join([moment, *given])
        if not (place / strategy).exists():
            kill(launcher("torchrun", PROCESSES[strategy]), place, names, moment, **given)
        return place / strategy

    return of


def kill(command, folder, strategies, moment, rank=None, **fields):
    """Train under each of ``strategies``, and kill ``rank`` of each at ``moment``; by default one of them in turn."""
    if any("zero" in name or name in ("sequences", "split") for name in strategies):
        pytest.importorskip("deepspeed")
    if "loaded" in strategies:
        pytest.importorskip("transformers.distributed.sharding_utils")
    # Saves are those of even update steps; a rank that has just saved is in the fourth, about to begin the fifth.
    given = {"moment": moment, "step": 5, "fields": fields}
    turns = {name: (number + MOMENTS.index(moment)) % PROCESSES[name] for number, name in enumerate(STRATEGIES)}
    ranks = turns if rank is None else dict.fromkeys(STRATEGIES, rank)
    requests = [request(folder / name, strategy=name, lost=ranks[name], **given) for name in strategies]
    (ended,) = finish([start([*command, SCRIPT, *requests])])
    assert ended.code == 0, ended.output
    assert all((folder / name / "lost").exists() for name in strategies)


@pytest.mark.slow
def test_one_of_two_is_killed(unbroken, tmp_path):
    """While it saves a checkpoint under DDP: torchrun starts both again, and they go on from the checkpoint before."""
    kill(launcher("torchrun", 2), tmp_path, ["ddp"], "saving", rank=1)
    assert_same_end(tmp_path / "ddp", unbroken("ddp"))


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_killed_at_any_moment(unbroken, killed, strategy, moment):
    """Under every strategy any rank may be killed before an update, in one, in the middle of a save or after it."""
    assert_same_end(killed(strategy, moment), unbroken(strategy))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", KILLED_IN_THE_BACKGROUND)
def test_killed_while_saving_in_the_background(unbroken, killed, strategy):
    """A save that another rank has finished in the background counts or does not: the end is the same."""
    folder = killed(strategy, "begin", KILLED_IN_THE_BACKGROUND, rank=1, save_async=True)
    assert_same_end(folder, unbroken(strategy))


@pytest.mark.slow
def test_accelerate_launch(unbroken, tmp_path):
    """``accelerate launch --max_restarts`` does the same."""
    command = [*launcher("accelerate", 2), f"--main_process_port={free_port()}"]
    kill(command, tmp_path, ["ddp"], "backward", rank=0)
    assert_same_end(tmp_path / "ddp", unbroken("ddp"))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STARTED_BY)
def test_a_node_is_lost(tmp_path, strategy):
    """Of two nodes, of which torchrun needs one at least, one is killed: the other goes on alone, to the same end."""
    if "zero" in strategy:
        pytest.importorskip("deepspeed")
    whole, folder = tmp_path / "whole", tmp_path / "part"
    fields = {"strategy": strategy, "samples": 12, "dropout": 0.0, "step": 5}
    train_elastically([request(whole, **fields)], processes=2)
    name, endpoint = STARTED_BY[strategy], f"localhost:{free_port()}"
    command, variables = pod(endpoint) if name == "PyTorchJob" else (launcher(name, 1, endpoint=endpoint), {})
    first, second = (
        start([*command, SCRIPT, words], **variables, PET_RDZV_CONF=f"is_host={is_host},last_call_timeout=5")
        for is_host, words in ((1, request(folder, **fields)), (0, request(folder, lost="node", **fields)))
    )
    left, killed = finish([first, second])
    assert killed.code == -signal.SIGKILL
    assert left.code == 0, left.output
    torch.testing.assert_close(logs(folder), logs(whole), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weights(folder), weights(whole), rtol=1e-5, atol=1e-5)
