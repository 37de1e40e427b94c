"""Runs that are killed or asked to leave: the processes it is done to, and what they leave behind."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

from hf_compat.checkpoint.finding import get_last_checkpoint
from hf_compat.tools.checkpoints import describe_checkpoints
from tests.scripts.crash_script import STEPS
from tests.support.paths import ROOT, SCRIPTS
from tests.support.processes import PATIENCE

FINISHED = [{"event": "done", "step": STEPS}, {"event": "exit", "status": 0}]
STATES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth")
"""What two processes leave that the next start goes on from."""


class Server:
    """The process of ``crash_script.py``, or one like it, one for all tests: its imports take seconds."""

    def __init__(self, script="crash_script.py"):
        # Forking is safe only in a process of one thread.
        one_thread = dict.fromkeys(("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        environment = {**os.environ, **one_thread, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(SCRIPTS / script)]
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

    def terminate(self, *processes):
        """Send SIGTERM, again if nothing happens, until the training process has ended; return its events from here on.

        Python calls a handler between two instructions, so that it is late if the signal comes the moment before the
        main thread begins to wait. Only another signal ends that.
        """
        events, deadline = [], time.monotonic() + PATIENCE
        while not events or events[-1]["event"] != "exit":
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGTERM)
            with suppress(queue.Empty):  # later than any handler of the run, which the next signal would not meet
                events.append(self.next_event(30.0))
                while events[-1]["event"] != "exit":
                    events.append(self.next_event(30.0))
            assert time.monotonic() < deadline, events
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


def assert_same_states(folder):
    """Fail unless all states at the end are those of the run that nobody disturbed, and nothing else is left."""
    for name in STATES:
        part, whole = (folder / run / "checkpoint-9" / name for run in ("part", "whole"))
        assert part.read_bytes() == whole.read_bytes(), name
    assert [path.name for path in (folder / "part").iterdir() if path.name.startswith(".")] == []


def assert_ranks_saved_and_left(signal_name, outputs, folder, expected):
    """Fail unless the two ranks say that they leave after the same of the ``expected`` update steps, which is saved."""
    said = re.compile(rf"{signal_name}: saving and exiting after update step (\d)\.")
    steps = [step for output in outputs for step in said.findall(output)]
    assert len(steps) == 2, outputs
    assert steps[0] == steps[1] in [*expected]
    assert get_last_checkpoint(folder / "part") == str(folder / "part" / f"checkpoint-{steps[0]}")


def fake_scontrol(folder, status=0):
    """A program that notes its arguments; return what makes a process find it."""
    folder.mkdir(exist_ok=True)
    program = folder / "scontrol"
    program.write_text(f'#!/bin/sh\necho "$@" >> "{folder}/calls"\necho refused >&2\nexit {status}\n')
    program.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_ID": "17"}
