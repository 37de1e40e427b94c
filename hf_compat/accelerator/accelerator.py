"""``Accelerator``: the members of accelerate's, on a Lightning run."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from hf_compat.accelerator import preparing
from hf_compat.accelerator.plugins import FixedSetting, LoaderSettings, ProjectSettings, SettingsObject, refused_member
from hf_compat.accelerator.preparing import GradientState, PreparedOptimizer, PreparedSchedule
from hf_compat.arguments.accelerator_config import AcceleratorConfig
from hf_compat.arguments.releases import Semantics
from hf_compat.checkpoint.weights import save_safetensors
from hf_compat.data.loader import DataParallelLayout, PreparedDataLoader, prepare_dataloader
from hf_compat.data.skipping import skip_batches
from hf_compat.distributed import collectives
from hf_compat.distributed.launch import Launch
from hf_compat.distributed.process_state import DistributedType, ProcessState, RunState
from hf_compat.engine.moving import has_device_map
from hf_compat.engine.precision import ForwardMixedPrecision, set_scaler, without_autocast
from hf_compat.engine.rank_mesh import CONTEXT_PARALLEL
from hf_compat.engine.ring_attention import shared_sequences
from hf_compat.engine.strategies.base import ModelStrategy
from hf_compat.errors import NotSupportedError
from hf_compat.memory import free_memory
from hf_compat.model_facts import is_compiled, unwrap_model
from hf_compat.nested import Nested
from hf_compat.optim.prepared import load_on_device, unwrap_optimizer

if TYPE_CHECKING:
    from torch.amp import GradScaler
    from torch.distributed.device_mesh import DeviceMesh

    from hf_compat.engine.backend import LightningBackend
    from hf_compat.engine.module import HFModule
    from hf_compat.engine.process_layout import ProcessLayout

# `accelerator.save` and `accelerator.save_model`: files beside the checkpoints, written once.


def save_object(value: object, path: str | os.PathLike[str], *, safe_serialization: bool) -> None:
    """Save ``value`` by ``torch.save``; with ``safe_serialization`` a dict of tensors as safetensors.

    Raises:
        CheckpointError: If safetensors cannot hold ``value``.
    """
    if safe_serialization:
        save_safetensors(value, path, of="`accelerator.save(obj, ..., safe_serialization=True)`: `obj`")
    else:
        torch.save(value, path)


def save_shards(
    state_dict: dict[str, Any], folder: str | os.PathLike[str], *, max_shard_size: int | str, safe_serialization: bool
) -> None:
    """Save ``state_dict`` to ``folder``, in files of at most ``max_shard_size``, with an index if there are several."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    save_torch_state_dict(state_dict, str(folder), max_shard_size=max_shard_size, safe_serialization=safe_serialization)


# Gathering outputs of a batch over ranks, without the duplicated samples of a last batch.


def gather_outputs(
    data: Any, layout: ProcessLayout, state: GradientState, *, of_parts: bool, use_gather_object: bool = False
) -> Any:
    """Return ``data`` of all ranks that have other data; of the last batch without duplicated samples.

    Args:
        data: Tensors, however nested, or a list of other objects.
        layout: The ranks.
        state: Says whether the batch is the last, and how many of its samples are no duplicates.
        of_parts: Whether ranks that share sequences have data of their parts; otherwise theirs is the same.
        use_gather_object: Gather tensors as a list of objects too, if shapes differ.

    References:
        As in accelerate, duplicates are kept for a dataset without length and for tensors without dimensions.
    """
    by_object = use_gather_object or not collectives.has_only_tensors(data)
    gather = collectives.gather_objects if by_object else collectives.gather
    data = gather(data, layout.loss_group if of_parts else layout.data_parallel_group)
    if not state.end_of_dataloader or (remainder := state.remainder) <= 0:
        return data
    parts = layout.sizes.cp if of_parts else 1
    cut = functools.partial(_first_samples, count=remainder, ranks=layout.data_parallel_size, parts=parts)
    try:
        return cut(data) if by_object else collectives.map_tensors(cut, data)
    except (IndexError, TypeError):
        return data


