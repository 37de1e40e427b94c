"""Parameters split in place into DTensors, by FSDP version 2, tensor parallelism or both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.utils.hooks import RemovableHandle

from hf_compat.arguments.deepspeed import uses_deepspeed
from hf_compat.arguments.fsdp import FsdpSettings
from hf_compat.arguments.parallelism import ParallelSizes, world_size_problem
from hf_compat.arguments.releases import resolve_semantics
from hf_compat.checkpoint import distributed_files, names, states, weights
from hf_compat.checkpoint.background import CheckpointFile, Put, as_it_is
from hf_compat.engine.internals.loops import is_fitting
from hf_compat.engine.internals.strategies import set_up_with_mesh
from hf_compat.engine.process_layout import LaunchedEnvironment, ProcessLayout, with_mesh
from hf_compat.engine.rank_mesh import TENSOR_PARALLEL, has_replicas, sharding_mesh
from hf_compat.engine.ring_attention import context_parallel_limits, drop_masks
from hf_compat.engine.strategies.base import ModelStrategy
from hf_compat.engine.strategies.sharding import broadcast_from_rank0, is_split, reshard, shard_model, split_model
from hf_compat.errors import ModelError
from hf_compat.model_facts import presharded_size

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from hf_compat.arguments import TrainingArguments


_EVALUATED_WEIGHTS = (
    "`optim`: {name} has other weights in evaluations. With FSDP 2, as in transformers, the first batch after an "
    "evaluation that no save follows still has the evaluated ones of what stays gathered: the head and the last norm. "
    "Set `TrainingArguments(semantics='corrected')` to gather the trained ones."
)


class DeviceMeshStrategy(ModelStrategy, ModelParallelStrategy):
    """Shards the model's parameters in place as DTensors, once: later runs use the sharded model.

    Args:
        process_layout: Rank, world size and the sizes of the device mesh.
        device: The device of this rank.
        shard: Shards a model in place over the device mesh of the layout; does nothing with a model that it has
            sharded before. None: ``from_pretrained`` has sharded it, and its ``save_pretrained`` communicates.
        saves_sharded: Whether checkpoints contain each rank's shards; otherwise full state dicts.
        keeps_evaluated: Whether training goes on with parameters that an evaluation has gathered, as in transformers.
    """

    def __init__(
        self,
        process_layout: ProcessLayout,
        device: torch.device,
        *,
        shard: Callable[[nn.Module, DeviceMesh], None] | None,
        saves_sharded: bool,
        keeps_evaluated: bool,
    ) -> None:
        super().__init__(
            data_parallel_size=process_layout.data_parallel_size,
            tensor_parallel_size=process_layout.sizes.tp,
            save_distributed_checkpoint=saves_sharded,
        )
        self.cluster_environment = LaunchedEnvironment(process_layout.launch, process_layout.environment)
        self.gathers_weights, self.copy_of_weights = True, as_it_is
        self.saves_sharded_weights = saves_sharded
        self.saves_on_every_rank = shard is None
        self._launch = process_layout.launch
        self._device = device
        self._mesh = process_layout.mesh
        self._shard, self._keeps_evaluated = shard, keeps_evaluated
        self._context_size = process_layout.sizes.cp
        self._hooks: list[RemovableHandle] = []

    def setup_environment(self) -> None:
        """Set up the process group with the device mesh that the run's layout has."""
        assert self._mesh is not None, "made with the layout of such a strategy"
        set_up_with_mesh(self, self._mesh)

    def setup(self, pl_trainer: pl.Trainer) -> None:
        """Shard the model, in evaluations too; in a fit, pass it to the run and create the optimizer."""
        assert self.accelerator is not None, "set by the trainer"
        module: Any = self.lightning_module
        self.accelerator.setup(pl_trainer)
        assert self.device_mesh is not None, "created with the process group"
        if self._shard is not None:
            self._shard(module.model, self.device_mesh)
        if self._context_size > 1:
            if problems := [*context_parallel_limits(self._context_size, module.model)]:
                raise ModelError("\n  ".join(problems))
            self._hooks += drop_masks(module.model)
        if pl_trainer.state.fn is TrainerFn.FITTING:
            if self._shard is None:
                self._hooks += _keep_equal(module.model, self._average_gradient)
            self.model = module.model
            module.run.take_wrapper(module.model)
            self.setup_optimizers(pl_trainer)
        self.setup_precision_plugin()

    def setup_optimizers(self, pl_trainer: pl.Trainer) -> None:
        """Create the optimizer, which updates parameter by parameter if those are on several meshes."""
        module: Any = self.lightning_module
        reshard(module.model)  # a forward pass of the user's may have gathered what the optimizer is to update
        super().setup_optimizers(pl_trainer)
        for optimizer in self.optimizers:
            _disable_fused_updates(optimizer)

    def _average_gradient(self, parameter: Tensor) -> None:
        if self.ends_update:  # averaging what a window has accumulated is the same as averaging each batch
            gradient: Any = parameter.grad
            distributed.all_reduce(gradient)
            gradient /= distributed.get_world_size()

    def teardown(self) -> None:
        """Tear down, and leave later forward and backward passes of the model as they are."""
        while self._hooks:
            self._hooks.pop().remove()
        super().teardown()

    def on_validation_end(self) -> None:
        """Free the parameters that the evaluation gathered, unless training goes on with them."""
        module: Any = self.lightning_module
        if not (self._keeps_evaluated and is_fitting(module.trainer)):
            reshard(module.model)
        elif isinstance(module.model, FSDPModule):
            for name in (type(each).__name__ for each in self.optimizers if callable(getattr(each, "eval", None))):
                module.run.warn_once(_EVALUATED_WEIGHTS.format(name=name))

    on_test_end = on_validation_end

    def without_sync(self, model: nn.Module) -> AbstractContextManager[Any] | None:
        """Return a context in which gradients are not reduced over the data-parallel ranks, and stay unsharded.

        Of a model that ``from_pretrained`` has sharded, they are reduced within each replica all the same.
        """
        if not hasattr(model, "set_requires_gradient_sync"):
            return None
        assert self._mesh is not None, "made with the layout of such a strategy"
        return _without_sync(model, within_replicas=self._shard is not None or not has_replicas(self._mesh))

    def clip_grad_norm(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float) -> Tensor:
        """Clip the total norm of the gradients of ``parameters`` to ``max_norm``; return it before clipping, ``()``."""
        clipped = [parameter for parameter in parameters if parameter.grad is not None]
        grouped = _meshes(parameter.grad for parameter in clipped if parameter.grad is not None)
        norms = [get_total_norm(gradients, norm_type) for gradients in grouped.values() or ([],)]
        norms = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
        norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms), norm_type)
        clip_grads_with_norm_(clipped, max_norm, norm, foreach=None if len(norms) == 1 else False)
        return norm

    def full_state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Return the full state dict of ``model`` on the CPU on rank 0, an empty one on other ranks."""
        state: dict[str, Any] = distributed_files.full_tensors(
            model.state_dict(keep_vars=True), keeps=self._launch.rank == 0
        )
        # transformers gathers and saves tied parameters of FSDP under each of their names.
        return distributed_files.untied(state) if isinstance(model, FSDPModule) else state

    def load_weights(self, model: nn.Module, folder: str, *, trains_on: bool) -> tuple[list[str], list[str]]:
        """Load a checkpoint's weights, full or sharded, into this rank's shards of ``model``."""
        reshard(model)
        with distributed_files.distributing_on_load(model):  # peft's loading does not support DTensors
            return weights.load_weights(model, folder, trains_on=trains_on)

    def save_sharded_weights(self, model: nn.Module, folder: str, put: Put) -> None:
        """Save this rank's shards of ``model`` to ``folder``."""
        path = Path(folder, names.SHARDED_WEIGHTS_NAME)
        distributed_files.save({"model": model.state_dict()}, path, put)

    def save_optimizer(self, optimizer: Optimizer, folder: str, put: Put, *, saves_common: bool) -> None:
        """Save the optimizer's state dict, full or sharded, in accelerate's format.

        With a full state dict the weights are saved a second time, in the file that transformers resumes from; it does
        not resume with a model that ``from_pretrained`` has sharded.
        """
        module: Any = self.lightning_module
        reshard(module.model)
        state = states.optimizer_state_by_name(optimizer, module.model)
        if self.saves_sharded_weights:
            distributed_files.save({"optimizer": state}, Path(folder, names.SHARDED_OPTIMIZER_NAME), put)
            return
        saves_common = saves_common and self._launch.rank == 0
        full = distributed_files.full_tensors(state, keeps=self._launch.rank == 0)
        if saves_common:
            put(CheckpointFile(torch.save, full, Path(folder, names.FULL_OPTIMIZER_NAME), copy=as_it_is))
        if self._shard is None:
            return
        del full  # before the next file's content is gathered
        resumable = states.weights_for_resuming(module.model, self.full_state_dict(module.model))
        if saves_common:
            path = Path(folder, names.FULL_FSDP_WEIGHTS_NAME)
            put(CheckpointFile(torch.save, resumable, path, copy=as_it_is))

    def load_optimizer(self, optimizer: Optimizer, folder: str) -> None:
        """Load this rank's part of the state in ``folder``, full or sharded, saved with any strategy."""
        module: Any = self.lightning_module
        reshard(module.model)
        states.load_optimizer_state(optimizer, module.model, Path(folder))
        _disable_fused_updates(optimizer)

    def abandon(self, model: nn.Module) -> None:
        """Wait for what the pass of ``model`` has exchanged, free the parameters it has gathered, drop gradients."""
        model.zero_grad()  # those of the parameters that are gathered at this moment
        if isinstance(model, FSDPModule):
            with suppress(AttributeError):  # before the first pass, in which torch creates what is reset
                model.reset_iter_state()
        model.zero_grad()


