"""Making a case that differs as small as it can be, and printing it as a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.cases import Case

__all__ = ["as_script", "shrink"]

_SCRIPT = '''\
"""Run from the checkout's root: prints what differs between transformers' Trainer and ours."""

from tests.fuzz.cases import Case
from tests.fuzz.running import case_differences

print(case_differences({case!r}))
'''


def shrink(case: Case, differs: Callable[[Case], bool], *, most_runs: int = 80) -> Case:
    """Return the smallest case found that still differs.

    Args:
        case: One that differs.
        differs: Runs a case and says whether it does.
        most_runs: How often it may be called.
    """
    runs, index = 0, 0
    smaller = list(_smaller(case))
    while index < len(smaller) and runs < most_runs:
        runs += 1
        if differs(smaller[index]):
            # What the larger case could not do without is not tried again.
            case, smaller = smaller[index], list(_smaller(smaller[index]))
        else:
            index += 1
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Yield cases with one thing less, the largest things first."""
    for count in range(1, len(case.steps)):
        yield replace(case, steps=case.steps[:count])
    for index in range(len(case.overrides)):
        yield replace(case, overrides=(*case.overrides[:index], *case.overrides[index + 1 :]))
    for index in range(len(case.orders)):
        yield replace(case, orders=(*case.orders[:index], *case.orders[index + 1 :]))
    for name in case.fields:
        yield replace(case, fields={key: value for key, value in case.fields.items() if key != name})
    plainer = {"model_init": False, "noisy": False, "metrics": False, "patience": 0, "data": "list", "model": "plain"}
    for name, value in plainer.items():
        if getattr(case, name) != value:
            yield replace(case, **{name: value})  # type: ignore[arg-type]
    if case.rows > 4:
        yield replace(case, rows=4)


def as_script(case: Case) -> str:
    """Return a script that runs ``case`` under both trainers and prints what differs."""
    return _SCRIPT.format(case=case)
