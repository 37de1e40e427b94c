"""A SLURM job of two tasks whose time runs out: requeued once, and its next start ends as if nothing had happened."""

import os
import signal
import sys

import pytest

from tests.support.interrupted import assert_ranks_saved_and_left, assert_same_states
from tests.support.paths import SCRIPTS
from tests.support.processes import finish, free_port, start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="waits for signals")


def start_tasks(folder, *words, **variables):
    """Start the two tasks of job 17 as `srun` does it, with a `scontrol` on PATH that notes how it was called."""
    program = folder / "bin" / "scontrol"
    if not program.exists():
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\necho "$@" >> "{folder}/calls"\n')
        program.chmod(0o755)
    job = {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "MASTER_PORT": str(free_port()),
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NAME": "train",
        "SLURM_NTASKS": "2",
        "SLURM_NNODES": "1",
    }
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
    assert (tmp_path / "calls").read_text() == "requeue 17\n"
    for each in finish(start_tasks(tmp_path, "rest", SLURM_RESTART_COUNT="1")):
        assert each.code == 0, each.output
    assert_same_states(tmp_path)
    assert (tmp_path / "calls").read_text() == "requeue 17\n"