@contextmanager
def _without_sync(model: Any, *, within_replicas: bool) -> Iterator[None]:
    (model.set_requires_gradient_sync if within_replicas else model.set_requires_all_reduce)(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def _keep_equal(model: nn.Module, average: Callable[[Tensor], None]) -> list[RemovableHandle]:
    """Give the trainable parameters that every rank has whole, such as adapters, the values of rank 0.

    Args:
        model: The model.
        average: Averages the gradient of a parameter over the ranks; called after each backward pass.

    Returns:
        The hooks that call it.
    """
    whole: list[Any] = [item for item in model.parameters() if item.requires_grad and not isinstance(item, DTensor)]
    for parameter in whole:
        distributed.broadcast(parameter.data, src=0)
    return [parameter.register_post_accumulate_grad_hook(average) for parameter in whole]


def _meshes(tensors: Iterable[Tensor]) -> dict[DeviceMesh | None, list[Tensor]]:
    """Return the tensors by the device mesh they are distributed over, plain ones under None."""
    grouped: dict[DeviceMesh | None, list[Tensor]] = {}
    for tensor in tensors:
        grouped.setdefault(tensor.device_mesh if isinstance(tensor, DTensor) else None, []).append(tensor)
    return grouped


def _disable_fused_updates(optimizer: Optimizer) -> None:
    """Disable torch's foreach and fused kernels of groups with parameters on several meshes, which they do not take."""
    for group in optimizer.param_groups:
        if len(_meshes(group["params"])) > 1:
            group.update({switch: False for switch in ("foreach", "fused") if switch in group})


# Models that `from_pretrained(distributed_config=...)` has sharded: by FSDP 2, tensor or expert parallelism.


def presharded_strategy(
    process_layout: ProcessLayout, device: torch.device, args: TrainingArguments, model: nn.Module
) -> DeviceMeshStrategy:
    """Return the strategy of a model that ``from_pretrained`` has sharded."""
    corrected = resolve_semantics(args.semantics).corrected
    return DeviceMeshStrategy(process_layout, device, shard=None, saves_sharded=False, keeps_evaluated=not corrected)


def presharded_layout(
    layout: ProcessLayout, model: nn.Module, args: TrainingArguments, strategy: object
) -> ProcessLayout:
    """Return ``layout`` with the device mesh over which ``from_pretrained`` has sharded ``model``; every rank calls it.

    Args:
        layout: The ranks, and what arguments and keywords request.
        model: The model.
        args: The training arguments.
        strategy: The user's keyword ``strategy`` of ``lightning.Trainer``.

    Raises:
        ModelError: If the model is a pipeline, or the arguments request that it is sharded once more, or otherwise.
    """
    stages = presharded_size(model, "pp_size")
    if stages > 1:
        raise ModelError(
            f"`model`: pipeline parallelism (`pp_size={stages}` of its `distributed_config`) is for inference. "
            "Load it with `tp_size` or `fsdp_size` to train it."
        )
    sizes = ParallelSizes(
        dp_replicate=presharded_size(model, "dp_replicate_size"),
        dp_shard=presharded_size(model, "fsdp_size"),
        tp=presharded_size(model, "tp_size"),
    )
    requested = {
        "`fsdp`": layout.fsdp is not None,
        "`deepspeed`": uses_deepspeed(args),
        "`strategy` of `lightning`": strategy != "auto",
        f"`parallelism_config` with {layout.sizes}": layout.mesh is not None and layout.sizes != sizes,
    }
    twice = [name for name, is_requested in requested.items() if is_requested]
    if twice:
        raise ModelError(
            f"`model`: `from_pretrained` has sharded it already, with {sizes} of its `distributed_config`, which "
            f"contradicts {' and '.join(twice)}. Remove the latter, or load the model without `distributed_config`."
        )
    if problem := world_size_problem(sizes, layout.launch.world_size):
        raise ModelError(f"`model`: {problem}")
    layout = replace(layout, strategy="presharded")
    return with_mesh(layout, sizes, args.device) if layout.mesh is None else layout


# Tensor parallelism: matrices split over consecutive ranks, and parameters sharded over data-parallel ranks.


def tensor_parallel_strategy(
    process_layout: ProcessLayout, device: torch.device, args: TrainingArguments, model: nn.Module
) -> DeviceMeshStrategy:
    """Return the tensor-parallel strategy of a run.

    It splits the model by its plan: parameters in the plan are DTensors, the others are replicated. With a
    data-parallel size above 1 all are sharded too, as with FSDP version 2.
    """
    dtype = torch.bfloat16 if args.mixed_precision == "bf16" else None

    def split(model: nn.Module, mesh: DeviceMesh) -> bool:
        if is_split(model):
            return False
        broadcast_from_rank0(model, device, upcast=dtype is not None)
        split_model(model, mesh[TENSOR_PARALLEL])
        return sharding_mesh(mesh).size() > 1

    settings = process_layout.fsdp or FsdpSettings(version=2)
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
    return _sharding_strategy(process_layout, device, args, settings, precision, split)


# FSDP version 2: the model's parameters sharded over ranks by torch's `fully_shard`.


def fsdp2_strategy(
    process_layout: ProcessLayout, device: torch.device, args: TrainingArguments, model: nn.Module
) -> DeviceMeshStrategy:
    """Return the FSDP version 2 strategy of a run."""
    settings = process_layout.fsdp
    assert settings is not None, "the strategy is FSDP"
    dtype = computing_dtype(args.mixed_precision, device)
    # As accelerate: units return the dtype that they compute in, the loss included, and no autocast is around them.
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype, output_dtype=dtype)
    return _sharding_strategy(
        process_layout, device, args, settings, precision, lambda model, mesh: not isinstance(model, FSDPModule)
    )


def _sharding_strategy(
    process_layout: ProcessLayout,
    device: torch.device,
    args: TrainingArguments,
    settings: FsdpSettings,
    precision: MixedPrecisionPolicy,
    prepare: Callable[[nn.Module, DeviceMesh], bool],
) -> DeviceMeshStrategy:
    """Return the strategy that shards a model by FSDP 2 if ``prepare`` says so, which is called with it first."""
    corrected = resolve_semantics(args.semantics).corrected

    def shard(model: nn.Module, mesh: DeviceMesh) -> None:
        if prepare(model, mesh):
            shard_model(
                model, settings, mesh=sharding_mesh(mesh), device=device, precision=precision, keeps_masks=corrected
            )

    return DeviceMeshStrategy(
        process_layout,
        device,
        shard=shard,
        saves_sharded=settings.state_dict_type != "full",
        keeps_evaluated=not corrected,
    )


def computing_dtype(mixed_precision: str, device: torch.device) -> torch.dtype | None:
    """Return the dtype of mixed precision; None without it, and for float16 on the CPU, which computes in float32."""
    if mixed_precision == "fp16" and device.type == "cpu":
        return None
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(mixed_precision)
