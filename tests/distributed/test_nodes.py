"""Two nodes, each a network namespace with an address and a working directory of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from hf_compat.checkpoint.completeness import incomplete_reason
from tests.support.paths import SCRIPTS
from tests.support.processes import TORCHRUN, finish, start

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None,
        reason="network namespaces need Linux, root and the program `ip`",
    ),
]

ADDRESSES = ("10.79.83.1", "10.79.83.2")
TORCHRUN_OF_NODES = [word for word in TORCHRUN if word != "--standalone"]


def ip(*words):
    """Run ``ip`` with ``words`` and return what it says."""
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def nodes():
    """Names of two namespaces with a cable between them; they and all that runs in them are gone afterwards."""
    names = [f"hfc{os.getpid()}{letter}" for letter in "ab"]
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "cable", "netns", names[1])
        except subprocess.CalledProcessError as refused:
            pytest.skip(f"network namespaces cannot be made here: {refused.stderr.strip()}")
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")
        yield names
    finally:
        for name in ip("netns", "list").split():
            if name in names:
                for process in ip("netns", "pids", name).split():
                    os.kill(int(process), signal.SIGKILL)
                ip("netns", "del", name)


def train_on_nodes(folder, nodes, *options, processes=1):
    """Train on both nodes, or on this machine if there are none; return what each process saw, in order."""
    folder.mkdir()
    script = [
        SCRIPTS / "launch_script.py",
        "--folder",
        folder,
        "--log_level=info",
        "--log_level_replica=error",
        *options,
    ]
    if not nodes:
        launched = [start([*TORCHRUN, f"--nproc-per-node={processes}", *script], folder)]
    else:
        launched = []
        for number, name in enumerate(nodes):
            place = folder / f"node{number}"
            place.mkdir()
            several = ["--nnodes=2", f"--nproc-per-node={processes}", f"--node-rank={number}"]
            launcher = [*TORCHRUN_OF_NODES, *several, f"--master-addr={ADDRESSES[0]}", "--master-port=29555"]
            inside = ["ip", "netns", "exec", name, *launcher, *script]
            launched.append(start(inside, place, GLOO_SOCKET_IFNAME="cable"))
    for ended in finish(launched):
        assert ended.code == 0, ended.output
    return [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9].json"))]


def check_same(two, one):
    """Fail unless two nodes trained what as many processes of one node train."""
    for name in ("steps", "losses", "weights", "world_size"):
        assert [each[name] for each in two] == [each[name] for each in one]
    assert [each["nodes"] for each in two] == [2] * len(one)


def files(folder, checkpoint):
    """Return the names of what each node keeps of ``checkpoint``, which is complete there."""
    places = [folder / node / "output" / checkpoint for node in ("node0", "node1")]
    assert [incomplete_reason(place) for place in places] == [None, None]
    return [{path.name for path in place.iterdir()} for place in places]


SAVED_BY_ONE = {"model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json", "training_args.bin"}


def test_two_nodes_of_one_process(tmp_path, nodes):
    """They train what two processes of one node train; by default both nodes log, and the first one saves.

    The other node, whose disk is its own, keeps the random states of its process, without which it could not resume.
    """
    two = train_on_nodes(tmp_path / "two", nodes)
    check_same(two, train_on_nodes(tmp_path / "one", [], processes=2))
    assert [each["local_rank"] for each in two] == [0, 0]
    assert [each["should_save"] for each in two] == [True, False]
    assert [each["level"] for each in two] == ["INFO", "INFO"]
    first, second = files(tmp_path / "two", "checkpoint-8")
    assert first == SAVED_BY_ONE | {"lightning.json", "lightning.pt", "rng_state_0.pth"}
    assert second == {"lightning.json", "rng_state_1.pth"}


def test_two_nodes_of_two_processes(tmp_path, nodes):
    """``save_on_each_node``: each node has a whole checkpoint; without ``log_on_each_node`` the first process logs."""
    options = ("--save_on_each_node", "True", "--log_on_each_node", "False")
    two = train_on_nodes(tmp_path / "two", nodes, *options, processes=2)
    check_same(two, train_on_nodes(tmp_path / "one", [], processes=4))
    assert [each["local_rank"] for each in two] == [0, 1, 0, 1]
    assert [each["should_save"] for each in two] == [True, False, True, False]
    assert [each["level"] for each in two] == ["INFO", "ERROR", "ERROR", "ERROR"]
    first, second = files(tmp_path / "two", "checkpoint-4")
    assert first == SAVED_BY_ONE | {"lightning.json", "lightning.pt", "rng_state_0.pth", "rng_state_1.pth"}
    assert second == SAVED_BY_ONE | {"lightning.json", "lightning.pt", "rng_state_2.pth", "rng_state_3.pth"}
