"""Runs that are killed go on from a complete checkpoint and end as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import pytest

from hf_compat.tools.checkpoints import describe_checkpoints
from tests.scripts.crash_script import STAGES, STEPS
from tests.support.interrupted import FINISHED, Server, assert_tidy, newest, outcome, steps

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and counts threads in /proc")

WIDE = 100_000
"""Width of a model whose checkpoint of 12 MB takes a while to write."""
KILLED = {"event": "exit", "status": -signal.SIGKILL}


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="module")
def unharmed(server, tmp_path_factory):
    """The outcome of a run that nobody kills, and how many seconds it took."""
    folder = tmp_path_factory.mktemp("unharmed")
    begin = time.monotonic()
    events = server.run(folder)
    seconds = time.monotonic() - begin
    assert events[-2:] == FINISHED
    assert [event["step"] for event in events if event["event"] == "saved"] == list(range(1, STEPS + 1))
    assert_tidy(folder)
    return outcome(folder), seconds


def run_killed_at(server, folder, moments):
    """Start a run again and again until it comes to its end, each start killed at its moment; return how many were.

    Args:
        server: Where to start it.
        folder: Where it works.
        moments: For each start the number of events after which, and the seconds after that when, it is killed. A start
            after the last moment is left alone.
    """
    kills = stepped = saved = 0
    while True:
        process = server.start(folder)
        events = server.kill(process, *moment) if (moment := next(moments, None)) else server.events_until("exit")
        assert all(step >= max(saved, stepped - 1) for step in steps(events, "begin")), (
            "more than one update step is lost"
        )
        stepped, saved = max([stepped, *steps(events, "step")]), max([saved, *steps(events, "saved")])
        assert newest(folder) >= max(saved, stepped - 1), "more than one update step is lost"
        if events[-1] != KILLED:
            assert events[-2:] == FINISHED
            return kills
        kills += 1


@pytest.mark.parametrize(
    ("kills", "seed"), [pytest.param(6, 0, id="6 kills"), pytest.param(200, 1, id="200 kills", marks=pytest.mark.slow)]
)
def test_killed_at_random_moments(server, unharmed, tmp_path, kills, seed):
    """Each start goes on from a whole checkpoint, at most one update step back; the end is that of a run unharmed."""
    expected, seconds = unharmed
    draw, done = random.Random(seed), 0
    for attempt in range(kills):
        # From the very start to eight update steps later: three events a step.
        moments = ((draw.randint(0, 24), draw.uniform(0, seconds / STEPS)) for _ in range(kills - done))
        folder = tmp_path / str(attempt)
        done += run_killed_at(server, folder, moments)
        assert_tidy(folder)
        assert outcome(folder) == expected
        if done == kills:
            return
    pytest.fail("the runs end before they are killed")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("step", [pytest.param(1, id="first save"), pytest.param(5, id="later save")])
def test_killed_in_a_save(server, unharmed, tmp_path, step, stage):
    """A process killed at a known point of a save leaves the checkpoint before, or the new one if it has its name."""
    process = server.start(tmp_path, stage=stage, wait_step=step)
    assert server.events_until("waiting")[-1] == {"event": "waiting", "step": step}
    assert server.kill(process)[-1] == KILLED
    assert bool(unfinished(tmp_path)) == (stage != "published")
    survivor = step if stage == "published" else step - 1
    assert newest(tmp_path) == survivor
    events = server.run(tmp_path)
    assert steps(events, "begin") == [survivor]
    assert_tidy(tmp_path)
    assert outcome(tmp_path) == unharmed[0]


def unfinished(folder):
    """The hidden folders of saves that did not come to their end."""
    return list((folder / "out").glob(".checkpoint-*.partial-*"))


def test_killed_while_much_is_written(server, tmp_path):
    """Killed at any moment of a long save, a process leaves a checkpoint of which every byte is as it was written."""
    process = server.start(tmp_path, width=WIDE, stage="published", wait_step=1)
    server.events_until("saving")
    begin = time.monotonic()
    server.events_until("waiting")
    seconds = time.monotonic() - begin
    server.kill(process)
    draw, halves = random.Random(2), 0
    for _ in range(2 * STEPS):
        before = newest(tmp_path)
        process = server.start(tmp_path, width=WIDE)
        (resumed,) = steps(server.events_until("saving"), "begin")
        assert resumed in (before, before + 1)  # the next one may have been whole but for its name
        assert server.kill(process, seconds=draw.uniform(0, seconds))[-1] == KILLED
        assert newest(tmp_path) >= before
        assert all(item.problems == () for item in describe_checkpoints(tmp_path / "out", verify=True))
        halves += bool(unfinished(tmp_path))
        if halves == 3:
            return
    pytest.fail("no three kills hit a save")


def test_full_disk(server, unharmed, tmp_path):
    """A full disk ends the run with our error and its checkpoints left; with space again it goes on from the last."""
    (error,) = [event for event in server.run(tmp_path, full_after=4) if event["event"] == "error"]
    assert error["kind"] == "CheckpointWriteError"
    assert error["message"].startswith("`out/checkpoint-5` cannot be written: ")
    assert sorted(os.listdir(tmp_path / "out")) == ["checkpoint-3", "checkpoint-4"]
    assert_tidy(tmp_path)
    assert steps(server.run(tmp_path), "begin") == [4]
    assert_tidy(tmp_path)
    assert outcome(tmp_path) == unharmed[0]


def test_full_disk_survived(server, tmp_path):
    """With `on_save_error="warn"` a run on a full disk comes to its end, and its checkpoints from before are whole."""
    events = server.run(tmp_path, full_after=4, on_save_error="warn")
    assert events[-2:] == FINISHED
    assert steps(events, "saved") == [1, 2, 3, 4]
    assert sorted(os.listdir(tmp_path / "out")) == ["checkpoint-3", "checkpoint-4"]
    assert_tidy(tmp_path)


@pytest.mark.parametrize("step", [pytest.param(1, id="first save"), pytest.param(5, id="later save")])
def test_killed_while_writing_in_the_background(server, unharmed, tmp_path, step):
    """A process killed while a checkpoint is written in the background leaves only complete ones, the newest before."""
    process = server.start(tmp_path, stage="in the background", wait_step=step, save_async=True)
    server.events_until("waiting")
    server.kill(process)
    assert len(unfinished(tmp_path)) == 1
    assert newest(tmp_path) == step - 1
    assert all(item.problems == () for item in describe_checkpoints(tmp_path / "out", verify=True))
    events = server.run(tmp_path, save_async=True)
    assert steps(events, "begin") == [step - 1]
    assert_tidy(tmp_path)
    assert outcome(tmp_path) == unharmed[0]
