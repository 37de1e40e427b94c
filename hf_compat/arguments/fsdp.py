"""What ``fsdp``, ``fsdp_config`` and ``accelerate launch --use_fsdp`` ask for, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["FsdpSettings", "Prefetch", "Sharding", "Wrapping"]

Sharding = Literal["full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"]
Wrapping = Literal["transformer", "size", "none"]
Prefetch = Literal["backward_pre", "backward_post"]


@dataclass(frozen=True, slots=True)
class FsdpSettings:
    """How a model is sharded over the processes of a run."""

    version: Literal[1, 2] = 1
    """torch's ``FullyShardedDataParallel``, or its ``fully_shard``."""
    sharding: Sharding = "full_shard"
    """What is sharded; under version 2 one of the first two."""
    wrap: Wrapping = "none"
    """Which modules are gathered by themselves: layers by their class, modules by their size, or only the model."""
    layer_classes: tuple[str, ...] | None = None
    """Names of the layers' classes; None for the model's ``_no_split_modules``. For ``wrap="transformer"``."""
    min_num_params: int = 0
    """Parameters that make a module worth gathering by itself. For ``wrap="size"``."""
    cpu_offload: bool = False
    """Whether parameters, gradients and the optimizer's state stay on the host between uses."""
    sharded_checkpoints: bool = False
    """Whether checkpoints hold each process's part, as ``torch.distributed.checkpoint`` writes it, or the whole."""
    cpu_ram_efficient_loading: bool = False
    """Whether process 0 alone reads a pretrained model's weights."""
    activation_checkpointing: bool = False
    """Whether the modules that are gathered by themselves compute their activations anew in the backward pass."""
    backward_prefetch: Prefetch | None = None
    """When the backward pass gathers the next module. Version 1 alone, as are all that follow."""
    forward_prefetch: bool = False
    """Whether the forward pass gathers the next module while it computes one."""
    limit_all_gathers: bool = True
    """Whether the host waits rather than gather far ahead."""
    use_orig_params: bool = True
    """Whether the optimizer is given the model's own parameters, or flat ones."""
    sync_module_states: bool = True
    """Whether all processes begin with the weights of process 0."""

    @property
    def reshard_after_forward(self) -> bool:
        """Whether gathered parameters are given up between forward and backward pass."""
        return self.sharding in ("full_shard", "hybrid_shard")
