"""A ``ClusterEnvironment`` among the user's plugins."""

import sys

import pytest
from lightning.fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment

from hf_compat import TrainingArguments
from hf_compat.distributed.launch import Launch
from hf_compat.engine.clusters import apply_cluster_environment
from hf_compat.engine.environments import LaunchedEnvironment
from hf_compat.errors import TrainerSetupError


def arguments():
    return TrainingArguments("out", use_cpu=True, report_to="none")


class Given(LaunchedEnvironment):
    """A cluster environment of the user's."""


@pytest.fixture
def variables(monkeypatch):
    """Set variables of a launcher for the test; all of them are gone afterwards."""
    monkeypatch.delitem(sys.modules, "accelerate.state", raising=False)  # the arguments would wait for the others
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


@pytest.mark.parametrize(
    ("environments", "told"),
    [
        pytest.param(
            [Given(Launch("x", 3, 1, 1, 3, port=1234))], "Given.*'world size': 3.*torchrun has set", id="size"
        ),
        pytest.param([Given(Launch("x", 2, 1, 1, 2, port=99))], "Given.*'port': 99", id="port"),
        pytest.param([LightningEnvironment()], "LightningEnvironment.*torchrun has started 2", id="no launcher"),
        pytest.param([LightningEnvironment(), TorchElasticEnvironment()], "Keep one", id="two of them"),
    ],
)
def test_cluster_environment_that_contradicts(environments, told, variables):
    """One that says something else than the variables is named, with both answers."""
    variables(WORLD_SIZE="2", RANK="1", LOCAL_RANK="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="1234")
    with pytest.raises(TrainerSetupError, match=told):
        apply_cluster_environment(arguments(), {"plugins": environments})
