"""Lightning's ``ClusterEnvironment``: the user's, or that of a launcher's ranks; and the signal of SLURM's limit."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.kubeflow import KubeflowEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.mpi import MPIEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.xla import XLAEnvironment

from hf_compat.arguments.process_facts import find_launch
from hf_compat.distributed.launch import BY_TRAINER, Launch
from hf_compat.distributed.processes import process_group
from hf_compat.engine.keywords import user_plugins
from hf_compat.errors import TrainerSetupError

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = [
    "LaunchedEnvironment",
    "apply_cluster_environment",
    "slurm_signal",
    "use_cluster_environment",
    "user_environment",
]


def use_cluster_environment(
    environment: ClusterEnvironment, *, devices: int | None = None, num_nodes: int | None = None
) -> None:
    """Take ranks, world size and address from ``environment`` before there are training arguments.

    Call it first of all if the environment is a class of your own, or knows more than a launcher's variables do: then
    `TrainingArguments` know from the start which process this is. Where the environment reads a launcher's variables,
    as most of Lightning's do, nothing has to be called. It may be passed to the Trainer as well.

    Args:
        environment: A cluster environment of Lightning's, or of your own.
        devices: Number of processes per node, if it does not know.
        num_nodes: Number of nodes, if there are several.

    Raises:
        TrainerSetupError: If it contradicts the launcher's variables, or does not know which process this is.
    """
    _take(environment, devices, num_nodes)


def apply_cluster_environment(args: TrainingArguments, keywords: Mapping[str, Any]) -> None:
    """Take ranks and world size from a ``ClusterEnvironment`` among the plugins.

    What a launcher's variables do not say is written to torchrun's variables, which ``args.launch`` reads.

    Raises:
        TrainerSetupError: If it contradicts the launcher's variables, or if there are several.
    """
    environment = user_environment(keywords)
    if environment is None:
        return
    devices, nodes = keywords.get("devices"), keywords.get("num_nodes")
    if _take(environment, devices if type(devices) is int and devices > 0 else None, nodes and int(nodes)):
        args.choose_device_again()


def user_environment(keywords: Mapping[str, Any]) -> ClusterEnvironment | None:
    """Return the ``ClusterEnvironment`` among the plugins, None if there is none.

    Raises:
        TrainerSetupError: If there are several.
    """
    environments = [plugin for plugin in user_plugins(keywords) if isinstance(plugin, ClusterEnvironment)]
    if len(environments) > 1:
        names = ", ".join(type(each).__name__ for each in environments)
        raise TrainerSetupError(
            f"`lightning={{'plugins': [...]}}` contains several cluster environments, {names}. Keep one of them."
        )
    return environments[0] if environments else None


def _take(environment: ClusterEnvironment, devices: int | None, nodes: int | None) -> bool:
    """Write what ``environment`` says and no launcher's variables say; return whether anything was not known."""
    launch = _launch_by_variables()
    launched = launch if launch is not None and launch.launcher is not None else None
    if isinstance(environment, SLURMEnvironment) and launch is not None and launched is None:
        return False  # inside a job, but not started by srun: only its requeue settings are used
    if _is_lightnings_own(environment, launch):
        return False
    _check_kind(environment, launched)
    told = {name for name in _TOLD if name in os.environ}  # before it is asked: some set those of the rendezvous
    given = _answers(environment, launched, devices, nodes)
    if launched is not None:
        _check_agrees(environment, given, launched, told)
    elif given.world_size == 1:
        return False
    if launched is None or launched.launcher == "torchrun":
        _write_variables(given)
    elif process_group() is None:
        _write_rendezvous(given)
    return find_launch() != launch


def _launch_by_variables() -> Launch | None:
    """Return what a launcher's variables say; None if they do not say all, which an environment may know."""
    try:
        return find_launch()
    except TrainerSetupError:
        return None


def _is_lightnings_own(environment: ClusterEnvironment, launch: Launch | None) -> bool:
    """Return whether this is Lightning's default environment where it would do what the Trainer does."""
    if type(environment) is not LightningEnvironment or launch is None:
        return False
    if launch.launcher in (None, BY_TRAINER):
        return True
    told = (environment.local_rank(), environment.node_rank())
    return environment.creates_processes_externally and told == (launch.local_rank, launch.node_rank)


def _check_kind(environment: ClusterEnvironment, launched: Launch | None) -> None:
    """Refuse an environment of devices that are not supported, or in which Lightning starts processes."""
    if isinstance(environment, XLAEnvironment):
        raise TrainerSetupError(
            f"{_shown(environment)} is for TPUs, which are not supported. Remove it, and run on a CPU or on GPUs."
        )
    if type(environment) is LightningEnvironment or not environment.creates_processes_externally:
        reason = (
            f"{launched.launcher} has already started {launched.world_size}"
            if launched is not None
            else "the Trainer starts them itself, according to `devices`, and reads MASTER_ADDR and MASTER_PORT"
        )
        raise TrainerSetupError(
            f"{_shown(environment)} would make Lightning start processes, but {reason}. Remove it from the plugins."
        )


