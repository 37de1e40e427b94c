"""The private names of Lightning's launcher that hf_compat uses, each with its contract."""

from __future__ import annotations

import os

from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.strategies.launchers.subprocess_script import _launch_process_observer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

__all__ = ["start_method", "start_processes"]


def start_method(strategy: DDPStrategy) -> str:
    """Return how ``strategy`` starts processes: ``"popen"`` (runs the script again) or a multiprocessing method.

    Contract: Lightning's ``DDPStrategy`` stores it as ``_start_method``, by default None.
    """
    return strategy._start_method or "popen"


def start_processes(count: int, num_nodes: int, *, mark: str) -> None:
    """Run this script ``count - 1`` more times, with this process as local rank 0; all are killed if one fails.

    Contract: the launcher of Lightning's DDP runs ``sys.argv`` again with LOCAL_RANK, NODE_RANK, WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT set, and sets them here too; its observer kills all processes when one has failed.

    Args:
        count: Number of processes on this node.
        num_nodes: Number of nodes; the user starts the script on each.
        mark: Environment variable that marks processes started by the Trainer.
    """
    environment = LightningEnvironment()
    launcher = _SubprocessScriptLauncher(environment, count, num_nodes)
    os.environ.update({mark: "1", "LOCAL_WORLD_SIZE": str(count)})
    launcher._call_children_scripts()
    if launcher.procs:
        _launch_process_observer(launcher.procs)
