"""Libraries that subclass transformers' Trainer run on ours unmodified, with the same numbers to the last bit."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from tests.gpu import harness
from tests.support import processes
from tests.support.paths import SCRIPTS

SCRIPT = SCRIPTS / "ecosystem_script.py"
ENTRIES = 5
"""The least that a run logs: one entry per update step, and the end."""


def needs(*packages: str, install: str = 'pip install "hf-compat[ecosystem]"') -> pytest.MarkDecorator:
    """Skip where one of ``packages`` is not installed."""
    missing = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} missing: {install}")


TRL = needs("trl")
SENTENCES = needs("sentence_transformers")
SETFIT = needs("setfit")
MULTI_VECTOR = needs("sentence_transformers.multi_vector_encoder") if find_spec("sentence_transformers") else SENTENCES
PEFT = needs("peft", install='pip install "hf-compat[peft]"')
ADAPTERS, GLINER, PYLATE = (
    needs(package, install="see docs/ecosystem.md") for package in ("adapters", "gliner", "pylate")
)
QUICK = [
    pytest.param(["sft", "reward", "dpo", "grpo", "kto"], marks=TRL, id="trl"),
    pytest.param(
        ["sentences_with_an_evaluator", "sentences_without_duplicates", "cross_encoder", "sparse_encoder"],
        marks=[SENTENCES, pytest.mark.slow],
        id="sentence-transformers",
    ),
    pytest.param(["setfit"], marks=SETFIT, id="setfit"),
    pytest.param(["adapter", "adapter_fusion"], marks=ADAPTERS, id="adapters"),
    pytest.param(["gliner"], marks=GLINER, id="gliner"),
    pytest.param(["pylate"], marks=PYLATE, id="pylate"),
]
"""Runs that go into one process: importing the libraries takes longer than training."""
THOROUGH = [
    pytest.param(
        ["sft_with_lora", "rloo", "distillation", "orpo", "cpo", "gkd", "online_dpo"], marks=[TRL, PEFT], id="trl"
    ),
    pytest.param(["sentences_by_label", "sentences_of_two_data_sets"], marks=SENTENCES, id="sentence-transformers"),
    pytest.param(["multi_vector_encoder"], marks=MULTI_VECTOR, id="multi-vector"),
    pytest.param(["lora"], marks=PEFT, id="peft"),
]
SPARSE = "sparse_encoder"
"""Whose sparse tensors the fake GPU has no kernels for."""
ON_GPUS = [
    pytest.param([name for name in row.values[0] if name != SPARSE], marks=row.marks, id=f"{row.id}-{when}")
    for when, rows in (("quick", QUICK), ("thorough", THOROUGH))
    for row in rows
]
WITHOUT_RESUMING = "setfit"
"""Whose ``train`` has no argument for it."""
LONGER_THAN_ITS_LENGTH = "sentences_without_duplicates"
"""Whose sampler, before sentence-transformers 6, may give more batches than it says: see docs/differences.md."""


def resumable(runs: list[str]) -> list[str]:
    """Return those of ``runs`` that transformers resumes as it would have gone on."""
    overshoots = SENTENCES.args[0] or Version(version("sentence-transformers")) < Version("6")
    return [name for name in runs if not (overshoots and name == LONGER_THAN_ITS_LENGTH)]


RESUMABLE = [
    pytest.param(resumable(row.values[0]), marks=row.marks, id=f"{row.id}-{when}")
    for when, rows in (("quick", QUICK), ("thorough", THOROUGH))
    for row in rows
    if row.id != WITHOUT_RESUMING
]


def compare_runs(runs: list[str], folder: Path, *words: str, ranks: int = 1, gpus: int = 0) -> None:
    """Do ``runs`` with transformers' Trainer and with ours, each in new processes, and compare what they leave.

    Args:
        runs: Names of ``tests/support/ecosystem``.
        folder: Where they write.
        *words: Further words for the script.
        ranks: Processes of a run.
        gpus: Fake GPUs that each process sees; without one a run is on the CPU.
    """
    for which in ("upstream", "ours"):
        command = (SCRIPT, *runs, "--with", which, "--output", folder / which, *words)
        variables = {"HF_HOME": str(folder / "cache"), "HF_DATASETS_CACHE": str(folder / "cache" / which)}
        variables["PYTHONHASHSEED"] = "0"  # GLiNER and an evaluator of sentence-transformers go through sets
        if gpus:
            started = {"processes": ranks if ranks > 1 else None, "devices": gpus}
            ended = harness.run_script_on_gpus(*command, **started, **variables)
        elif ranks == 1:
            ended = processes.finish([processes.start([sys.executable, *command], folder, **variables)])[0]
        else:
            ended = processes.torchrun(*command, processes=ranks, **variables)
        assert ended.code == 0, ended.output
    for name in runs:
        for rank in range(ranks):
            left = f"{'resumed' if '--resume' in words else 'outcome'}_{rank}.json"
            expected, actual = (outcome(folder / which / name / left) for which in ("upstream", "ours"))
            assert (expected["package"], actual["package"]) == ("transformers", "hf_compat")
            for what in ("log_history", "weights", "saved"):
                assert actual[what] == expected[what], f"{what} of {name}, rank {rank}"
            assert len(expected["log_history"]) >= ENTRIES


def outcome(path: Path) -> dict[str, Any]:
    """Return what one run left."""
    left: dict[str, Any] = json.loads(path.read_text())
    return left


@pytest.mark.parametrize("runs", QUICK)
def test_a_library_trains_the_same(runs, tmp_path):
    """Log history, final weights and those in checkpoints are equal to the last bit, and the checkpoints' files are."""
    compare_runs(runs, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("runs", RESUMABLE)
def test_a_library_resumes_the_same(runs, tmp_path):
    """Slower ones are equal too, and a process that goes on from another's checkpoint ends as upstream's does."""
    compare_runs(runs, tmp_path)
    compare_runs(runs, tmp_path, "--resume")


@harness.needs_fake_gpu
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("runs", ON_GPUS)
def test_a_library_trains_the_same_on_gpus(runs, ranks, tmp_path):
    """With TRL's own defaults, bfloat16 and activation checkpointing, and on one GPU a rank."""
    compare_runs(runs, tmp_path, ranks=ranks, gpus=ranks)


@TRL
@pytest.mark.slow
def test_a_reference_model_computes_in_bfloat16(tmp_path):
    """A reference model that ``accelerator.prepare_model`` prepares computes under autocast too."""
    compare_runs(["dpo_in_bfloat16"], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [*QUICK, *THOROUGH])
def test_a_library_trains_the_same_in_two_processes(runs, tmp_path):
    """Log history and final weights of both ranks are equal to the last bit."""
    compare_runs(runs, tmp_path, ranks=2)


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
            ended = processes.finish([processes.start(command, tmp_path / name)])[0]
            assert ended.code == 0, ended.output
            assert ("hf_compat" in ended.output) == (name == "ours")
            state = json.loads((tmp_path / name / "out" / "trainer_state.json").read_text())
            history = [{key: log[key] for key in log if not key.startswith("train_")} for log in state["log_history"]]
            assert len(history) == 7, "one entry per update step, and the end"
            left.append((history, (tmp_path / name / "out" / "model.safetensors").read_bytes()))
        assert left[0] == left[1]
