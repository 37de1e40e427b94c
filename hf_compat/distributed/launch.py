"""``Launch``: rank, local rank, world size and rendezvous address of this process, from the launcher's variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hf_compat.errors import TrainerSetupError

OWN_MARK = "HF_COMPAT_LAUNCHED"
"""Set in processes that a Trainer started itself, with Lightning's launcher."""
BY_TRAINER = "trainer"
"""Name of that launcher."""

_SLURM_SHELLS = ("bash", "interactive")  # interactive allocations: their tasks are not the script's processes
_DEFAULT_PORT = 29500


@dataclass(frozen=True, slots=True)
class Variables:
    """Environment variables of one kind of launcher."""

    launcher: str
    world_size: str
    """The world size; the launcher is in use if it is set."""
    rank: str
    local_rank: str
    local_world_size: str


LAUNCHERS: tuple[Variables, ...] = (
    Variables("torchrun", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    Variables(
        "Open MPI",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    Variables(
        "MVAPICH",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    Variables(
        "LSF", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"
    ),
    Variables("SLURM", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
    Variables("Intel MPI", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Launchers in the order of detection: torchrun and mpirun also run inside a SLURM job.

``torchrun`` stands for everything that sets its variables: ``accelerate launch``, ``deepspeed``, a user.
"""

_LOCAL_WORLD_SIZES = {"torchrun": "LOCAL_SIZE"}
"""Launcher to another variable for ``local_world_size``: ``deepspeed`` sets it beside torchrun's."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Ranks, world sizes and rendezvous address of this process."""

    launcher: str | None = None
    """Name of the launcher; None for a single process."""
    world_size: int = 1
    """Number of processes on all nodes."""
    rank: int = 0
    """Rank of this process."""
    local_rank: int = 0
    """Rank of this process on its node."""
    local_world_size: int = 1
    """Number of processes on this node."""
    address: str = "127.0.0.1"
    """Host of rank 0."""
    port: int = _DEFAULT_PORT
    """Port of rank 0 for the rendezvous."""

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.world_size // self.local_world_size

    @property
    def node_rank(self) -> int:
        """Rank of this node."""
        return self.rank // self.local_world_size


def read_launch(environment: Mapping[str, str] | None = None) -> Launch:
    """Return the launch that ``environment`` describes, by default ``os.environ``.

    Raises:
        TrainerSetupError: If the variables are incomplete or inconsistent: each process would then train a copy of
            its own.
    """
    environ = os.environ if environment is None else environment
    names = next((row for row in LAUNCHERS if _is_in_use(row, environ)), None)
    if names is None:
        _refuse_rank_without_world_size(environ)
        return Launch()
    world_size = _number(environ, names.world_size)
    if world_size == 1:
        return Launch()
    if _is_pod(environ, names):
        environ = {**environ, names.local_rank: "0", names.local_world_size: "1"}
    local_rank = _number(environ, names.local_rank, default=environ.get(names.rank) if _is_one_node(environ) else None)
    local_world_size = _local_world_size(environ, names, world_size, local_rank)
    rank = _number(environ, names.rank, default=_rank_from_node(environ, names, local_rank, local_world_size))
    if not 0 <= rank < world_size or not 0 <= local_rank < local_world_size or world_size % local_world_size:
        raise TrainerSetupError(
            f"{_shown(environ, names)} contradict each other for a world size of {world_size} with "
            f"{local_world_size} processes per node. Start the script with `torchrun`, or fix the variables."
        )
    if rank % local_world_size != local_rank:
        raise TrainerSetupError(
            f"{_shown(environ, names)}: with {local_world_size} processes per node, the ranks on a node must be "
            "consecutive. Use `srun --distribution=block`, `mpirun --map-by slot`, or `torchrun`."
        )
    address = environ.get("MASTER_ADDR") or _first_host(environ, names)
    if address is None and local_world_size < world_size:
        raise TrainerSetupError(
            f"{_shown(environ, names)} describe several nodes: set MASTER_ADDR to the host of rank 0, and MASTER_PORT "
            "to a free port there."
        )
    return Launch(
        launcher=BY_TRAINER if OWN_MARK in environ else names.launcher,
        world_size=world_size,
        rank=rank,
        local_rank=local_rank,
        local_world_size=local_world_size,
        address=address or "127.0.0.1",
        port=int(environ.get("MASTER_PORT") or _port_of_job(environ, names)),
    )


def is_launched(environment: Mapping[str, str] | None = None) -> bool:
    """Return whether a launcher has started this process, even as the only one, for which ``Launch`` names none.

    Args:
        environment: The variables. Default: ``os.environ``.
    """
    environ = os.environ if environment is None else environment
    return any(_is_in_use(row, environ) for row in LAUNCHERS)


def _is_in_use(names: Variables, environ: Mapping[str, str]) -> bool:
    if names.world_size not in environ:
        return False
    if names.launcher != "SLURM":
        return True
    return "SLURM_JOB_ID" in environ and environ.get("SLURM_JOB_NAME") not in _SLURM_SHELLS


def _is_one_node(environ: Mapping[str, str]) -> bool:
    return environ.get("MASTER_ADDR", "127.0.0.1") in ("127.0.0.1", "localhost")


def _is_pod(environ: Mapping[str, str], names: Variables) -> bool:
    """Return whether this is the only process of a Kubernetes pod, whose operator sets no local rank."""
    if names.launcher != "torchrun" or "KUBERNETES_PORT" not in environ or _is_one_node(environ):
        return False
    return not {names.local_rank, names.local_world_size, "GROUP_RANK"} & environ.keys()


def _number(environ: Mapping[str, str], name: str, default: str | int | None = None) -> int:
    value = environ.get(name, default)
    try:
        return int(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        problem = f"is {value!r}" if name in environ else "is not set"
    sizes = ", ".join(f"{row.world_size}={environ[row.world_size]}" for row in LAUNCHERS if row.world_size in environ)
    raise TrainerSetupError(
        f"{sizes} means several processes, but {name} {problem}: each process would train its own copy. Start the "
        f"script with `torchrun`, or set {name} in every process."
    )


def _local_world_size(environ: Mapping[str, str], names: Variables, world_size: int, local_rank: int) -> int:
    """Return the local world size; all processes are on one node if neither launcher nor job say otherwise."""
    size = environ.get(names.local_world_size) or environ.get(_LOCAL_WORLD_SIZES.get(names.launcher, ""), "")
    if size.isdigit():
        return int(size)
    nodes = _nodes_of_job(environ, names)
    if nodes > 1 and world_size % nodes == 0:
        return world_size // nodes
    if int(environ.get(names.rank, local_rank)) != local_rank:
        raise TrainerSetupError(
            f"{_shown(environ, names)} describe several nodes: set {names.local_world_size} to the number of processes "
            "per node."
        )
    return world_size


def _nodes_of_job(environ: Mapping[str, str], names: Variables) -> int:
    """Return the number of nodes of a SLURM or LSF job; 1 if it is not told."""
    if names.launcher == "LSF":
        return max(len(set(_hosts_of_lsf(environ))), 1)
    nodes = environ.get("SLURM_NNODES", "1") if names.launcher == "SLURM" else "1"
    return int(nodes) if nodes.isdigit() else 1


def _rank_from_node(environ: Mapping[str, str], names: Variables, local_rank: int, local_world_size: int) -> int | None:
    """Return the rank from the node rank, for launchers such as Lightning's that do not set the rank."""
    if OWN_MARK in environ or (names.launcher == "torchrun" and "NODE_RANK" in environ):
        return int(environ.get("NODE_RANK", "0")) * local_world_size + local_rank
    return None


def _refuse_rank_without_world_size(environ: Mapping[str, str]) -> None:
    alone = {name: environ[name] for name in ("RANK", "LOCAL_RANK") if environ.get(name, "0") not in ("0", "-1")}
    if alone:
        shown = ", ".join(f"{name}={value}" for name, value in alone.items())
        raise TrainerSetupError(
            f"{shown} means several processes, but WORLD_SIZE is not set: each process would train its own copy. "
            "Start the script with `torchrun`, or set RANK, LOCAL_RANK and WORLD_SIZE."
        )


def _shown(environ: Mapping[str, str], names: Variables) -> str:
    every = (names.world_size, names.rank, names.local_rank, names.local_world_size)
    return ", ".join(f"{name}={environ[name]}" for name in every if name in environ)


def _first_host(environ: Mapping[str, str], names: Variables) -> str | None:
    """Return the host of rank 0 if the launcher lists the hosts: the first one of a SLURM or LSF job."""
    if names.launcher == "SLURM":
        listed = (
            environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_NODELIST") or environ.get("SLURM_JOB_NODELIST")
        )
        match = re.match(r"([^,\[\s]+)(?:\[(\d+)[^\]]*\])?", listed or "")  # such as node[07-09,12]
        return None if match is None else match[1] + (match[2] or "")
    if names.launcher == "LSF":
        return next(iter(_hosts_of_lsf(environ)), None)
    return None


def _hosts_of_lsf(environ: Mapping[str, str]) -> list[str]:
    """Return the hosts of an LSF job, one for each process that it may start."""
    listed = environ.get("LSB_DJOB_RANKFILE")
    if not listed:
        return []
    try:
        hosts = Path(listed).read_text().split()
    except OSError as error:
        raise TrainerSetupError(
            f"LSB_DJOB_RANKFILE={listed}: the hosts of this LSF job cannot be read ({error}). Start the script with "
            "`jsrun` inside the job, or set MASTER_ADDR and MASTER_PORT and start it with `torchrun`."
        ) from error
    return hosts[1:]  # the first line is the launch node, which runs no process


_JOB_PORTS = {"SLURM": ("SLURM_JOB_ID", 15000, 10000), "LSF": ("LSB_JOBID", 10000, 1000)}
"""Launcher to the variable with the job ID, the first port, and the number of ports to choose from."""


def _port_of_job(environ: Mapping[str, str], names: Variables) -> int:
    """Return a port derived from the job ID, so that two jobs on one node differ; Lightning chooses the same."""
    if names.launcher not in _JOB_PORTS:
        return _DEFAULT_PORT
    variable, first, count = _JOB_PORTS[names.launcher]
    digits = re.sub(r"\D", "", environ.get(variable, ""))
    return first + int(digits) % count if digits else _DEFAULT_PORT


def is_main_process(local_rank: int) -> bool:
    """Return whether ``local_rank`` is the main process of its node: 0, or -1 without distributed training."""
    return local_rank in (-1, 0)


def total_processes_number(local_rank: int) -> int:
    """Return the world size: 1 if ``local_rank`` is -1, else that of the process group."""
    if local_rank == -1:
        return 1
    import torch

    return torch.distributed.get_world_size()
