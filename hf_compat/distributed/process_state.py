"""The interfaces of accelerate's states: ``ProcessState``, and ``RunState`` of one Trainer's runs."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch

from hf_compat.distributed import collectives, processes
from hf_compat.distributed.accelerate_state import accelerate_module
from hf_compat.distributed.launch import Launch
from hf_compat.environment import is_yes
from hf_compat.errors import warn_user

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from hf_compat.arguments.deepspeed import DeepSpeedPlugin


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
            inputs: A list, tuple, tensor or dataset, or a dict of those with equal lengths, whose values are replaced.
                Of anything else each rank gets all, as with accelerate, and a warning says so.
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
        yield _part(inputs, own, each + int(more > 0) if apply_padding else 0)


def _part(values: Any, indices: slice, wanted: int) -> Any:
    """Return ``values[indices]``, padded with the last value to ``wanted`` items."""
    if isinstance(values, dict):
        for name, value in values.items():
            values[name] = _part(value, indices, wanted)
        return values
    missing = max(wanted - (indices.stop - indices.start), 0)
    datasets = sys.modules.get("datasets")
    if datasets is not None and isinstance(values, datasets.Dataset):  # slicing it would return a dict
        return values.select([*range(indices.start, indices.stop), *[len(values) - 1] * missing])
    if not isinstance(values, (list, tuple, torch.Tensor)):
        warn_user(
            f"`split_between_processes`: a {type(values).__name__} is not split. Like accelerate, every process gets "
            'all of it. Pass a list, such as `list(dataset["prompt"])` of a column of a dataset.'
        )
        return values
    part: Any = values[indices]
    if isinstance(values, torch.Tensor):
        return torch.cat([part, *[values[-1:]] * missing])
    return part + values[-1:] * missing


def _first_then_others(is_first: bool) -> Iterator[None]:
    if not is_first:
        collectives.barrier()
    try:
        yield
    finally:
        if is_first:
            collectives.barrier()


@dataclass(frozen=True, slots=True)
class Compilation:
    """Settings of compiled models."""

    backend: str
    """Backend of ``torch.compile``."""
    mode: str | None = None
    """Mode of ``torch.compile``; None for its default."""


class RunState(ProcessState):
    """Device, ranks, precision and plugins of a Trainer's runs.

    Args:
        device: Device of the model.
        launch: Ranks and world sizes.
        mixed_precision: ``"no"``, ``"bf16"`` or ``"fp16"``; under DeepSpeed its config decides.
        deepspeed_plugin: The DeepSpeed plugin; None without DeepSpeed.
        fsdp_plugin: accelerate's FSDP plugin, or an object with its ``fsdp_version``; None without FSDP.
        parallelism_config: accelerate's ``ParallelismConfig``; None without one.
        device_mesh: The mesh of its sizes; None without one.
        compilation: How models are compiled; None: they are not.
    """

    def __init__(
        self,
        device: torch.device,
        launch: Launch,
        mixed_precision: str = "no",
        *,
        deepspeed_plugin: DeepSpeedPlugin | None = None,
        fsdp_plugin: Any = None,
        parallelism_config: Any = None,
        device_mesh: DeviceMesh | None = None,
        compilation: Compilation | None = None,
    ) -> None:
        super().__init__(device, launch, deepspeed_plugin, fsdp_plugin is not None)
        self.fsdp_plugin = fsdp_plugin
        self.parallelism_config = parallelism_config
        self.device_mesh = device_mesh
        self.compilation = compilation
        self._mixed_precision = mixed_precision

    def __repr__(self) -> str:
        return f"{super().__repr__()}\nMixed precision: {self.mixed_precision}"

    @property
    def mixed_precision(self) -> str:
        """The mixed precision of the forward pass: ``"no"``, ``"bf16"`` or ``"fp16"``."""
        if self.deepspeed_plugin is None:
            return self._mixed_precision
        config = self.deepspeed_plugin.deepspeed_config
        enabled = (name for name in ("fp16", "bf16") if config.get(name, {}).get("enabled") is True)
        return next(enabled, "no")

    @property
    def _shared_state(self) -> dict[str, Any]:
        """The values that all instances of accelerate's ``AcceleratorState`` share; without accelerate, this one's."""
        module = accelerate_module("accelerate.state")
        return vars(self) if module is None else module.AcceleratorState._shared_state

    @staticmethod
    def _reset_state(reset_partial_state: bool = False) -> None:
        """Empty the values that all instances of accelerate's ``AcceleratorState`` share; this run keeps its own."""
        module = accelerate_module("accelerate.state")
        if module is not None:
            module.AcceleratorState._reset_state(reset_partial_state)

    @property
    def is_fsdp2(self) -> bool:
        """Whether FSDP version 2 shards the model."""
        return self.distributed_type == DistributedType.FSDP and self.fsdp_plugin.fsdp_version == 2
