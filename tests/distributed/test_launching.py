"""A Trainer that starts its processes by multiprocessing: the caller has all afterwards, and every failure."""

import json
import pickle
import sys

import pytest

from hf_compat.errors import ArgumentsError, SearchError, TrainerSetupError, UnsupportedArgumentsError
from tests.support.helpers import PlainModel
from tests.support.paths import SCRIPTS
from tests.support.processes import TORCHRUN, finish, start
from tests.support.trainers import new_trainer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks")

SCRIPT = SCRIPTS / "spawn_script.py"


FAILURES = {
    "raise": "KeyError: 'process 1 gives up'",
    "SIGKILL": "LaunchError: Training ended without a result: rank 1 of 2 was killed by SIGKILL.",
    "SIGTERM": "SystemExit: 143",
}
"""What process 1 does to what the caller is told."""


def begin(folder, strategy, *words):
    """Start the script that does ``words``."""
    launcher = [*TORCHRUN, "--nproc-per-node=2"] if strategy == "auto" else [sys.executable]
    return start([*launcher, SCRIPT, folder, strategy, *words])


def facts(place, part="train"):
    """Return what the caller of the training in ``place`` knew; folders are named relative to ``place``."""
    return json.loads((place / f"{part}.json").read_text().replace(str(place), ""))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folders of trainings in processes that torchrun started, and in ones forked from one process after the other."""
    launched, forked = (tmp_path_factory.mktemp(name) for name in ("launched", "forked"))
    started = [begin(launched, "auto", "train"), begin(forked, "ddp_fork", *FAILURES, "train", "notebook")]
    for ended in finish(started):
        assert ended.code == 0, ended.output
    return launched, forked


def check(place, launched):
    """Fail unless the caller of the training in ``place`` has all that a main process of torchrun's has."""
    assert facts(place) == launched
    files = {entry.name for entry in (place / "output" / "checkpoint-8").iterdir()}
    assert files >= {"rng_state_0.pth", "rng_state_1.pth", "lightning.pt"}
    after = facts(place, "after")
    assert after.pop("loss") > 0
    assert after == {"world_size": 1, "variables": [], "predicted": 7, "resumed": 8}
    assert (place / "saved" / "model.safetensors").is_file()


@pytest.mark.slow
def test_caller_has_it_all(finished):
    """Weights, history, best metric, control, result and random states are those of torchrun's main process.

    Afterwards there is one process again, which evaluates, predicts, saves and starts others to resume.
    """
    launched, forked = finished
    check(forked / "train", facts(launched / "train"))


@pytest.mark.slow
def test_spawn(tmp_path, finished):
    """So it is with processes that inherit nothing."""
    (ended,) = finish([begin(tmp_path, "ddp_spawn", "train")])
    assert ended.code == 0, ended.output
    check(tmp_path / "train", facts(finished[0] / "train"))


@pytest.mark.slow
def test_notebook_launcher_of_accelerate(finished):
    """A Trainer built in a function that accelerate's ``notebook_launcher`` starts trains with the others."""
    launched, forked = finished
    assert facts(forked / "notebook") == facts(launched / "train")


@pytest.mark.slow
@pytest.mark.parametrize("what", FAILURES)
def test_one_process_fails(finished, what):
    """What a process raises is raised in the caller; a killed one is named; one asked to leave takes all along."""
    place = finished[1] / what
    assert (place / "error").read_text().strip() == FAILURES[what]
    written = [entry.name for entry in (place / "output").iterdir() if entry.name != "runs"]
    assert written == (["checkpoint-3"] if what == "SIGTERM" else [])


def spawning_trainer(folder, strategy, **given):
    """Return a Trainer that starts two processes by ``strategy``."""
    return new_trainer(folder, given={"lightning": {"devices": 2, "strategy": strategy}, **given})


def test_trainer_that_cannot_be_pickled(tmp_path):
    """A function that the processes could not find is named before any is started."""
    unpicklable = spawning_trainer(tmp_path, "ddp_spawn", compute_metrics=lambda prediction: {})
    with pytest.raises(TrainerSetupError, match=r"lambda.*at module level.*ddp_fork"):
        unpicklable.train()


def test_search_in_one_process(tmp_path):
    """A search would start processes in each trial, and is refused."""
    pytest.importorskip("optuna")
    with pytest.raises(SearchError, match="starts 2"):
        spawning_trainer(tmp_path, "ddp_fork", model_init=lambda: PlainModel()).hyperparameter_search(lambda trial: {})


def test_fork_of_a_process_that_uses_a_gpu(tmp_path, monkeypatch):
    """CUDA cannot be used in a forked process if this one uses it."""
    forking = spawning_trainer(tmp_path, "ddp_fork")
    monkeypatch.setattr("hf_compat.trainer.launching.is_initialized", lambda device: True)
    with pytest.raises(TrainerSetupError, match="ddp_spawn"):
        forking.train()


def test_arguments_error_of_another_process():
    """The error with the problems of several fields is the same on the other side."""
    error = UnsupportedArgumentsError(["one", "two"], fields=["a", "b"])
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.problems, again.fields) == (
        UnsupportedArgumentsError,
        str(error),
        ("one", "two"),
        ("a", "b"),
    )
    assert isinstance(again, ArgumentsError)
