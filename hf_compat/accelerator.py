"""``Accelerator``: the members of accelerate's that subclasses of the Trainer use, on a Lightning run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from hf_compat.arguments.accelerator_config import AcceleratorConfig
from hf_compat.arguments.deepspeed.plugin import DeepSpeedPlugin
from hf_compat.data.loader import PreparedDataLoader
from hf_compat.data.preparing import DataParallelLayout, prepare_dataloader
from hf_compat.distributed import collectives
from hf_compat.distributed.launch import Launch
from hf_compat.distributed.process_state import ProcessState
from hf_compat.engine.strategies.base import ModelStrategy
from hf_compat.engine.strategies.one_device import OneDeviceStrategy
from hf_compat.model_facts import unwrap_model
from hf_compat.nested import Nested

if TYPE_CHECKING:
    from torch.amp import GradScaler

    from hf_compat.engine.module import HFModule
    from hf_compat.engine.runtime import Runtime


__all__ = ["Accelerator"]


class Accelerator(ProcessState):
    """The process and its run, by accelerate's names.

    Args:
        device: Device of the model.
        launch: Rank and world size.
        config: How loaders are sharded over the ranks; its settings are attributes too.
        data_seed: Seed of the order of samples. Default: torch's initial seed.
        deepspeed_plugin: The DeepSpeed plugin; None without DeepSpeed.
        is_fsdp: Whether FSDP shards the model.
        runtime: The Trainer's runtime. Default: a single device, or DDP.

    Attributes:
        data_parallel_size: Number of ranks that see different batches.
        data_parallel_rank: Data-parallel rank of this process.
        state: Device, rank and world size.
        gradient_accumulation_steps: 1, as in transformers, whose Trainer accumulates gradients itself.
    """

    gradient_accumulation_steps = 1

    def __init__(
        self,
        device: torch.device,
        launch: Launch,
        config: AcceleratorConfig,
        data_seed: int | None = None,
        *,
        deepspeed_plugin: DeepSpeedPlugin | None = None,
        is_fsdp: bool = False,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(device, launch, deepspeed_plugin, is_fsdp)
        self.state = ProcessState(device, launch, deepspeed_plugin, is_fsdp)
        placement = None if runtime is None else runtime.placement
        self.data_parallel_size = launch.world_size if placement is None else placement.data_parallel_size
        self.data_parallel_rank = launch.rank if placement is None else placement.data_parallel_rank
        self._data_parallel_group = None if placement is None else placement.data_parallel_group
        self.split_batches = config.split_batches
        self.dispatch_batches = config.dispatch_batches
        self.even_batches = config.even_batches
        self.use_seedable_sampler = config.use_seedable_sampler
        self.non_blocking = config.non_blocking
        self._data_seed = data_seed
        self._runtime = runtime
        self._plain_strategy: ModelStrategy = OneDeviceStrategy(device)

    # ---- the current run ----

    @property
    def strategy(self) -> ModelStrategy:
        """The strategy of the current or last run."""
        return self._plain_strategy if self._runtime is None else self._runtime.strategy

    @property
    def sync_gradients(self) -> bool:
        """Whether the current backward pass ends an update step."""
        return self.strategy.ends_update

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self.strategy.ends_update = value

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the last optimizer step was skipped, because of an infinite gradient."""
        return self._runtime is not None and self._runtime.step_was_skipped

    @property
    def scaler(self) -> GradScaler | None:
        """The gradient scaler of the current run, None without fp16."""
        return None if self._runtime is None else self._runtime.scaler

    @property
    def _module(self) -> HFModule | None:
        """The module of the current fit, None outside one."""
        return self._runtime.module if self._runtime is not None and self._runtime.trains else None

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Run the backward pass of ``loss``, scaled with fp16.

        With a ``learning_rate``, an optimizer that updates parameters in the backward pass runs it with that rate.
        """
        kwargs.pop("scale_wrt_gas", None)
        learning_rate = kwargs.pop("learning_rate", None)
        module = self._module
        fused = None if learning_rate is None or self.scaler is not None else _fused_backward(module)
        if fused is not None:
            fused(loss, learning_rate)
        elif module is None:
            torch.autograd.backward(loss, **kwargs)
        else:
            module.manual_backward(loss, **kwargs)

    def clip_grad_norm_(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip the total norm of the gradients of ``parameters`` to ``max_norm``; return it before clipping, ``()``."""
        return self.strategy.clip_grad_norm(parameters, max_norm, norm_type)

    @contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        """Context in which gradients are not synchronised, unless ``sync_each_batch`` is set."""
        with self.strategy.accumulating(model, ends_update=False):
            yield

    @contextmanager
    def accumulate(self, *models: nn.Module) -> Iterator[None]:
        """Do nothing: the Trainer accumulates gradients, so that for accelerate every batch ends an update step."""
        self.sync_gradients = True
        yield

    # ---- collectives over the data-parallel ranks ----

    def gather(self, tensors: Nested) -> Any:
        """Return ``tensors`` of all data-parallel ranks, concatenated along dim 0; shapes are equal on all ranks."""
        return collectives.gather(tensors, self._data_parallel_group)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Return ``input_data`` of all data-parallel ranks; of the last batch without duplicated samples.

        Args:
            input_data: Tensors, however nested, or a list of other objects.
            use_gather_object: Gather tensors as a list of objects too, if shapes differ.

        References:
            As in accelerate, duplicates are kept for a dataset without length and for tensors without dimensions.
        """
        by_object = use_gather_object or not collectives.has_only_tensors(input_data)
        gather = collectives.gather_objects if by_object else collectives.gather
        data = gather(input_data, self._data_parallel_group)
        loader = None if self._runtime is None else self._runtime.loaders.current
        remainder = getattr(loader, "remainder", -1)
        if not getattr(loader, "end_of_dataloader", False) or remainder <= 0:
            return data
        try:
            if by_object:
                return data[:remainder]
            return collectives.map_tensors(lambda tensor: tensor[:remainder], data)
        except (IndexError, TypeError):
            return data

    def pad_across_processes(self, tensor: Nested, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Return ``tensor`` padded along ``dim`` to the maximum over the data-parallel ranks."""
        return collectives.pad_across_processes(tensor, dim, pad_index, pad_first, self._data_parallel_group)

    def reduce(self, tensor: Nested, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Return ``tensor`` reduced over the data-parallel ranks.

        Args:
            tensor: Tensors, however nested, of equal shapes on all ranks.
            reduction: ``"sum"``, ``"mean"`` or ``"max"``.
            scale: Has no effect; in accelerate only on TPUs.
        """
        return collectives.reduce(tensor, reduction, self._data_parallel_group)

    def broadcast(self, tensor: Nested, from_process: int = 0) -> Any:
        """Return ``tensor`` of rank ``from_process``."""
        return collectives.broadcast(tensor, from_process)

    # ---- models and loaders ----

    def prepare(self, *objects: Any, **_: Any) -> Any:
        """Return ``objects`` prepared for the run: loaders yield this rank's batches, models are wrapped.

        Optimizers and schedules are returned unchanged.
        """
        prepared = tuple(self._prepare_one(item) for item in objects)
        return prepared[0] if len(prepared) == 1 else prepared

    def _prepare_one(self, item: object) -> object:
        if isinstance(item, DataLoader):
            return self.prepare_data_loader(item)
        return self.prepare_model(item) if isinstance(item, nn.Module) else item

    def prepare_data_loader(
        self, data_loader: DataLoader[Any], device_placement: bool | None = None
    ) -> PreparedDataLoader:
        """Return a loader of this rank's batches, shuffled by seed and epoch."""
        layout = DataParallelLayout(
            size=self.data_parallel_size,
            rank=self.data_parallel_rank,
            split_batches=self.split_batches,
            even_batches=self.even_batches,
            dispatch_batches=self.dispatch_batches,
        )
        return prepare_dataloader(
            data_loader,
            device=None if device_placement is False else self.device,
            data_seed=self._data_seed,
            use_seedable_sampler=self.use_seedable_sampler,
            non_blocking=self.non_blocking,
            layout=layout,
        )

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Return ``model`` on the run's device; a trainable one in DDP if there are several data-parallel ranks."""
        if device_placement is not False:
            model.to(self.device)
        trains = not evaluation_mode and any(weight.requires_grad for weight in model.parameters())
        if self.data_parallel_size == 1 or not trains or isinstance(model, DistributedDataParallel):
            return model
        devices = None if self.device.type == "cpu" else [self.device]
        return DistributedDataParallel(model, device_ids=devices, process_group=self._data_parallel_group)

    def unwrap_model(self, model: nn.Module, keep_fp32_wrapper: bool = True, **_: Any) -> nn.Module:
        """Return the model without the wrappers of the strategy and of ``torch.compile``."""
        return unwrap_model(model)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """Return ``model``'s full state dict."""
        return self.strategy.full_state_dict(self.unwrap_model(model)) if unwrap else model.state_dict()

    def free_memory(self, *objects: Any) -> list[Any]:
        """Return as many Nones as ``objects``."""
        return [None for _ in objects]

    def print(self, *values: Any, **kwargs: Any) -> None:
        """Print once on each node."""
        if self.is_local_main_process:
            print(*values, **kwargs)  # noqa: T201 - this is accelerate's print


def _fused_backward(module: HFModule | None) -> Callable[[Tensor, float], None] | None:
    """Return the backward pass of the run's optimizer, None if it has none."""
    optimizer: Any = None if module is None else module.optimizers(use_pl_optimizer=False)
    return getattr(optimizer, "fused_backward", None)