def _first_samples(rows: Any, *, count: int, ranks: int, parts: int) -> Any:
    """Return the rows of the first ``count`` samples, sample by sample, with a row for each part of it.

    Args:
        rows: A tensor or a list: those of each rank, each part of it, each sample.
        count: Samples to keep.
        ranks: Data-parallel size.
        parts: Ranks with parts of the same samples.
    """
    if parts == 1:
        return rows[:count]
    places = torch.arange(len(rows)).view(ranks, parts, -1).transpose(1, 2).reshape(-1)[: count * parts].tolist()
    return [rows[place] for place in places] if isinstance(rows, list) else rows[places]


class _LoaderSetting:
    """A setting of ``dataloader_config`` as an attribute of the accelerator."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, accelerator: Accelerator | None, owner: type) -> Any:
        return self if accelerator is None else getattr(accelerator.dataloader_config, self._name)

    def __set__(self, accelerator: Accelerator, value: Any) -> None:
        setattr(accelerator.dataloader_config, self._name, value)


class Accelerator(ProcessState):
    """The process and its run, by accelerate's names.

    Every documented member of accelerate's ``Accelerator`` is there, or is an error that says what to use instead
    (``hf_compat.accelerator.plugins``).

    Args:
        launch: Rank and world size.
        state: Device, ranks, precision and plugins.
        config: How loaders are sharded over the ranks; its settings are attributes too.
        backend: The Trainer's backend.
        data_seed: Seed of the order of samples. Default: torch's initial seed.
        semantics: The release that is reproduced. Default: the newest, with none of its flags.

    Attributes:
        data_parallel_size: Number of ranks that see different batches.
        data_parallel_rank: Data-parallel rank of this process.
        state: Device, ranks, precision and plugins.
        dataloader_config: How loaders are prepared; changes apply to those prepared later.
        gradient_state: Whether the current backward pass ends an update step, and the current loader.
        trackers: Trackers of accelerate's that ``log`` and ``end_training`` call; empty, a script may add its own.
    """

    ao_recipe_handler = FixedSetting()
    ddp_handler = FixedSetting()
    delayed_fp8_autocast = FixedSetting()
    device_placement = FixedSetting()
    fp8_backend = FixedSetting()
    fp8_enabled = FixedSetting()
    fp8_recipe_handler = FixedSetting()
    has_fp8_handler = FixedSetting()
    init_handler = FixedSetting()
    log_with = FixedSetting()
    msamp_recipe_handler = FixedSetting()
    rng_types = FixedSetting()
    scaler_handler = FixedSetting()
    step_scheduler_with_optimizer = FixedSetting()
    te_recipe_handler = FixedSetting()
    dataloader_config = SettingsObject(LoaderSettings)
    project_configuration = SettingsObject(ProjectSettings)
    autocast_handler: Any = None
    """accelerate's ``AutocastKwargs`` for :meth:`autocast` and :meth:`prepare_model`; None for its defaults."""
    profile_handler: Any = None
    """accelerate's ``ProfileKwargs`` for :meth:`profile`; None for torch's defaults."""

    def __init__(
        self,
        launch: Launch,
        state: RunState,
        config: AcceleratorConfig,
        backend: LightningBackend,
        data_seed: int | None = None,
        *,
        semantics: Semantics = Semantics(),  # noqa: B008 - a frozen value
    ) -> None:
        super().__init__(state.device, launch, state.deepspeed_plugin, state.fsdp_plugin is not None)
        self.state = state
        self.data_parallel_size = backend.process_layout.data_parallel_size
        self.data_parallel_rank = backend.process_layout.data_parallel_rank
        self.dataloader_config = LoaderSettings.of(config, data_seed)
        self.project_configuration = ProjectSettings()
        self._backend = backend
        self._semantics = semantics
        self.gradient_state = GradientState(backend, config.gradient_accumulation_kwargs or {})
        self.trackers: list[Any] = []
        self.step = 0
        self.flag_tensor: Tensor | None = None
        self._custom_objects: list[Any] = []
        self._forget_prepared()

    def _forget_prepared(self) -> None:
        """Empty the lists of what is prepared, which copies of upstream's loops and libraries read by these names."""
        self._models: list[nn.Module] = []
        self._optimizers: list[Any] = []
        self._schedulers: list[PreparedSchedule] = []
        self._dataloaders: list[PreparedDataLoader] = []
        self._held: tuple[nn.Module | None, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_models": [], "_optimizers": [], "_schedulers": [], "_dataloaders": [], "_held": None}

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):  # the error of a property's own
            return object.__getattribute__(self, name)
        raise refused_member(name)

    # ---- facts ----

    @property
    def mixed_precision(self) -> str:
        """The mixed precision of the forward pass: ``"no"``, ``"bf16"`` or ``"fp16"``."""
        return self.state.mixed_precision

    @property
    def multi_device(self) -> bool:
        """Whether there are several ranks with a GPU each, and neither FSDP nor DeepSpeed."""
        return self.distributed_type == DistributedType.MULTI_GPU

    @property
    def is_fsdp2(self) -> bool:
        """Whether FSDP version 2 shards the model."""
        return self.state.is_fsdp2

    @property
    def is_composable_parallelism_enabled(self) -> bool:
        """The same, by accelerate's other name."""
        return self.is_fsdp2

    @property
    def parallelism_config(self) -> Any:
        """Accelerate's ``ParallelismConfig``; None without one."""
        return self.state.parallelism_config

    @property
    def torch_device_mesh(self) -> DeviceMesh | None:
        """The device mesh, with accelerate's names of dimensions; None without a ``ParallelismConfig``."""
        return self.state.device_mesh

    @property
    def data_parallel_shard_rank(self) -> int:
        """Rank of this process among those over which one replica's parameters are sharded."""
        return self.data_parallel_rank % self._backend.process_layout.sizes.dp_shard

    @property
    def tensor_parallel_rank(self) -> int:
        """Rank of this process among those that see the same batches."""
        return self.process_index % self._backend.process_layout.sizes.tp

    @property
    def should_save_model(self) -> bool:
        """Whether this process writes files of a model that is not sharded."""
        return self.parallelism_config is not None or self.is_local_main_process

    split_batches = _LoaderSetting()
    dispatch_batches = _LoaderSetting()
    even_batches = _LoaderSetting()
    use_seedable_sampler = _LoaderSetting()
    non_blocking = _LoaderSetting()
    use_stateful_dataloader = _LoaderSetting()

    @property
    def project_dir(self) -> str | None:
        """Folder of the project; None unless a script sets it in ``project_configuration``."""
        return self.project_configuration.project_dir

    @property
    def logging_dir(self) -> str | None:
        """Folder of the project's logs; None unless a script sets it in ``project_configuration``."""
        return self.project_configuration.logging_dir

    @property
    def save_iteration(self) -> int:
        """0: the Trainer numbers its checkpoints by the update step."""
        return int(self.project_configuration.iteration)

    # ---- the current run ----

    @property
    def strategy(self) -> ModelStrategy:
        """The strategy of the current or last run."""
        return self._backend.strategy

    @property
    def sync_gradients(self) -> bool:
        """Whether the current backward pass ends an update step."""
        return self._backend.strategy.ends_update

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self._backend.strategy.ends_update = value

    @property
    def gradient_accumulation_steps(self) -> int:
        """1, as in transformers, whose Trainer accumulates gradients itself; a script's own loop may set another."""
        return self.gradient_state.num_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value: int) -> None:
        self.gradient_state.plugin_kwargs["num_steps"] = value

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the last optimizer step was skipped, because of an infinite gradient."""
        for optimizer in self._optimizers:
            if isinstance(optimizer, PreparedOptimizer) and optimizer.step_was_skipped:
                return True
        return getattr(self._backend.precision, "step_was_skipped", False) or self._backend.strategy.step_was_skipped

    @property
    def scaler(self) -> GradScaler | None:
        """The gradient scaler of all runs, None without fp16."""
        return self._backend.scaler

    @scaler.setter
    def scaler(self, value: GradScaler | None) -> None:
        set_scaler(self._backend.precision, value)

    @property
    def has_lomo_optimizer(self) -> bool:
        """Whether the run's optimizer updates parameters in the backward pass."""
        return self._backend.trains and _fused_backward(self._backend.module) is not None

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Run the backward pass of ``loss``, scaled with fp16.

        With a ``learning_rate``, an optimizer that updates parameters in the backward pass runs it with that rate.
        """
        learning_rate: float | None = None
        if kwargs:
            if not self._backend.traits.has_engine:
                kwargs.pop("scale_wrt_gas", None)
            learning_rate = kwargs.pop("learning_rate", None)
        steps = self.gradient_accumulation_steps
        if steps != 1 and not self._backend.traits.has_engine:  # an engine divides by its own
            loss = loss / steps
        trains, fused = self._backend.trains, None
        if trains and learning_rate is not None and self.scaler is None:
            fused = _fused_backward(self._backend.module)
        if fused is not None and learning_rate is not None:
            fused(loss, learning_rate)
        elif not trains:
            torch.autograd.backward(loss if self.scaler is None else self.scaler.scale(loss), **kwargs)
        else:
            self._backend.strategy.backward(loss, None, **kwargs)

    def clip_grad_norm_(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip the total norm of the gradients of ``parameters`` to ``max_norm``; return it before clipping, ``()``."""
        self.unscale_gradients()
        return self._backend.strategy.clip_grad_norm(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Iterable[Tensor], clip_value: float) -> None:
        """Clip each gradient of ``parameters`` to between ``-clip_value`` and ``clip_value``."""
        self.unscale_gradients()
        torch.nn.utils.clip_grad_value_(parameters, clip_value)

    def unscale_gradients(self, optimizer: Optimizer | Iterable[Optimizer] | None = None) -> None:
        """Unscale the gradients of ``optimizer`` with fp16, by default those of all that are prepared, the run's too.

        Those of the run's are unscaled already where it clips them, and stay as they are.
        """
        if self.scaler is None:
            return
        given = self._optimizers if optimizer is None else optimizer
        done = getattr(self._backend.precision, "unscaled", None)
        for item in [given] if isinstance(given, Optimizer) else given:
            inner = item.optimizer if isinstance(item, PreparedOptimizer) else unwrap_optimizer(item)
            if inner is not done:
                self.scaler.unscale_(inner)

    def lomo_backward(self, loss: Tensor, learning_rate: float) -> None:
        """Run the backward pass of ``loss`` in which LOMO updates the parameters with ``learning_rate``."""
        self.backward(loss, learning_rate=learning_rate)

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """Return a context in which gradients are not synchronised, unless ``sync_each_batch`` is set."""
        strategy = self._backend.strategy
        return (None if strategy.syncs_each_batch else strategy.without_sync(model)) or nullcontext()

    @staticmethod
    @contextmanager
    def trigger_sync_in_backward(model: nn.Module) -> Iterator[None]:
        """Context in which a backward pass synchronises gradients, though its forward pass ran under ``no_sync``."""
        if not isinstance(model, DistributedDataParallel):
            yield
            return
        before = model.require_backward_grad_sync, model.require_forward_param_sync
        model.require_backward_grad_sync = model.require_forward_param_sync = True
        model.reducer.prepare_for_backward([])
        try:
            yield
        finally:
            model.require_backward_grad_sync, model.require_forward_param_sync = before

    @contextmanager
    def accumulate(self, *models: nn.Module) -> Iterator[None]:
        """Context of a batch in a loop of the script's own, in which gradients of ``models`` may not be synchronised.

        Every ``gradient_accumulation_steps``-th ends an update step, and so does the last one of a loader.
        """
        state = self.gradient_state
        self.step = 0 if state.sync_with_dataloader and state.end_of_dataloader else self.step + 1
        self.sync_gradients = self.step % state.num_steps == 0
        with ExitStack() as stack:
            for model in () if self.sync_gradients else models:
                stack.enter_context(self.no_sync(model))
            yield

    # ---- collectives over the ranks that see different batches, or different parts of their sequences ----

    def gather(self, tensor: Nested) -> Any:
        """Return the tensors of all ranks with other data, concatenated along dim 0; shapes are equal on all ranks."""
        layout = self._backend.process_layout
        return tensor if layout.launch.world_size == 1 else collectives.gather(tensor, layout.loss_group)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Return ``input_data`` of all ranks with other data; of the last batch without duplicated samples.

        Args:
            input_data: Tensors, however nested, or a list of other objects.
            use_gather_object: Gather tensors as a list of objects too, if shapes differ.

        References:
            As in accelerate, duplicates are kept for a dataset without length and for tensors without dimensions.
        """
        layout, state = self._backend.process_layout, self.gradient_state
        return gather_outputs(input_data, layout, state, of_parts=True, use_gather_object=use_gather_object)

    def pad_across_processes(self, tensor: Nested, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Return ``tensor`` padded along ``dim`` to the maximum over the ranks with other data."""
        group = self._backend.process_layout.loss_group
        return collectives.pad_across_processes(tensor, dim, pad_index, pad_first, group)

    def reduce(self, tensor: Nested, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Return ``tensor`` reduced over the ranks with other data.

        Args:
            tensor: Tensors, however nested, of equal shapes on all ranks.
            reduction: ``"sum"``, ``"mean"`` or ``"max"``.
            scale: Has no effect; in accelerate only on TPUs.
        """
        return collectives.reduce(tensor, reduction, self._backend.process_layout.loss_group)

    def broadcast(self, tensor: Nested, from_process: int = 0) -> Any:
        """Return ``tensor`` of rank ``from_process``."""
        return collectives.broadcast(tensor, from_process)

    def set_trigger(self) -> None:
        """Set this rank's flag, which :meth:`check_trigger` looks for."""
        self.flag_tensor = torch.tensor(1, device=self.device)

    def check_trigger(self) -> bool:
        """Return whether any rank has set its flag, and clear all flags; every rank has to call it."""
        flag = torch.tensor(0, device=self.device) if self.flag_tensor is None else self.flag_tensor
        found = bool(collectives.reduce(flag, "sum") >= 1)  # over all ranks, not the data-parallel ones alone
        self.flag_tensor = torch.tensor(0, device=self.device)
        return found

    # ---- models, loaders, optimizers ----

    def prepare(self, *objects: Any, device_placement: Iterable[bool | None] | None = None) -> Any:
        """Return ``objects`` prepared for the run.

        Loaders yield this rank's batches; models are moved, run under autocast and are wrapped; optimizers and
        schedules step where an update step ends.

        Args:
            *objects: Loaders, models, optimizers and schedules; anything else is returned as it is.
            device_placement: For each object whether it is moved. Default: it is.
        """
        moved = [None] * len(objects) if device_placement is None else list(device_placement)
        pairs = list(zip(objects, moved, strict=True))
        # A schedule asks its optimizer, so optimizers come first.
        first = [None if _is_schedule(item) else self._prepare_one(item, moves) for item, moves in pairs]
        prepared = tuple(
            self.prepare_scheduler(item) if _is_schedule(item) else done
            for item, done in zip(objects, first, strict=True)
        )
        return prepared[0] if len(prepared) == 1 else prepared

    def _prepare_one(self, item: object, moves: bool | None) -> object:
        if isinstance(item, DataLoader):
            return self.prepare_data_loader(item, moves)
        if isinstance(item, nn.Module):
            return self.prepare_model(item, moves)
        return self.prepare_optimizer(item, moves) if isinstance(item, Optimizer) else item

    def prepare_data_loader(
        self, data_loader: DataLoader[Any], device_placement: bool | None = None, slice_fn_for_dispatch: object = None
    ) -> PreparedDataLoader:
        """Return a loader of this rank's batches, shuffled by seed and epoch, as ``dataloader_config`` says."""
        if slice_fn_for_dispatch is not None:
            raise NotSupportedError("`slice_fn_for_dispatch` is not supported: yield batches of tensors, or remove it.")
        config = self.dataloader_config
        layout = DataParallelLayout(
            size=self.data_parallel_size,
            rank=self.data_parallel_rank,
            split_batches=config.split_batches,
            even_batches=config.even_batches,
            shards_batches=self._backend.loop_settings.shards_batches,
            tells_epoch=self._semantics.reshuffles_batch_samplers,
            always_tells_dataset=self._semantics.corrected,
            dispatch_batches=config.dispatch_batches,
        )
        prepared = prepare_dataloader(
            data_loader,
            device=None if device_placement is False else self.device,
            data_seed=config.data_seed,
            use_seedable_sampler=config.use_seedable_sampler,
            non_blocking=config.non_blocking,
            layout=layout,
        )
        _add(self._dataloaders, prepared)
        self._backend.loaders.prepared.add(prepared)
        return prepared

    def skip_first_batches(self, dataloader: Iterable[Any], num_batches: int = 0) -> Iterable[Any]:
        """Return a loader of the epoch that ``dataloader`` is at, from batch ``num_batches`` on."""
        rest = skip_batches(dataloader, num_batches)
        if isinstance(rest, PreparedDataLoader) and isinstance(dataloader, PreparedDataLoader):
            rest.iteration = dataloader.iteration
        return rest

    def prepare_optimizer(self, optimizer: Optimizer, device_placement: bool | None = None) -> PreparedOptimizer:
        """Return ``optimizer`` so that it updates only where an update step ends.

        Args:
            optimizer: An optimizer beside the run's own.
            device_placement: Whether it loads its state from the run's device. Default: yes.
        """
        if isinstance(optimizer, PreparedOptimizer):
            return optimizer
        inner: Optimizer = unwrap_optimizer(optimizer)
        if inner is optimizer and device_placement is not False:
            load_on_device(inner, self.device)
        prepared = PreparedOptimizer(inner, self)
        self._optimizers.append(prepared)
        return prepared

    def prepare_scheduler(self, scheduler: Any) -> PreparedSchedule:
        """Return ``scheduler`` so that it steps only where an update step ends, once for each rank."""
        if isinstance(scheduler, PreparedSchedule):
            return scheduler
        besides = [optimizer for optimizer in self._optimizers if isinstance(optimizer, PreparedOptimizer)]
        prepared = PreparedSchedule(scheduler, self, besides)
        self._schedulers.append(prepared)
        return prepared

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Return ``model`` on the run's device, its forward pass under the run's autocast.

        Args:
            model: A model beside the run's own, such as a reference model.
            device_placement: Whether it is moved to the device. Default: yes, but not under FSDP.
            evaluation_mode: Whether it is not trained; a trainable one is wrapped in DDP if there are several
                data-parallel ranks.

        Raises:
            ModelError: If its ``device_map`` has several devices and there are several ranks.
            NotSupportedError: If it is to be trained beside a model that is sharded.
        """
        is_new = not getattr(model, "_is_accelerate_prepared", False)
        if self._backend.traits.shards_model and is_new and not evaluation_mode and preparing.is_trainable(model):
            raise NotSupportedError(
                "`accelerator.prepare_model`: a second trainable model is not supported with FSDP, DeepSpeed or tensor "
                "parallelism. Freeze it, or pass `evaluation_mode=True`."
            )
        prepared = preparing.prepare_model(
            model,
            self.state,
            autocast=self._autocast_of_forward,
            moves=device_placement,
            wraps=self.data_parallel_size > 1 and not evaluation_mode,
            group=self._backend.process_layout.data_parallel_group,
        )
        _add(self._models, model)
        return prepared

    def hold(self, model: nn.Module | None, optimizer: Any = None) -> None:
        """Count the Trainer's own model and optimizer among what is prepared, instead of those held before.

        Args:
            model: The model; the wrapper of a sharded one; None if ``_wrap_model`` has wrapped it instead.
            optimizer: The optimizer; None in an evaluation ahead of a run.
        """
        before, self._held = self._held or (None, None), (model, optimizer)
        others = [each for each in self._models if each is not before[0] and each is not model]
        self._models = others if model is None else [*others, model]
        rest = [each for each in self._optimizers if each is not before[1]]
        self._optimizers = rest if optimizer is None else [*rest, optimizer]

    def verify_device_map(self, model: nn.Module) -> bool:
        """Return whether ``model`` has a ``device_map`` of several entries."""
        return has_device_map(model)

    def unwrap_model(
        self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> nn.Module:
        """Return the model without the wrappers of the strategy, of ``DataParallel`` and, if asked, ``torch.compile``.

        Args:
            model: The wrapped model.
            keep_fp32_wrapper: Whether its forward pass stays under autocast.
            keep_torch_compile: Whether a model with no wrapper but ``torch.compile``'s is returned as it is.
        """
        inner = unwrap_model(model)
        if not keep_fp32_wrapper:
            without_autocast(inner)
        return model if keep_torch_compile and is_compiled(model) and model._orig_mod is inner else inner

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """Return ``model``'s full state dict.

        Args:
            model: The model, wrapped or not; of a sharded one every rank has to call it.
            unwrap: Whether names are those of the model without its wrappers; of a sharded model they always are.
        """
        if not unwrap and not self._backend.traits.shards_model:
            return model.state_dict()
        return self.strategy.full_state_dict(self.unwrap_model(model, keep_torch_compile=False))

    def free_memory(self, *objects: Any) -> list[Any]:
        """Return as many Nones as ``objects``; forget what was prepared, and free unused memory."""
        self._forget_prepared()
        self.step = 0
        free_memory()
        return [None for _ in objects]

    clear = free_memory

    @property
    def has_models(self) -> bool:
        """Whether a model is prepared, the Trainer's or another one, since the last fit has begun."""
        return bool(self._models)

    # ---- precision ----

    @property
    def native_amp(self) -> bool:
        """Whether the forward pass runs under torch's autocast; DeepSpeed casts the model itself."""
        return self._autocast_of_forward is not None

    @property
    def _autocast_of_forward(self) -> Callable[[], AbstractContextManager[Any]] | None:
        """The autocast of the run's forward passes, with ``autocast_handler``; None without mixed precision."""
        precision = self._backend.precision
        if not isinstance(precision, ForwardMixedPrecision):
            return None
        return functools.partial(preparing.autocast_with, self.autocast_handler, precision.autocast_context_manager)

    @contextmanager
    def autocast(self, autocast_handler: Any = None) -> Iterator[None]:
        """Context under the run's autocast, with mixed precision; else one without effect.

        Args:
            autocast_handler: accelerate's ``AutocastKwargs``, or an object with its ``enabled`` and ``cache_enabled``.
        """
        of_forward = self._autocast_of_forward
        with nullcontext() if of_forward is None else preparing.autocast_with(autocast_handler, of_forward):
            yield

    # ---- logs, files, profiles ----

    def log(self, values: dict[str, Any], step: int | None = None, log_kwargs: dict[str, Any] | None = None) -> None:
        """Log ``values`` to each of ``trackers`` on rank 0; the Trainer's own logs go through its ``log``."""
        if self.is_main_process:
            for tracker in self.trackers:
                tracker.log(values, step=step, **(log_kwargs or {}).get(tracker.name, {}))

    def end_training(self) -> None:
        """Finish each of ``trackers``, and leave the process group."""
        for tracker in self.trackers:
            tracker.finish()
        self.destroy_process_group()

    def save(self, obj: object, f: str | os.PathLike[str], safe_serialization: bool = False) -> None:
        """Save ``obj`` to the file ``f`` on rank 0; with ``safe_serialization`` a dict of tensors as safetensors."""
        if self.is_main_process:
            save_object(obj, f, safe_serialization=safe_serialization)

    def save_model(
        self,
        model: nn.Module,
        save_directory: str | os.PathLike[str],
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Save the weights of ``model``, without its configuration, on rank 0; every rank has to call it."""
        state_dict = self.get_state_dict(model)
        if self.is_main_process:
            save_shards(
                state_dict, save_directory, max_shard_size=max_shard_size, safe_serialization=safe_serialization
            )

    @contextmanager
    def profile(self, profile_handler: Any = None) -> Iterator[torch.profiler.profile]:
        """Profile the block by ``torch.profiler``.

        Args:
            profile_handler: accelerate's ``ProfileKwargs``. Default: the attribute of that name.
        """
        handler = profile_handler or self.profile_handler
        profiler = torch.profiler.profile() if handler is None else handler.build()
        with profiler:
            yield profiler
        folder = getattr(handler, "output_trace_dir", None)
        if folder is not None:
            os.makedirs(folder, exist_ok=True)
            profiler.export_chrome_trace(os.path.join(folder, f"profile_{self.process_index}.json"))
            self.wait_for_everyone()

    @contextmanager
    def maybe_context_parallel(
        self,
        buffers: list[Tensor] | None = None,
        buffer_seq_dims: list[int] | None = None,
        no_restore_buffers: set[Tensor] | None = None,
    ) -> Iterator[None]:
        """Context in which this rank has its part of ``buffers``; without context parallelism nothing changes.

        Arguments as in :func:`shared_sequences`.
        """
        layout = self._backend.process_layout
        if layout.mesh is None or layout.sizes.cp == 1:
            yield
            return
        mesh, unrestored = layout.mesh[CONTEXT_PARALLEL], no_restore_buffers or set()
        with shared_sequences(mesh, layout.rotation, buffers or [], buffer_seq_dims or [], unrestored):
            yield


def _add(prepared: list[Any], item: object) -> None:
    """Append ``item``, unless it is in the list; a module or a loader may compare by its contents."""
    if not any(each is item for each in prepared):
        prepared.append(item)


def _is_schedule(item: object) -> bool:
    """Return whether ``item`` is a learning-rate schedule."""
    return isinstance(item, LRScheduler | ReduceLROnPlateau)


def _fused_backward(module: HFModule | None) -> Callable[[Tensor, float], None] | None:
    """Return the backward pass of the run's optimizer, None if it has none."""
    optimizer: Any = None if module is None else module.optimizers(use_pl_optimizer=False)
    return getattr(optimizer, "fused_backward", None)
