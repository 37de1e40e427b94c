"""Plugin of pytest that records which comparisons of ``combinations`` have passed.

``pytest --record-combinations -m "slow or not slow" tests/distributed tests/gpu``, and then
``python -m tests.support.combinations_page``. A run of some of the tests changes the results of these alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers

from tests.support.combinations import ROWS

RESULTS = Path(__file__).parents[1] / "facts" / "combinations.json"
NAMES = {test for row in ROWS for test in row.tests}
_found: dict[str, dict[str, str]] = {}


def pytest_runtest_logreport(report: Any) -> None:
    """Keep the outcome of a test that a row names; one that is skipped says nothing."""
    if report.nodeid in NAMES and not report.skipped and (report.when == "call" or report.failed):
        passed = report.passed and _found.get(report.nodeid, {}).get("result") != "failed"
        result = "passed" if passed else "failed"
        _found[report.nodeid] = {"result": result, "transformers": transformers.__version__}


def pytest_sessionfinish() -> None:
    """Write the outcomes beside those that are known, and drop those of tests that no row names any more."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    merged = {name: result for name, result in sorted({**known, **_found}.items()) if name in NAMES}
    RESULTS.write_text(json.dumps(merged, indent=1, sort_keys=True) + "\n")
