"""The properties of ``TrainingArguments`` that depend on rank, world size and device."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from hf_compat.arguments.enums import ParallelMode
from hf_compat.arguments.fields.older import AllFields
from hf_compat.arguments.fields.reporting import LOG_LEVELS
from hf_compat.distributed import processes
from hf_compat.distributed.devices import cuda_is_available, gpu_index, mps_is_available, wants_cpu
from hf_compat.distributed.launch import BY_TRAINER, Launch, read_launch

if TYPE_CHECKING:
    import torch

__all__ = ["ProcessFacts", "library_logger"]


def library_logger() -> logging.Logger:
    """Return transformers' logger, whose level users set; it inherits the root logger's without transformers."""
    return logging.getLogger("transformers")


class ProcessFacts(AllFields):
    """Properties that depend on the rank of this process and on its device."""

    @cached_property
    def _setup_devices(self) -> torch.device:
        device = self._choose_device()
        self._n_gpu = int(device.type != "cpu")
        if read_launch().launcher != BY_TRAINER:  # there rank 0 joins only after it has built its Trainer
            self.join_processes(device)
        return device

    def choose_device_again(self) -> None:
        """Clear the cached device: a newly started process may have another one."""
        vars(self).pop("_setup_devices", None)

    def _choose_device(self) -> torch.device:
        import torch

        if wants_cpu(self.use_cpu):
            return torch.device("cpu")
        if cuda_is_available():
            return torch.device("cuda", gpu_index(self.local_process_index))
        return torch.device("mps") if mps_is_available() else torch.device("cpu")

    def join_processes(self, device: torch.device) -> None:
        """Initialize the process group with ``ddp_backend``, if that has not been done.

        Args:
            device: The device of this process; a GPU becomes the current CUDA device.

        Raises:
            TrainerSetupError: If the launcher's variables are inconsistent, or the backend fails.
        """
        processes.join_processes(self.launch, device, backend=self.ddp_backend, timeout=self.ddp_timeout_delta)

    @property
    def device(self) -> torch.device:
        """The device of this process, chosen on first access."""
        return self._setup_devices

    @property
    def n_gpu(self) -> int:
        """Number of GPUs of this process: 0 on the CPU, else 1, since every GPU has its own process."""
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
        """The world size."""
        return self.launch.world_size

    @property
    def process_index(self) -> int:
        """The rank of this process."""
        return self.launch.rank

    @property
    def local_process_index(self) -> int:
        """The local rank of this process; equal to the rank on one node."""
        return self.launch.local_rank

    @property
    def launch(self) -> Launch:
        """The launcher, the ranks and world sizes of this process.

        A process group that the script initialized itself counts as one node.
        """
        group, launch = processes.process_group(), read_launch()
        if group is None or launch.launcher is not None:
            return launch
        size, rank = int(group.get_world_size()), int(group.get_rank())
        return Launch("the script", world_size=size, rank=rank, local_rank=rank, local_world_size=size)

    @property
    def parallel_mode(self) -> ParallelMode:
        """``DISTRIBUTED`` if the world size exceeds 1, else ``NOT_PARALLEL``."""
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
        """Return the log level of this process."""
        level = LOG_LEVELS[self.log_level if self.should_log else self.log_level_replica]
        return library_logger().getEffectiveLevel() if level == LOG_LEVELS["passive"] else level

    @contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Run the block on the main process first, while the others wait.

        Args:
            local: Whether the main process is that of each node, or of the whole run.
            desc: What the block does, for debug logs.
        """
        if self.world_size == 1:
            yield
            return
        _ = self.device  # the barrier needs the process group
        is_main = (self.local_process_index if local else self.process_index) == 0
        # A process that a Trainer started has no process group here yet; rank 0 ran the block before it started.
        with processes.main_first(self.process_index, is_main=is_main, desc=desc):
            yield
