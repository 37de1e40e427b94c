"""The calls of an update step, Python's and C's, which no other program on the machine disturbs.

By ``cProfile``: what a run makes more than a shorter one, a step.
"""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from functools import partial

import transformers

import hf_compat
from tests.benchmarks.measuring import BY_HAND, HF_COMPAT, LIGHTNING, TRANSFORMERS, WITHOUT_SEARCH
from tests.benchmarks.update_steps import Tiny, Work, tiny_rows, transformers_without_search

__all__ = ["table"]

_SHORT, _LONG = 20, 60
"""Update steps of the two runs."""


def _subjects(work: Work) -> dict[str, Callable[[], object]]:
    return {
        HF_COMPAT: partial(work.with_trainer, hf_compat),
        TRANSFORMERS: partial(work.with_trainer, transformers),
        WITHOUT_SEARCH: partial(transformers_without_search, work),
        LIGHTNING: work.with_lightning,
        BY_HAND: work.by_hand,
    }


def _calls(run: Callable[[], object]) -> int:
    profile = cProfile.Profile()
    profile.runcall(run)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def table() -> list[str]:
    """Return the lines of a Markdown table."""
    rows = tiny_rows()
    lines, names = [], [HF_COMPAT, TRANSFORMERS, WITHOUT_SEARCH, LIGHTNING, BY_HAND]
    for accumulate in (1, 8):
        runs = [
            _subjects(Work(Tiny, rows, steps=steps, accumulate=accumulate, warm_up=1, units=1))
            for steps in (5, _SHORT, _LONG)  # what is looked up once is looked up in the first
        ]
        counts = {}
        for name in names:
            _, short, long = (_calls(run[name]) for run in runs)
            counts[name] = (long - short) / (_LONG - _SHORT)
        above = {name: count - counts[BY_HAND] for name, count in counts.items()}
        cells = [f"{counts[name]:,.0f}" for name in names] + [f"{above[HF_COMPAT] / above[WITHOUT_SEARCH]:.2f}"]
        what = "1 batch" if accumulate == 1 else f"{accumulate} batches"
        lines.append(f"| calls of an update step, tiny model, {what} | {' | '.join(cells)} |")
    head = f"| what | {' | '.join(names)} | above the loop, to transformers without its search |"
    return [head, f"|---|{'---|' * (len(names) + 1)}", *lines]
