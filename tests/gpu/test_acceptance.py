"""What is run on a lent GPU works: on the fake one, with small sizes; and its results are complete."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.acceptance.correctness import CORRECTNESS, scenario
from tests.gpu.acceptance.running import Case, plan, run_all
from tests.gpu.acceptance.speed import SPEED
from tests.gpu.harness import needs_fake_gpu, start_on_gpus
from tests.support.processes import finish, start


def accepted(folder: Path, *words: str) -> tuple[int, str, list[dict[str, Any]]]:
    """Return exit code, output and results of the command on the fake GPU."""
    results = folder / "results.jsonl"
    command = [sys.executable, "-m", "tests.gpu.acceptance", *words, "--fake", "--results", results]
    ended = finish([start(command)])[0]
    return ended.code, ended.output, [json.loads(line) for line in results.read_text().splitlines()]


@needs_fake_gpu
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("steady_steps", "background_saves", "out_of_memory", "compiled_kernels", "crosswise_resume_bf16", "fp32"),
        *("one_rank_ddp_bf16", "one_rank_resume_fsdp2_bf16"),
    ],
)
def test_a_case_of_correctness(name, tmp_path):
    """A case passes on the fake GPU, and says which GPU and packages it is about."""
    code, output, (machine, result) = accepted(tmp_path, "--only", name)
    assert (code, result["case"], result["status"]) == (0, name, "passed"), output
    assert machine["fake"]
    assert {"torch", "transformers", "accelerate", "lightning"} < machine.keys()


@needs_fake_gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", SPEED)
def test_a_case_of_speed(name, tmp_path):
    """The subjects take turns; each has its rates and its memory, and compiles in its first turn at most."""
    code, output, (_, result) = accepted(tmp_path, "speed", "--only", name)
    assert (code, result["status"]) == (0, "passed"), output
    found = result["found"]
    assert [len(rates) for rates in found["tokens a second"].values()] == [3, 3, 3]
    turns = list(zip(*found["graphs compiled"].values(), strict=True))
    assert (any(turns[0]), any(map(any, turns[1:]))) == ("compiled" in name, False)
    assert all(memory > 0 for memory in found["most memory, GiB"].values())


def failing(name: str, folder: Path, *, small: bool) -> dict[str, Any]:
    """Fail."""
    raise AssertionError(f"{name} is wrong")


def hanging(name: str, folder: Path, *, small: bool) -> dict[str, Any]:
    """Never end."""
    while True:
        pass


def statuses(path: Path) -> dict[str, str]:
    """Return the status of each case in a file of results."""
    return {entry["case"]: entry["status"] for entry in map(json.loads, path.read_text().splitlines()[1:])}


@needs_fake_gpu
@pytest.mark.slow
def test_a_case_that_fails(tmp_path, capsys):
    """A case that fails does not keep the next from running; the result has the error, and the exit code is 1."""
    cases = {"first": Case(failing), "second": Case(failing, alone=True)}
    path = tmp_path / "results.jsonl"
    assert run_all(cases, results=path, deadline=600, jobs=2, fake=True) == 1
    assert statuses(path) == {"first": "failed", "second": "failed"}
    assert "AssertionError: second is wrong" in path.read_text()
    assert "failed" in capsys.readouterr().out


@needs_fake_gpu
def test_the_deadline(tmp_path):
    """At the deadline the case that runs is ended, and those that are left are skipped; both are in the results."""
    path = tmp_path / "results.jsonl"
    cases = {"hanging": Case(hanging, alone=True), "later": Case(failing, alone=True)}
    assert run_all(cases, results=path, deadline=1, jobs=1, fake=True) == 1
    assert statuses(path) == {"hanging": "too late", "later": "skipped"}


def test_the_plan(tmp_path, capsys):
    """The longest cases come first, of those that run alone and of the others; what does not fit is named and last."""
    costs = {"short": 10, "long": 40, "longest": 70, "middle": 30}
    cases = {name: Case(failing, seconds=seconds) for name, seconds in costs.items()}
    cases["alone"] = Case(failing, alone=True, seconds=5)
    cases["longer alone"] = Case(failing, alone=True, seconds=20)
    order = ["longer alone", "alone", "long", "middle", "short", "longest"]
    # Until 25 s those alone; then one job has 40 s, the other 30 and 10; 70 more are too many for either.
    planned = plan(cases, deadline=70, jobs=2, fake=False)
    assert (planned.names, planned.late, planned.seconds) == (order, ["longest"], 65)
    assert str(planned) == ("5 of 6 cases fit in 70 s: they take about 65 s; not expected to end in time: longest")
    assert run_all(cases, results=tmp_path / "results.jsonl", deadline=0, jobs=2, fake=False) == 1
    assert capsys.readouterr().out.startswith("0 of 6 cases fit in 0 s")


def test_the_plan_of_the_fake_gpu():
    """What a case takes on the fake GPU counts there, one case after the other."""
    cases = {"first": Case(failing, seconds=1, fake_seconds=2), "second": Case(failing, seconds=50, fake_seconds=1)}
    planned = plan(cases, deadline=10, jobs=1, fake=True)
    assert (planned.names, planned.late, planned.seconds) == (["first", "second"], [], 3)


def test_what_a_lent_machine_may_lack():
    """The commands need no pytest and no packages of data sets and adapters."""
    blocked = "import sys; sys.modules.update(dict.fromkeys(['pytest', 'datasets', 'peft']))"
    ended = finish([start([sys.executable, "-c", f"{blocked}; import tests.gpu.acceptance.__main__"])])[0]
    assert ended.code == 0, ended.output


@needs_fake_gpu
@pytest.mark.slow
def test_a_case_where_packages_are_missing(tmp_path):
    """A case that saves and resumes runs without them, and without the package of checksums."""
    blocked = "import sys; sys.modules.update(dict.fromkeys(['pytest', 'datasets', 'peft', 'xxhash']))"
    run = "import runpy; runpy.run_module('tests.gpu.acceptance.case', run_name='__main__')"
    words = ["resume_fp32", f"{scenario.__module__}:{scenario.__qualname__}", tmp_path, True]
    ended = finish([start_on_gpus([sys.executable, "-c", f"{blocked}; {run}", *words])])[0]
    assert ended.code == 0, ended.output
    assert json.loads((tmp_path / "result.json").read_text())["found"]["ours differs"] == ""


def test_every_case_can_be_run():
    """A case is a function that its process can import, and the two suites have names of their own."""
    for case in (*CORRECTNESS.values(), *SPEED.values()):
        assert case.run.__module__.startswith("tests.gpu.acceptance.")
        assert case.run.__qualname__.isidentifier()
    assert not CORRECTNESS.keys() & SPEED.keys()
