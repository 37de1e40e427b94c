"""A SLURM job of two tasks that is started again: its next start ends as if nothing had happened."""

import os
import re
import signal
import sys

import pytest

from tests.support.elastic import assert_same_end, request, train_elastically
from tests.support.interrupted import assert_ranks_saved_and_left, assert_same_states
from tests.support.launchers import block_of, slurm_job
from tests.support.paths import ROOT, SCRIPTS
from tests.support.processes import finish, free_port, start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="waits for signals")


def start_tasks(folder, *words, **variables):
    """Start the two tasks of job 17 as `srun` does it, with a `scontrol` on PATH that notes how it was called."""
    job = slurm_job(folder / "bin")
    command = [sys.executable, SCRIPTS / "preempted_script.py", folder, *words]
    return [
        start(command, **job, SLURM_PROCID=str(number), SLURM_LOCALID=str(number), **variables) for number in (0, 1)
    ]


def await_stage(tasks):
    """Return the process ids of both tasks once each waits at the stage that it was told."""
    ids = []
    for task in tasks:
        for line in task.stdout:
            if line.startswith("waiting"):
                ids.append(int(line.split()[-1]))
                break
    assert len(ids) == len(tasks), "a task ended before it waited"
    return ids


@pytest.mark.slow
@pytest.mark.parametrize("receivers", [pytest.param((0, 1), id="every task"), pytest.param((1,), id="one task")])
def test_requeue(tmp_path, receivers):
    """SIGUSR1: both tasks save the update step under way and leave; requeued, once, the job goes on from there.

    At the end weights, optimizer, schedule and random states are those of the run that was not disturbed.
    """
    tasks = start_tasks(tmp_path, "wait", "training", "4")
    try:
        ids = await_stage(tasks)
        for number in receivers:
            os.kill(ids[number], signal.SIGUSR1)
        for number in ids:
            os.kill(number, signal.SIGUSR2)
    finally:
        ended = finish(tasks)
    assert [each.code for each in ended] == [128 + signal.SIGUSR1] * 2, ended
    assert_ranks_saved_and_left("SIGUSR1", [each.output for each in ended], tmp_path, "5")
    assert (tmp_path / "bin" / "calls").read_text() == "requeue 17\n"
    for each in finish(start_tasks(tmp_path, "rest", SLURM_RESTART_COUNT="1")):
        assert each.code == 0, each.output
    assert_same_states(tmp_path)
    assert (tmp_path / "bin" / "calls").read_text() == "requeue 17\n"


TRAIN = "from tests.scripts.elastic_script import Request, train\ntrain(Request(**{}))\n"
LONGER = {"num_train_epochs": 3}
"""Fields of a run that is long enough for both ranks to agree on a signal in it."""


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The folder of a run that nothing happens to."""
    folder = tmp_path_factory.mktemp("unbroken")
    train_elastically([request(folder, fields=LONGER)], processes=2)
    return folder


def run_job(folder, batch, **lost):
    """Start a batch script once, with a `train.py` that may be disturbed; return how it ended."""
    fields = {"folder": str(folder), "fields": LONGER, "lost": 1, **lost}
    for name, text in {"train.py": TRAIN.format(fields), "train.sbatch": batch}.items():
        (folder / name).write_text(text, encoding="utf-8")
    (ended,) = finish([start(["bash", "train.sbatch"], folder, **slurm_job(folder / "bin"))])
    return ended


@pytest.mark.slow
@pytest.mark.parametrize("page", ["restarts", "slurm"])
def test_the_batch_scripts_of_the_pages(unbroken, tmp_path, page):
    """Their signal makes all tasks save and the job be requeued; started again, it comes to the same end."""
    batch = block_of(page, "SLURM")
    assert "#SBATCH --requeue" in batch
    name = "SIG" + re.search(r"--signal=(?:SIG)?(\w+)@\d+", batch)[1]
    ended = run_job(tmp_path, batch, signal=name)
    assert ended.code == 128 + signal.Signals[name], ended.output
    assert (tmp_path / "lost").exists()
    assert (tmp_path / "bin" / "calls").read_text() == "requeue 17\n"
    again = run_job(tmp_path, batch)
    assert again.code == 0, again.output
    assert_same_end(tmp_path, unbroken)


@pytest.mark.slow
def test_a_task_is_killed(unbroken, tmp_path):
    """`srun` ends the other one, as the page has it; started again, the job comes to the same end."""
    batch = block_of("restarts", "SLURM")
    ended = run_job(tmp_path, batch, moment="backward")
    assert ended.code == 128 + signal.SIGKILL, ended.output
    assert (tmp_path / "lost").exists()
    again = run_job(tmp_path, batch, moment="backward")
    assert again.code == 0, again.output
    assert_same_end(tmp_path, unbroken)


@pytest.mark.slow
def test_torchrun_in_a_job(unbroken, tmp_path):
    """The line of the page for a task per node: two of torchrun's agents, a process each, train what two ranks do."""
    line = re.search(r"`(srun torchrun .*?)`", (ROOT / "docs" / "slurm.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    here = {"--nproc-per-node 4": "--nproc-per-node 1", '"$(hostname):29500"': f"localhost:{free_port()}"}
    for told, place in here.items():
        assert told in line
        line = line.replace(told, place)
    ended = run_job(tmp_path, line.replace("\n", " "), lost=None)
    assert ended.code == 0, ended.output
    assert_same_end(tmp_path, unbroken)
