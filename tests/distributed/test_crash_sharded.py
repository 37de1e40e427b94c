"""Two processes that save shards in the background and are killed go on from a complete checkpoint to the same end."""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import pytest

from hf_compat.checkpoint import names
from hf_compat.tools.checkpoints import describe_checkpoints
from tests.scripts.crash_script import BACKGROUND_STAGES, STEPS
from tests.support.checkpoints import contents_of, whole_state
from tests.support.interrupted import FINISHED, Server, assert_tidy, newest, steps
from tests.support.processes import free_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and counts threads in /proc")

SETTINGS = {
    "save_async": True,
    "gradient_accumulation_steps": 1,  # 26 rows are seven batches of two on each of two processes
    "fsdp": True,
    "fsdp_config": {"version": 2, "state_dict_type": "SHARDED_STATE_DICT"},
}


class Ranks:
    """Two servers, each of which runs one rank."""

    def __init__(self):
        self.servers = [Server(), Server()]

    def start(self, folder, *waiting):
        """Start both ranks; those in ``waiting``, as ``(rank, stage, number of the save)``, wait there once."""
        port = str(free_port())
        places = {rank: {"stage": stage, "wait_step": number} for rank, stage, number in waiting}
        self.processes = []
        for rank, server in enumerate(self.servers):
            variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
            environment = {name: str(value) for name, value in variables.items()}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            request = {"environment": environment, "resume": "auto", **SETTINGS, **places.get(rank, {})}
            self.processes.append(server.start(folder, **request))

    def run(self, folder):
        """Let both ranks come to their end, and return what the last checkpoint holds."""
        self.start(folder)
        for server in self.servers:
            assert server.events_until("exit")[-2:] == FINISHED
        return last_checkpoint(folder)

    def kill(self, *ranks, seconds=0.0):
        """Kill ``ranks`` after ``seconds``, and wait until the others, which wait no more, have ended by themselves."""
        time.sleep(seconds)
        for rank in ranks:
            os.kill(self.processes[rank], signal.SIGKILL)
        for rank, server in enumerate(self.servers):
            if rank not in ranks:
                os.kill(self.processes[rank], signal.SIGUSR2)
            assert server.events_until("exit")[-1]["status"] == (-signal.SIGKILL if rank in ranks else 1)

    def close(self):
        for server in self.servers:
            server.close()


@pytest.fixture(scope="module")
def ranks():
    both = Ranks()
    yield both
    both.close()


@pytest.fixture(scope="module")
def unharmed(ranks, tmp_path_factory):
    """The last checkpoint of a run that nobody kills."""
    return ranks.run(tmp_path_factory.mktemp("unharmed"))


def last_checkpoint(folder):
    """What the last checkpoint holds, of shards every value; fail if anything but checkpoints is left."""
    assert_tidy(folder)
    checkpoint = folder / "out" / f"checkpoint-{STEPS}"
    shards = [checkpoint / name for name in (names.SHARDED_WEIGHTS_NAME, names.SHARDED_OPTIMIZER_NAME)]
    whole = {name: data for name, data in contents_of(checkpoint).items() if "/" not in name}
    return whole, [whole_state(folder) for folder in shards]


def assert_whole(folder, least):
    """Fail unless every byte of all checkpoints is there, and the newest is of the update step ``least`` or later."""
    assert newest(folder) >= least
    assert all(item.problems == () for item in describe_checkpoints(folder / "out", verify=True))


@pytest.mark.slow
@pytest.mark.parametrize("stage", BACKGROUND_STAGES)
@pytest.mark.parametrize(
    "killed",
    [
        pytest.param((0, 1), id="both"),
        pytest.param((0,), id="first"),
        pytest.param((1,), id="second"),
    ],
)
@pytest.mark.parametrize("held", [0, 1])
def test_killed_while_shards_are_written(ranks, unharmed, tmp_path, held, killed, stage):
    """Until all ranks have written, the checkpoint before stays the newest; the next start goes on to the same end."""
    ranks.start(tmp_path, (held, stage, 5))
    assert ranks.servers[held].events_until("waiting")[-1] == {"event": "waiting", "step": 5}
    ranks.kill(*killed)
    assert_whole(tmp_path, 4)
    all_have_written, publisher_is_held = stage == "in the background", held == 0 and 0 in killed
    assert newest(tmp_path) == 4 or (newest(tmp_path) == 5 and all_have_written and not publisher_is_held)
    assert ranks.run(tmp_path) == unharmed


@pytest.mark.slow
def test_both_killed_at_random_moments(ranks, unharmed, tmp_path):
    """No checkpoint that was complete is lost, none is half, and the end is that of a run unharmed."""
    draw, folder, runs = random.Random(60), tmp_path / "0", 0
    for _ in range(60):
        if newest(folder) > STEPS // 3:  # it must not come to its end before it is killed
            runs += 1
            folder = tmp_path / str(runs)
        before = newest(folder)
        ranks.start(folder)
        (begun,), (other,) = (steps(server.events_until("begin"), "begin") for server in ranks.servers)
        assert begun == other
        assert begun in (before, before + 1)  # the next one may have been whole but for its name
        ranks.kill(0, 1, seconds=draw.uniform(0, 0.3))
        assert_whole(folder, begun)
    assert ranks.run(folder) == unharmed
