"""The table of combinations: no row without a test that is there and has passed."""

import json
import subprocess
import sys

import pytest

from tests.support.combinations import ROWS
from tests.support.combinations_page import PAGE, has_passed, page
from tests.support.paths import ROOT
from tests.support.recording import NAMES, RESULTS


def test_the_page_is_what_the_results_give():
    """The page has the rows whose tests have passed, and no others."""
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.support.combinations_page"


def test_no_result_of_another_test():
    """Each result is of a test that a row names, and no row names a test that has failed."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert results.keys() <= NAMES
    assert {result["result"] for result in results.values()} == {"passed"}


@pytest.mark.parametrize("results", [{}, {test: {"result": "failed"} for test in NAMES}], ids=["none", "failed"])
def test_no_row_without_a_passed_test(results):
    """A row is left out if one of its tests has failed, or has not been recorded."""
    assert all(row.tests for row in ROWS)
    assert not any(has_passed(row, results) for row in ROWS)


@pytest.mark.slow
def test_every_test_exists():
    """Pytest collects every test that a row names."""
    files = sorted({test.partition("::")[0] for test in NAMES})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "slow or not slow", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert sorted(NAMES - set(done.stdout.splitlines())) == []
