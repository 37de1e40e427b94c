"""Which process of a run this is, and its device: the properties of ``TrainingArguments`` that follow from them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.enums import ParallelMode
from hf_compat.arguments.fields_older import AllFields
from hf_compat.arguments.fields_reporting import LOG_LEVELS
from hf_compat.arguments.hardware import cuda_is_available, mps_is_available, wants_cpu

if TYPE_CHECKING:
    import torch

__all__ = ["Processes", "library_logger"]

_logger = logging.getLogger(__name__)

_LAUNCHER = {"size": "WORLD_SIZE", "rank": "RANK", "local_rank": "LOCAL_RANK"}
_SLURM = {"size": "SLURM_NTASKS", "rank": "SLURM_PROCID", "local_rank": "SLURM_LOCALID"}
_SLURM_SHELLS = ("bash", "interactive")  # an allocation one types in: its tasks are not the script's processes
_ALONE = {"size": "1", "rank": "0", "local_rank": "0"}


def library_logger() -> logging.Logger:
    """Return the logger whose level the user sets for the library: transformers', the root's if that is not loaded."""
    return logging.getLogger("transformers")


def _environment() -> dict[str, int]:
    """Return size, rank and local rank as the launcher set them."""
    names: dict[str, str] = {}
    if _LAUNCHER["size"] in os.environ:
        names = _LAUNCHER
    elif (
        "SLURM_JOB_ID" in os.environ
        and int(os.environ.get(_SLURM["size"], "1")) > 1
        and os.environ.get("SLURM_JOB_NAME") not in _SLURM_SHELLS
    ):
        names = _SLURM
    return {key: int(os.environ.get(names.get(key, ""), default)) for key, default in _ALONE.items()}


def _process_group() -> Any | None:
    """Return ``torch.distributed`` if it is in use; it cannot be while torch is not loaded."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed


class Processes(AllFields):
    """Properties that depend on this process and its device."""

    @cached_property
    def _setup_devices(self) -> torch.device:
        import torch

        device = torch.device("cpu")
        if wants_cpu(self.use_cpu):
            pass
        elif cuda_is_available():
            device = torch.device("cuda", self.local_process_index)
        elif mps_is_available():
            device = torch.device("mps")
        self._n_gpu = int(device.type != "cpu")
        return device

    @property
    def device(self) -> torch.device:
        """The device of this process, chosen when first asked for."""
        return self._setup_devices

    @property
    def n_gpu(self) -> int:
        """GPUs of this process: 0 on the CPU, else 1, since every GPU has a process of its own."""
        return int(self.device.type != "cpu")

    @property
    def train_batch_size(self) -> int:
        """Samples in a training batch of this process."""
        return self.per_device_train_batch_size * max(1, self.n_gpu)

    @property
    def eval_batch_size(self) -> int:
        """Samples in an evaluation batch of this process."""
        return self.per_device_eval_batch_size * max(1, self.n_gpu)

    @property
    def world_size(self) -> int:
        """Processes of the run."""
        group = _process_group()
        return int(group.get_world_size()) if group is not None else _environment()["size"]

    @property
    def process_index(self) -> int:
        """Number of this process among all, from 0."""
        group = _process_group()
        return int(group.get_rank()) if group is not None else _environment()["rank"]

    @property
    def local_process_index(self) -> int:
        """Number of this process on its node, from 0; on one node where no launcher tells it."""
        group = _process_group()
        if group is not None and _LAUNCHER["local_rank"] not in os.environ and _SLURM["local_rank"] not in os.environ:
            return int(group.get_rank())
        return _environment()["local_rank"]

    @property
    def parallel_mode(self) -> ParallelMode:
        """``DISTRIBUTED`` with several processes, else ``NOT_PARALLEL``."""
        return ParallelMode.DISTRIBUTED if self.world_size > 1 else ParallelMode.NOT_PARALLEL

    @property
    def should_log(self) -> bool:
        """Whether this process logs."""
        return (self.local_process_index if self.log_on_each_node else self.process_index) == 0

    @property
    def should_save(self) -> bool:
        """Whether this process writes files."""
        return (self.local_process_index if self.save_on_each_node else self.process_index) == 0

    @property
    def ddp_timeout_delta(self) -> timedelta:
        """``ddp_timeout`` as a duration."""
        return timedelta(seconds=self.ddp_timeout)

    @property
    def _no_sync_in_gradient_accumulation(self) -> bool:
        return True

    def get_process_log_level(self) -> int:
        """Return the level of ``logging`` for this process."""
        level = LOG_LEVELS[self.log_level if self.should_log else self.log_level_replica]
        return library_logger().getEffectiveLevel() if level == LOG_LEVELS["passive"] else level

    @contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Run the block in the main process first, while the others wait.

        Args:
            local: Whether every node has a main process of its own, or the run has one.
            desc: What the block does, for debug logs.
        """
        group = _process_group() if self.world_size > 1 else None
        if group is None:
            yield
            return
        is_main = (self.local_process_index if local else self.process_index) == 0
        if not is_main:
            _logger.debug("process %d waits for the main process to do: %s", self.process_index, desc)
            group.barrier()
        try:
            yield
        finally:
            if is_main:
                _logger.debug("process %d is done, the others go on: %s", self.process_index, desc)
                group.barrier()
