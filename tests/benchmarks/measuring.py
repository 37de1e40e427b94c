"""What a benchmark is: the same work done by several subjects, taking turns, and the medians of what it costs them."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import torch

__all__ = [
    "BY_HAND",
    "HF_COMPAT",
    "LIGHTNING",
    "SUBJECTS",
    "TRANSFORMERS",
    "WITHOUT_SEARCH",
    "Benchmark",
    "Clock",
    "Cost",
    "Marks",
    "Span",
    "in_the_same_run",
    "synchronize",
    "table",
]

_FoundT = TypeVar("_FoundT")

HF_COMPAT, TRANSFORMERS, LIGHTNING, BY_HAND = "hf_compat", "transformers", "Lightning", "by hand"
WITHOUT_SEARCH = "transformers without its search"
"""At every step accelerate looks for the package ``lomo_optim`` on the import path, which takes time by its length."""
SUBJECTS = (HF_COMPAT, TRANSFORMERS, WITHOUT_SEARCH, LIGHTNING, BY_HAND)
"""The columns: our Trainer, transformers' twice, a minimal ``lightning.Trainer``, a loop of torch alone."""


@dataclass(frozen=True)
class Cost:
    """What one run costs a unit of work, in the unit of its benchmark."""

    cpu: float
    """CPU time of the process or, of an update step, of the thread that trains."""
    wall: float
    """Time that passes."""


@dataclass(frozen=True)
class Benchmark:
    """One line of the table."""

    name: str
    unit: str
    subjects: Mapping[str, Callable[[], Cost]]
    above: bool = False
    """Whether what matters is the cost above the loop by hand."""
    wall_only: bool = False
    """Whether CPU time says nothing of it."""
    turns: int = 1
    """How often each subject does the work in a round."""
    costs: dict[str, list[Cost]] = field(default_factory=dict)

    def run_round(self) -> None:
        """Let the subjects do the work, in turn."""
        for _ in range(self.turns):
            for subject, run in self.subjects.items():
                self.costs.setdefault(subject, []).append(run())

    def median(self, subject: str, kind: str) -> float:
        """Return the median over the rounds of ``subject``'s ``cpu`` or ``wall``."""
        return statistics.median(getattr(cost, kind) for cost in self.costs[subject])


def in_the_same_run(
    subjects: Mapping[str, Callable[[], _FoundT]], *costs: Callable[[_FoundT], Cost]
) -> list[dict[str, Callable[[], Cost]]]:
    """Return the subjects of one benchmark for each of ``costs``, to be run in this order: the first does the work.

    Args:
        subjects: The work, which returns what was found.
        costs: What that tells of one benchmark's cost.
    """
    last: dict[str, _FoundT] = {}

    def run(subject: str, number: int) -> Cost:
        if number == 0:
            last[subject] = subjects[subject]()
        return costs[number](last[subject])

    return [{subject: partial(run, subject, number) for subject in subjects} for number in range(len(costs))]


class Clock(Protocol):
    """Takes what an update step costs."""

    def set(self) -> None:
        """Note the end of a step."""

    def cost(self, units: int) -> Cost:
        """Return the microseconds of one of the ``units`` of a step."""


class Marks:
    """The times at the ends of update steps, from which the cost of one is taken.

    Args:
        warm_up: Steps at the start that do not count.
    """

    def __init__(self, warm_up: int = 50) -> None:
        self._warm_up = warm_up
        self._cpu: list[float] = []
        self._wall: list[float] = []

    def set(self) -> None:
        """Note the time."""
        self._cpu.append(time.thread_time())
        self._wall.append(time.perf_counter())

    def cost(self, units: int) -> Cost:
        """Return the microseconds of one of the ``units`` of a step, by the longest of the fastest tenth of the steps.

        Other programs on the machine disturb these least.
        """
        return Cost(*(_typical(marks[self._warm_up :]) / units * 1e6 for marks in (self._cpu, self._wall)))


class Span:
    """The time from the end of the warm-up to that of the last update step, when a GPU has made it too.

    Args:
        warm_up: Steps at the start that do not count.
        steps: All steps.
    """

    def __init__(self, warm_up: int, steps: int) -> None:
        self._ends = (warm_up, steps)
        self._count = 0
        self._times: list[tuple[float, float]] = []

    def set(self) -> None:
        """Count a step."""
        self._count += 1
        if self._count in self._ends:
            synchronize()
            self._times.append((time.process_time(), time.perf_counter()))

    def cost(self, units: int) -> Cost:
        """Return the microseconds of one of the ``units`` of a step."""
        (begin, end), counted = self._times, units * (self._ends[1] - self._ends[0])
        return Cost(*(1e6 * (after - before) / counted for before, after in zip(begin, end, strict=True)))


def synchronize() -> None:
    """Return when a GPU has done what it was given."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _typical(marks: list[float]) -> float:
    steps = sorted(after - before for before, after in itertools.pairwise(marks))
    return steps[len(steps) // 10]


def table(benchmarks: list[Benchmark], kind: str) -> list[str]:
    """Return the lines of a Markdown table of medians, in ``cpu`` or ``wall`` time, and of ours to each of the others.

    Where a benchmark is about the cost above the loop by hand, that of the loop is taken off on both sides first.
    """
    names = " | ".join(SUBJECTS)
    ratios = " | ".join(f"to {name}" for name in SUBJECTS[1:])
    above_loop = f"above the loop, to {TRANSFORMERS} | above the loop, to {WITHOUT_SEARCH}"
    lines = [f"| what | unit | {names} | {ratios} | {above_loop} |", f"|---|---|{'---|' * (2 * len(SUBJECTS) + 1)}"]
    for each in benchmarks:
        if each.wall_only and kind != "wall":
            continue
        medians = {name: each.median(name, kind) for name in each.subjects}
        cells = [f"{medians[name]:.4g}" if name in medians else "" for name in SUBJECTS]
        ours = medians.get(HF_COMPAT, math.nan)  # not all lines are about a Trainer
        cells += [f"{ours / medians[name]:.2f}" if {name, HF_COMPAT} <= {*medians} else "" for name in SUBJECTS[1:]]
        for name in (TRANSFORMERS, WITHOUT_SEARCH):
            above = (ours - medians[BY_HAND]) / (medians[name] - medians[BY_HAND]) if each.above else None
            cells.append("" if above is None else f"{above:.2f}")
        lines.append(f"| {each.name} | {each.unit} | {' | '.join(cells)} |")
    return lines
