"""Running cases, each in a process of its own, until a deadline; a result is a line of JSON as soon as it is known."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any, TextIO

from tests.support.processes import start

__all__ = ["Case", "plan", "run_all"]

STARTUP = Path(__file__).parents[1] / "startup"
MOST_OUTPUT = 4000
"""Characters of a failed process's output that are kept, from its end."""
MOST_SHOWN = 300
"""Characters of a reason that are printed."""


@dataclass(frozen=True)
class Case:
    """What one process does.

    Attributes:
        run: A function of a module that can be imported; called with an empty folder and whether sizes are small. It
            returns what it found, and raises if that is wrong.
        alone: Whether nothing else may run beside it, because it takes much memory or its time counts.
        fake_memory: Bytes of the fake GPU; None for plenty.
        seconds: About how long it takes on a GPU, with its process's start.
        fake_seconds: The same on the fake GPU, one case at a time.
    """

    run: Callable[..., dict[str, Any]]
    alone: bool = False
    fake_memory: int | None = None
    seconds: float = 30
    fake_seconds: float = 15


@dataclass(frozen=True)
class Plan:
    """In which order cases run.

    Attributes:
        names: Those that run alone, then those that run beside others; in each the longest first, those that are not
            expected to end in time last.
        late: Those that are not expected to end in time.
        seconds: How long all but those are expected to take.
        deadline: The seconds that there are.
    """

    names: list[str]
    late: list[str]
    seconds: float
    deadline: float

    def __str__(self) -> str:
        fit = len(self.names) - len(self.late)
        begin = f"{fit} of {len(self.names)} cases fit in {self.deadline:.0f} s: they take about {self.seconds:.0f} s"
        return f"{begin}; not expected to end in time: {', '.join(self.late)}" if self.late else begin


def plan(cases: Mapping[str, Case], *, deadline: float, jobs: int, fake: bool) -> Plan:
    """Return the order of ``cases`` and what of them fits ``deadline``; the arguments are those of :func:`run_all`."""
    costs = {name: case.fake_seconds if fake else case.seconds for name, case in cases.items()}
    ends, fits, late = [0.0] * jobs, list[str](), list[str]()  # when each job is free
    for name in sorted(cases, key=lambda name: (not cases[name].alone, -costs[name])):
        free = max(ends) if cases[name].alone else min(ends)
        if free + costs[name] > deadline:
            late.append(name)
            continue
        fits.append(name)
        if cases[name].alone:
            ends = [free + costs[name]] * jobs
        else:
            ends[ends.index(free)] += costs[name]
    names = sorted([*fits, *late], key=lambda name: not cases[name].alone)
    return Plan(names, late, max(ends), deadline)


class Results:
    """A file of results that grows by a line a case, and what is printed beside it."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lock = Lock()
        self.statuses: list[str] = []

    def add(self, **entry: Any) -> None:
        """Write a line, and see that it is on the disk."""
        with self._lock:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            if "case" in entry:
                self.statuses.append(entry["status"])
                shown = f": {entry['why'][:MOST_SHOWN]}" if "why" in entry else ""
                print(f"{entry['status']:>9}  {entry['seconds']:6.1f} s  {entry['case']}{shown}", flush=True)


def run_all(cases: Mapping[str, Case], *, results: Path, deadline: float, jobs: int, fake: bool) -> int:
    """Run ``cases`` and return 0 if all passed, else 1.

    Args:
        cases: By name; :func:`plan` says in which order they run. It is printed before the first one starts.
        results: The file for the results, which is overwritten.
        deadline: Seconds after which no case starts and those running are ended.
        jobs: How many cases run at a time.
        fake: Whether to use the fake GPU and small sizes.
    """
    planned = plan(cases, deadline=deadline, jobs=jobs, fake=fake)
    print(planned, flush=True)
    end = time.monotonic() + deadline
    with results.open("w") as file:
        found = Results(file)
        found.add(machine=platform.node(), fake=fake, python=platform.python_version(), **_versions())
        for name in planned.names:
            if cases[name].alone:
                _run(name, cases[name], found, end, fake)
        with ThreadPoolExecutor(jobs) as pool:
            beside = [name for name in planned.names if not cases[name].alone]
            for done in [pool.submit(_run, name, cases[name], found, end, fake) for name in beside]:
                done.result()
    print(f"{found.statuses.count('passed')} of {len(cases)} cases passed; results in {results}")
    return int(found.statuses.count("passed") < len(cases))


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "transformers", "accelerate", "lightning")}


def _run(name: str, case: Case, found: Results, end: float, fake: bool) -> None:
    """Run one case, and add its result."""
    begin = time.monotonic()
    if begin >= end:
        found.add(case=name, status="skipped", seconds=0.0, why="the deadline has passed")
        return
    with tempfile.TemporaryDirectory(prefix="acceptance-") as folder:
        entry = _ended(name, case, Path(folder), end - begin, fake)
    found.add(case=name, seconds=round(time.monotonic() - begin, 1), **entry)


def _ended(name: str, case: Case, folder: Path, limit: float, fake: bool) -> dict[str, Any]:
    """Return how the process of a case ended."""
    function = f"{case.run.__module__}:{case.run.__qualname__}"
    variables = _fake_variables(case) if fake else {}
    process = start([sys.executable, "-m", "tests.gpu.acceptance.case", name, function, folder, fake], **variables)
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return {"status": "too late", "why": "it ran when the deadline passed", "output": output[-MOST_OUTPUT:]}
    result = folder / "result.json"
    if process.returncode == 0 and result.exists():
        return dict(json.loads(result.read_text()))
    why = (output.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    return {"status": "failed", "why": why, "output": output[-MOST_OUTPUT:]}


def _fake_variables(case: Case) -> dict[str, str]:
    path = os.pathsep.join([str(STARTUP), os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[3])])
    variables = {"FAKE_GPUS": "1", "PYTHONPATH": path}
    return variables if case.fake_memory is None else {**variables, "FAKE_GPU_MEMORY": str(case.fake_memory)}
