"""One of two processes is signalled or killed: both leave, and the next start ends as if nothing had happened."""

import os
import signal
import sys

import pytest

from hf_compat.checkpoint.finding import get_last_checkpoint
from tests.support.interrupted import assert_ranks_saved_and_left, assert_same_states, fake_scontrol
from tests.support.paths import SCRIPTS
from tests.support.processes import TORCHRUN, finish, start, torchrun

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="waits for signals")

SCRIPT = SCRIPTS / "preempted_script.py"
LAUNCHER = -1


def launch_and_send(signum, receiver, folder, stage, step, **variables):
    """Send ``signum`` to a rank, or to the launcher, while both ranks wait; let them go on, and return the end."""
    launcher = start([*TORCHRUN, "--nproc-per-node=2", SCRIPT, folder, "wait", stage, step], **variables)
    try:
        ranks = {}
        while len(ranks) < 2:
            line = launcher.stdout.readline()
            assert line, "a rank ended before it waited"
            if line.startswith("waiting"):
                rank, process = line.split()[2:]
                ranks[int(rank)] = int(process)
        os.kill(launcher.pid if receiver == LAUNCHER else ranks[receiver], signum)
        for process in ranks.values() if receiver != LAUNCHER else ():  # it has to pass the signal on first
            os.kill(process, signal.SIGUSR2)
    finally:
        (ended,) = finish([launcher])
    return ended


def assert_next_start_ends_as_undisturbed(folder):
    """Go on with both processes to the same end."""
    ended = torchrun(SCRIPT, folder, "rest")
    assert ended.code == 0, ended.output
    assert_same_states(folder)


@pytest.mark.slow
@pytest.mark.parametrize("receiver", [1, 0], ids=["one rank", "the main rank"])
def test_sigterm(tmp_path, receiver):
    """SIGTERM to one rank: both save the update step under way together and leave, with loader workers, by 143."""
    ended = launch_and_send(signal.SIGTERM, receiver, tmp_path, "training", 4)
    assert_ranks_saved_and_left("SIGTERM", [ended.output], tmp_path, "5")
    assert "(exitcode: 143)" in ended.output
    assert ended.code == 1  # torchrun's own, whatever status the ranks leave with
    assert_next_start_ends_as_undisturbed(tmp_path)


@pytest.mark.slow
def test_sigterm_between_votes(tmp_path):
    """Fast update steps have no vote each: both ranks save the same step soon after the one under way."""
    ended = launch_and_send(signal.SIGTERM, 1, tmp_path, "training", 4, PACED="1")
    assert_ranks_saved_and_left("SIGTERM", [ended.output], tmp_path, "5678")
    assert_next_start_ends_as_undisturbed(tmp_path)


@pytest.mark.slow
def test_slurm_signal(tmp_path):
    """SIGUSR1 to one rank inside a SLURM job: both save and leave by 138; the job is requeued once."""
    inside_a_job = fake_scontrol(tmp_path / "bin")
    ended = launch_and_send(signal.SIGUSR1, 1, tmp_path, "training", 4, **inside_a_job)
    assert_ranks_saved_and_left("SIGUSR1", [ended.output], tmp_path, "5")
    assert "(exitcode: 138)" in ended.output
    assert (tmp_path / "bin" / "calls").read_text() == "requeue 17\n"
    assert_next_start_ends_as_undisturbed(tmp_path)


@pytest.mark.slow
def test_sigterm_to_the_launcher(tmp_path):
    """The launcher passes SIGTERM on to both ranks, which save."""
    ended = launch_and_send(signal.SIGTERM, LAUNCHER, tmp_path, "training", 4)
    assert_ranks_saved_and_left("SIGTERM", [ended.output], tmp_path, "5")
    assert_next_start_ends_as_undisturbed(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_kill_during_a_save(tmp_path, rank):
    """A rank killed in a save leaves the checkpoint before as the newest; the next start cleans up what is left."""
    ended = launch_and_send(signal.SIGKILL, rank, tmp_path, "saving", 6)
    assert ended.code == 1
    assert get_last_checkpoint(tmp_path / "part") == str(tmp_path / "part" / "checkpoint-4")
    assert_next_start_ends_as_undisturbed(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loader", "saved"), [("started before", "4"), ("evaluated before", "5"), ("spawn", "5"), ("forkserver", "5")]
)
def test_sigterm_to_workers_of_a_loader_that_a_script_made(tmp_path, loader, saved):
    """One rank's worker gets SIGTERM while it reads: both ranks save the step under way or the one before."""
    ended = torchrun(SCRIPT, tmp_path, "wait", "reading", 3, LOADER=loader)
    assert_ranks_saved_and_left("SIGTERM", [ended.output], tmp_path, saved)
    assert "(exitcode: 143)" in ended.output
    ended = torchrun(SCRIPT, tmp_path, "rest", LOADER=loader)
    assert ended.code == 0, ended.output
    assert_same_states(tmp_path)
