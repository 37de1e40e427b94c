"""The calls of an update step or an evaluated batch, Python's and C's, which no other program on the machine disturbs.

By ``cProfile``: the calls that a run makes more than a shorter one, a step.
"""

from __future__ import annotations

import cProfile
import pstats
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from types import ModuleType

import transformers

import hf_compat
from tests.benchmarks.measuring import BY_HAND, HF_COMPAT, LIGHTNING, TRANSFORMERS, WITHOUT_SEARCH
from tests.benchmarks.update_steps import Tiny, Work, tiny_rows, transformers_without_search

_SHORT, _LONG = 20, 60
"""Update steps, or batches, of the two runs."""


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


def _evaluated(library: ModuleType, method: str, batches: int) -> int:
    """Return the calls of ``evaluate`` or ``predict`` over a number of batches of 8, the second time."""
    rows = list(islice(cycle(tiny_rows()), 8 * batches))
    with tempfile.TemporaryDirectory() as folder:
        quiet = {"use_cpu": True, "disable_tqdm": True, "report_to": "none"}
        trainer = library.Trainer(Tiny(), library.TrainingArguments(folder, **quiet), eval_dataset=rows)
        run = trainer.evaluate if method == "evaluate" else partial(trainer.predict, rows)
        run()
        return _calls(run)


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
    for method in ("evaluate", "predict"):
        ours, theirs = (
            (_evaluated(library, method, _LONG) - _evaluated(library, method, _SHORT)) / (_LONG - _SHORT)
            for library in (hf_compat, transformers)
        )
        lines.append(f"| calls of a batch of 8, tiny model, `{method}` | {ours:,.0f} | {theirs:,.0f} |  |  |  |  |")
    head = f"| what | {' | '.join(names)} | above the loop, to transformers without its search |"
    return [head, f"|---|{'---|' * (len(names) + 1)}", *lines]
