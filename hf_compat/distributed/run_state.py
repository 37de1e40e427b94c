"""``RunState``: the interface of accelerate's ``AcceleratorState``, of one Trainer's runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_compat.distributed.accelerate_state import accelerate_module
from hf_compat.distributed.process_state import DistributedType, ProcessState

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from hf_compat.arguments.deepspeed.plugin import DeepSpeedPlugin
    from hf_compat.distributed.launch import Launch

__all__ = ["Compilation", "RunState"]


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

    @property
    def is_fsdp2(self) -> bool:
        """Whether FSDP version 2 shards the model."""
        return self.distributed_type == DistributedType.FSDP and self.fsdp_plugin.fsdp_version == 2
