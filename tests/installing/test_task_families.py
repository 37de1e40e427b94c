"""Scripts for every family of tasks, under transformers' Trainer and under ``hf-compat run``: equal to the last bit."""

import shutil

import pytest

from tests.gpu.harness import needs_fake_gpu, run_script_on_gpus
from tests.support.unmodified import FOLDER, OURS, outcome, run_unmodified

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
WITHOUT_KERNELS = {"segmentation", "speech_recognition"}
"""Tasks whose convolutions or loss on a GPU are operations that the fake one has not."""
WAYS = {"upstream": (), "ours": OURS}


def train_both_ways(folder, *more):
    """Run the script for all tasks both ways, each in a folder of its own."""
    for way, before in WAYS.items():
        (folder / way).mkdir(exist_ok=True)
        told = run_unmodified(*before, FOLDER / "task_families.py", "out", *TASKS, *more, folder=folder / way)
        assert ("hf_compat" in told) == (way == "ours")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Return the folder of runs from the beginning."""
    folder = tmp_path_factory.mktemp("fresh")
    train_both_ways(folder)
    return folder


@pytest.fixture(scope="module")
def gone_on(fresh, tmp_path_factory):
    """Return the folder of runs that go on from the middle, each way from its own checkpoint."""
    folder = tmp_path_factory.mktemp("resumed")
    for way in WAYS:
        for task in TASKS:
            middle = f"{way}/out/{task}/checkpoint-3"
            shutil.copytree(fresh / middle, folder / middle)
    train_both_ways(folder, "--resume")
    return folder


@pytest.mark.parametrize("task", TASKS)
def test_a_fresh_run(fresh, task):
    """Log history, files, weights and predictions are equal."""
    assert outcome(fresh / "ours/out" / task) == outcome(fresh / "upstream/out" / task)


@pytest.mark.parametrize("task", TASKS)
def test_an_interrupted_run(fresh, gone_on, task):
    """It ends as transformers' own and where the other did, as far as transformers resumes with what it saved."""
    found, theirs = (outcome(gone_on / way / "out" / task) for way in ("ours", "upstream"))
    if task not in RENAMED or transformers.__version__ < "5":
        assert found == theirs
    if task not in DRAWN:
        whole = outcome(fresh / "ours/out" / task)
        assert (found["results"], found["weights"]) == (whole["results"], whole["weights"])


def test_verified(tmp_path):
    """``hf-compat verify`` says so of all of them at once."""
    pytest.importorskip("matplotlib")
    script = shutil.copy(FOLDER / "task_families.py", tmp_path)
    told = run_unmodified("-m", "hf_compat", "verify", "--steps", "4", script, "out", *TASKS, folder=tmp_path)
    assert f"Equal to the last bit in {4 * len(TASKS)} update steps." in told
    assert not (tmp_path / "out").exists()


@needs_fake_gpu
def test_runs_on_a_gpu(tmp_path):
    """In bfloat16 on a fake GPU they are equal too."""
    tasks = [task for task in TASKS if task not in WITHOUT_KERNELS]
    for way, before in WAYS.items():
        words = [FOLDER / "task_families.py", tmp_path / way, *tasks, "--gpu"]
        ended = run_script_on_gpus(*before, *words)
        assert ended.code == 0, ended.output
        assert ("hf_compat" in ended.output) == (way == "ours")
    for task in tasks:
        assert outcome(tmp_path / "ours" / task) == outcome(tmp_path / "upstream" / task), task
