"""Our Trainer and transformers' do the same, to the last bit.

``PARITY_SUBJECT=upstream`` puts transformers in both places: what fails then is a scenario that is not deterministic.
"""

from __future__ import annotations

import os
import re
from functools import cache
from importlib import metadata
from typing import Any

import pytest
import torch
from packaging.version import Version

from hf_compat.arguments.releases import resolve_semantics
from tests.support import scenarios
from tests.support.parity import SCENARIOS, Outcome, Which, compare, differences, run

SUBJECT: Which = os.environ.get("PARITY_SUBJECT", "ours")  # type: ignore[assignment]

assert scenarios.__all__  # importing it has filled the table
RELEASE = Version(metadata.version("transformers"))
NAMES = [
    name
    for name, row in SCENARIOS.items()
    if Version(row.since) <= RELEASE and (row.until is None or Version(row.until) > RELEASE)
]
WARNED_OF_ANYWHERE = "divides accumulated gradients" if resolve_semantics().divides_gradients_twice else r"(?!)"
"""What every scenario that accumulates is warned of in the installed release."""
EXACT = [name for name in NAMES if SCENARIOS[name].resumes_exactly]
RESUMING = [name for name in NAMES if name.startswith("resume_")]


def rows(names: list[str]) -> list[Any]:
    """Return a parameter for each scenario, marked slow if it is."""
    return [pytest.param(name, marks=[pytest.mark.slow] if SCENARIOS[name].slow else []) for name in names]


@pytest.fixture(scope="module")
def outcome_of(tmp_path_factory):
    """Return a function that runs a scenario under a library once and remembers the outcome."""

    @cache
    def outcome(name: str, which: Which, starter: Which | None = None) -> Outcome:
        return run(SCENARIOS[name].body, which, tmp_path_factory.mktemp(which), starter=starter)

    return outcome


def check(expected: Outcome, actual: Outcome, name: str, *, by: Which = SUBJECT, starter: Which | None = None) -> None:
    """Fail with a readable list of differences, or if hf_compat warned of what it should not, or did not warn."""
    assert not differences(expected, actual), f"{name}:\n{differences(expected, actual)}"
    row = SCENARIOS[name]
    wanted = row.warns if Version(row.warns_since) <= RELEASE else None
    told = [text for text in actual.warnings if not re.search(WARNED_OF_ANYWHERE, text)]
    assert [text for text in told if wanted is None or not re.search(wanted, text)] == []
    sees = by != "upstream" and not (row.warns_of_own and starter == "upstream")
    assert wanted is None or told or not sees


@pytest.mark.parametrize(
    ("change", "report"),
    [
        pytest.param(
            lambda o: o.results[0]["value"].add_(1.2e-7), "1 of 1 elements differ", id="one weight, by a little"
        ),
        pytest.param(lambda o: o.trace.insert(1, {"event": "on_save"}), "got:       ['on_save'", id="one event over"),
        pytest.param(lambda o: o.trace.pop(), "2 entries expected, got 1", id="one event missing"),
        pytest.param(lambda o: o.trace[0].update(epoch=0), "0.0 expected, got 0 (type int)", id="another type"),
        pytest.param(lambda o: o.files.pop("model.bin"), "files['model.bin']: missing", id="one file missing"),
        pytest.param(lambda o: o.generators.update(torch=None), "generators['torch']", id="a random state"),
    ],
)
def test_differences_are_seen(change, report):
    """The comparison notices the smallest thing and names it."""

    def outcome() -> Outcome:
        trace = [{"event": "on_log", "epoch": 0.0, "loss": float("nan")}, {"event": "on_step_end"}]
        weights = [{"name": "weights", "value": torch.ones(1)}]
        return Outcome(trace, weights, {"model.bin": "present"}, {"torch": torch.zeros(2)})

    changed = outcome()
    assert differences(outcome(), changed) == ""
    change(changed)
    assert report in differences(outcome(), changed)


@pytest.mark.parametrize("name", rows(NAMES))
def test_scenario(name, outcome_of, tmp_path):
    """Events, random states, logs, weights, results and files are equal."""
    check(outcome_of(name, "upstream"), run(SCENARIOS[name].body, SUBJECT, tmp_path / SUBJECT), name)


@pytest.mark.parametrize("name", ["language_model_with_dropout", "early_stopping", "tokenizer_pads", "lora", "bf16"])
def test_arguments_and_callbacks_of_transformers(name, outcome_of, tmp_path):
    """Our Trainer takes instances of transformers' own TrainingArguments and callbacks."""
    subject = "mixed" if SUBJECT == "ours" else SUBJECT
    check(outcome_of(name, "upstream"), run(SCENARIOS[name].body, subject, tmp_path / subject), name)


@pytest.mark.parametrize("name", rows(RESUMING))
@pytest.mark.parametrize(
    ("starter", "finisher"),
    [
        pytest.param("upstream", SUBJECT, id="ours resumes theirs"),
        pytest.param(SUBJECT, "upstream", id="theirs resumes ours"),
    ],
)
def test_resuming_the_other_library(name, starter, finisher, outcome_of, tmp_path):
    """A checkpoint of one library is as good as one of the other."""
    resumed = run(SCENARIOS[name].body, finisher, tmp_path / "mixed", starter=starter)
    check(outcome_of(name, "upstream"), resumed, name, by=finisher, starter=starter)


@pytest.mark.parametrize("name", rows(EXACT))
def test_resuming_ends_where_the_whole_run_ends(name, outcome_of):
    """Weights, optimizer, schedule and logs of a resumed run are those of the run that it left."""
    resumed = outcome_of(name, SUBJECT)
    assert resumed.earlier is not None
    whole = {each["name"]: each["value"] for each in resumed.earlier.results}
    again = {each["name"]: each["value"] for each in resumed.results}
    for part in ("weights after train", "optimizer after train", "scheduler after train"):
        assert not list(compare(whole[part], again[part], part))
    # The last entry says how the session went: its train_loss is of this session.
    logs = (each["train"]["log_history"][:-1] for each in (whole, again))
    assert not list(compare(*logs, "log_history"))
