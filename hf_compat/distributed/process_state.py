"""``ProcessState``: the interface of accelerate's ``PartialState``, from the arguments."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch

from hf_compat.distributed import collectives, processes
from hf_compat.distributed.launch import Launch
from hf_compat.environment import is_yes

if TYPE_CHECKING:
    from hf_compat.arguments.deepspeed.plugin import DeepSpeedPlugin

__all__ = ["DistributedType", "ProcessState"]


class DistributedType(str, Enum):  # noqa: UP042  (a StrEnum prints its value; accelerate's prints the member)
    """The kind of distributed training, by accelerate's names."""

    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    MULTI_GPU = "MULTI_GPU"
    MULTI_HPU = "MULTI_HPU"
    MULTI_MLU = "MULTI_MLU"
    MULTI_MUSA = "MULTI_MUSA"
    MULTI_NEURON = "MULTI_NEURON"
    MULTI_NPU = "MULTI_NPU"
    MULTI_SDAA = "MULTI_SDAA"
    MULTI_XPU = "MULTI_XPU"
    DEEPSPEED = "DEEPSPEED"
    FSDP = "FSDP"


class ProcessState:
    """Device, rank and world size of this process, and operations that depend on them.

    Args:
        device: Its device.
        launch: Its ranks and world sizes.
        deepspeed_plugin: The DeepSpeed plugin; None without DeepSpeed.
        is_fsdp: Whether the model is sharded by FSDP.
    """

    def __init__(
        self,
        device: torch.device,
        launch: Launch,
        deepspeed_plugin: DeepSpeedPlugin | None = None,
        is_fsdp: bool = False,
    ) -> None:
        self.device = device
        self.num_processes = launch.world_size
        self.process_index = launch.rank
        self.local_process_index = launch.local_rank
        self.deepspeed_plugin = deepspeed_plugin
        self._is_fsdp = is_fsdp

    def __repr__(self) -> str:
        lines = (
            f"Distributed environment: {self.distributed_type}",
            f"Backend: {self.backend}",
            f"Processes: {self.num_processes}",
            f"Rank: {self.process_index}, {self.local_process_index} on its node",
            f"Device: {self.device}",
        )
        return "\n".join(lines)

    @property
    def backend(self) -> str | None:
        """The backend of the process group; None without one."""
        group = processes.process_group()
        return None if group is None else str(group.get_backend())

    @property
    def debug(self) -> bool:
        """Whether accelerate checks shapes before it communicates, by ``ACCELERATE_DEBUG_MODE``."""
        return is_yes(os.environ.get("ACCELERATE_DEBUG_MODE", ""))

    @property
    def distributed_type(self) -> DistributedType:
        """The kind of distributed training; ``DEEPSPEED`` also with a world size of 1."""
        if self.deepspeed_plugin is not None:
            return DistributedType.DEEPSPEED
        if self.num_processes == 1:
            return DistributedType.NO
        if self._is_fsdp:
            return DistributedType.FSDP
        # accelerate names the device, but of a GPU not its type; of a device that it does not know, a GPU's.
        return DistributedType.__members__.get(f"MULTI_{self.device.type.upper()}", DistributedType.MULTI_GPU)

    @property
    def use_distributed(self) -> bool:
        """Whether the world size exceeds 1."""
        return self.num_processes > 1

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0."""
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is local rank 0."""
        return self.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this is the last rank."""
        return self.process_index == self.num_processes - 1

    def wait_for_everyone(self) -> None:
        """Wait until all ranks have reached this call."""
        collectives.barrier()

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Run the block on rank 0 first, while the others wait."""
        yield from _first_then_others(self.is_main_process)

    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """Run the block on local rank 0 of each node first, while the others wait."""
        yield from _first_then_others(self.is_local_main_process)

    def on_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` on rank 0, else a function that does nothing."""
        return self._only_if(self.is_main_process, function)

    def on_local_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` on local rank 0, else a function that does nothing."""
        return self._only_if(self.is_local_main_process, function)

    def on_last_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` on the last rank, else a function that does nothing."""
        return self._only_if(self.is_last_process, function)

    def on_process(
        self, function: Callable[..., Any] | None = None, process_index: int | None = None
    ) -> Callable[..., Any]:
        """Return ``function`` on rank ``process_index``, else a function that does nothing; without it, a decorator."""
        if function is None:
            return functools.partial(self.on_process, process_index=process_index)
        return self._only_if(self.process_index == process_index, function)

    def on_local_process(
        self, function: Callable[..., Any] | None = None, local_process_index: int | None = None
    ) -> Callable[..., Any]:
        """Return ``function`` on local rank ``local_process_index``, as :meth:`on_process` does."""
        if function is None:
            return functools.partial(self.on_local_process, local_process_index=local_process_index)
        return self._only_if(self.local_process_index == local_process_index, function)

    def _only_if(self, condition: bool, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` if ``condition``, and in a single process; else a function that does nothing."""
        if condition or not self.use_distributed:
            return function

        @functools.wraps(function)
        def nothing(*_: Any, **__: Any) -> None:
            return None

        return nothing

    def print(self, *values: Any, **kwargs: Any) -> None:
        """Print once on each node."""
        if self.is_local_main_process:
            print(*values, **kwargs)  # noqa: T201 - this is accelerate's print

    def destroy_process_group(self, group: Any = None) -> None:
        """Destroy the process group, or ``group`` alone."""
        processes.leave_processes(group)

    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """Yield this rank's part of ``inputs``; the first ranks get one more item if they do not divide evenly.

        Args:
            inputs: A list, tuple, tensor or dataset, or a dict of those with equal lengths.
            apply_padding: Repeat the last item so that every rank gets the same number.

        Raises:
            ValueError: If the values of a dict differ in length.
        """
        if self.num_processes == 1:
            yield inputs
            return
        lengths = {len(value) for value in inputs.values()} if isinstance(inputs, dict) else {len(inputs)}
        if len(lengths) != 1:
            raise ValueError(
                f"`inputs`: the values have different lengths, {sorted(lengths)}; pass values of equal length."
            )
        each, more = divmod(lengths.pop(), self.num_processes)
        start = self.process_index * each + min(self.process_index, more)
        own = slice(start, start + each + int(self.process_index < more))
        wanted = each + int(more > 0) if apply_padding else 0
        if isinstance(inputs, dict):
            yield {key: _part(value, own, wanted) for key, value in inputs.items()}
        else:
            yield _part(inputs, own, wanted)


def _part(values: Any, own: slice, wanted: int) -> Any:
    """Return ``values[own]``, padded with the last value to ``wanted`` items."""
    missing = max(wanted - (own.stop - own.start), 0)
    if hasattr(values, "select") and not isinstance(values, torch.Tensor):  # slicing a dataset would return a dict
        return values.select([*range(own.start, own.stop), *[len(values) - 1] * missing])
    part = values[own]
    if missing == 0:
        return part
    if isinstance(values, torch.Tensor):
        return torch.cat([part, *[values[-1:]] * missing])
    return part + type(values)([values[-1]] * missing)


def _first_then_others(is_first: bool) -> Iterator[None]:
    if not is_first:
        collectives.barrier()
    try:
        yield
    finally:
        if is_first:
            collectives.barrier()
