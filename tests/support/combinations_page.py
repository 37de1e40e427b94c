"""``docs/combinations.md``, from the results of tests: ``python -m tests.support.combinations_page``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.combinations import ROWS, Row
from tests.support.recording import RESULTS

PAGE = Path(__file__).parents[2] / "docs" / "combinations.md"

HEAD = """# What is equal, by combination

Each row is a combination that a test compares, with two processes if it does not say otherwise; it is here only if the
test has passed when results were last recorded. What a row does not vary is empty. "Up to rounding" is within 1e-4, as
ranks add in another order; "one process" has the same global batch.

This page is generated from the results of tests, `tests/facts/combinations.json`.

| strategy | device | precision | accumulation | checkpoint | resumed | evaluation | equal to | how closely | test |
|---|---|---|---|---|---|---|---|---|---|
"""


def has_passed(row: Row, results: dict[str, Any]) -> bool:
    """Return whether all tests of ``row`` have passed."""
    return all(results.get(test, {}).get("result") == "passed" for test in row.tests)


def page() -> str:
    """Return the page."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    return HEAD + "".join(_line(row) for row in ROWS if has_passed(row, results))


def _line(row: Row) -> str:
    cells = (
        *(row.strategy, row.device, row.precision, "yes" if row.accumulation else ""),
        *(row.checkpoint or "", row.resume or "", "yes" if row.evaluation else ""),
        *(row.equal_to, row.how, ", ".join(f"`{test}`" for test in row.tests)),
    )
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
