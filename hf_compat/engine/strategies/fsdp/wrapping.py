"""From a model and the FSDP settings to the model in torch's ``FullyShardedDataParallel``."""

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
"""Attribute of a model that holds its :class:`Wrapped`: the wrapper has to live as long as the model in it."""


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A model in its wrapper."""

    root: FullyShardedDataParallel
    settings: FsdpSettings
    dtype: torch.dtype | None
    first_names: dict[str, str]
    """Each name of a parameter that has several to the first of them; torch copies what they share."""

    def tied(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return ``state`` with one tensor under all names of a parameter."""
        return {name: state[self.first_names.get(name, name)] for name in state}

    @contextmanager
    def state_dicts_through_wrapper(self) -> Iterator[None]:
        """Have ``state_dict`` and ``load_state_dict`` of the model be those of the wrapper, by the model's names."""
        model, root = self.root.module, self.root

        def load_state_dict(state: Any, strict: bool = True, assign: bool = False) -> Any:
            result = root.load_state_dict(state, strict=strict)
            for found in result:
                found[:] = [name.replace("_fsdp_wrapped_module.", "") for name in found]
            return result

        def state_dict(*args: Any, **kwargs: Any) -> Any:
            # The wrapper asks the model in turn, and says where to put it.
            return type(model).state_dict(model, *args, **kwargs) if args or kwargs else root.state_dict()

        vars(model).update(state_dict=state_dict, load_state_dict=load_state_dict)
        try:
            yield
        finally:
            del model.state_dict, model.load_state_dict


def sharding_strategy(settings: FsdpSettings) -> ShardingStrategy:
    """Return torch's name of what ``settings`` shard."""
    name = settings.sharding.upper()
    return ShardingStrategy[f"_{name}" if name == "HYBRID_SHARD_ZERO2" else name]


def wrap_model(
    model: nn.Module, settings: FsdpSettings, *, launch: Launch, device: torch.device, dtype: torch.dtype | None
) -> Wrapped:
    """Return ``model`` in its wrapper; the first time, with each process's part of it. Every process has to call it.

    Args:
        model: The model, on any device, meta too on ranks other than 0.
        settings: What is sharded, and what is gathered by itself.
        launch: Which rank of how many this is.
        device: Where this rank computes.
        dtype: Of mixed precision: what is gathered, reduced and buffered in. Weights become float32 then. None:
            everything in its own.

    Raises:
        TrainerSetupError: If the model is wrapped otherwise, or cannot be wrapped like that.
    """
    before: Wrapped | None = vars(model).get(_WRAPPER_ATTRIBUTE)
    if before is None:
        before = _wrap(model, settings, launch, device, dtype)
        vars(model)[_WRAPPER_ATTRIBUTE] = before
    elif (before.settings, before.dtype) != (settings, dtype):
        raise TrainerSetupError(
            f"`model`: this {type(model).__name__} is sharded already, as another Trainer's arguments asked for "
            f"({before.settings}); load it anew."
        )
    return before


def _wrap(
    model: nn.Module, settings: FsdpSettings, launch: Launch, device: torch.device, dtype: torch.dtype | None
) -> Wrapped:
    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        raise TrainerSetupError("`model` is wrapped in FullyShardedDataParallel already: pass the model itself.")
    _check_frozen(model, settings)
    first_names = _first_names(model)
    if settings.activation_checkpointing:
        checkpoint_activations(model, find_layers(model, settings.layer_classes))
    units = set(fsdp_units(model, settings))
    on_cpu = device.type == "cpu"
    if on_cpu and settings.sync_module_states:  # torch sends nothing from CPU to CPU by itself
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
    return Wrapped(root, settings, dtype, first_names)


def _mesh(settings: FsdpSettings, launch: Launch, device: torch.device) -> DeviceMesh:
    """Return the processes to shard over; for hybrid sharding, copies of the model by parts of it."""
    if settings.sharding.startswith("hybrid"):
        return init_device_mesh(
            device.type, (launch.num_nodes, launch.local_world_size), mesh_dim_names=("copies", "parts")
        )
    return init_device_mesh(device.type, (launch.world_size,))


def _check_frozen(model: nn.Module, settings: FsdpSettings) -> None:
    trained = {parameter.requires_grad for parameter in model.parameters()}
    if len(trained) > 1 and not settings.use_orig_params:
        raise TrainerSetupError(
            f"`fsdp_config={{'use_orig_params': False}}`: some parameters of {type(model).__name__} are frozen, which "
            "flat parameters cannot tell apart: set it to True."
        )


def _first_names(model: nn.Module) -> dict[str, str]:
    """Return each name of a parameter that has several, the first too, to the first."""
    firsts: dict[int, str] = {}
    return {
        name: firsts.setdefault(id(parameter), name)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }


def _materialize(model: nn.Module, launch: Launch) -> None:
    """Give ``model``'s parameters and buffers that have none memory, not filled: process 0's values will be."""
    made: dict[int, Tensor] = {}
    for module in model.modules():
        held: Any
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is None or not tensor.is_meta:
                    continue
                if launch.rank == 0:
                    raise TrainerSetupError(
                        f"`model`: `{name}` of a {type(module).__name__} is on the meta device, without values, on "
                        "process 0 too; load the model there."
                    )
                if id(tensor) not in made:
                    values = torch.empty_like(tensor, device="cpu")
                    is_parameter = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(values, tensor.requires_grad) if is_parameter else values
                held[name] = made[id(tensor)]


def _upcast(model: nn.Module) -> None:
    """Make trained weights float32 that are less: mixed precision casts them down for computing only."""
    low = [parameter for parameter in model.parameters() if parameter.dtype in (torch.float16, torch.bfloat16)]
    if any(parameter.requires_grad for parameter in low):  # a unit's parameters have to be of one dtype
        for parameter in low:
            parameter.data = parameter.data.float()
