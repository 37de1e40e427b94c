"""``LaunchedEnvironment``: the ranks and world size of a launcher, as Lightning's ``ClusterEnvironment``."""

from __future__ import annotations

from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment

from hf_compat.distributed.launch import Launch

__all__ = ["LaunchedEnvironment"]


class LaunchedEnvironment(ClusterEnvironment):
    """Processes that a launcher, or the Trainer, has started already.

    Args:
        launch: The ranks and world size of this process.
        given: The user's environment, which says the same, and is torn down when Lightning is done.
    """

    def __init__(self, launch: Launch, given: ClusterEnvironment | None = None) -> None:
        super().__init__()
        self._launch = launch
        self._given = given

    @property
    def creates_processes_externally(self) -> bool:
        """True: Lightning starts no processes."""
        return True

    @property
    def main_address(self) -> str:
        """The host of rank 0."""
        return self._launch.address

    @property
    def main_port(self) -> int:
        """The port that rank 0 listens on."""
        return self._launch.port

    @staticmethod
    def detect() -> bool:
        """Return False: it is passed in, never detected."""
        return False

    def world_size(self) -> int:
        """Return the world size."""
        return self._launch.world_size

    def set_world_size(self, size: int) -> None:
        """Do nothing: the launcher has set it."""

    def global_rank(self) -> int:
        """Return the rank of this process."""
        return self._launch.rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the launcher has set it."""

    def local_rank(self) -> int:
        """Return the local rank of this process."""
        return self._launch.local_rank

    def node_rank(self) -> int:
        """Return the rank of this node."""
        return self._launch.node_rank

    def teardown(self) -> None:
        """Tell the user's environment; Lightning's default one would delete WORLD_SIZE, which is still needed."""
        if self._given is not None and type(self._given) is not LightningEnvironment:
            self._given.teardown()
