"""Parameters split in place into DTensors, by FSDP version 2, tensor parallelism or both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.utils.hooks import RemovableHandle

from hf_compat.checkpoint import distributed_files, dtensors, names, optimizer_states, weights
from hf_compat.checkpoint.background import CheckpointFileWriter
from hf_compat.engine.clusters import LaunchedEnvironment
from hf_compat.engine.internals.strategies import set_up_with_mesh
from hf_compat.engine.parallel_mesh import has_replicas
from hf_compat.engine.process_layout import ProcessLayout
from hf_compat.engine.ring_attention import context_parallel_limits, drop_masks
from hf_compat.engine.strategies.base import ModelStrategy
from hf_compat.engine.strategies.fsdp.sharding import reshard
from hf_compat.errors import ModelError

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["DeviceMeshStrategy"]


class DeviceMeshStrategy(ModelStrategy, ModelParallelStrategy):
    """Shards the model's parameters in place as DTensors, once: later runs use the sharded model.

    Args:
        process_layout: Rank, world size and the sizes of the device mesh.
        device: The device of this rank.
        shard: Shards a model in place over the device mesh of the layout; does nothing with a model that it has
            sharded before. None: ``from_pretrained`` has sharded it, and its ``save_pretrained`` communicates.
        saves_sharded: Whether checkpoints contain each rank's shards; otherwise full state dicts.
    """

    def __init__(
        self,
        process_layout: ProcessLayout,
        device: torch.device,
        *,
        shard: Callable[[nn.Module, DeviceMesh], None] | None,
        saves_sharded: bool,
    ) -> None:
        super().__init__(
            data_parallel_size=process_layout.data_parallel_size,
            tensor_parallel_size=process_layout.sizes.tp,
            save_distributed_checkpoint=saves_sharded,
        )
        self.cluster_environment = LaunchedEnvironment(process_layout.launch, process_layout.environment)
        self.gathers_weights = self.copies_weights = True
        self.saves_sharded_weights = saves_sharded
        self.saves_on_every_rank = shard is None
        self._launch = process_layout.launch
        self._device = device
        self._mesh = process_layout.mesh
        self._shard = shard
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
        """Free the parameters that the evaluation gathered, since no backward pass follows that would."""
        module: Any = self.lightning_module
        reshard(module.model)

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
        norms = [get_total_norm(gradients, norm_type) for gradients in grouped.values()]
        norms = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
        norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms), norm_type)
        clip_grads_with_norm_(clipped, max_norm, norm, foreach=None if len(norms) == 1 else False)
        return norm

    def full_state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Return the full state dict of ``model`` on the CPU on rank 0, an empty one on other ranks."""
        state: dict[str, Any] = dtensors.full_tensors(model.state_dict(keep_vars=True), keeps=self._launch.rank == 0)
        # transformers gathers and saves tied parameters of FSDP under each of their names.
        return dtensors.untied(state) if isinstance(model, FSDPModule) else state

    def load_weights(self, model: nn.Module, folder: str, *, trains_on: bool) -> tuple[list[str], list[str]]:
        """Load a checkpoint's weights, full or sharded, into this rank's shards of ``model``."""
        reshard(model)
        with dtensors.distributing_on_load(model):  # peft's loading does not support DTensors
            return weights.load_weights(model, folder, trains_on=trains_on)

    def save_sharded_weights(self, model: nn.Module, folder: str, *, file_writer: CheckpointFileWriter) -> None:
        """Save this rank's shards of ``model`` to ``folder``."""
        path = Path(folder, names.SHARDED_WEIGHTS_NAME)
        distributed_files.save({"model": model.state_dict()}, path, file_writer=file_writer)

    def save_optimizer(
        self, optimizer: Optimizer, folder: str, *, file_writer: CheckpointFileWriter, saves_common: bool
    ) -> None:
        """Save the optimizer's state dict, full or sharded, in accelerate's format.

        With a full state dict the weights are saved a second time, in the file that transformers resumes from; it does
        not resume with a model that ``from_pretrained`` has sharded.
        """
        module: Any = self.lightning_module
        reshard(module.model)
        state = optimizer_states.by_name(optimizer, module.model)
        if self.saves_sharded_weights:
            distributed_files.save(
                {"optimizer": state}, Path(folder, names.SHARDED_OPTIMIZER_NAME), file_writer=file_writer
            )
            return
        saves_common = saves_common and self._launch.rank == 0
        full = dtensors.full_tensors(state, keeps=self._launch.rank == 0)
        if saves_common:
            file_writer(torch.save, full, Path(folder, names.FULL_OPTIMIZER_NAME))
        if self._shard is None:
            return
        del full  # before the next file's content is gathered
        resumable = optimizer_states.weights_for_resuming(module.model, self.full_state_dict(module.model))
        if saves_common:
            file_writer(torch.save, resumable, Path(folder, names.FULL_FSDP_WEIGHTS_NAME))

    def load_optimizer(self, optimizer: Optimizer, folder: str) -> None:
        """Load this rank's part of the state in ``folder``, full or sharded, saved with any strategy."""
        module: Any = self.lightning_module
        reshard(module.model)
        optimizer_states.load(optimizer, module.model, Path(folder))
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
