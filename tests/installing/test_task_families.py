"""Scripts for every family of tasks, under transformers' Trainer and under ``hf-compat run``: equal to the last bit."""

import shutil

import pytest

from tests.support.unmodified import FOLDER, OURS, outcome, run

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

TASKS = (
    "audio_classification",
    "causal_language_model",
    "contrastive_image_text",
    "detection",
    "image_classification",
    "masked_image_model",
    "masked_language_model",
    "multiple_choice",
    "permutation_language_model",
    "question_answering",
    "regression",
    "segmentation",
    "speech_recognition",
    "summarization",
    "text_classification",
    "token_classification",
    "translation",
)
RENAMED = {"detection", "image_classification", "masked_image_model", "segmentation"}
"""Tasks of models whose weights transformers 5 saves by other names, and then does not find when it resumes."""
DRAWN = {"masked_language_model", "permutation_language_model"}
"""Tasks whose collator draws random numbers: when a checkpoint is saved, it has done so for a batch ahead."""
WAYS = {"upstream": (), "ours": OURS}


def train(folder, *more):
    """Run the script for all tasks both ways, each in a folder of its own."""
    for way, before in WAYS.items():
        (folder / way).mkdir(exist_ok=True)
        told = run(*before, FOLDER / "task_families.py", "out", *TASKS, *more, folder=folder / way)
        assert ("hf_compat" in told) == (way == "ours")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Return the folder of runs from the beginning."""
    folder = tmp_path_factory.mktemp("fresh")
    train(folder)
    return folder


@pytest.fixture(scope="module")
def resumed(fresh, tmp_path_factory):
    """Return the folder of runs that go on from the middle, each way from its own checkpoint."""
    folder = tmp_path_factory.mktemp("resumed")
    for way in WAYS:
        for task in TASKS:
            middle = f"{way}/out/{task}/checkpoint-3"
            shutil.copytree(fresh / middle, folder / middle)
    train(folder, "--resume")
    return folder


@pytest.mark.parametrize("task", TASKS)
def test_a_fresh_run(fresh, task):
    """Log history, files, weights and predictions are equal."""
    assert outcome(fresh / "ours/out" / task) == outcome(fresh / "upstream/out" / task)


@pytest.mark.parametrize("task", TASKS)
def test_an_interrupted_run(fresh, resumed, task):
    """It ends as transformers' own and where the other did, as far as transformers resumes with what it saved."""
    found, theirs = (outcome(resumed / way / "out" / task) for way in ("ours", "upstream"))
    if task not in RENAMED or transformers.__version__ < "5":
        assert found == theirs
    if task not in DRAWN:
        whole = outcome(fresh / "ours/out" / task)
        assert (found["results"], found["weights"]) == (whole["results"], whole["weights"])


def test_verified(tmp_path):
    """``hf-compat verify`` says so of all of them at once."""
    pytest.importorskip("matplotlib")
    script = shutil.copy(FOLDER / "task_families.py", tmp_path)
    told = run("-m", "hf_compat", "verify", "--steps", "4", script, "out", *TASKS, folder=tmp_path)
    assert f"Bit-identical over {4 * len(TASKS)} update steps." in told
    assert not (tmp_path / "out").exists()
