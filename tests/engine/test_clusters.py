"""A ``ClusterEnvironment`` among the user's plugins, or of a launcher's ranks."""

import os
import sys

import pytest
from lightning.fabric.plugins.environments import (
    ClusterEnvironment,
    KubeflowEnvironment,
    LightningEnvironment,
    TorchElasticEnvironment,
    XLAEnvironment,
)
from lightning.fabric.utilities.rank_zero import rank_zero_only

from hf_compat.arguments.process_facts import find_launch
from hf_compat.distributed.launch import Launch
from hf_compat.engine.process_layout import LaunchedEnvironment, apply_cluster_environment
from hf_compat.errors import TrainerSetupError
from hf_compat.lightning import use_cluster_environment
from tests.support.trainers import arguments


class Given(LaunchedEnvironment):
    """A cluster environment of the user's."""


@pytest.fixture
def variables(monkeypatch):
    """Set variables of a launcher for the test; all of them are gone afterwards."""
    monkeypatch.delitem(sys.modules, "accelerate.state", raising=False)  # the arguments would wait for the others
    monkeypatch.setattr(rank_zero_only, "rank", rank_zero_only.rank)  # Lightning's environment sets it
    names = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    for name in names:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def chosen(**values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return chosen


def test_cluster_environment_says_who_this_is(variables):
    """Without a launcher's variables a ``ClusterEnvironment`` among the plugins tells sizes, ranks and address."""
    args = arguments()
    assert args.world_size == 1
    apply_cluster_environment(args, {"plugins": [Given(Launch("x", 4, 3, 1, 2, "host", 1234))], "num_nodes": 2})
    assert args.launch == Launch("torchrun", 4, 3, 1, 2, "host", 1234)


def test_cluster_environment_that_agrees(variables):
    """One that says what the variables say changes nothing, Lightning's own among them."""
    variables(WORLD_SIZE="2", RANK="1", LOCAL_RANK="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="1234")
    args = arguments()
    for environment in (TorchElasticEnvironment(), Given(Launch("x", 2, 1, 1, 2, port=1234))):
        apply_cluster_environment(args, {"plugins": [environment]})
        assert args.launch == Launch("torchrun", 2, 1, 1, 2, port=1234)


class LaunchedByTwo(LightningEnvironment):
    """One that asks Lightning how many processes there are, and its launcher which one this is."""

    creates_processes_externally = True

    def local_rank(self):
        return int(os.environ["TASK"])


def test_environment_that_is_told_the_number_of_processes(variables):
    """Lightning tells an environment world size and rank, by ``devices`` and ``num_nodes``; so does a Trainer."""
    variables(TASK="1", NODE_RANK="1")
    args = arguments()
    apply_cluster_environment(args, {"plugins": LaunchedByTwo(), "devices": 2, "num_nodes": 2})
    assert (args.world_size, args.process_index, args.local_process_index) == (4, 3, 1)
    assert args.launch.node_rank == 1


def test_lightnings_own_environment(variables):
    """Where LOCAL_RANK is set it starts no processes, and agrees; where it would, it is refused."""
    variables(WORLD_SIZE="2", RANK="1", LOCAL_RANK="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="1234")
    args = arguments()
    apply_cluster_environment(args, {"plugins": [LightningEnvironment()]})
    assert args.launch == Launch("torchrun", 2, 1, 1, 2, port=1234)
    variables(NODE_RANK="1")
    with pytest.raises(TrainerSetupError, match=r"LightningEnvironment.*torchrun has already started 2"):
        apply_cluster_environment(args, {"plugins": [LightningEnvironment()]})


def test_lightnings_own_environment_under_mpirun(variables):
    """A launcher that does not set LOCAL_RANK would have it start processes in each of its own."""
    variables(OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_LOCAL_RANK="1")
    with pytest.raises(TrainerSetupError, match=r"LightningEnvironment.*Open MPI has already started 2"):
        apply_cluster_environment(arguments(), {"plugins": [LightningEnvironment()]})


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        pytest.param(TorchElasticEnvironment(), "KeyError: 'WORLD_SIZE'", id="not under its launcher"),
        pytest.param(Given(Launch("x", 4, 2, 0, 2, "host", 1)), "local rank 0 of node 1.*`num_nodes`", id="nodes"),
    ],
)
def test_environment_that_cannot_tell(environment, reason, variables):
    """One that does not know which process this is says why, and what is missing."""
    with pytest.raises(TrainerSetupError, match=rf"{type(environment).__name__}.*{reason}"):
        apply_cluster_environment(arguments(), {"plugins": [environment]})


def test_pod_of_rank_0_that_is_told_localhost(variables):
    """Old operators of Kubeflow call the first pod localhost: its environment knows that a pod has one process."""
    told = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1234"}
    variables(**told, KUBERNETES_PORT="tcp://10.0.0.1:443")
    assert find_launch().num_nodes == 1
    use_cluster_environment(KubeflowEnvironment())
    assert arguments().launch == Launch("torchrun", 2, 0, 0, 1, "localhost", 1234)
    variables(LOCAL_WORLD_SIZE="2")  # torchrun in a pod
    with pytest.raises(TrainerSetupError, match=r"KubeflowEnvironment.*'processes per node': 1.*torchrun has set"):
        use_cluster_environment(KubeflowEnvironment())


def test_address_of_the_environment(variables):
    """Where no variable tells the address, the environment's is taken; a rank that nobody told it keeps."""
    variables(OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_LOCAL_RANK="1")
    args = arguments()
    apply_cluster_environment(args, {"plugins": [Given(Launch("x", 2, 1, 1, 2, "head", 77))]})
    assert args.launch == Launch("Open MPI", 2, 1, 1, 2, "head", 77)


@pytest.mark.parametrize(
    ("environments", "told"),
    [
        pytest.param(
            [Given(Launch("x", 3, 1, 1, 3, port=1234))], "Given.*'world size': 3.*torchrun has set", id="size"
        ),
        pytest.param([Given(Launch("x", 2, 1, 1, 2, port=99))], "Given.*'port': 99", id="port"),
        pytest.param([LaunchedByTwo()], "LaunchedByTwo.*cannot tell.*KeyError: 'TASK'", id="no answer"),
        pytest.param([object.__new__(XLAEnvironment)], "XLAEnvironment.*TPUs", id="tpus"),
        pytest.param([LightningEnvironment(), TorchElasticEnvironment()], "Keep one", id="two of them"),
    ],
)
def test_cluster_environment_that_contradicts(environments, told, variables):
    """One that says something else than the variables is named, with both answers."""
    variables(WORLD_SIZE="2", RANK="1", LOCAL_RANK="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="1234")
    with pytest.raises(TrainerSetupError, match=told):
        apply_cluster_environment(arguments(), {"plugins": environments})


def test_environment_says_what_the_launcher_said():
    """Lightning is told which process this is and starts none."""
    environment = LaunchedEnvironment(Launch("torchrun", 4, 3, 1, 2, "host", 1234))
    told = (environment.world_size(), environment.global_rank(), environment.local_rank(), environment.node_rank())
    assert told == (4, 3, 1, 1)
    assert (environment.main_address, environment.main_port) == ("host", 1234)
    assert environment.creates_processes_externally
    assert not environment.detect()
    assert isinstance(environment, ClusterEnvironment)
