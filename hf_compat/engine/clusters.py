"""The user's Lightning ``ClusterEnvironment``: ranks and world size, if no launcher's variables are set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

from hf_compat.distributed.launch import Launch
from hf_compat.errors import TrainerSetupError

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["apply_cluster_environment"]


def apply_cluster_environment(args: TrainingArguments, keywords: Mapping[str, Any]) -> None:
    """Take ranks and world size from a ``ClusterEnvironment`` among the plugins.

    Without a launcher they are written to torchrun's variables, which ``args.launch`` reads. The local world size is
    the world size divided by the keyword ``num_nodes``.

    Raises:
        TrainerSetupError: If it contradicts the launcher's variables, or if there are several.
    """
    plugins = keywords.get("plugins")
    every = plugins if isinstance(plugins, list | tuple) else [plugins]
    environments = [plugin for plugin in every if isinstance(plugin, ClusterEnvironment)]
    if not environments:
        return
    if len(environments) > 1:
        names = ", ".join(type(each).__name__ for each in environments)
        raise TrainerSetupError(
            f"`lightning={{'plugins': [...]}}` contains several cluster environments, {names}. Keep one of them."
        )
    environment, launch = environments[0], args.launch
    if type(environment) is LightningEnvironment and launch.launcher in (None, "trainer"):
        return  # Lightning's default without a launcher
    if isinstance(environment, SLURMEnvironment) and launch.launcher is None:
        return  # inside a job, but not started by srun: only its requeue settings are used
    shown = f"`lightning={{'plugins': [{type(environment).__name__}()]}}`"
    if type(environment) is LightningEnvironment or not environment.creates_processes_externally:
        reason = f"{launch.launcher} has started {launch.world_size}" if launch.launcher else "the Trainer does that"
        raise TrainerSetupError(f"{shown} has Lightning start processes, but {reason}. Remove it from the plugins.")
    given = _launch_of(environment, int(keywords.get("num_nodes", launch.num_nodes)))
    if launch.launcher is None:
        if given.world_size > 1:
            _write_variables(given)
            args.choose_device_again()
    elif _facts(given) != _facts(launch):
        raise TrainerSetupError(
            f"{shown} returns {_facts(given)}, but {launch.launcher} has set {_facts(launch)}. Remove it from the "
            "plugins, or correct it."
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
