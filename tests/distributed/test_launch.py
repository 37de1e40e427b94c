"""What launchers' variables say of a process."""

from types import SimpleNamespace

import pytest

from hf_compat.arguments.process_facts import find_launch
from hf_compat.distributed import processes
from hf_compat.distributed.launch import OWN_MARK, Launch, read_launch
from hf_compat.errors import TrainerSetupError

MASTER = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}
TORCHRUN = {"WORLD_SIZE": "4", "RANK": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
SLURM = {
    "SLURM_JOB_ID": "4321",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NNODES": "2",
    "SLURM_NODELIST": "node[07-09,12]",
}
MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        pytest.param({}, Launch(), id="alone"),
        pytest.param({"RANK": "0", "LOCAL_RANK": "-1"}, Launch(), id="alone, as launchers of old said it"),
        pytest.param({"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}, Launch(), id="one process"),
        pytest.param(TORCHRUN | MASTER, Launch("torchrun", 4, 2, 0, 2, "10.0.0.1", 1234), id="torchrun, two nodes"),
        pytest.param(
            {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}, Launch("torchrun", 2, 1, 1, 2), id="set by hand"
        ),
        pytest.param({"WORLD_SIZE": "2", "RANK": "1"}, Launch("torchrun", 2, 1, 1, 2), id="by hand, on one node"),
        pytest.param(
            {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "LOCAL_SIZE": "2", "CROSS_RANK": "1"} | MASTER,
            Launch("torchrun", 4, 3, 1, 2, "10.0.0.1", 1234),
            id="deepspeed, two nodes",
        ),
        pytest.param(
            {"WORLD_SIZE": "2", "RANK": "1", "KUBERNETES_PORT": "tcp://10.0.0.9:443"} | MASTER,
            Launch("torchrun", 2, 1, 0, 1, "10.0.0.1", 1234),
            id="one process in each pod",
        ),
        pytest.param(
            TORCHRUN | {"KUBERNETES_PORT": "tcp://10.0.0.9:443"} | MASTER,
            Launch("torchrun", 4, 2, 0, 2, "10.0.0.1", 1234),
            id="torchrun in pods",
        ),
        pytest.param(SLURM, Launch("SLURM", 4, 3, 1, 2, "node07", 19321), id="slurm"),
        pytest.param(SLURM | {"SLURM_NODELIST": "a,b"}, Launch("SLURM", 4, 3, 1, 2, "a", 19321), id="slurm, list"),
        pytest.param(
            SLURM | TORCHRUN | MASTER, Launch("torchrun", 4, 2, 0, 2, "10.0.0.1", 1234), id="torchrun in slurm"
        ),
        pytest.param(SLURM | MPI, Launch("Open MPI", 2, 1, 1, 2), id="mpirun in slurm"),
        pytest.param(SLURM | {"SLURM_JOB_NAME": "interactive"}, Launch(), id="slurm, typed in"),
        pytest.param({"SLURM_NTASKS": "4"}, Launch(), id="no job of slurm"),
        pytest.param(
            {"WORLD_SIZE": "4", "LOCAL_RANK": "1", "NODE_RANK": "1", "LOCAL_WORLD_SIZE": "2", OWN_MARK: "1"} | MASTER,
            Launch("trainer", 4, 3, 1, 2, "10.0.0.1", 1234),
            id="started by a Trainer",
        ),
    ],
)
def test_launches(variables, expected):
    """Who started the processes, how many there are on how many nodes, and which one this is."""
    assert read_launch(variables) == expected


def test_lsf(tmp_path):
    """The processes of an LSF job meet on its first host that computes, at a port that follows from the job."""
    listed = tmp_path / "ranks"
    listed.write_text("batch1\nnode3\nnode3\nnode4\nnode4\n")
    rank = {f"JSM_NAMESPACE_{name}": value for name, value in zip(("SIZE", "RANK"), "43", strict=True)}
    place = {"JSM_NAMESPACE_LOCAL_RANK": "1", "JSM_NAMESPACE_LOCAL_SIZE": "2"}
    launch = read_launch(rank | place | {"LSB_JOBID": "23456", "LSB_DJOB_RANKFILE": str(listed)})
    assert launch == Launch("LSF", 4, 3, 1, 2, "node3", 10456)
    del place["JSM_NAMESPACE_LOCAL_SIZE"]  # then the hosts tell
    assert read_launch(rank | place | {"LSB_JOBID": "23456", "LSB_DJOB_RANKFILE": str(listed)}) == launch
    with pytest.raises(TrainerSetupError, match=r"LSB_DJOB_RANKFILE=.*/none: the hosts of this LSF job"):
        read_launch(rank | place | {"LSB_JOBID": "23456", "LSB_DJOB_RANKFILE": str(tmp_path / "none")})


@pytest.mark.parametrize("size", [1, 2])
def test_a_group_of_the_script_in_a_job_of_one_task(size, monkeypatch):
    """A script that was launched alone may start processes itself: their group then says how many they are."""
    monkeypatch.setenv("WORLD_SIZE", "1")
    group = SimpleNamespace(get_world_size=lambda: size, get_rank=lambda: size - 1)
    monkeypatch.setattr(processes, "process_group", lambda: group)
    assert find_launch() == (Launch() if size == 1 else Launch("the script", 2, 1, 1, 2))


def test_nodes():
    """Nodes follow from the processes on each."""
    launch = read_launch(TORCHRUN | MASTER)
    assert (launch.num_nodes, launch.node_rank) == (2, 1)


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        pytest.param({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 .*LOCAL_RANK is not set", id="no rank"),
        pytest.param({"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "RANK is not set", id="no rank among all"),
        pytest.param({"WORLD_SIZE": "2", "RANK": "one"}, "is 'one'|not set", id="no number"),
        pytest.param({"LOCAL_RANK": "1"}, "LOCAL_RANK=1 .*WORLD_SIZE is not set", id="a rank alone"),
        pytest.param(TORCHRUN | {"RANK": "4"} | MASTER, "RANK=4.*contradict", id="a rank too high"),
        pytest.param(TORCHRUN | {"WORLD_SIZE": "3"} | MASTER, "contradict", id="nodes of different sizes"),
        pytest.param(
            {"WORLD_SIZE": "4", "RANK": "2", "LOCAL_RANK": "0"}, "set LOCAL_WORLD_SIZE", id="nodes of unknown size"
        ),
        pytest.param(TORCHRUN, "set MASTER_ADDR", id="nodes that cannot find each other"),
        pytest.param(
            SLURM | {"SLURM_PROCID": "2"}, "SLURM_PROCID=2.*must be consecutive.*--distribution=block", id="dealt out"
        ),
    ],
)
def test_copies_that_would_train_apart(variables, told):
    """An environment that asks for several processes but does not say which one this is names what is missing."""
    with pytest.raises(TrainerSetupError, match=told):
        read_launch(variables)
