"""FSDP version 1: the model in torch's ``FullyShardedDataParallel``, on Lightning's ``FSDPStrategy``."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import FSDPStrategy, Strategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy

from hf_compat.arguments.fsdp import FsdpSettings
from hf_compat.checkpoint import distributed_files, names, states, weights
from hf_compat.checkpoint.background import CheckpointFile, Put
from hf_compat.distributed.launch import Launch
from hf_compat.engine.process_layout import LaunchedEnvironment, ProcessLayout
from hf_compat.engine.strategies.base import ModelStrategy
from hf_compat.engine.strategies.sharding import (
    broadcast_from_rank0,
    checkpoint_activations,
    find_layers,
    fsdp_units,
    trained_leaves,
)
from hf_compat.errors import TrainerSetupError
from hf_compat.model_facts import is_peft_model, unwrap_model

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from hf_compat.arguments import TrainingArguments

# Wrapping a model in torch's `FullyShardedDataParallel` by FSDP's settings.


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
                found[:] = map(names.name_outside_units, found)
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
    units = {*fsdp_units(model, settings), *(trained_leaves(model) if is_peft_model(model) else ())}
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
        device_id=torch.device("cpu") if on_cpu else device,  # torch compares it with the parameters'
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


# FSDP version 1: the model in torch's `FullyShardedDataParallel`, on Lightning's `FSDPStrategy`.


class FSDP1Strategy(ModelStrategy, FSDPStrategy):
    """Wraps the model in ``FullyShardedDataParallel``, once: later runs use the same wrapper.

    Args:
        process_layout: Rank and world size.
        device: The device of this rank.
        settings: FSDP's settings.
        dtype: Dtype of mixed precision; None without it.
    """

    # Lightning's accepts only FSDPPrecision, whose settings the wrapper has already.
    precision_plugin = Strategy.precision_plugin  # type: ignore[assignment]

    def __init__(
        self, process_layout: ProcessLayout, device: torch.device, settings: FsdpSettings, dtype: torch.dtype | None
    ) -> None:
        super().__init__(
            cluster_environment=LaunchedEnvironment(process_layout.launch, process_layout.environment),
            cpu_offload=settings.cpu_offload,
            state_dict_type=settings.state_dict_type,
            use_orig_params=settings.use_orig_params,
        )
        self.sharding_strategy = sharding_strategy(settings)
        self.gathers_weights = True
        self.saves_sharded_weights = settings.state_dict_type == "sharded"
        self._launch = process_layout.launch
        self._device = device
        self._settings = settings
        self._dtype = dtype

    def setup(self, pl_trainer: pl.Trainer) -> None:
        """Wrap the model, in evaluations too, and pass the wrapper to the run; in a fit, create the optimizer."""
        assert self.accelerator is not None, "set by the trainer"
        module: Any = self.lightning_module
        self.accelerator.setup(pl_trainer)
        self.model = self.wrapped(module.model)
        module.run.take_wrapper(self.model)
        if pl_trainer.state.fn is TrainerFn.FITTING:
            self.setup_optimizers(pl_trainer)
        self.setup_precision_plugin()

    def wrapped(self, model: nn.Module) -> FullyShardedDataParallel:
        """Return ``model`` in its wrapper, which is created the first time."""
        return self._wrapped(model).root

    def _wrapped(self, model: nn.Module) -> Wrapped:
        return wrap_model(model, self._settings, launch=self._launch, device=self._device, dtype=self._dtype)

    def clip_grad_norm(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float) -> Tensor:
        """Clip the total norm of the gradients of ``parameters`` to ``max_norm``; return it before clipping, ``()``."""
        clipped, root = list(parameters), self.model
        if isinstance(root, FullyShardedDataParallel) and {*map(id, clipped)} == {*map(id, root.parameters())}:
            return root.clip_grad_norm_(max_norm, norm_type)
        return super().clip_grad_norm(clipped, max_norm, norm_type)

    def full_state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Return the full state dict of ``model``, on the CPU on rank 0 alone unless each rank has the whole model."""
        wrapped = self._wrapped(model)
        with self._with_state_dict_type(wrapped.root, full=True, rank0_only=True):
            state = wrapped.root.state_dict()
        return state if self._launch.rank == 0 or self._settings.sharding == "no_shard" else {}

    def evaluation_model(self, model: nn.Module) -> nn.Module:
        """Return ``model`` in its wrapper, whose forward gathers the parameters."""
        return (
            model
            if isinstance(getattr(model, "_orig_mod", model), FullyShardedDataParallel)
            else self.wrapped(unwrap_model(model))
        )

    def gathered(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Return a context in which the unwrapped ``model`` has its full parameters."""
        context: Any = FullyShardedDataParallel.summon_full_params(self.wrapped(model), writeback=False)
        return context  # type: ignore[no-any-return]

    @contextmanager
    def _with_state_dict_type(
        self, root: FullyShardedDataParallel, *, full: bool, rank0_only: bool = False
    ) -> Iterator[None]:
        """Context that sets the type of state dicts of ``root``.

        Args:
            root: The wrapper.
            full: Full state dicts; otherwise sharded ones.
            rank0_only: Whether only rank 0 needs the full state dict, on the CPU.
        """
        offload = self._device.type != "cpu"  # offloading CPU tensors would free them
        if full:
            rank0_only = rank0_only and offload
            kind = StateDictType.FULL_STATE_DICT
            model: Any = FullStateDictConfig(offload_to_cpu=rank0_only, rank0_only=rank0_only)
            optimizer: Any = FullOptimStateDictConfig(offload_to_cpu=rank0_only, rank0_only=rank0_only)
        else:
            kind = StateDictType.SHARDED_STATE_DICT
            model = ShardedStateDictConfig(offload_to_cpu=offload)
            optimizer = ShardedOptimStateDictConfig(offload_to_cpu=offload)
        with FullyShardedDataParallel.state_dict_type(root, kind, model, optimizer):
            yield

    def load_weights(self, model: nn.Module, folder: str, *, trains_on: bool) -> tuple[list[str], list[str]]:
        """Load a checkpoint's weights, full or sharded, into this rank's shards of ``model``."""
        wrapped, sharded = self._wrapped(model), distributed_files.sharded_weights(Path(folder))
        with self._with_state_dict_type(wrapped.root, full=sharded is None), wrapped.state_dicts_through_wrapper():
            if sharded is None:
                return weights.load_weights(model, folder, trains_on=trains_on)
            return distributed_files.load_model(model, sharded)

    def save_sharded_weights(self, model: nn.Module, folder: str, put: Put) -> None:
        """Save this rank's shards of ``model`` to ``folder``."""
        root = self.wrapped(model)
        with self._with_state_dict_type(root, full=False):
            state = root.state_dict()
        distributed_files.save({"model": state}, Path(folder, names.SHARDED_WEIGHTS_NAME), put)

    def save_optimizer(self, optimizer: Optimizer, folder: str, put: Put, *, saves_common: bool) -> None:
        """Save the optimizer's state dict, full or sharded, in accelerate's format.

        With a full state dict the weights are saved a second time, in the file that transformers resumes from.
        """
        root: Any = self.model
        with self._with_state_dict_type(root, full=not self.saves_sharded_weights, rank0_only=True):
            state = FullyShardedDataParallel.optim_state_dict(root, optimizer)
        if self.saves_sharded_weights:
            distributed_files.save({"optimizer": state}, Path(folder, names.SHARDED_OPTIMIZER_NAME), put)
            return
        saves_common = saves_common and self._launch.rank == 0
        if saves_common:
            put(CheckpointFile(torch.save, state, Path(folder, names.FULL_OPTIMIZER_NAME)))
        del state  # before the next file's content is gathered
        model = unwrap_model(root)
        resumable = self.full_state_dict(model)
        if saves_common:
            if is_peft_model(model):
                resumable = weights.adapter_in(model, resumable)
            put(CheckpointFile(torch.save, resumable, Path(folder, names.FULL_FSDP_WEIGHTS_NAME)))

    def load_optimizer(self, optimizer: Optimizer, folder: str) -> None:
        """Load this rank's part of the state in ``folder``, full or sharded, saved with any strategy."""
        root: Any = self.model
        path = Path(folder)
        saved = states.read_full_optimizer_state(optimizer, unwrap_model(root), path)
        with (
            self._with_state_dict_type(root, full=saved is not None),
            states.load_errors(optimizer, path),
        ):
            if saved is None:
                saved = states.read_sharded_optimizer_state(path / names.SHARDED_OPTIMIZER_NAME, root.state_dict())
            optimizer.load_state_dict(FullyShardedDataParallel.optim_state_dict_to_load(root, optimizer, saved))


def fsdp1_strategy(
    process_layout: ProcessLayout, device: torch.device, args: TrainingArguments, model: nn.Module
) -> FSDP1Strategy:
    """Return the FSDP version 1 strategy of a run."""
    assert process_layout.fsdp is not None, "the strategy is FSDP"
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(args.mixed_precision)
    return FSDP1Strategy(process_layout, device, process_layout.fsdp, dtype)
