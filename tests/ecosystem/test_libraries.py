"""Libraries that subclass transformers' Trainer run on ours unmodified, with the same numbers to the last bit."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support import processes
from tests.support.paths import SCRIPTS

SCRIPT = SCRIPTS / "ecosystem_script.py"
TRL = pytest.mark.skipif(find_spec("trl") is None, reason='trl is missing: pip install "hf-compat[ecosystem]"')
SENTENCES = pytest.mark.skipif(
    find_spec("sentence_transformers") is None,
    reason='sentence-transformers is missing: pip install "hf-compat[ecosystem]"',
)
SETFIT = pytest.mark.skipif(find_spec("setfit") is None, reason='setfit is missing: pip install "hf-compat[ecosystem]"')
RUNS = [
    pytest.param(["sft", "reward", "dpo", "grpo"], marks=TRL, id="trl"),
    pytest.param(
        ["sentences_with_an_evaluator", "sentences_without_duplicates", "cross_encoder"],
        marks=SENTENCES,
        id="sentence-transformers",
    ),
    pytest.param(["setfit"], marks=SETFIT, id="setfit"),
]
"""Runs that go into one process: importing the libraries takes longer than training."""
SLOW = [pytest.param(["dpo_in_bfloat16"], marks=TRL, id="trl")]


def train(runs: list[str], folder: Path, *, ranks: int = 1) -> None:
    """Do ``runs`` with transformers' Trainer and with ours, each in new processes, and compare what they leave."""
    for which in ("upstream", "ours"):
        words = (SCRIPT, *runs, "--with", which, "--output", folder / which)
        caches = {"HF_HOME": str(folder / "cache"), "HF_DATASETS_CACHE": str(folder / "cache" / which)}
        if ranks == 1:
            ended = processes.finish([processes.start([sys.executable, *words], folder, **caches)], timeout=500)[0]
        else:
            ended = processes.torchrun(*words, processes=ranks, timeout=500, **caches)
        assert ended.code == 0, ended.output
    for name in runs:
        for rank in range(ranks):
            expected, actual = (outcome(folder, which, name, rank) for which in ("upstream", "ours"))
            assert (expected["package"], actual["package"]) == ("transformers", "hf_compat")
            assert actual["log_history"] == expected["log_history"], f"{name}, rank {rank}"
            assert actual["weights"] == expected["weights"], f"{name}, rank {rank}"
            assert len(expected["log_history"]) > 4, "one entry per update step, and the end"


def outcome(folder: Path, which: str, name: str, rank: int) -> dict[str, Any]:
    """Return what one run left."""
    left: dict[str, Any] = json.loads((folder / which / name / f"outcome_{rank}.json").read_text())
    return left


@pytest.mark.parametrize("runs", RUNS)
def test_a_library_trains_the_same(runs, tmp_path):
    """Log history and final weights are equal to the last bit."""
    train(runs, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("runs", SLOW)
def test_a_library_trains_the_same_in_bfloat16(runs, tmp_path):
    """A reference model that ``accelerator.prepare_model`` prepares computes under autocast too."""
    train(runs, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("runs", RUNS)
def test_a_library_trains_the_same_in_two_processes(runs, tmp_path):
    """Log history and final weights of both ranks are equal to the last bit."""
    train(runs, tmp_path, ranks=2)


@TRL
@pytest.mark.slow
def test_an_unmodified_script_of_trl_trains_the_same(tmp_path):
    """Under ``hf-compat run`` a script of TRL's ends with upstream's log history and weights, resumed too."""
    for words in ([], ["--resume"]):
        left = []
        for name, before in (("upstream", []), ("ours", ["-m", "hf_compat", "run"])):
            (tmp_path / name).mkdir(exist_ok=True)
            shutil.rmtree(tmp_path / name / "out" / "checkpoint-6", ignore_errors=True)
            command = [sys.executable, *before, SCRIPTS / "unmodified" / "trl_sft.py", "out", *words]
            ended = processes.finish([processes.start(command, tmp_path / name)], timeout=300)[0]
            assert ended.code == 0, ended.output
            assert ("hf_compat" in ended.output) == (name == "ours")
            state = json.loads((tmp_path / name / "out" / "trainer_state.json").read_text())
            history = [{key: log[key] for key in log if not key.startswith("train_")} for log in state["log_history"]]
            assert len(history) == 7, "one entry per update step, and the end"
            left.append((history, (tmp_path / name / "out" / "model.safetensors").read_bytes()))
        assert left[0] == left[1]
