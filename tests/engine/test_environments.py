"""What Lightning is told of the launcher's ranks."""

from lightning.fabric.plugins.environments import ClusterEnvironment

from hf_compat.distributed.launch import Launch
from hf_compat.engine.clusters import LaunchedEnvironment


def test_environment_says_what_the_launcher_said():
    """Lightning is told which process this is and starts none."""
    environment = LaunchedEnvironment(Launch("torchrun", 4, 3, 1, 2, "host", 1234))
    told = (environment.world_size(), environment.global_rank(), environment.local_rank(), environment.node_rank())
    assert told == (4, 3, 1, 1)
    assert (environment.main_address, environment.main_port) == ("host", 1234)
    assert environment.creates_processes_externally
    assert not environment.detect()
    assert isinstance(environment, ClusterEnvironment)
