"""Code that does not return after SIGTERM is interrupted: the run saves what is whole and exits with 143."""

import os
import signal
import sys

import pytest
from safetensors.torch import load_file

from tests.scripts.hanging_script import PLACES, STEPS
from tests.support.interrupted import Server, assert_tidy, newest, steps

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and waits for signals")

QUICK = ("dataset", "compute_metrics", "on_step_end")
LEFT = {"event": "exit", "status": 143}
FINISHED = [{"event": "done", "step": STEPS}, {"event": "exit", "status": 0}]


@pytest.fixture(scope="module")
def server():
    server = Server("hanging_script.py")
    yield server
    server.close()


@pytest.fixture(scope="module")
def undisturbed(server, tmp_path_factory):
    """The weights of a run in which nothing hangs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert server.run(folder)[-2:] == FINISHED
    return weights(folder)


def weights(folder):
    file = folder / "out" / f"checkpoint-{STEPS}" / "model.safetensors"
    return {name: value.tolist() for name, value in load_file(file).items()}


def signalled(server, folder, place, **settings):
    """Send SIGTERM to a run once it hangs; return its events to the end."""
    process = server.start(folder, place=place, step=3, **settings)
    server.events_until("waiting")
    return server.terminate(process)


@pytest.mark.parametrize(
    "place", [pytest.param(place, marks=[] if place in QUICK else pytest.mark.slow) for place in PLACES]
)
def test_code_that_hangs_between_update_steps(server, undisturbed, tmp_path, place):
    """The last update step is saved once, and the next start ends as if nothing had happened."""
    events = signalled(server, tmp_path, place)
    assert (steps(events, "saved"), events[-1]) == ([] if place == "on_save" else [3], LEFT)
    assert newest(tmp_path) == 3
    assert_tidy(tmp_path)
    assert server.run(tmp_path)[-2:] == FINISHED
    assert weights(tmp_path) == undisturbed


@pytest.mark.parametrize(
    ("place", "settings"),
    [
        pytest.param("forward", {"gradient_accumulation_steps": 2}, id="in an update step"),
        pytest.param("averaged weights", {}, id="while other weights are evaluated"),
    ],
)
def test_states_of_no_whole_update_step(server, tmp_path, place, settings):
    """Nothing is saved then; the run exits all the same."""
    events = signalled(server, tmp_path, place, **settings)
    assert (steps(events, "saved"), events[-1], newest(tmp_path)) == ([], LEFT, 0)


def test_code_that_cannot_be_interrupted(server, tmp_path):
    """Code that catches every exception is ended with the process, without a checkpoint."""
    events = signalled(server, tmp_path, "a loop that catches all")
    assert (steps(events, "saved"), events[-1], newest(tmp_path)) == ([], LEFT, 0)


def test_a_thread_that_does_not_end(server, tmp_path):
    """A run that has saved exits although the interpreter waits for a thread."""
    events = server.run(tmp_path, place="exit", step=3)
    assert (steps(events, "saved"), events[-1]) == ([3], LEFT)


def test_signal_to_the_processes_of_a_pool(server, undisturbed, tmp_path):
    """A pool whose processes end by the signal never answers; the run saves, and no process of it is left."""
    process = server.start(tmp_path, place="pool", step=3)
    (*_, waiting) = server.events_until("waiting")
    for worker in waiting["workers"]:
        os.kill(worker, signal.SIGTERM)
    events = server.terminate(process)
    assert (steps(events, "saved"), events[-1], newest(tmp_path)) == ([3], LEFT, 3)
    assert server.run(tmp_path)[-2:] == FINISHED
    assert weights(tmp_path) == undisturbed


def test_no_deadline(server, tmp_path):
    """With `preemption_timeout=None` code that hangs is waited for."""
    process = server.start(tmp_path, place="dataset", step=3, preemption_timeout=None)
    server.events_until("waiting")
    os.kill(process, signal.SIGTERM)
    assert server.kill(process, seconds=1.5)[-1] == {"event": "exit", "status": -signal.SIGKILL}
