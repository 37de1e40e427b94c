"""Random cases do the same under both trainers, to the last bit.

A case that fails is made smaller and printed as a script. ``FUZZ_SEEDS=400:500`` runs those seeds instead.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.fuzz.allowed import ALLOWED
from tests.fuzz.cases import DATA, FIELDS, MODELS, OVERRIDES, SEQUENCES, Case, draw_case
from tests.fuzz.running import METHODS, case_differences, ending_differences, run_case, unexplained
from tests.fuzz.shrinking import as_script, shrink
from tests.support.paths import ROOT

QUICK, THOROUGH = 30, 330
"""Seeds below the first run always, those below the second when slow tests are asked for."""


def _seeds() -> list[object]:
    given = os.environ.get("FUZZ_SEEDS")
    if given:
        first, _, end = given.partition(":")
        return list(range(int(first), int(end or int(first) + 1)))
    slow = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(QUICK, THOROUGH)]
    return [*range(QUICK), *slow]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Without the log lines of hundreds of runs."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", _seeds())
def test_case(seed):
    """Events, random states, logs, weights, results, files and the type of an error are equal.

    What may differ does so in a run that ends under both, unless it is upstream's that fails.
    """
    case = draw_case(seed)
    found = case_differences(case)
    if not found:
        return
    smallest = shrink(case, lambda each: bool(case_differences(each)))
    pytest.fail(f"{found}\n\nThe smallest case that differs:\n\n{as_script(smallest)}")


def test_a_seed_is_a_case():
    """The same seed draws the same case, and its repr is code for it."""
    for seed in range(50):
        case = draw_case(seed)
        assert case == draw_case(seed)
        assert eval(repr(case)) == case
        assert 4 <= len(case.fields) <= 24


def test_the_cases_cover_the_tables():
    """Every field, override, model, kind of data and sequence comes up among the cases that run always or slowly."""
    cases = [draw_case(seed) for seed in range(THOROUGH)]
    assert {name for case in cases for name in case.fields} == set(FIELDS)
    assert {name for case in cases for name in case.overrides} == set(OVERRIDES) == set(METHODS)
    assert {case.model for case in cases} == set(MODELS)
    assert {case.data for case in cases} == set(DATA)
    assert set(SEQUENCES) <= {case.steps for case in cases}


@pytest.mark.parametrize("entry", ALLOWED, ids=lambda entry: entry.applies.__name__)
def test_what_may_differ_is_in_the_documentation(entry):
    """Each allowed difference is on one of the two pages of differences, and few cases may show it."""
    pages = [(ROOT / "docs" / f"{name}.md").read_text() for name in ("differences", "differences_reference")]
    assert any(entry.sentence in " ".join(page.split()) for page in pages)
    cases = [draw_case(seed) for seed in range(THOROUGH)]
    assert 0 < len([case for case in cases if entry.applies(case)]) < len(cases) / 10


def test_a_case_is_made_smaller():
    """What a difference does not need is left out; what it needs stays."""
    case = draw_case(7)
    needed = replace(
        case, fields={**case.fields, "max_grad_norm": 0.1, "weight_decay": 0.3}, steps=("train", "predict")
    )

    def differs(each: Case) -> bool:
        return {"max_grad_norm", "weight_decay"} <= each.fields.keys() and "predict" in each.steps

    smallest = shrink(needed, differs)
    assert smallest.fields == {"max_grad_norm": 0.1, "weight_decay": 0.3}
    assert (smallest.steps, smallest.orders, smallest.overrides, smallest.model) == (
        ("train", "predict"),
        (),
        (),
        "plain",
    )


def test_a_difference_is_found_and_printed():
    """Another learning rate is seen, as is an error of another type; the script is code with the case in it."""
    case = Case(fields={"max_steps": 2, "learning_rate": 0.1})
    expected = run_case(case, "upstream")
    assert ending_differences(expected, run_case(case, "ours")) == ""
    other = run_case(replace(case, fields={"max_steps": 2, "learning_rate": 0.2}), "ours")
    assert "['learning_rate']: 0.1 expected, got 0.2" in ending_differences(expected, other)
    assert ending_differences(KeyError("x"), ValueError("y")) == "KeyError: 'x' expected, got ValueError: y"
    script = as_script(case)
    compile(script, "script", "exec")
    assert repr(case) in script


def test_an_error_of_one_alone_is_explained_only_if_it_is_upstreams():
    """Of an allowed difference both end, or both with errors of one type; an entry may say that upstream fails."""
    outcome, other = (run_case(Case(fields={"max_steps": steps}), "ours") for steps in (1, 2))
    quiet, loud = (replace(ALLOWED[0], upstream_raises=raises) for raises in (False, True))
    error = ValueError("x")
    assert unexplained(outcome, other, [])
    assert unexplained(outcome, other, [quiet]) == ""
    for allowed in (quiet, loud):
        assert unexplained(outcome, error, [allowed])
        assert unexplained(KeyError("x"), error, [allowed])
        assert unexplained(error, error, [allowed]) == ""
    assert unexplained(error, outcome, [quiet])
    assert unexplained(error, outcome, [loud]) == ""
    later = replace(loud, raises_later=(KeyError,))
    assert unexplained(error, KeyError("x"), [later]) == ""
    assert unexplained(outcome, KeyError("x"), [later])
