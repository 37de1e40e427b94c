"""Wrapping a model in torch's ``FullyShardedDataParallel`` by FSDP's settings."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy

from hf_compat.arguments.fsdp.settings import FsdpSettings
from hf_compat.distributed.launch import Launch
from hf_compat.engine.strategies.fsdp.sharding import (
    broadcast_from_rank0,
    checkpoint_activations,
    find_layers,
    fsdp_units,
)
from hf_compat.errors import TrainerSetupError

__all__ = ["Wrapped", "sharding_strategy", "wrap_model"]

_WRAPPER_ATTRIBUTE = "_hf_compat_wrapped"
"""Attribute of a model with its :class:`Wrapped`: the wrapper has to live as long as the model."""


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A model in its FSDP wrapper."""

    root: FullyShardedDataParallel
    settings: FsdpSettings
    dtype: torch.dtype | None

    @contextmanager
    def state_dicts_through_wrapper(self) -> Iterator[None]:
        """Context in which the model's state-dict methods are the wrapper's, with the model's names."""
        model, root = self.root.module, self.root

        def load_state_dict(state: dict[str, Any], strict: bool = True, assign: bool = False) -> Any:
            result = root.load_state_dict(state, strict=strict)
            for found in result:
                found[:] = [name.replace("_fsdp_wrapped_module.", "") for name in found]
            return result

        def state_dict(*args: Any, **kwargs: Any) -> Any:
            # Calls with arguments come from the wrapper's own state_dict.
            return type(model).state_dict(model, *args, **kwargs) if args or kwargs else root.state_dict()

        vars(model).update(state_dict=state_dict, load_state_dict=load_state_dict)
        try:
            yield
        finally:
            del model.state_dict, model.load_state_dict


def sharding_strategy(settings: FsdpSettings) -> ShardingStrategy:
    """Return torch's ``ShardingStrategy`` of ``settings``."""
    name = settings.sharding.upper()
    return ShardingStrategy[f"_{name}" if name == "HYBRID_SHARD_ZERO2" else name]


def wrap_model(
    model: nn.Module, settings: FsdpSettings, *, launch: Launch, device: torch.device, dtype: torch.dtype | None
) -> Wrapped:
    """Return ``model`` in its wrapper, which shards it the first time; every rank has to call it.

    Args:
        model: The model, on any device; on ranks other than 0 also on meta.
        settings: FSDP's settings.
        launch: Rank and world size.
        device: The device of this rank.
        dtype: Dtype of mixed precision, for gathered parameters, reduced gradients and buffers; trainable parameters
            are kept in float32 then. None: the parameters' own dtype.

    Raises:
        TrainerSetupError: If the model is wrapped already with other settings, or cannot be wrapped.
    """
    wrapped: Wrapped | None = vars(model).get(_WRAPPER_ATTRIBUTE)
    if wrapped is None:
        wrapped = _wrap(model, settings, launch, device, dtype)
        vars(model)[_WRAPPER_ATTRIBUTE] = wrapped
    elif (wrapped.settings, wrapped.dtype) != (settings, dtype):
        raise TrainerSetupError(
            f"`model`: this {type(model).__name__} was sharded by another Trainer with other settings "
            f"({wrapped.settings}). Load it again."
        )
    return wrapped


def _wrap(
    model: nn.Module, settings: FsdpSettings, launch: Launch, device: torch.device, dtype: torch.dtype | None
) -> Wrapped:
    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        raise TrainerSetupError("`model` is wrapped in FullyShardedDataParallel already. Pass the unwrapped model.")
    _check_frozen(model, settings)
    if settings.activation_checkpointing:
        checkpoint_activations(model, find_layers(model, settings.layer_classes))
    units = set(fsdp_units(model, settings))
    on_cpu = device.type == "cpu"
    if on_cpu and settings.sync_module_states:  # torch's sync_module_states needs a GPU
        broadcast_from_rank0(model, device, upcast=False)
    else:
        _materialize(model, launch)
    if dtype is not None:
        _upcast(model)
    root = FullyShardedDataParallel(
        model,
        auto_wrap_policy=functools.partial(lambda_auto_wrap_policy, lambda_fn=units.__contains__),
        sharding_strategy=sharding_strategy(settings),
        cpu_offload=CPUOffload(settings.cpu_offload),
        mixed_precision=None if dtype is None else MixedPrecision(dtype, dtype, dtype),
        backward_prefetch=settings.backward_prefetch and BackwardPrefetch[settings.backward_prefetch.upper()],
        forward_prefetch=settings.forward_prefetch,
        limit_all_gathers=settings.limit_all_gathers,
        use_orig_params=settings.use_orig_params,
        sync_module_states=settings.sync_module_states and not on_cpu,
        device_id=device,
        device_mesh=_mesh(settings, launch, device),
    )
    return Wrapped(root, settings, dtype)


def _mesh(settings: FsdpSettings, launch: Launch, device: torch.device) -> DeviceMesh:
    """Return the device mesh to shard over; for hybrid sharding, replicas by shards."""
    if settings.sharding.startswith("hybrid"):
        return init_device_mesh(
            device.type, (launch.num_nodes, launch.local_world_size), mesh_dim_names=("replicate", "shard")
        )
    return init_device_mesh(device.type, (launch.world_size,))


def _check_frozen(model: nn.Module, settings: FsdpSettings) -> None:
    trained = {parameter.requires_grad for parameter in model.parameters()}
    if len(trained) > 1 and not settings.use_orig_params:
        raise TrainerSetupError(
            f"`fsdp_config={{'use_orig_params': False}}`: some parameters of {type(model).__name__} are frozen, but a "
            "flat parameter is either trainable or frozen. Set it to True."
        )


def _materialize(model: nn.Module, launch: Launch) -> None:
    """Allocate ``model``'s parameters and buffers on meta; rank 0's values are broadcast into them later."""
    made: dict[int, Tensor] = {}
    for module in model.modules():
        held: Any
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is None or not tensor.is_meta:
                    continue
                if launch.rank == 0:
                    raise TrainerSetupError(
                        f"`model`: `{name}` of a {type(module).__name__} is on the meta device on rank 0, where it "
                        "needs values. Load the model's weights on rank 0."
                    )
                if id(tensor) not in made:
                    values = torch.empty_like(tensor, device="cpu")
                    is_parameter = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(values, tensor.requires_grad) if is_parameter else values
                held[name] = made[id(tensor)]


def _upcast(model: nn.Module) -> None:
    """Cast half-precision parameters to float32 if any of them is trainable: mixed precision casts only copies."""
    low = [parameter for parameter in model.parameters() if parameter.dtype in (torch.float16, torch.bfloat16)]
    if any(parameter.requires_grad for parameter in low):  # a unit's parameters have to be of one dtype
        for parameter in low:
            parameter.data = parameter.data.float()
