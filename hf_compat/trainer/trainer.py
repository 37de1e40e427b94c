"""``Trainer``: the class of transformers, on a ``lightning.Trainer``.

It has every method of transformers' class that may be called or overridden. What only one method does is in that
method; the state of a training run is in ``hf_compat/trainer/run.py``.
"""

from __future__ import annotations

import copy
import itertools
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset, Sampler

from hf_compat import metrics as metric_files
from hf_compat.arguments import derived, process_facts
from hf_compat.arguments.problems import InitSignature
from hf_compat.arguments.releases import Semantics, effective_args, resolve_semantics
from hf_compat.callbacks import CallbackHandler
from hf_compat.checkpoint import names, publish, rotation, states
from hf_compat.checkpoint.writer import CheckpointWriter
from hf_compat.data import collators
from hf_compat.data.collators import default_collator_for
from hf_compat.data.loader import check_is_loader, ignoring_signals, move_to_device
from hf_compat.data.samplers import TRANSFORMERS_SEED, balanced_sampler, eval_sampler, train_sampler
from hf_compat.engine.backend import LightningBackend
from hf_compat.engine.keywords import lightning_callbacks
from hf_compat.engine.lightning_callbacks import callback_problems, monitor_warnings
from hf_compat.engine.moving import move_model
from hf_compat.engine.run_settings import effective_settings
from hf_compat.engine.strategies.base import replicated
from hf_compat.errors import (
    DataError,
    MissingWeightsError,
    ModelError,
    ModelInitError,
    SearchError,
    TrainerSetupError,
)
from hf_compat.memory import TrainerMemoryTracker, empty_cache
from hf_compat.metrics import has_length
from hf_compat.model_facts import (
    count_parameters,
    is_in_training_mode,
    number_of_arguments,
    parameters_of,
)
from hf_compat.nested import MAPPINGS, SEQUENCES, rebuild
from hf_compat.optim import model_patches, prepared
from hf_compat.optim.losses import check_loss
from hf_compat.optim.optimizers import optimizer_class_and_kwargs
from hf_compat.optim.schedulers import steps_on_metric
from hf_compat.overriding import (
    WarnOnce,
    call_override,
    check_returned,
    explain_missing,
    is_overridden,
    refuse_overrides_never_called,
)
from hf_compat.plan import RunPlan, build_plan
from hf_compat.plan.plan import samples_per_update_step, to_values
from hf_compat.seeding import seed_run, seed_worker, seed_worker_and_transforms
from hf_compat.special_tokens import align_special_tokens
from hf_compat.state import TrainerControl, TrainerState
from hf_compat.trainer import (
    construction,
    evaluation,
    loaders,
    model_files,
    optimization,
    progress,
    searching,
    transformers_4,
)
from hf_compat.trainer.construction import announce_setup, check_is_model
from hf_compat.trainer.diagnosis import explain_backward, note_inputs, noting
from hf_compat.trainer.evaluation import EvaluationSession, LegacySession, add_speed, forward, ignored_outputs, loop_of
from hf_compat.trainer.launching import train_in_processes
from hf_compat.trainer.loss import (
    NO_CONTEXT,
    Shared,
    check_is_context,
    check_is_named,
    computing_loss,
    divide_scalar,
    has_cpu_autocast,
    is_scaled,
    join_sequences,
    keywords_of_backward,
    loss_of,
    loss_of_shared_sequences,
    parts_of_count,
    prepare_context,
    refuse_empty_batch,
    scored_labels,
    shared_count,
    smoothed_loss,
    split_sequences,
    store_past,
)
from hf_compat.trainer.model_files import Pusher, write_model_card
from hf_compat.trainer.optimization import optimizer_of, scheduler_of
from hf_compat.trainer.outputs import EvalLoopOutput, PredictionOutput, TrainOutput, nested_detach
from hf_compat.trainer.resume import (
    compare_with_checkpoint,
    init_training_state,
    load_callback_state,
    optimizer_settings,
    warn_of_other_settings,
)
from hf_compat.trainer.run import (
    CounterAttribute,
    counts_of,
    current_run,
    keep_counter_attributes,
    new_run,
    prepare_strategy,
)
from hf_compat.trainer.run_warnings import warn_of_negative_plateau
from hf_compat.trainer.saving import checked_output_dir
from hf_compat.upstream_names import CountsCounterparts

if TYPE_CHECKING:
    from concurrent.futures import Future

    import lightning.pytorch as pl
    from huggingface_hub import CommitInfo
    from torch.optim.lr_scheduler import LRScheduler

    from hf_compat.accelerator import Accelerator
    from hf_compat.arguments.enums import HPSearchBackend
    from hf_compat.arguments.training_arguments import TrainingArguments
    from hf_compat.engine.module import HFModule
    from hf_compat.hub import PushInProgress
    from hf_compat.trainer.progress import RunCounters
    from hf_compat.trainer.run import TrainingRun
    from hf_compat.trainer.searching import BestRun, Trial


logger = logging.getLogger(__name__)


