"""Which process of a run this is, and its device: the properties of ``TrainingArguments`` that follow from them."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.enums import ParallelMode
from hf_compat.arguments.fields_older import AllFields
from hf_compat.arguments.fields_reporting import LOG_LEVELS
from hf_compat.arguments.hardware import cuda_is_available, cuda_is_initialized, mps_is_available, wants_cpu
from hf_compat.arguments.launch import BY_TRAINER, Launch, read_launch
from hf_compat.errors import TrainerSetupError

if TYPE_CHECKING:
    import torch

__all__ = ["Processes", "leave_processes", "let_operations_end", "library_logger"]

_logger = logging.getLogger(__name__)


def library_logger() -> logging.Logger:
    """Return the logger whose level the user sets for the library: transformers', the root's if that is not loaded."""
    return logging.getLogger("transformers")


def _process_group() -> Any | None:
    """Return ``torch.distributed`` if it is in use; it cannot be while torch is not loaded."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed


def leave_processes() -> None:
    """End the process group, if there is one."""
    group = _process_group()
    if group is not None:
        group.destroy_process_group()


def let_operations_end() -> None:
    """Give the threads of gloo a moment; to be called before this process forks, or ends, in a run of several.

    They let go of an operation's tensors shortly after it is done, and need the interpreter for that. A fork in that
    moment leaves its lock taken in the child, which then waits for ever; at the end of the interpreter they abort it.
    """
    if _process_group() is not None:
        time.sleep(0.05)


def _leave_at_exit() -> None:
    let_operations_end()
    leave_processes()


def _gpu_index(local_rank: int) -> int:
    """Return the GPU of process ``local_rank`` on its node: its own, or the only one that it is shown."""
    import torch

    count = torch.cuda.device_count()
    if local_rank >= count > 1:
        raise TrainerSetupError(
            f"LOCAL_RANK={local_rank}: this process has no GPU of its own, as only {count} are visible. Start as many "
            "processes as there are GPUs, or set `use_cpu=True`."
        )
    return 0 if count == 1 else local_rank


class Processes(AllFields):
    """Properties that depend on this process and its device."""

    @cached_property
    def _setup_devices(self) -> torch.device:
        device = self._choose_device()
        self._n_gpu = int(device.type != "cpu")
        if read_launch().launcher != BY_TRAINER:  # there the main process comes only once it has built its Trainer
            self.join_processes(device)
        return device

    def choose_device_again(self) -> None:
        """Forget the device: in a process started since, another one may be its own."""
        vars(self).pop("_setup_devices", None)

    def _choose_device(self) -> torch.device:
        import torch

        if wants_cpu(self.use_cpu):
            return torch.device("cpu")
        if cuda_is_available():
            return torch.device("cuda", _gpu_index(self.local_process_index))
        return torch.device("mps") if mps_is_available() else torch.device("cpu")

    def join_processes(self, device: torch.device) -> None:
        """Let the processes of the run find each other, over ``ddp_backend``; once, however often it is called.

        Args:
            device: The device of this process, made the current one if it is a GPU.

        Raises:
            TrainerSetupError: If the launcher's variables describe no run, or the backend cannot be used.
        """
        import torch

        launch = self.launch
        # The first GPU is the current one until CUDA is in use; saying so would start it, and forbid a later fork.
        if device.type == "cuda" and (device.index or cuda_is_initialized()):
            torch.cuda.set_device(device)
        if launch.size == 1 or _process_group() is not None:
            return
        os.environ.setdefault("MASTER_ADDR", launch.address)
        os.environ.setdefault("MASTER_PORT", str(launch.port))
        backend = self.ddp_backend or ("nccl" if device.type == "cuda" else "gloo")
        try:
            torch.distributed.init_process_group(
                backend=backend,
                rank=launch.rank,
                world_size=launch.size,
                timeout=self.ddp_timeout_delta,
                device_id=device if backend == "nccl" else None,
            )
        except (RuntimeError, ValueError) as error:
            raise TrainerSetupError(
                f"Process {launch.rank} of {launch.size} ({launch.launcher}) could not reach the others at "
                f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} with `ddp_backend={self.ddp_backend!r}`, "
                f"which is {backend}: {error}"
            ) from error
        atexit.register(_leave_at_exit)  # NCCL would hold the interpreter up

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
        return self.launch.size

    @property
    def process_index(self) -> int:
        """Number of this process among all, from 0."""
        return self.launch.rank

    @property
    def local_process_index(self) -> int:
        """Number of this process on its node, from 0; on one node where no launcher tells it."""
        return self.launch.local_rank

    @property
    def launch(self) -> Launch:
        """Who started the processes of this run, on how many nodes, and which one this is.

        A process group that the script made itself counts as one node.
        """
        group, launch = _process_group(), read_launch()
        if group is None or launch.launcher is not None:
            return launch
        size, rank = int(group.get_world_size()), int(group.get_rank())
        return Launch("the script", size=size, rank=rank, local_rank=rank, local_size=size)

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
        if self.world_size > 1:
            _ = self.device  # the processes have to know each other to wait
        group = _process_group() if self.world_size > 1 else None
        if group is None:  # one process; or one started by a Trainer, whose main process has done it by then
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
