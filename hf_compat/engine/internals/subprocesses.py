"""The private names of Lightning's launcher that hf_compat touches, each with its contract."""

from __future__ import annotations

import os

from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.strategies.launchers.subprocess_script import _launch_process_observer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

__all__ = ["start_method", "start_processes"]


def start_method(strategy: DDPStrategy) -> str:
    """Return how ``strategy`` would start processes: ``"popen"``, the script anew, or a method of multiprocessing.

    Contract: Lightning's ``DDPStrategy`` keeps it as ``_start_method``, None where nothing was chosen.
    """
    return strategy._start_method or "popen"


def start_processes(count: int, num_nodes: int, *, mark: str) -> None:
    """Start this script ``count - 1`` times more and make this the main process of them; end all if one fails.

    Contract: the launcher of Lightning's DDP starts ``sys.argv`` anew with LOCAL_RANK, NODE_RANK, WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT set, and sets them here too; its observer kills all processes once one has failed.

    Args:
        count: Processes on this node.
        num_nodes: Nodes, on each of which the user starts the script.
        mark: An environment variable that tells the processes who started them.
    """
    environment = LightningEnvironment()
    launcher = _SubprocessScriptLauncher(environment, count, num_nodes)
    os.environ.update({mark: "1", "LOCAL_WORLD_SIZE": str(count)})
    launcher._call_children_scripts()
    if launcher.procs:
        _launch_process_observer(launcher.procs)