class Trainer(metaclass=CountsCounterparts):
    """Trains, evaluates and predicts as transformers' ``Trainer`` does, on a ``lightning.Trainer``.

    Args:
        model: A ``PreTrainedModel``, a peft model or any ``nn.Module``. Its forward returns the loss, in a dict as
            ``loss`` or as the first value of a tuple.
        args: The arguments, ours or transformers'. Default: ``TrainingArguments("tmp_trainer")``.
        data_collator: A list of samples to a batch. Default: with padding if ``processing_class`` is a tokenizer.
        train_dataset: The training dataset; one without length needs ``max_steps``.
        eval_dataset: The evaluation dataset, or a dict of several.
        processing_class: A tokenizer or processor, saved with the model.
        model_init: Returns a new model; called here and at each ``train``, instead of passing ``model``.
        compute_loss_func: ``(outputs, labels, num_items_in_batch)`` to the loss of a batch.
        compute_metrics: An ``EvalPrediction`` to a dict of metrics. Or a ``torchmetrics`` metric or collection, which
            is updated batch by batch, so that ``evaluate`` does not accumulate predictions.
        callbacks: ``TrainerCallback`` classes or instances, and Lightning callbacks.
        optimizers: Optimizer and schedule; None for those that ``args`` name.
        optimizer_cls_and_kwargs: An optimizer class and its keywords; created with the model's parameter groups.
        preprocess_logits_for_metrics: ``(logits, labels)`` to the predictions of a batch.
        tokenizer: The name of ``processing_class`` before transformers 4.46.
        lightning: Keywords of the ``lightning.Trainer``, as in the page "Lightning's keywords"; one that says what a
            field of ``args`` says sets it. With the strategies ``"ddp_spawn"``, ``"ddp_fork"`` and ``"ddp_notebook"``,
            ``train`` starts processes, which exist during training only.
        **unknown: There are no others: of one that belongs elsewhere an error says where.

    Attributes:
        lightning_trainer: The ``lightning.Trainer`` of the current or last run.

    Raises:
        ArgumentsError: If arguments contradict each other or the datasets.
        HubError: If ``push_to_hub`` is set and the repository cannot be created.
        ModelError: If the model cannot be trained.
        TrainerSetupError: If constructor arguments exclude each other.
        UnknownArgumentError: If there is no such argument.
    """

    args: TrainingArguments
    semantics: Semantics
    """The transformers release that is emulated, and whether its known errors are corrected."""
    accelerator: Accelerator
    model: Any
    model_wrapped: Any
    model_init: Callable[..., nn.Module] | None
    processing_class: Any
    data_collator: Any
    train_dataset: Any
    eval_dataset: Any
    compute_loss_func: Callable[..., Tensor] | None
    compute_metrics: Callable[..., dict[str, Any]] | None
    preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None
    optimizer: Optimizer | None
    lr_scheduler: LRScheduler | None
    optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None
    callback_handler: CallbackHandler
    control: TrainerControl
    state: TrainerState
    label_names: list[str]
    label_smoother: Any
    can_return_loss: bool
    model_accepts_loss_kwargs: bool
    loss_is_scaled_for_ga: bool | None = None
    """Whether ``compute_loss`` averages over the window already; None: depends on the model."""
    gather_function: Callable[[Any], Any]
    place_model_on_device: bool = True
    is_in_train: bool = False
    is_fsdp_enabled: bool = False
    is_deepspeed_enabled: bool = False
    is_fsdp_xla_enabled: bool = False
    is_fsdp_xla_v1_enabled: bool = False
    is_fsdp_xla_v2_enabled: bool = False
    is_tp_enabled: bool = False
    is_distributed_loading_by_transformers: bool = False
    is_model_parallel: bool = False
    use_apex: bool = False
    use_cpu_amp: bool = False
    deepspeed: Any = None
    neftune_noise_alpha: float | None = None
    neftune_hook_handle: Any = None
    hub_model_id: str | None = None
    push_in_progress: PushInProgress | None = None

    hp_name: Callable[..., str] | None = None
    hp_space: Callable[[Any], dict[str, Any]]
    """A trial to its hyperparameters; with Ray, called once with None for the search space."""
    hp_search_backend: Any = None
    compute_objective: Callable[[dict[str, float]], float | list[float]]
    objective: Any = None
    current_gradient_accumulation_steps: int = 1
    jit_compilation_time: float
    model_preparation_time: float
    run_plan: RunPlan | None = None

    _train_batch_size = CounterAttribute("train_batch_size")
    _trial = CounterAttribute("trial")
    _past = CounterAttribute("past")
    _signature_columns = CounterAttribute("signature_columns")
    _eval_dataloaders = CounterAttribute("eval_loaders")
    _memory_tracker = CounterAttribute("memory")
    _created_lr_scheduler = CounterAttribute("created_schedule")
    _loss_shifts_labels = CounterAttribute("loss_shifts_labels")
    _tr_loss = CounterAttribute("tr_loss")
    _total_loss_scalar = CounterAttribute("total_loss_scalar")
    _globalstep_last_logged = CounterAttribute("last_logged_step")
    _initial_global_step = CounterAttribute("initial_step")
    _initial_num_input_tokens_seen = CounterAttribute("initial_tokens")
    current_flos = CounterAttribute("flos")

    lightning_backend: LightningBackend
    training_run: TrainingRun | None = None
    run_counters: RunCounters
    checkpoint_writer: CheckpointWriter
    hub_pusher: Pusher
    warn_once: WarnOnce

    __signature__ = InitSignature()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Return a new instance; raise for a keyword that the constructor of a subclass does not take.

        Not in a wrapper of ``__init__``, which every traceback from a constructor would show.

        Raises:
            UnknownArgumentError: If there is one; it says where it belongs.
        """
        construction.refuse_keywords(cls, args, kwargs)
        new = super().__new__
        return new(cls) if new is object.__new__ else new(cls, *args, **kwargs)

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_loss_func: Callable[..., Tensor] | None = None,
        compute_metrics: Callable[..., dict[str, Any]] | None = None,
        callbacks: Sequence[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        *,
        tokenizer: Any = None,
        lightning: Mapping[str, Any] | None = None,
        **unknown: Never,
    ) -> None:
        construction.refuse_unknown(type(self), unknown, args)
        refuse_overrides_never_called(type(self))
        self.processing_class = construction.processing_class_of(processing_class, tokenizer)
        settings = effective_settings(args, lightning, has_eval_data=eval_dataset is not None)
        self.args, self.semantics = settings.args, resolve_semantics(settings.args.semantics)
        self.warn_once, self.checkpoint_writer, self.hub_pusher = WarnOnce(), CheckpointWriter(), Pusher()
        self.training_run = None
        self.lightning_backend = LightningBackend(settings, callbacks, model)
        if model is not None:
            construction.use_presharded(self, model)
        process_facts.set_log_level(self.args)
        seed_run(self.args)
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.data_collator = data_collator or default_collator_for(self.processing_class)
        self.compute_loss_func, self.compute_metrics = compute_loss_func, compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.neftune_noise_alpha = self.args.neftune_noise_alpha
        self.optimizer, self.lr_scheduler = construction.optimizer_and_schedule(optimizers)
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self.model, self.model_init = model, model_init
        self._memory_tracker, self._eval_dataloaders = TrainerMemoryTracker(self.args.skip_memory_metrics), {}
        self._memory_tracker.start("init")
        self.create_accelerator_and_postprocess()
        self._validate_args()
        announce_setup(self, has_args=args is not None)
        self.model = self.model_wrapped = construction.first_model(self, model)
        self._train_batch_size = self.args.train_batch_size
        if not self.semantics.applies_liger_in_train:
            model_patches.apply_if_set(self.model, self.args)
        construction.inspect_model(self)
        construction.set_up_callbacks(self, callbacks)
        if self.args.push_to_hub:
            self.init_hf_repo()
        derived.make_output_folder(self.args)
        self.control = TrainerControl()
        self.state = construction.initial_state(self)
        self.control = self.callback_handler.on_init_end(self.args, self.state, self.control)
        if self.semantics.writes_use_cache and getattr(self.model, "config", None) is not None:
            self.model.config.use_cache = self.args.use_cache
        self._memory_tracker.stop_and_update_metrics(stage="init")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        keep_counter_attributes(cls)

    if not TYPE_CHECKING:
        __getattr__ = explain_missing

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "training_run": None, "run_counters": copy.copy(counts_of(self))}

    # ---- facts ----

    @property
    def lightning_trainer(self) -> pl.Trainer | None:
        """The ``lightning.Trainer`` of the current or last run."""
        return self.lightning_backend.pl_trainer

    @property
    def lightning_module(self) -> HFModule | None:
        """The module of the current or last run, with the model as ``model``; None before the first."""
        return self.lightning_backend.module

    @property
    def tokenizer(self) -> Any:
        """The processing class, by its name before transformers 4.46."""
        return transformers_4.by_old_name(self.processing_class)

    @tokenizer.setter
    def tokenizer(self, value: Any) -> None:
        self.processing_class = transformers_4.by_old_name(value)

    def is_local_process_zero(self) -> bool:
        """Return whether this is local rank 0."""
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        """Return whether this is rank 0."""
        return self.args.process_index == 0

    def get_tp_size(self) -> int:
        """Return the tensor-parallel size."""
        return self.lightning_backend.process_layout.sizes.tp

    def get_cp_size(self) -> int:
        """Return the context-parallel size: the number of ranks that share each sequence, and its attention."""
        return self.lightning_backend.process_layout.sizes.cp

    def get_sp_size(self) -> int:
        """Return the sequence-parallel size: the number of ranks that share each sequence."""
        sequences = self.lightning_backend.process_layout.sequences
        return 1 if sequences is None else sequences.size

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        """Return the samples per update step, over all ranks and the window."""
        batches = self.accelerator.data_parallel_size // self.get_sp_size()  # at a time
        return int(self._train_batch_size * args.gradient_accumulation_steps * batches)

    def get_num_trainable_parameters(self) -> int:
        """Return the number of trainable parameters."""
        return count_parameters(self.model, trainable_only=True)

    # ---- construction ----

    def create_accelerator_and_postprocess(self) -> None:
        """Create ``accelerator``, which has the members of accelerate's that subclasses use."""
        args, process_layout = self.args, self.lightning_backend.process_layout
        self.accelerator = construction.build_accelerator(args, self.lightning_backend, self.semantics)
        self.is_deepspeed_enabled = args.deepspeed_plugin is not None
        self.is_fsdp_enabled = process_layout.fsdp is not None
        self.is_tp_enabled = process_layout.plan_size > 1
        self.gather_function = partial(
            self.accelerator.gather_for_metrics, use_gather_object=args.eval_use_gather_object
        )

    def _validate_args(self) -> None:
        """Check that constructor and training arguments are supported together."""
        construction.validate(self)

    def call_model_init(self, trial: Trial | None = None) -> nn.Module:
        """Return a new model from ``model_init``, called with ``trial`` if it takes an argument.

        Raises:
            ModelInitError: If it takes more than one argument, or returns no model.
        """
        if self.model_init is None:
            raise ModelInitError("`model_init=None`: pass a function that returns a model to the Trainer.")
        if isinstance(self.model_init, nn.Module):
            name = type(self.model_init).__name__
            raise ModelInitError(
                f"`model_init`: {name} is a model, not a function that returns one. Pass it as `model`."
            )
        if not callable(self.model_init):
            raise ModelInitError(
                f"`model_init={self.model_init!r}` cannot be called. Pass a function that returns a model."
            )
        arguments = number_of_arguments(self.model_init)
        if arguments > 1:
            raise ModelInitError(f"model_init should have 0 or 1 argument, the trial, but it has {arguments}.")
        model = self.model_init(trial) if arguments else self.model_init()
        if model is None:
            raise ModelInitError("model_init should not return None: return the model.")
        try:
            check_is_model(model, "`model_init` returned what is not a model")
        except ModelError as error:
            raise ModelInitError(str(error)) from None
        return model

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        """Move ``model`` to ``device``, unless it is bitsandbytes' or was loaded with a ``device_map``."""
        move_model(model, device)

    def _wrap_model(
        self, model: nn.Module, training: bool = True, dataloader: Iterable[Any] | None = None
    ) -> nn.Module:
        """Return ``model`` in ``DataParallel`` with several GPUs in this process; the strategy wraps it otherwise."""
        is_wrapped = self.accelerator.unwrap_model(model, keep_torch_compile=False) is not model
        return model if is_wrapped or self.args.n_gpu < 2 else replicated(model)

    def _align_special_tokens(self) -> None:
        """Copy the processing class' special tokens to the model's configurations."""
        align_special_tokens(self.model, self.processing_class, self.semantics)

    def _activate_neftune(self, model: nn.Module) -> nn.Module:
        """Add NEFTune's noise to the embeddings of ``model``; return the model."""
        assert self.neftune_noise_alpha is not None, "called only if it is set"
        self.neftune_hook_handle = model_patches.activate_neftune(model, self.neftune_noise_alpha)
        return model

    def _deactivate_neftune(self, model: nn.Module) -> None:
        """Undo ``_activate_neftune``."""
        if self.neftune_hook_handle is None:
            raise ModelError("Neftune is not activated: call `_activate_neftune` first.")
        model_patches.deactivate_neftune(model, self.neftune_hook_handle)
        self.neftune_hook_handle = None

    # ---- callbacks and logs ----

    def add_callback(self, callback: Any) -> None:
        """Append a callback, an instance or a class; Lightning's take part from the next run on."""
        backend, found = self.lightning_backend, lightning_callbacks([callback])
        if not found:
            self.callback_handler.add_callback(callback)
            return
        problems = callback_problems(
            found, effective_args(self.args), shards_model=backend.traits.shards_model, keywords=backend.keywords
        )
        if problems:
            raise TrainerSetupError("\n  ".join(problems))
        backend.callbacks += found
        for text in monitor_warnings(backend.callbacks):
            self.warn_once(text)

    def pop_callback(self, callback: Any) -> Any:
        """Remove the first callback that is, or is an instance of, ``callback``; return it, None if there is none."""
        found = self.lightning_backend.pop_callback(callback)
        return self.callback_handler.pop_callback(callback) if found is None else found

    def remove_callback(self, callback: Any) -> None:
        """Remove the first callback that is, or is an instance of, ``callback``."""
        if self.lightning_backend.pop_callback(callback) is None:
            self.callback_handler.remove_callback(callback)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add epoch and tokens since ``start_time`` to ``logs``, append them to ``log_history``, fire ``on_log``."""
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
        if self.args.include_num_input_tokens_seen != "no":
            logs["num_input_tokens_seen"] = seen = self.state.num_input_tokens_seen
            if start_time is not None:
                before = self.run_counters.initial_tokens if self.semantics.speed_counts_session_tokens else 0
                logs.update(metric_files.speed_metrics("train", start_time, num_tokens=seen - before))
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)

    def metrics_format(self, metrics: dict[str, float]) -> dict[str, Any]:
        """Return ``metrics`` as they are printed."""
        return metric_files.metrics_format(metrics)

    def log_metrics(self, split: str, metrics: dict[str, float]) -> None:
        """Print ``metrics`` of ``split``, one per line, on rank 0."""
        metric_files.log_metrics(self, split, metrics)

    def save_metrics(self, split: str, metrics: dict[str, float], combined: bool = True) -> None:
        """Write ``metrics`` to ``<split>_results.json`` and, if ``combined``, into ``all_results.json``."""
        metric_files.save_metrics(self, split, metrics, combined)

    def save_state(self) -> None:
        """Write ``trainer_state.json`` into the output folder."""
        metric_files.save_state(self)

    # ---- data ----

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the train loader, shuffled by seed and epoch; a DataError if there is no dataset."""
        if self.train_dataset is None:
            raise DataError("`train_dataset=None`: training requires a train_dataset. Pass it to the Trainer.")
        return self._get_dataloader(
            dataset=self.train_dataset,
            description="Training",
            batch_size=self._train_batch_size,
            sampler_fn=self._get_train_sampler,
            is_training=True,
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Return the evaluation loader of a dataset, of one in ``self.eval_dataset`` by name, or of that itself."""
        size, sampler = self.args.eval_batch_size, self._get_eval_sampler
        load = partial(self._get_dataloader, description="Evaluation", batch_size=size, sampler_fn=sampler)
        key, dataset = loaders.named_dataset(eval_dataset, self.eval_dataset)
        if not self.args.dataloader_persistent_workers:
            return load(dataset=dataset, dataloader_key=key)
        return loaders.kept_loader(self.run_counters.eval_loaders, key, dataset, load)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        """Return the loader of ``test_dataset``, for ``predict``."""
        return self._get_dataloader(
            dataset=test_dataset,
            description="test",
            batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
        )

    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable[[Any], Sampler[Any] | None] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> DataLoader[Any]:
        """Return a prepared loader of ``dataset`` without unused columns."""
        loaders.check_has_samples(dataset, description)
        collator = self.data_collator
        if collators.is_arrow_dataset(dataset):
            dataset = self._remove_unused_columns(dataset, description=description)
        else:
            collator = self._get_collator_with_removed_columns(collator, description=description)
            check_returned(callable(collator), collator, "_get_collator_with_removed_columns", "a collator")
        args = effective_args(self.args)
        settings = {"collate_fn": collator, **derived.loader_keywords(args)}
        if isinstance(dataset, IterableDataset):
            settings["batch_size"] = batch_size
            if is_training:
                loaders.warn_of_own_order(args.train_sampling_strategy)
        else:
            name = "train_dataset" if is_training else "eval_dataset"
            sampler = call_override(sampler_fn, name, dataset) if sampler_fn is not None else None
            methods = {"_get_train_sampler": self._get_train_sampler, "_get_eval_sampler": self._get_eval_sampler}
            loaders.check_is_sampler(sampler, sampler_fn, **methods)
            settings |= loaders.batching(sampler, batch_size, drop_last=args.dataloader_drop_last)
            if is_training:
                if not self.semantics.corrected:
                    loaders.warn_of_copied_generators(dataset, settings["num_workers"], self.warn_once)
                settings["worker_init_fn"] = partial(
                    seed_worker_and_transforms if self.semantics.corrected else seed_worker,
                    num_workers=settings["num_workers"],
                    rank=self.accelerator.data_parallel_rank,
                )
        loader: DataLoader[Any] = self.accelerator.prepare(DataLoader(dataset, **settings))
        if not is_training and settings.get("drop_last"):
            loaders.warn_of_dropped_rows(loader, description, self.warn_once)
        return loader

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[Any] | None:
        """Return the sampler of ``train_sampling_strategy``; None for a dataset without length."""
        args = effective_args(self.args)
        strategy, steps = args.train_sampling_strategy, args.gradient_accumulation_steps
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if dataset is not None and not has_length(dataset):
            loaders.warn_of_own_order(strategy)
            return None
        size, measured = args.train_batch_size, loaders.length_keywords(self.processing_class, args)
        if strategy == "batch_rebalance":
            is_fixed = self.semantics.balances_by_fixed_seed
            if is_fixed:
                self.warn_once(loaders.FIXED_SEED.format(args.per_device_train_batch_size))
            return balanced_sampler(
                dataset,
                self.run_counters.train_batch_size if args.auto_find_batch_size else size,
                steps,
                ranks=(self.accelerator.data_parallel_rank, self.accelerator.data_parallel_size),
                drop_last=args.dataloader_drop_last,
                seed=TRANSFORMERS_SEED if is_fixed else derived.order_seed(args),
                **measured,
            )
        return train_sampler(dataset, strategy, size * steps, **measured)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[Any] | None:
        """Return the evaluation sampler: sequential, or by length if training groups by length."""
        args = effective_args(self.args)
        return eval_sampler(
            eval_dataset,
            args.train_sampling_strategy,
            args.eval_batch_size,
            **loaders.length_keywords(self.processing_class, args),
            seed=derived.order_seed(args) if self.semantics.eval_grouping_has_own_generator else None,
            world_size=args.world_size,
        )

    def _set_signature_columns_if_needed(self) -> None:
        """Set ``_signature_columns`` to the columns that the model takes."""
        if self._signature_columns is None:
            self._signature_columns = collators.signature_columns(self.model, self.label_names)

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        """Return ``dataset`` without unused columns."""
        if not self.args.remove_unused_columns:
            return dataset
        self._set_signature_columns_if_needed()
        return collators.remove_unused_columns(dataset, self._signature_columns or [], description)

    def _get_collator_with_removed_columns(
        self, data_collator: Callable[[list[Any]], Any], description: str | None = None
    ) -> Callable[[list[Any]], Any]:
        """Return a collator that removes unused columns first."""
        if not self.args.remove_unused_columns:
            return data_collator
        self._set_signature_columns_if_needed()
        columns, model_name = self._signature_columns or [], type(self.model).__name__
        return collators.RemoveColumnsCollator(data_collator, columns, collators.logger, model_name, description)

    def num_examples(self, dataloader: Any) -> int:
        """Return the number of samples in ``dataloader``, estimated from its batches for a dataset without length."""
        dataset = getattr(dataloader, "dataset", None)
        if has_length(dataset):
            return len(dataset)
        return len(dataloader) * self.args.per_device_train_batch_size

    # ---- optimizer and schedule ----

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Create ``optimizer`` and ``lr_scheduler`` for ``num_training_steps`` update steps."""
        self.create_optimizer()
        call_override(self.create_scheduler, num_training_steps=num_training_steps, optimizer=self.optimizer)

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Set and return ``optimizer``: the one passed in, or ``args.optim`` with and without weight decay."""
        optimization.create_optimizer(self, model)
        return self.optimizer  # type: ignore[return-value]  # which is set now

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        """Set and return ``lr_scheduler``, the ``optimizer``'s for ``num_training_steps``, unless one was passed in."""
        optimization.create_scheduler(self, num_training_steps, optimizer)
        return self.lr_scheduler  # type: ignore[return-value]  # which is set now

    @staticmethod
    def get_optimizer_cls_and_kwargs(
        args: TrainingArguments, model: nn.Module | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return class and keywords of the optimizer that ``args.optim`` names."""
        return optimizer_class_and_kwargs(args, model, semantics=resolve_semantics(args.semantics))

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return the names of parameters with weight decay: all except biases and those of normalisation layers."""
        return prepared.decay_parameter_names(model)

    def get_learning_rates(self) -> list[float]:
        """Return the learning rate of each parameter group."""
        return [group["lr"] for group in optimizer_of(self).param_groups]

    def get_optimizer_group(self, param: str | nn.Parameter | None = None) -> dict[str, Any] | list[Any] | None:
        """Return the parameter group of ``param``, or the parameters of all groups."""
        groups = optimizer_of(self).param_groups
        if param is None:
            return [group["params"] for group in groups]
        return next((group for group in groups if any(item is param for item in group["params"])), None)

    def _get_learning_rate(self) -> float:
        """Return the current learning rate of the first parameter group."""
        scheduler = scheduler_of(self)
        rate: Any = (
            optimizer_of(self).param_groups[0]["lr"] if steps_on_metric(scheduler) else scheduler.get_last_lr()[0]
        )
        return rate.item() if isinstance(rate, Tensor) else rate

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        """Clip the total gradient norm to ``max_grad_norm``; return it before clipping."""
        return self.accelerator.clip_grad_norm_(parameters_of(model), self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | None = None) -> Tensor | float:
        """Return ``grad_norm``; compute it if it is None."""
        return self.accelerator.clip_grad_norm_(model.parameters(), float("inf")) if grad_norm is None else grad_norm

    # ---- training ----

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Trial | None = None,
        ignore_keys_for_eval: list[str] | None = None,
        **kwargs: Any,
    ) -> TrainOutput:
        """Train; return the number of update steps, the mean loss and the final metrics.

        Args:
            resume_from_checkpoint: The checkpoint folder to resume from; True for the newest complete one in
                ``output_dir``; ``"auto"`` for the same if there is one, else from the beginning.
            trial: A trial of a hyperparameter search, passed to ``model_init``.
            ignore_keys_for_eval: Model outputs excluded from the predictions of evaluations during training.
            **kwargs: ``model_path``, the old name of ``resume_from_checkpoint``.

        Raises:
            CheckpointError: If there is no checkpoint to resume from, or it cannot be read.
            DataError: If there is no training dataset.
            ModelError: If the model returns no loss.
        """
        if kwargs:
            resume_from_checkpoint = transformers_4.resume_argument(kwargs, resume_from_checkpoint)
        start = self.lightning_backend.process_layout.start
        if start is not None:
            arguments = {"trial": trial, "ignore_keys_for_eval": ignore_keys_for_eval}
            call = partial(Trainer.train, resume_from_checkpoint=resume_from_checkpoint, **arguments)  # type: ignore[arg-type]
            return train_in_processes(self, start, call)
        with noting(self), new_run(self, trial, ignore_keys_for_eval).begun(resume_from_checkpoint) as run:
            checkpoint, args = run.checkpoint, self.args  # `call_model_init`, or a trial, may have replaced them
            fit = partial(
                self._inner_training_loop,
                args=args,
                resume_from_checkpoint=None if checkpoint is None else checkpoint.path,
                trial=trial,
                ignore_keys_for_eval=ignore_keys_for_eval,
            )
            if args.auto_find_batch_size:
                return run.fit_with_smaller_batches(fit)
            return fit(batch_size=run.counters.train_batch_size)

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: TrainingArguments | None = None,
        resume_from_checkpoint: str | None = None,
        trial: Trial | None = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Run one fit with a per-device batch size of ``batch_size`` and return its result."""
        run = current_run(self)
        run.backend.fit(*run.begin_fit(batch_size, resume_from_checkpoint, trial, ignore_keys_for_eval))
        run.finish_without_epoch()
        return run.output  # type: ignore[return-value]  # None only if an override of `_finalize_training` returns that

    def set_initial_training_values(
        self, args: TrainingArguments, dataloader: DataLoader[Any], total_train_batch_size: int | None = None
    ) -> tuple[Any, ...]:
        """Return a run's numbers for ``dataloader`` and ``total_train_batch_size`` samples; see ``to_values``."""
        batches = len(dataloader) * self.get_sp_size() if has_length(dataloader) else None
        samples = samples_per_update_step(self, args) if total_train_batch_size is None else total_train_batch_size
        examples = self.num_examples(dataloader) if batches else None
        plan = build_plan(args, batches=batches, examples=examples, samples_per_update_step=samples)
        return to_values(plan, batches=batches, epochs_decide=args.max_steps < 0, semantics=self.semantics)

    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: str | None,
        trial: Trial | None,
    ) -> tuple[int, int]:
        """Set ``state``, new or from a checkpoint; return completed epochs, and batches to skip in the next one."""
        checkpoint, size = current_run(self).checkpoint_in(resume_from_checkpoint), self._train_batch_size
        return init_training_state(
            self, checkpoint, size, max_steps, num_update_steps_per_epoch, num_train_epochs, trial
        )

    def compare_trainer_and_checkpoint_args(
        self, training_args: TrainingArguments, trainer_state: TrainerState
    ) -> None:
        """Warn if ``trainer_state``, of the checkpoint, has another batch size or cadence than ``training_args``."""
        compare_with_checkpoint(training_args, trainer_state)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor | int | None]:
        """Return the next ``num_batches`` of ``epoch_iterator``, or fewer, and their number of items on ``device``."""
        batches = list(itertools.islice(epoch_iterator, num_batches))
        return batches, self._get_num_items_in_batch(batches, device)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Tensor | int | None:
        """Return the number of scored labels in ``batch_samples``, ``()``; None if there are none or it is not used."""
        is_used = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        if not batch_samples:
            return None
        first = batch_samples[0]
        if isinstance(first, Tensor) or not (hasattr(first, "__iter__") or hasattr(first, "__contains__")):
            check_is_named(first)
        if "labels" not in first or not is_used:
            return None
        try:
            count = sum(scored_labels(self, batch).ne(-100).sum() for batch in batch_samples)
        except (TypeError, AttributeError):  # labels that are not tensors, as in object detection
            return None
        if isinstance(count, Tensor):
            scored, parts = shared_count(self, count.to(device)), parts_of_count(self)
            return scored / parts if self.semantics.item_count_is_float else scored // parts
        return int(count)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Run forward and backward pass of one batch; return its share of the window's loss, ``()``, detached.

        Args:
            model: The model to train, wrapped.
            inputs: One batch, keyword arguments of the model's forward.
            num_items_in_batch: Scored items in the window.
        """
        context, inputs = prepare_context(self, model, inputs)
        with NO_CONTEXT if context is nullcontext else context():
            args = self.args
            if not is_in_training_mode(model):
                model.train()
            prepared.set_mode(self.optimizer, training=True)
            inputs = self._prepare_inputs(inputs)
            with computing_loss(self):
                try:
                    loss: Tensor = call_override(
                        self.compute_loss, "model inputs", model, inputs, num_items_in_batch=num_items_in_batch
                    )
                except Exception as error:
                    note_inputs(error, self, inputs)
                    raise
            source = f"`{type(self).__name__}.compute_loss`"
            if not isinstance(loss, Tensor):
                check_loss(loss, source)
            returned = loss  # the quotient of one without gradients has other properties
            del inputs
            every = args.torch_empty_cache_steps
            if every is not None and self.state.global_step % every == 0:
                empty_cache()
            if args.n_gpu > 1:
                loss = loss.mean()  # one of each replica
            averages = is_scaled(self, num_items_in_batch)
            if not averages:
                loss = divide_scalar(loss, self.current_gradient_accumulation_steps)
            divisor = args.gradient_accumulation_steps if self.semantics.divides_gradients_twice else 1
            try:
                self.accelerator.backward(
                    loss if divisor == 1 else divide_scalar(loss, divisor), **keywords_of_backward(self)
                )
            except RuntimeError as error:
                explain_backward(source, self.model, returned, error)
                raise
            # What the model itself returned may be memory that its next forward pass writes to, as with CUDA graphs.
            return loss.detach().clone() if averages else loss.detach()

    def _prepare_context_parallel_inputs(self, model: nn.Module, inputs: dict[str, Any]) -> Shared:
        """Return a context for one batch, and the batch; inside, with context parallelism, a rank has its part."""
        shares = self.lightning_backend.process_layout.sizes.cp > 1
        return split_sequences(self, inputs) if shares else (nullcontext, inputs)

    def _prepare_input(self, data: object) -> Any:
        """Return ``data`` with its tensors on the training device, in the dtype of inputs; a mapping is copied.

        Other objects that have a method ``to`` are where the loader has moved them.
        """
        device, dtype = self.args.device, self.lightning_backend.input_dtype(self.args)
        if isinstance(data, Tensor):
            is_cast = dtype is not None and (data.is_floating_point() or data.is_complex())
            return data.to(device=device, dtype=dtype) if is_cast else data.to(device=device)
        if isinstance(data, MAPPINGS):
            stays = dtype is None and not is_overridden(self._prepare_input)  # a plain tensor that is on the device
            return type(data)(  # type: ignore[call-arg]
                {
                    name: value
                    if stays and type(value) is Tensor and value.device == device
                    else self._prepare_input(value)
                    for name, value in data.items()
                }
            )
        if isinstance(data, PackedSequence):  # some of whose tensors stay on the CPU
            return move_to_device(data, device)
        return rebuild(data, map(self._prepare_input, data)) if isinstance(data, SEQUENCES) else data

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return one batch on the training device, with the past state of the previous one as ``mems``.

        Raises:
            DataError: If it is empty.
        """
        inputs = self._prepare_input(inputs)
        if type(inputs) is not dict:
            check_returned(hasattr(inputs, "__len__"), inputs, "_prepare_input", "what it was given, on `args.device`")
        if len(inputs) == 0:
            refuse_empty_batch(self)
        past = getattr(self.run_counters, "past", None)
        if past is not None:
            inputs["mems"] = past
        return self.lightning_backend.precision.convert_input(inputs)  # type: ignore[no-any-return]

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the loss of one batch, ``()``; with ``return_outputs`` also the model's outputs.

        Args:
            model: The model, wrapped.
            inputs: One batch; ``labels`` are removed if a loss function or label smoothing uses them.
            return_outputs: Return ``(loss, outputs)``.
            num_items_in_batch: Scored items in the window, passed to a model or loss function that takes their number.

        Raises:
            ModelError: If the model returns no loss.
        """
        group = self.lightning_backend.strategy.sequence_group
        if group is not None and self.model.training:
            return loss_of_shared_sequences(model, inputs, group, return_outputs=return_outputs)
        if not isinstance(inputs, dict):
            check_is_named(inputs)
        own_loss = self.label_smoother is not None or self.compute_loss_func is not None
        labels = inputs.pop("labels") if own_loss and "labels" in inputs else None
        if self.model_accepts_loss_kwargs and num_items_in_batch is not None:
            inputs = {**inputs, "num_items_in_batch": num_items_in_batch}
        outputs = model(**inputs)
        if getattr(self.args, "past_index", -1) != -1:
            store_past(self, outputs)
        if self.compute_loss_func is not None:
            if labels is None:
                text = "`compute_loss_func` is defined but `labels=None`: batches have no `labels`, it is called with "
                self.warn_once.in_log(logger, f"{text}None.")
            loss = self.compute_loss_func(outputs, labels, num_items_in_batch=num_items_in_batch)
            check_loss(loss, "`compute_loss_func`")
        elif labels is not None:
            loss = smoothed_loss(self, model, outputs, inputs, labels, num_items_in_batch)
        else:
            loss = loss_of(self, outputs, inputs)
        by_count = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        if by_count and num_items_in_batch is not None and effective_args(self.args).average_tokens_across_devices:
            # Gradients are averaged over ranks, the loss over replicas. In place: the outputs have this loss, too.
            loss *= max(self.lightning_backend.process_layout.loss_group_size, self.args.n_gpu)
        return (loss, outputs) if return_outputs else loss

    def compute_loss_context_manager(self) -> ExitStack:
        """Return the context for computing the loss; autocast is around the model's forward already."""
        stack = ExitStack()
        context = self.autocast_smart_context_manager()
        check_is_context(context, "autocast_smart_context_manager")
        if not isinstance(context, nullcontext):
            stack.enter_context(context)
        return stack

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> AbstractContextManager[Any]:
        """Return the autocast of ``compute_loss``, besides that of the forward pass; ``cache_enabled`` is torch's."""
        if has_cpu_autocast(self):
            return torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=bool(cache_enabled))
        return nullcontext()

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Return the floating-point operations of a step with the batch ``inputs``; 0 without an estimate."""
        if not self.semantics.counts_flops_per_token:
            return int(self.model.floating_point_ops(inputs)) if hasattr(self.model, "floating_point_ops") else 0
        facts = self.run_counters.facts_of(self.model)
        if facts.main_input is None or facts.main_input not in inputs:
            return 0
        recounts = self.lightning_backend.traits.recounts_parameters
        return 6 * int(inputs[facts.main_input].numel()) * facts.parameters_outside_embeddings(recounts=recounts)

    def _track_num_input_tokens(self, inputs: dict[str, Any]) -> None:
        """Add the tokens of one batch to ``state.num_input_tokens_seen``, if the arguments say so."""
        if self.args.include_num_input_tokens_seen != "no":
            progress.track_input_tokens(self, inputs, self.warn_once)

    def store_flos(self) -> None:
        """Add the floating-point operations since the last call to ``state.total_flos``."""
        flos = self.run_counters.flos
        if self.lightning_backend.process_layout.launch.world_size > 1:  # summed in float32, as in transformers
            summed = self.accelerator.gather(Tensor([flos]).to(self.args.device)).sum().item()
            flos = summed / self.get_cp_size()  # each rank has counted whole sequences
        self.state.total_flos += flos
        self.run_counters.flos = 0

    def _maybe_log_save_evaluate(
        self,
        tr_loss: Tensor,
        grad_norm: Tensor | float | None,
        model: nn.Module,
        trial: Trial | None,
        epoch: float,
        ignore_keys_for_eval: list[str] | None,
        start_time: float | None = None,
        learning_rate: float | None = None,
    ) -> None:
        """Log, evaluate and save, each if the control says so; ``tr_loss``, summed since the last log, is zeroed."""
        run, metrics = current_run(self), None
        if self.control.should_log:
            run.frozen.warn_of_unfrozen(self)
            if self.state.global_step > self.run_counters.last_logged_step:
                logs = progress.take_logs(self, self.run_counters, tr_loss, grad_norm, learning_rate)
                started = run.progress.start_time if start_time is None else start_time
                call_override(self.log, "logs start_time", logs, started)
                self.lightning_backend.publish_metrics(logs)
        if self.control.should_evaluate:
            metrics = self._evaluate(trial, ignore_keys_for_eval)
            is_best = self._determine_best_metric(metrics=metrics, trial=trial)
            if self.args.save_strategy == "best":
                self.control.should_save = is_best
        if self.control.should_save:
            run.saving.save(model, trial, metrics)

    def _evaluate(
        self, trial: Trial | None, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        """Evaluate, report to a hyperparameter search, and step a metric-based schedule."""
        metrics = current_run(self).evaluate(ignore_keys_for_eval)
        step = self.state.global_step
        call_override(self._report_to_hp_search, "trial step metrics", trial, step, metrics)
        scheduler: Any = self.lr_scheduler
        if steps_on_metric(scheduler) and not skip_scheduler:
            metric = derived.metric_for_best(self.args, metrics)
            warn_of_negative_plateau(scheduler, metric, self.warn_once)
            scheduler.step(metric)
        return metrics

    def _finalize_training(self, trial: Trial | None, num_train_samples: float, start_time: float) -> TrainOutput:
        """Log the final metrics, load the best model and fire ``on_train_end``; return the result."""
        return current_run(self).finalize(num_train_samples, start_time)

    def end(self) -> None:
        """Do nothing: Lightning closes the loggers after each run."""

    # ---- evaluation ----

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Evaluate, log and return the metrics.

        Args:
            eval_dataset: The dataset. Of a dict of datasets each is evaluated, with its key in the metric names.
                Default: the Trainer's ``eval_dataset``.
            ignore_keys: Model outputs excluded from the predictions.
            metric_key_prefix: Prefix of metric names.

        Raises:
            DataError: If there is no dataset.
        """
        given = eval_dataset is not None
        eval_dataset = eval_dataset if given else self.eval_dataset
        if isinstance(eval_dataset, dict):
            metrics: dict[str, float] = {}
            for name, dataset in eval_dataset.items():
                metrics |= call_override(
                    self.evaluate,
                    eval_dataset=dataset if given else name,
                    ignore_keys=ignore_keys,
                    metric_key_prefix=f"{metric_key_prefix}_{name}",
                )
            return metrics
        # Workers that are kept may go on in a run: they ignore its signals from their start.
        with self.run_counters.memory.measure("eval"), ignoring_signals([signal.SIGTERM]):
            loader = self.get_eval_dataloader(eval_dataset)
            check_is_loader(loader, "`get_eval_dataloader`")
            start_time = time.time()
            output: EvalLoopOutput = call_override(
                loop_of(self),
                "dataloader",
                loader,
                description="Evaluation",
                prediction_loss_only=True if self.compute_metrics is None else None,
                ignore_keys=ignore_keys,
                metric_key_prefix=metric_key_prefix,
            )
            add_speed(self, output, metric_key_prefix, start_time)
            if self.lightning_backend.sanity_batches is None:
                self.log(output.metrics)
                self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, output.metrics)
            self.run_counters.memory.stop_and_update_metrics(output.metrics, "eval")
        return output.metrics

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Return predictions, labels and metrics on ``test_dataset``.

        Args:
            test_dataset: The dataset.
            ignore_keys: Model outputs excluded from the predictions.
            metric_key_prefix: Prefix of metric names.

        Returns:
            Arrays of ``(samples, ...)``, padded with -100 on the right if lengths differ.
        """
        with self.run_counters.memory.measure("test"), ignoring_signals([signal.SIGTERM]):
            loader = self.get_test_dataloader(test_dataset)
            check_is_loader(loader, "`get_test_dataloader`")
            start_time = time.time()
            output: EvalLoopOutput = call_override(
                loop_of(self),
                "dataloader",
                loader,
                description="Prediction",
                ignore_keys=ignore_keys,
                metric_key_prefix=metric_key_prefix,
            )
            add_speed(self, output, metric_key_prefix, start_time)
            self.control = self.callback_handler.on_predict(self.args, self.state, self.control, output.metrics)
            self.run_counters.memory.stop_and_update_metrics(output.metrics, "test")
        return PredictionOutput(predictions=output.predictions, label_ids=output.label_ids, metrics=output.metrics)

    def evaluation_loop(
        self,
        dataloader: Iterable[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Return a pass over ``dataloader``, ``description``; see ``predict`` and ``prediction_step``."""
        given = (dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        return evaluation.run_loop(self, EvaluationSession, *given)

    def prediction_loop(
        self,
        dataloader: Iterable[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Return what ``evaluation_loop`` does, as transformers before 4.5; for ``use_legacy_prediction_loop``."""
        given = (dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        return evaluation.run_loop(self, LegacySession, *given)

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor | None, Any, Any]:
        """Return the loss, ``()``, the logits and the labels of one batch; each may be None.

        Args:
            model: The model.
            inputs: One batch.
            prediction_loss_only: Return only the loss.
            ignore_keys: Excluded outputs. Default: those in the model's configuration, else ``cache``, the key-value
                cache, which was ``past_key_values`` before transformers 5.24.
        """
        check_is_named(inputs)
        label_names = self.label_names
        has_labels = bool(label_names) and all(inputs.get(name) is not None for name in label_names)
        returns_loss = inputs.get("return_loss")
        returns_loss = self.can_return_loss if returns_loss is None else returns_loss
        scored = has_labels or (not label_names and bool(returns_loss))
        inputs = self._prepare_inputs(inputs)
        # Before the loss is computed, which may remove them from the inputs.
        wanted = scored and not prediction_loss_only
        labels = nested_detach(tuple(inputs.get(name) for name in label_names)) if wanted else None
        if labels is not None and len(labels) == 1:
            labels = labels[0]
        skips = scored and prediction_loss_only and self.semantics.liger_skips_unused_logits
        if skips and self.args.use_liger_kernel:
            inputs = {**inputs, "skip_logits": True}
        try:
            with torch.no_grad():
                loss, outputs = forward(self, model, inputs, scored)
        except Exception as error:
            note_inputs(error, self, inputs)
            raise
        if prediction_loss_only:
            return loss, None, None
        if isinstance(outputs, dict):
            ignored = ignored_outputs(self, ignore_keys)
            hidden = [*ignored, "loss"] if scored else ignored
            logits: Any = tuple(value for name, value in outputs.items() if name not in hidden)
        else:
            logits = outputs[1:] if scored else outputs
        logits = join_sequences(self, inputs, nested_detach(logits)) if scored else nested_detach(logits)
        return loss, logits[0] if len(logits) == 1 else logits, labels

    def torch_jit_model_eval(self, model: nn.Module, dataloader: Iterable[Any] | None, training: bool = False) -> Any:
        """Return ``model`` traced with the first batch of ``dataloader``; ``model`` in training or if that fails."""
        return model if training else evaluation.trace(self, model, dataloader)

    # ---- saving ----

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save model, configuration, processing class and arguments for ``from_pretrained``; every rank has to call it.

        The default folder is ``args.output_dir``; with ``push_to_hub`` it is then pushed, unless by an internal call.
        """
        if self.lightning_backend.traits.shards_as_it_loads(self.args):
            prepare_strategy(self)
        model_files.save_model(self, output_dir, is_checkpoint=_internal_call)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Save model, processing class and arguments to ``output_dir``."""
        model_files.save_files(self, output_dir, state_dict)

    def _save_checkpoint(self, model: nn.Module, trial: Trial | None, metrics: dict[str, float] | None = None) -> None:
        """Save ``checkpoint-<update step>``, which appears only when it is complete; then rotate checkpoints.

        With ``save_async`` it is written in the background, except files of overridden methods. If
        this method or a callback's ``on_save`` is overridden, it returns only when the folder is complete.
        """
        current_run(self).saving.write(trial)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save ``optimizer.pt`` and ``scheduler.pt``."""
        model_files.save_optimizer_and_scheduler(self, output_dir)

    def _save_scaler(self, output_dir: str) -> None:
        """Save the gradient scaler's ``scaler.pt`` in an fp16 run."""
        model_files.save_scaler(self, output_dir)

    def _save_rng_state(self, output_dir: str) -> None:
        """Save the random states of Python, numpy and torch."""
        model_files.save_rng_state(self, output_dir)

    def _rotate_checkpoints(self, use_mtime: bool = True, output_dir: str | None = None) -> None:
        """Delete the oldest checkpoints beyond ``save_total_limit``."""
        writer, best = self.checkpoint_writer, self.state.best_model_checkpoint
        limit = derived.checkpoints_kept(self.args)
        if limit is not None:
            rotation.rotate(
                derived.folder_or_default(self.args, output_dir),
                limit=limit,
                best=None if best is None else writer.begun_in / best,
                protects_newest=self.semantics.rotation_protects_newest,
                owned=writer.owned,
                remover=writer.remover if self.lightning_backend.trains else None,
            )

    def _get_output_dir(self, trial: Trial | None = None) -> str:
        """Return the folder of this run's checkpoints; each trial has its own."""
        folder: str = self.args.output_dir
        if self.hp_search_backend is None or trial is None:
            return folder

        name = f"run-{searching.run_id(self.hp_search_backend, trial)}" if self.hp_name is None else self.hp_name(trial)
        return os.path.join(folder, name)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Trial | None) -> bool:
        """Return whether this evaluation is strictly better than all previous ones; if so, store it in the state."""
        args, state = self.args, self.state
        if args.metric_for_best_model is None:
            return False
        value = derived.metric_for_best(args, metrics)
        if state.best_metric is None:
            state.best_metric = derived.worst_value(args)
        if not derived.is_better(args, value, state.best_metric):
            return False
        state.best_metric = value
        if derived.notes_best_step(args, self.semantics):
            state.best_global_step = state.global_step
        return True

    def _load_best_model(self) -> None:
        """Load the weights of the best checkpoint, if it still exists."""
        best = self.state.best_model_checkpoint
        if best is None:
            logger.warning("No best checkpoint was recorded; keeping the current weights.")
            return
        if not Path(best).is_dir():  # not an error, which would lose the result of the training
            text = "Could not locate the best model at %s: the checkpoint no longer exists. Keeping the last weights."
            logger.warning(text, best)
            return
        logger.info("Loading best model from %s (score: %s).", best, self.state.best_metric)
        try:
            self._issue_warnings_after_load(model_files.load_weights(self, best, trains_on=False))
        except MissingWeightsError as error:
            logger.warning("Could not locate the best model at %s; keeping the last weights. %s", best, error)

    # ---- resuming ----

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load the weights of a checkpoint into ``model``, the Trainer's by default."""
        self._issue_warnings_after_load(model_files.load_weights(self, resume_from_checkpoint, model))

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Warn about ``missing_keys`` and ``unexpected_keys`` of ``load_state_dict``'s result."""
        model_files.warn_of_missing_weights(load_result)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load the states of optimizer and schedule if ``checkpoint`` has both."""
        if checkpoint is None:
            return
        strategy = self.lightning_backend.strategy
        if strategy.has_optimizer_and_schedule(checkpoint):
            optimizer = optimizer_of(self)
            restores = self.semantics.corrected and strategy.engine is None
            file, given = Path(checkpoint, names.OPTIMIZER_NAME), optimizer_settings(optimizer)
            with (
                states.loads_all(optimizer, file) if restores else nullcontext(),
                states.notes_casts(optimizer, undoes=restores) as cast,
            ):
                strategy.load_optimizer(optimizer, checkpoint)
            warn_of_other_settings(given, optimizer, self.warn_once)
            if cast and not restores:
                self.warn_once(
                    f"The checkpoint has {', '.join(sorted(cast))} of {type(optimizer).__name__} in another dtype than "
                    "the parameters', to which it is cast, as with transformers: this run ends with other weights than "
                    "one without a break. Set `TrainingArguments(semantics='corrected')` to keep it."
                )
            if not strategy.engine_has_scheduler:
                states.load_state_file(scheduler_of(self), checkpoint, names.SCHEDULER_NAME)
        elif states.has_optimizer_state(Path(checkpoint)):
            logger.warning(
                "`%s` has no `%s`, without which the optimizer's state is not loaded either, as with transformers: "
                "both start anew.",
                checkpoint,
                names.SCHEDULER_NAME,
            )

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Load the gradient scaler's state if ``checkpoint`` has one."""
        scaler = self.accelerator.scaler
        if checkpoint is None or scaler is None:
            return
        if Path(checkpoint, names.SCALER_NAME).is_file():
            states.load_state_file(scaler, checkpoint, names.SCALER_NAME)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restore the random states if ``checkpoint`` has them."""
        if checkpoint is not None:
            launch = self.lightning_backend.process_layout.launch
            states.load_rng_state(checkpoint, rank=launch.rank, world_size=launch.world_size)

    def _load_callback_state(self) -> None:
        """Replace the exportable callbacks by new ones with their saved states, if the arguments say so."""
        if self.args.restore_callback_states_from_checkpoint:
            load_callback_state(self)

    # ---- the Hub ----

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,  # noqa: A002 - upstream's name
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Write the model card, ``README.md``, to the output folder: metadata, evaluations and hyperparameters.

        Args:
            language: Language of the model.
            license: License of the model. Default: that of ``finetuned_from``, if the Hub is reachable.
            tags: Tags besides ``generated_from_trainer``; those of an existing card are kept.
            model_name: Name of the model. Default: the output folder's.
            finetuned_from: The base model. Default: the one that the model was loaded from.
            tasks: Task tags. Default: the task of the model's class.
            dataset_tags: Identifiers of the datasets on the Hub. Default: from the dataset's metadata.
            dataset: Display names of the datasets. Default: ``dataset_tags``.
            dataset_args: Configurations of the datasets.
        """
        described = {name: value for name, value in locals().items() if name != "self"}
        write_model_card(self, described)

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Create the repository on the Hub if it does not exist, and set ``hub_model_id``; see ``push_to_hub``."""
        self.hub_pusher.init_repo(self, token, private)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> CommitInfo | Future[CommitInfo] | None:
        """Save the model and the model card to the output folder, and upload the folder.

        Args:
            commit_message: The commit message.
            blocking: Wait for the upload.
            token: Access token. Default: ``hub_token``, else the one of this machine.
            revision: The branch. Default: ``hub_revision``, else ``main``.
            private: Whether a new repository is private. Default: ``hub_private_repo``.
            **kwargs: Arguments of ``create_model_card``.

        Returns:
            The commit, or a future of it if not ``blocking``; None on ranks other than 0, and if a push during training
            failed, which is logged as a warning.

        Raises:
            HubError: If the push fails outside training.
        """
        return self.hub_pusher.push(self, commit_message, blocking, token, revision, private, kwargs)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Start pushing a complete checkpoint, by ``hub_strategy``; a failure is logged, not raised."""
        self.hub_pusher.push_checkpoint(self, Path(checkpoint_folder))

    def _finish_current_push(self) -> None:
        """Wait for pushes that are running."""
        self.hub_pusher.finish(self)

    # ---- hyperparameter search ----

    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], Any] | None = None,
        n_trials: int = 20,
        direction: str | list[str] = "minimize",
        backend: str | HPSearchBackend | None = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> BestRun | list[BestRun] | None:
        """Train ``n_trials`` times with hyperparameters of a search library; return the best trial.

        Afterwards ``args`` have the last trial's values, and the Trainer has no model until the next ``train``.

        Args:
            hp_space: A trial to names and values of arguments. Default: learning rate, epochs, seed and batch size.
            compute_objective: Metrics of an evaluation to the objective, or objectives. Default: the sum of the
                metrics, or the loss if there are none.
            n_trials: Number of trials.
            direction: ``"minimize"`` or ``"maximize"``; with optuna also a list, one per objective.
            backend: ``"optuna"`` or ``"ray"``. Default: the first that is installed.
            hp_name: A trial to the name of its folder in ``output_dir``. Default: ``run-<id>``.
            **kwargs: Keywords of ``optuna.create_study`` and ``Study.optimize``, or of ``ray.tune.run``.

        Returns:
            The best trial; with several objectives, the Pareto-optimal trials. With optuna on several ranks, which
            train each trial together, None but on rank 0.

        Raises:
            NotSupportedError: If ``backend`` is not supported.
            SearchError: If there is no ``model_init``, the library is not installed or does not support an argument, or
                an argument cannot be used.
            DataError: If there is nothing to evaluate on.
        """
        chosen = searching.choose_backend(backend)
        if self.model_init is None:
            raise SearchError(
                "`model_init=None`: for a search you need to pass your model through a model_init function, which "
                "creates a new one for each trial."
            )
        searching.check_arguments(self, hp_space, compute_objective, direction)
        start = self.lightning_backend.process_layout.start
        if start is not None:
            raise SearchError(
                f"`hyperparameter_search` is not supported with `lightning`'s `strategy`, which starts "
                f"{start.processes} processes. Do not pass `strategy`."
            )
        self.hp_space = searching.BACKENDS[chosen].default_space if hp_space is None else hp_space
        self.compute_objective = searching.default_compute_objective if compute_objective is None else compute_objective
        self.hp_name = hp_name
        self.hp_search_backend = chosen
        try:
            return searching.BACKENDS[chosen].run(self, n_trials, direction, **kwargs)
        finally:
            self.hp_search_backend = None

    def _hp_search_setup(self, trial: Trial | None) -> None:
        """Set ``args`` to the values of ``trial``."""
        self.run_counters.trial = trial
        if self.hp_search_backend is None or trial is None:
            return

        values = searching.BACKENDS[self.hp_search_backend].values(trial, self.hp_space)
        searching.apply_values(self.args, values, self.semantics)
        logger.info("Trial: %s", values)
        self.run_counters.train_batch_size = self.args.train_batch_size
        self.create_accelerator_and_postprocess()
        if self.args.should_save:
            publish.clean_orphans(checked_output_dir(self._get_output_dir(trial)))

    def _report_to_hp_search(self, trial: Trial | None, step: int, metrics: dict[str, float]) -> None:
        """Report the metrics at update step ``step`` to the search library, which may stop the trial."""
        if self.hp_search_backend is None or trial is None:
            return

        self.objective = searching.objective_of(self, dict(metrics))
        searching.BACKENDS[self.hp_search_backend].report(self, trial, step, metrics)

    def _tune_save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save a checkpoint to ``checkpoint_dir`` from which Ray can resume the trial."""
        current_run(self).saving.write_for_search(Path(checkpoint_dir))

    # ---- transformers 4 only ----

    @staticmethod
    def num_tokens(train_dl: Iterable[Mapping[str, Any]], max_steps: int | None = None) -> int:
        """Return the number of tokens in one pass over ``train_dl``, or in ``max_steps`` times its first batch."""
        return transformers_4.count_tokens(train_dl, max_steps)

    _save_tpu = transformers_4.save_on_tpu

    def propagate_args_to_deepspeed(self, auto_find_batch_size: bool = False) -> None:
        """Fill ``"auto"`` in the DeepSpeed config, compare the rest; ``auto_find_batch_size`` sets the size anew."""
        transformers_4.propagate_args_to_deepspeed(
            self.accelerator.state.deepspeed_plugin, self.args, auto_find_batch_size
        )

    def _nested_gather(self, tensors: Any, name: str | None = None) -> Any:
        """Return ``tensors`` gathered over all ranks; None for None."""
        return None if tensors is None else self.accelerator.gather(tensors)

    def _sorted_checkpoints(
        self,
        output_dir: str | os.PathLike[str] | None = None,
        checkpoint_prefix: str = "checkpoint",
        use_mtime: bool = False,
    ) -> list[str]:
        """Return the checkpoint folders in ``output_dir``, oldest first, the best one next to last."""
        folder, best = derived.folder_or_default(self.args, output_dir), self.state.best_model_checkpoint
        return transformers_4.sorted_checkpoints(folder, best, checkpoint_prefix=checkpoint_prefix, use_mtime=use_mtime)
