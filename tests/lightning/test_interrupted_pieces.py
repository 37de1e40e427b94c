"""A script without a Trainer, of pieces built by hand, survives kills and SIGTERM, and ends as a Trainer's run does."""

from __future__ import annotations

import os
import random
import signal
import sys

import pytest

from tests.support.interrupted import FINISHED, Server, assert_tidy, newest, outcome, steps
from tests.trainer.test_crash import run_killed_at
from tests.trainer.test_preemption import LEFT_ON_SIGTERM, SELDOM, left

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="forks, and sends signals"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.close()


class Pieces:
    """The server, asked for pieces."""

    def __init__(self, server):
        self._server = server
        self.kill, self.events_until = server.kill, server.events_until

    def start(self, folder):
        return self._server.start(folder, pieces=True)


def test_killed_pieces_go_on(server, tmp_path):
    """Killed at random moments, the run goes on from a whole checkpoint and ends with every byte of a Trainer's run."""
    assert server.run(tmp_path / "trainer")[-2:] == FINISHED
    draw = random.Random(0)
    moments = ((draw.randint(4, 16), draw.uniform(0, 0.02)) for _ in range(3))
    assert run_killed_at(Pieces(server), tmp_path / "pieces", moments) == 3
    assert_tidy(tmp_path / "pieces")
    assert outcome(tmp_path / "pieces") == outcome(tmp_path / "trainer")


def test_pieces_on_sigterm(server, tmp_path):
    """SIGTERM saves a checkpoint that no interval asked for, the status is 143, and the next start loses nothing."""
    assert server.run(tmp_path / "trainer", **SELDOM)[-2:] == FINISHED
    process = server.start(tmp_path / "pieces", pieces=True, **SELDOM)
    events = [server.next_event() for _ in range(4)]  # the begin and three update steps
    os.kill(process, signal.SIGTERM)
    events += server.events_until("exit")
    assert events[-1] == LEFT_ON_SIGTERM
    (saved,) = steps(events, "saved")
    assert newest(tmp_path / "pieces") == saved
    events = server.run(tmp_path / "pieces", pieces=True, **SELDOM)
    assert (steps(events, "begin"), events[-2:]) == ([saved], FINISHED)
    assert left(tmp_path / "pieces") == left(tmp_path / "trainer")
