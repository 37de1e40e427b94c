"""Runs that are killed go on from a complete checkpoint and end as if nothing had happened."""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from hf_compat.checkpoint.layout import get_last_checkpoint
from hf_compat.tools.checkpoints import describe_checkpoints
from tests.scripts.crash_script import STAGES, STEPS
from tests.support.paths import ROOT, SCRIPTS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and counts threads in /proc")

PATIENCE = 120
"""Seconds without an event after which a test gives up."""
WIDE = 100_000
"""Width of a model whose checkpoint of 12 MB takes a while to write."""
FINISHED = [{"event": "done", "step": STEPS}, {"event": "exit", "status": 0}]
KILLED = {"event": "exit", "status": -signal.SIGKILL}


class Server:
    """The process of ``crash_script.py``, one for all tests: its imports take seconds."""

    def __init__(self):
        # Forking is safe only in a process of one thread.
        one_thread = dict.fromkeys(("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        environment = {**os.environ, **one_thread, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(SCRIPTS / "crash_script.py")]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._events = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self.next_event() == {"event": "ready", "threads": 1}

    def _read(self):
        for line in self._process.stdout:
            self._events.put(json.loads(line))

    def next_event(self, seconds=PATIENCE):
        """The next event; ``queue.Empty`` if there is none within ``seconds``."""
        return self._events.get(timeout=max(seconds, 0))

    def start(self, folder, **request):
        """Start a training process that resumes if there is a complete checkpoint; return its id."""
        folder.mkdir(parents=True, exist_ok=True)
        request = {"folder": str(folder), "resume": newest(folder) > 0, **request}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self.next_event()["process"]

    def run(self, folder, **request):
        """Let a training process come to its end; return its events."""
        self.start(folder, **request)
        return self.events_until("exit")

    def events_until(self, name):
        """The events up to the first called ``name``, or to the end of the training process."""
        events = [self.next_event()]
        while events[-1]["event"] not in (name, "exit"):
            events.append(self.next_event())
        return events

    def kill(self, process, count=0, seconds=0.0):
        """Kill the training process ``seconds`` after its next ``count`` events; return all it sent until its end."""
        events = []
        for _ in range(count):
            events.append(self.next_event())
            if events[-1]["event"] == "exit":
                return events
        deadline = time.monotonic() + seconds
        while True:
            try:
                events.append(self.next_event(deadline - time.monotonic()))
            except queue.Empty:
                with suppress(ProcessLookupError):  # it may have come to its end this very moment
                    os.kill(process, signal.SIGKILL)
                return events + self.events_until("exit")
            if events[-1]["event"] == "exit":
                return events

    def close(self):
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        self._reader.join()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.close()


def steps(events, name):
    """The update steps of the events called ``name``."""
    return [event["step"] for event in events if event["event"] == name]


def newest(folder):
    """The update step of the checkpoint that a start goes on from, 0 if it starts anew."""
    path = get_last_checkpoint(folder / "out") if (folder / "out").is_dir() else None
    return 0 if path is None else int(path.rpartition("-")[2])


def without_times(state):
    history = [
        {name: value for name, value in log.items() if not name.endswith(("_runtime", "_per_second"))}
        for log in state["log_history"]
    ]
    return {**state, "log_history": history}


def outcome(folder):
    """All that a run leaves for the next: every file of its last checkpoint, byte for byte but for times.

    Left out are the arguments, which hold the time of the start, and the marker, which holds a random name of the run.
    """
    files = {path.name: path.read_bytes() for path in (folder / "out" / f"checkpoint-{STEPS}").iterdir()}
    assert files.keys() >= {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"}
    del files["training_args.bin"], files["lightning.json"]
    files["trainer_state.json"] = without_times(json.loads(files["trainer_state.json"]))
    return files


def assert_tidy(folder):
    """Nothing is left but checkpoints, and every file of them is whole."""
    checkpoints = describe_checkpoints(folder / "out", verify=True)
    assert sorted(os.listdir(folder / "out")) == sorted(item.path.name for item in checkpoints)
    assert [problem for item in checkpoints for problem in item.problems] == []


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