def _answers(
    environment: ClusterEnvironment, launched: Launch | None, devices: int | None, nodes: int | None
) -> Launch:
    """Return what ``environment`` says, read in the order in which Lightning reads it."""
    try:
        if launched is not None or devices is not None:
            of_node = launched.local_world_size if launched is not None else devices or 1
            environment.set_global_rank(environment.node_rank() * of_node + environment.local_rank())
            environment.set_world_size(launched.world_size if launched is not None else of_node * (nodes or 1))
        size = environment.world_size()
        of_node = _local_world_size(environment, size, launched, devices, nodes)
        environment.validate_settings(of_node, size // of_node)
        given = Launch(
            launcher=type(environment).__name__,
            world_size=size,
            rank=environment.global_rank(),
            local_rank=environment.local_rank(),
            local_world_size=of_node,
            **_address(environment, launched),
        )
        node = environment.node_rank()
    except (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise TrainerSetupError(
            f"{_shown(environment)} cannot tell which process this is ({type(error).__name__}: {error}). Start the "
            "script as its cluster does, or remove it from the plugins."
        ) from error
    # MPIEnvironment numbers nodes by the names of their hosts; a launcher's variables know better.
    if (launched is None or not isinstance(environment, MPIEnvironment)) and given.rank != (
        node * given.local_world_size + given.local_rank
    ):
        raise TrainerSetupError(
            f"{_shown(environment)} says that rank {given.rank} of {size} is local rank {given.local_rank} of node "
            f"{node}, which is impossible with {given.local_world_size} processes per node. Pass `num_nodes` too, and "
            "make the ranks on a node consecutive."
        )
    return given


def _local_world_size(
    environment: ClusterEnvironment, size: int, launched: Launch | None, devices: int | None, nodes: int | None
) -> int:
    if isinstance(environment, KubeflowEnvironment):
        return 1  # a pod has one process
    if launched is not None:
        return launched.local_world_size
    return max(size // nodes, 1) if nodes else devices or size


def _address(environment: ClusterEnvironment, launched: Launch | None) -> dict[str, Any]:
    """Return address and port of the rendezvous, which is over if there is a process group."""
    told = {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    chooses = isinstance(environment, MPIEnvironment)  # any free port
    if launched is not None and (process_group() is not None or (told and chooses)):
        return {"address": launched.address, "port": launched.port}
    return {"address": environment.main_address, "port": environment.main_port}


_TOLD = {"MASTER_ADDR": "address", "MASTER_PORT": "port", "LOCAL_WORLD_SIZE": "processes per node"}
"""Variables without which a launch has a guess of this fact, which a cluster environment may know better."""


def _check_agrees(environment: ClusterEnvironment, given: Launch, launched: Launch, told: set[str]) -> None:
    """Refuse an environment that says something else than the launcher's variables.

    Args:
        environment: The environment.
        given: What it says.
        launched: What the variables say.
        told: Those of ``_TOLD`` that are set.
    """
    answers, variables = _facts(given), _facts(launched)
    variables |= {fact: answers[fact] for name, fact in _TOLD.items() if name not in told}
    if answers != variables:
        raise TrainerSetupError(
            f"{_shown(environment)} returns {answers}, but {launched.launcher} has set {variables}. Remove it from the "
            "plugins, or correct it."
        )


def _facts(launch: Launch) -> dict[str, Any]:
    return {
        "world size": launch.world_size,
        "rank": launch.rank,
        "local rank": launch.local_rank,
        "processes per node": launch.local_world_size,
        "address": launch.address,
        "port": launch.port,
    }


def _write_variables(launch: Launch) -> None:
    """Write torchrun's variables."""
    _write_rendezvous(launch)
    numbers = {
        "WORLD_SIZE": launch.world_size,
        "RANK": launch.rank,
        "LOCAL_RANK": launch.local_rank,
        "LOCAL_WORLD_SIZE": launch.local_world_size,
    }
    os.environ.update({name: str(number) for name, number in numbers.items()})


def _write_rendezvous(launch: Launch) -> None:
    os.environ.update({"MASTER_ADDR": launch.address, "MASTER_PORT": str(launch.port)})


def _shown(environment: ClusterEnvironment) -> str:
    return f"`lightning={{'plugins': [{type(environment).__name__}()]}}`"


def slurm_signal(plugins: Iterable[Any]) -> int | None:
    """Return the signal on which a SLURM job is requeued, None if it is not.

    Args:
        plugins: Plugins of ``lightning.Trainer``. A ``SLURMEnvironment`` among them sets the signal, or with
            ``auto_requeue=False`` disables requeueing. Default inside a SLURM job: SIGUSR1.
    """
    if "SLURM_JOB_ID" not in os.environ:
        return None
    for plugin in plugins:
        if isinstance(plugin, SLURMEnvironment):
            return plugin.requeue_signal if plugin.auto_requeue else None
    return getattr(signal, "SIGUSR1", None)


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
