"""Code that does not return after SIGTERM is interrupted: the run saves what is whole and exits with 143."""

import os
import signal
import sys
import time

import pytest
from safetensors.torch import load_file

from tests.scripts.hanging_script import PLACES, STEPS
from tests.support.interrupted import Server, assert_tidy, newest, steps

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and waits for signals")

QUICK = ("dataset", "on_step_end")
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


def signalled(server, folder, place, step=3, **settings):
    """Send SIGTERM to a run once it hangs; return its events to the end."""
    process = server.start(folder, place=place, step=step, **settings)
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


def signalled_ranks(server, folder, place, *, waiting, hanging, **more):
    """Send SIGTERM to both of two ranks once ``waiting`` of them hang; return the events to the end."""
    settings = {"preemption_timeout": 1.5, "seconds_to_exit": 5.0, **more}
    server.start(folder, ranks=2, hanging=hanging, place=place, step=3, **settings)
    (*_, started) = server.events_until("ranks")
    events = [event for _ in range(waiting) for event in server.events_until("waiting")]
    began = time.monotonic()
    events += server.terminate(*started["processes"])
    seconds = time.monotonic() - began
    assert events.pop() == {"event": "exit", "status": 0}
    assert (events[-1]["statuses"], seconds < 60) == ([143, 143], True)
    return events


@pytest.mark.parametrize("place", ["on_step_end", pytest.param("on_step_begin", marks=pytest.mark.slow)])
def test_both_ranks_hang(server, tmp_path, place):
    """Ranks that hang after the same update step save it together, leave by 143, and go on from it."""
    events = signalled_ranks(server, tmp_path, place, waiting=2, hanging=[0, 1])
    assert (steps(events, "saved"), newest(tmp_path)) == ([3, 3], 3)
    assert_tidy(tmp_path)
    events = server.run(tmp_path, ranks=2)
    assert (events[-2]["statuses"], newest(tmp_path)) == ([0, 0], STEPS)


@pytest.mark.slow
def test_no_rank_hangs(server, tmp_path):
    """Both save the same update step long before the deadline, and leave by 143."""
    events = signalled_ranks(server, tmp_path, "endless", waiting=2, hanging=[], max_steps=10**6)
    one, other = steps(events, "saved")
    assert one == other == newest(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("place", ["on_step_end", "dataset", "compute_metrics"])
def test_one_rank_that_hangs(server, tmp_path, place, rank):
    """The other rank waits for it in a collective; both leave by 143, without a checkpoint, which needs both."""
    events = signalled_ranks(server, tmp_path, place, waiting=1, hanging=[rank])
    assert (steps(events, "saved"), newest(tmp_path)) == ([], 0)


@pytest.fixture(scope="module")
def plain(server, tmp_path_factory):
    """The weights of a run of a plain ``lightning.Trainer`` in which nothing hangs."""
    folder = tmp_path_factory.mktemp("plain")
    assert server.run(folder, alone=True)[-1]["status"] == 0
    return load_file(newest_folder(folder) / "model.safetensors")


def newest_folder(folder):
    return folder / "out" / f"checkpoint-{newest(folder)}"


@pytest.mark.parametrize(
    ("place", "step"),
    [
        pytest.param("dataset", 3),
        pytest.param("on_validation_batch_start", 4, marks=pytest.mark.slow),
    ],
)
def test_plain_lightning(server, plain, tmp_path, place, step):
    """`PreemptionSaving` has the same deadline: the last update step is saved, and the next start loses nothing."""
    events = signalled(server, tmp_path, place, step=step, alone=True)
    assert (events[-1], newest(tmp_path)) == (LEFT, step)
    assert server.run(tmp_path, alone=True)[-1]["status"] == 0
    found = load_file(newest_folder(tmp_path) / "model.safetensors")
    assert {name: value.tolist() for name, value in found.items()} == {k: v.tolist() for k, v in plain.items()}


@pytest.mark.parametrize("place", [pytest.param("on_train_batch_start", marks=pytest.mark.slow), "on_before_backward"])
def test_plain_lightning_in_an_update_step(server, tmp_path, place):
    """Nothing is saved once a batch has been read, which the next start would leave out; the run exits all the same."""
    events = signalled(server, tmp_path, place, step=3, alone=True)
    assert (events[-1], newest(tmp_path)) == (LEFT, 0)


def test_no_deadline(server, tmp_path):
    """With `preemption_timeout=None` code that hangs is waited for."""
    process = server.start(tmp_path, place="dataset", step=3, preemption_timeout=None)
    server.events_until("waiting")
    os.kill(process, signal.SIGTERM)
    assert server.kill(process, seconds=1.5)[-1] == {"event": "exit", "status": -signal.SIGKILL}
