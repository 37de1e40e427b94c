"""A Lightning ``ClusterEnvironment`` that the user hands in: who this process is, where the variables do not say it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

from hf_compat.distributed.launch import Launch
from hf_compat.errors import TrainerSetupError

__all__ = ["take_cluster_environment"]


def take_cluster_environment(args: Any, keywords: Mapping[str, Any]) -> None:
    """Let ``args`` know what a ``ClusterEnvironment`` among the plugins says of this process.

    Without a launcher it is written into torchrun's variables, from which all else follows. The processes on each node
    are all processes divided by the keyword ``num_nodes``.

    Raises:
        TrainerSetupError: If it contradicts the launcher's variables, or there are several.
    """
    plugins = keywords.get("plugins")
    given = plugins if isinstance(plugins, list | tuple) else [plugins]
    environments = [plugin for plugin in given if isinstance(plugin, ClusterEnvironment)]
    if not environments:
        return
    if len(environments) > 1:
        names = ", ".join(type(each).__name__ for each in environments)
        raise TrainerSetupError(f"`lightning={{'plugins': [...]}}` holds several environments, {names}: keep one.")
    environment, launch = environments[0], args.launch
    if type(environment) is LightningEnvironment and launch.launcher in (None, "trainer"):
        return  # says that no launcher is at work
    if isinstance(environment, SLURMEnvironment) and launch.launcher is None:
        return  # in a job, but not in one of its tasks: what it says of requeueing counts
    shown = f"`lightning={{'plugins': [{type(environment).__name__}()]}}`"
    if type(environment) is LightningEnvironment or not environment.creates_processes_externally:
        how = (
            f"{launch.launcher} has started {launch.world_size}"
            if launch.launcher
            else "it is not the one that does so"
        )
        raise TrainerSetupError(f"{shown} leaves it to Lightning to start processes, but {how}: leave it out.")
    told = _launch_of(environment, int(keywords.get("num_nodes", launch.num_nodes)))
    if launch.launcher is None:
        if told.world_size > 1:
            _write_variables(told)
            args.choose_device_again()
    elif _facts(told) != _facts(launch):
        raise TrainerSetupError(
            f"{shown} says {_facts(told)}, but {launch.launcher} says {_facts(launch)}: leave it out, or mend it."
        )


def _launch_of(environment: ClusterEnvironment, nodes: int) -> Launch:
    size = environment.world_size()
    return Launch(
        launcher=type(environment).__name__,
        world_size=size,
        rank=environment.global_rank(),
        local_rank=environment.local_rank(),
        local_world_size=max(size // nodes, 1),
        address=environment.main_address,
        port=environment.main_port,
    )


def _facts(launch: Launch) -> dict[str, Any]:
    return {
        "world size": launch.world_size,
        "rank": launch.rank,
        "local rank": launch.local_rank,
        "address": launch.address,
        "port": launch.port,
    }


def _write_variables(launch: Launch) -> None:
    values = {
        "WORLD_SIZE": launch.world_size,
        "RANK": launch.rank,
        "LOCAL_RANK": launch.local_rank,
        "LOCAL_WORLD_SIZE": launch.local_world_size,
        "MASTER_ADDR": launch.address,
        "MASTER_PORT": launch.port,
    }
    os.environ.update({name: str(value) for name, value in values.items()})
