"""The class users know: transformers' ``Trainer``, run by a ``lightning.Trainer``.

This file is the whole contract with subclasses: every method of upstream's that may be called or overridden. A method
delegates to the object or function that does the work, or calls other override points; what a ``train()`` owns is in
``hf_compat.run``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Sampler

from hf_compat import metrics as metric_files
from hf_compat.arguments import TrainingArguments
from hf_compat.arguments.releases.convert import from_transformers
from hf_compat.arguments.releases.semantics import Semantics, resolve_semantics
from hf_compat.callbacks import CallbackHandler
from hf_compat.callbacks.firing import fire
from hf_compat.checkpoint import rng, rotation
from hf_compat.checkpoint.writer import CheckpointWriter
from hf_compat.data import columns
from hf_compat.data.collators import default_collator_for
from hf_compat.engine.runtime import Runtime, move_model
from hf_compat.errors import DataError
from hf_compat.evaluation.legacy import LegacySession
from hf_compat.evaluation.results import EvalLoopOutput, PredictionOutput, TrainOutput
from hf_compat.evaluation.session import EvaluationSession
from hf_compat.memory import TrainerMemoryTracker
from hf_compat.metrics import has_length
from hf_compat.model_facts import count_parameters
from hf_compat.optim.groups import decay_parameter_names
from hf_compat.optim.liger import apply_liger_kernels
from hf_compat.optim.neftune import activate_neftune, deactivate_neftune
from hf_compat.optim.optimizers import optimizer_class_and_kwargs
from hf_compat.overriding import WarnOnce, call_as_defined, refuse_overrides_never_called
from hf_compat.plan import RunPlan, build_plan
from hf_compat.plan.upstream import to_values
from hf_compat.run import best_model, progress
from hf_compat.run.finishing import finalize_training
from hf_compat.run.resume import compare_with_checkpoint, init_training_state, load_callback_state
from hf_compat.seeding import enable_full_determinism, set_seed
from hf_compat.special_tokens import align_special_tokens
from hf_compat.state import TrainerControl, TrainerState, is_exportable
from hf_compat.trainer import (
    construction,
    evaluation,
    loaders,
    loss,
    model_files,
    older,
    optimizers,
    searching,
    validation,
)
from hf_compat.trainer.current_run import current_run, new_run
from hf_compat.trainer.launching import train_in_processes
from hf_compat.trainer.pushing import Pusher, write_model_card
from hf_compat.trainer.views import View, counts_of
from hf_compat.tuning.backends import run_id

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.accelerator import Accelerator
    from hf_compat.arguments.enums import HPSearchBackend
    from hf_compat.engine.module import HFModule
    from hf_compat.hub import PushInProgress
    from hf_compat.run.run import TrainingRun
    from hf_compat.tuning.spaces import BestRun

__all__ = ["Trainer"]


class Trainer:
    """Trains, evaluates and predicts as transformers' ``Trainer`` does, on a ``lightning.Trainer``.

    Args:
        model: A model whose forward returns a loss: a dict with ``loss``, or a tuple that starts with it. A
            ``PreTrainedModel``, a peft model or any ``nn.Module``.
        args: The arguments; transformers' own are taken as they are. Default: ``TrainingArguments("tmp_trainer")``.
        data_collator: Makes a batch of a list of samples. Default: padding if ``processing_class`` is a tokenizer.
        train_dataset: What to train on; without length it needs ``max_steps``.
        eval_dataset: What to evaluate on, or a dict of such.
        processing_class: A tokenizer or processor, saved with the model.
        model_init: Called for a fresh model here and at each ``train``, instead of ``model``.
        compute_loss_func: ``(outputs, labels, num_items_in_batch)`` to the loss of a batch.
        compute_metrics: An ``EvalPrediction`` to a dict of metrics; or a ``torchmetrics`` metric or collection, which
            is updated with the predictions and labels of each batch, and nothing of them is kept. ``evaluate`` then
            has no predictions to return; ``predict`` has.
        callbacks: ``TrainerCallback`` classes or instances, and Lightning callbacks, in any mix.
        optimizers: An optimizer and a schedule to use; None for one that ``args`` names.
        optimizer_cls_and_kwargs: A class and its keywords, made with the model's parameter groups.
        preprocess_logits_for_metrics: ``(logits, labels)`` to what is kept of a batch's predictions.
        tokenizer: The name of ``processing_class`` before transformers 4.46.
        lightning: Keywords of the ``lightning.Trainer`` that runs the training, such as ``logger``, ``plugins`` or
            ``profiler``; those that follow from ``args`` are refused. The strategies ``"ddp_spawn"``, ``"ddp_fork"``
            and ``"ddp_notebook"`` start processes for ``train`` alone: see ``trainer.launching``.

    Attributes:
        lightning_trainer: The ``lightning.Trainer`` of the last run.

    Raises:
        ArgumentsError: If arguments contradict each other or the data sets given.
        HubError: If ``push_to_hub`` is set and the repository cannot be made.
        ModelError: If the model cannot be trained.
        TrainerSetupError: If constructor arguments exclude each other.
    """

    args: TrainingArguments
    semantics: Semantics
    """What follows transformers' release, or corrects it."""
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
    optimizer: Any
    lr_scheduler: Any
    optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None
    callback_handler: CallbackHandler
    control: TrainerControl
    state: TrainerState
    label_names: list[str]
    label_smoother: Any
    can_return_loss: bool
    model_accepts_loss_kwargs: bool
    loss_is_scaled_for_ga: bool | None = None
    """Whether ``compute_loss`` already averages over the window; None decides by the model."""
    gather_function: Callable[[Any], Any]
    place_model_on_device: bool = True
    """Whether the model was moved to its device when it was given or made."""
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
    """The engine of DeepSpeed, once there is one."""
    neftune_noise_alpha: float | None = None
    neftune_hook_handle: Any = None
    hub_model_id: str | None = None
    """The repository pushed to, ``owner/name``, once it is known."""
    push_in_progress: PushInProgress | None = None
    """The pushes made during training."""
    hp_name: Callable[..., str] | None = None
    hp_space: Callable[[Any], dict[str, Any]]
    """A trial to the values that it tries; for Ray, called once with None for what to draw from."""
    hp_search_backend: Any = None
    compute_objective: Callable[[dict[str, float]], float | list[float]]
    """Metrics of an evaluation to what is compared."""
    objective: Any = None
    """What the last evaluation of the trial gave; None before."""
    current_gradient_accumulation_steps: int = 1
    jit_compilation_time: float
    model_preparation_time: float
    run_plan: RunPlan | None = None
    """The numbers of the run under way, or of the last one."""
    _train_batch_size: int
    _trial: Any = None
    _past: Any = None
    """What a model with memory returned for the last batch, to be given the next."""
    _signature_columns: list[str] | None = None
    _eval_dataloaders: dict[str, DataLoader[Any]]
    _memory_tracker: TrainerMemoryTracker
    _created_lr_scheduler: bool = False
    _loss_shifts_labels: bool = False

    _tr_loss = View("tr_loss")
    _total_loss_scalar = View("total_loss_scalar")
    _globalstep_last_logged = View("last_logged_step")
    _initial_global_step = View("initial_step")
    _initial_num_input_tokens_seen = View("initial_tokens")
    current_flos = View("flos")

    # Ours: the runtime, the run under way or the last one, what writes checkpoints, pushes and warns.
    _runtime: Runtime
    _run: TrainingRun | None
    _checkpoints: CheckpointWriter
    _pusher: Pusher
    _warn_once: WarnOnce

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
    ) -> None:
        refuse_overrides_never_called(type(self))
        self.processing_class = construction.processing_class_of(processing_class, tokenizer)
        self.args = from_transformers(args) if args is not None else TrainingArguments("tmp_trainer")
        self.semantics = resolve_semantics(self.args.semantics)
        self._warn_once, self._checkpoints, self._pusher = WarnOnce(), CheckpointWriter(), Pusher()
        self._run = None
        self._runtime = Runtime(self.args, lightning)
        construction.set_log_level(self.args)
        (enable_full_determinism if self.args.full_determinism else set_seed)(self.args.seed)
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.data_collator = data_collator or default_collator_for(self.processing_class)
        self.compute_loss_func = compute_loss_func
        self.compute_metrics = compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.neftune_noise_alpha = self.args.neftune_noise_alpha
        self.optimizer, self.lr_scheduler = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self.model, self.model_init = model, model_init
        self._memory_tracker = TrainerMemoryTracker(self.args.skip_memory_metrics)
        self._memory_tracker.start("init")
        self._train_batch_size = self.args.train_batch_size
        self._eval_dataloaders = {}
        self.create_accelerator_and_postprocess()
        self._validate_args()
        self.model = self.model_wrapped = construction.first_model(self, model)
        if self.args.use_liger_kernel and not self.semantics.applies_liger_in_train:
            apply_liger_kernels(self.model, self.args.liger_kernel_config)
        construction.inspect_model(self)
        construction.set_up_callbacks(self, callbacks)
        if self.args.push_to_hub:
            self.init_hf_repo()
        if self.args.should_save:
            os.makedirs(self.args.output_dir, exist_ok=True)
        self.control = TrainerControl()
        self.state = TrainerState(
            is_local_process_zero=self.is_local_process_zero(),
            is_world_process_zero=self.is_world_process_zero(),
            stateful_callbacks=[cb for cb in [*self.callback_handler.callbacks, self.control] if is_exportable(cb)],
        )
        fire(self, "on_init_end")
        if self.semantics.writes_use_cache and getattr(self.model, "config", None) is not None:
            self.model.config.use_cache = self.args.use_cache
        self._memory_tracker.stop_and_update_metrics(stage="init")

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_run": None}

    # ---- facts ----

    @property
    def lightning_trainer(self) -> pl.Trainer | None:
        """The ``lightning.Trainer`` of the run under way or the last one."""
        return self._runtime.trainer

    @property
    def lightning_module(self) -> HFModule | None:
        """Its module, with the model as ``model``."""
        return self._runtime.module

    @property
    def tokenizer(self) -> Any:
        """The processing class under the name it had before transformers 4.46."""
        return self.processing_class

    @tokenizer.setter
    def tokenizer(self, value: Any) -> None:
        self.processing_class = value

    def is_local_process_zero(self) -> bool:
        """Return whether this is the main process of its node."""
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        """Return whether this is the main process of the run."""
        return self.args.process_index == 0

    def get_tp_size(self) -> int:
        """Return over how many ranks each matrix of the model is split."""
        return self._runtime.placement.tensor_parallel

    def get_cp_size(self) -> int:
        """Return over how many ranks each sequence is split by its context: 1."""
        return 1

    def get_sp_size(self) -> int:
        """Return over how many ranks each sequence is split by position: 1."""
        return 1

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        """Return the samples that one update step sees, over all devices and the window."""
        return int(self._train_batch_size * args.gradient_accumulation_steps * self.accelerator.data_parallel_size)

    def get_num_trainable_parameters(self) -> int:
        """Return the number of trainable parameters."""
        return count_parameters(self.model, trainable_only=True)

    # ---- construction ----

    def create_accelerator_and_postprocess(self) -> None:
        """Set ``accelerator``: accelerate's members that subclasses call."""
        args, placement = self.args, self._runtime.placement
        self.accelerator = construction.build_accelerator(args, self._runtime)
        self.is_deepspeed_enabled = args.deepspeed_plugin is not None
        self.is_fsdp_enabled = placement.fsdp is not None
        self.is_tp_enabled = placement.tensor_parallel > 1
        self.gather_function = functools.partial(
            self.accelerator.gather_for_metrics, use_gather_object=args.eval_use_gather_object
        )

    def _validate_args(self) -> None:
        """Refuse constructor arguments that exclude each other or ``args``, all that is wrong in one error."""
        validation.validate(self)

    def call_model_init(self, trial: Any = None) -> Any:
        """Return a fresh model from ``model_init``, called with ``trial`` if it takes an argument.

        Raises:
            RuntimeError: If it takes more than one argument, or returns None.
        """
        return construction.call_model_init(self, trial)

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        """Move ``model`` to ``device``, unless it was loaded into its place.

        Raises:
            ModelError: If it is spread over several devices.
        """
        move_model(model, device)

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        """Return what is called to train or evaluate ``model``: ``model``; Lightning wraps it for a strategy.

        Args:
            model: The model; wrapped already if that was done for an earlier training.
            training: Whether it is trained.
            dataloader: What it is evaluated on, in releases before 5.
        """
        return model

    def _align_special_tokens(self) -> None:
        """Give the model's configurations the special tokens of the processing class."""
        align_special_tokens(self.model, self.processing_class, self.semantics)

    def _activate_neftune(self, model: nn.Module) -> nn.Module:
        """Add noise to the embeddings of ``model`` in training, by the hook ``neftune_hook_handle``; return it."""
        assert self.neftune_noise_alpha is not None, "only called with a magnitude"
        self.neftune_hook_handle = activate_neftune(model, self.neftune_noise_alpha)
        return model

    def _deactivate_neftune(self, model: nn.Module) -> None:
        """Undo :meth:`_activate_neftune`.

        Raises:
            ValueError: If it was not called before.
        """
        if self.neftune_hook_handle is None:
            raise ValueError("NEFTune is not active: call `_activate_neftune` first.")
        deactivate_neftune(model, self.neftune_hook_handle)
        self.neftune_hook_handle = None

    # ---- callbacks and logs ----

    def add_callback(self, callback: Any) -> None:
        """Append a user callback, an instance or a class to make one of."""
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: Any) -> Any:
        """Remove the first callback that is, or is an instance of, ``callback``; return it, None if there is none."""
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: Any) -> None:
        """Remove the first callback that is, or is an instance of, ``callback``."""
        self.callback_handler.remove_callback(callback)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Append ``logs`` to the history, at the current update step, and show it to all callbacks.

        Args:
            logs: Names and values; ``epoch``, and tokens seen if they are counted, are added to it.
            start_time: When the training began, in seconds of ``time.time``; for token speeds.
        """
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
        if self.args.include_num_input_tokens_seen != "no":
            logs["num_input_tokens_seen"] = self.state.num_input_tokens_seen
            if start_time is not None:
                seen = self.state.num_input_tokens_seen - self._initial_num_input_tokens_seen
                logs.update(metric_files.speed_metrics("train", start_time, num_tokens=seen))
        self.state.log_history.append({**logs, "step": self.state.global_step})
        fire(self, "on_log", logs)

    def metrics_format(self, metrics: dict[str, float]) -> dict[str, Any]:
        """Return ``metrics`` as they are printed."""
        return metric_files.metrics_format(metrics)

    def log_metrics(self, split: str, metrics: dict[str, float]) -> None:
        """Print ``metrics`` of ``split``, one a line, on the main process."""
        metric_files.log_metrics(self, split, metrics)

    def save_metrics(self, split: str, metrics: dict[str, float], combined: bool = True) -> None:
        """Write ``metrics`` to ``<split>_results.json`` and, if ``combined``, into ``all_results.json``."""
        metric_files.save_metrics(self, split, metrics, combined)

    def save_state(self) -> None:
        """Write ``trainer_state.json`` into the output folder."""
        metric_files.save_state(self)

    # ---- data ----

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the training loader, shuffled by seed and epoch.

        Raises:
            DataError: If there is no ``train_dataset``.
        """
        if self.train_dataset is None:
            raise DataError("`train_dataset=None`: pass the data set to train on to the Trainer.")
        return self._get_dataloader(
            dataset=self.train_dataset,
            description="Training",
            batch_size=self._train_batch_size,
            sampler_fn=self._get_train_sampler,
            is_training=True,
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Return the evaluation loader, in order.

        Args:
            eval_dataset: A data set, or the name of one in ``self.eval_dataset``; default: ``self.eval_dataset``.

        Raises:
            DataError: If there is none.
        """
        return loaders.eval_loader(self, eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        """Return the loader that :meth:`predict` iterates over, in order."""
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
        """Return a prepared loader of ``dataset`` without the columns that the model does not take."""
        return loaders.build_loader(self, dataset, description, batch_size, sampler_fn, is_training=is_training)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[Any] | None:
        """Return the sampler that ``train_sampling_strategy`` asks for; None for a data set without length."""
        return loaders.choose_train_sampler(self, train_dataset)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[Any] | None:
        """Return the sampler of an evaluation: in order, or by length when training groups by length."""
        return loaders.choose_eval_sampler(self, eval_dataset)

    def _set_signature_columns_if_needed(self) -> None:
        """Fill ``_signature_columns`` with the columns that the model takes."""
        if self._signature_columns is None:
            self._signature_columns = columns.signature_columns(self.model, self.label_names)

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        """Return ``dataset`` without the columns that the model does not take."""
        if not self.args.remove_unused_columns:
            return dataset
        self._set_signature_columns_if_needed()
        return columns.remove_unused_columns(dataset, self._signature_columns or [], description)

    def _get_collator_with_removed_columns(
        self, data_collator: Callable[[list[Any]], Any], description: str | None = None
    ) -> Callable[[list[Any]], Any]:
        """Return a collator that first drops the columns that the model does not take."""
        if not self.args.remove_unused_columns:
            return data_collator
        self._set_signature_columns_if_needed()
        return columns.RemoveColumnsCollator(
            data_collator, self._signature_columns or [], model_name=type(self.model).__name__, description=description
        )

    def num_examples(self, dataloader: Any) -> int:
        """Return the samples that one pass over ``dataloader`` gives, estimated from its batches if need be."""
        dataset = getattr(dataloader, "dataset", None)
        if has_length(dataset):
            return len(dataset)
        return len(dataloader) * self.args.per_device_train_batch_size

    # ---- optimizer and schedule ----

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Set ``optimizer`` and ``lr_scheduler`` for a run of ``num_training_steps`` update steps."""
        self.create_optimizer()
        call_as_defined(self.create_scheduler, num_training_steps=num_training_steps, optimizer=self.optimizer)

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Set and return ``optimizer``: the one passed in, else the one that ``args.optim`` names.

        Weights are in two groups, with and without weight decay.
        """
        optimizers.create_optimizer(self, model)
        return self.optimizer  # type: ignore[no-any-return]

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> Any:
        """Set and return ``lr_scheduler``: the one passed in, else the one that ``args.lr_scheduler_type`` names."""
        optimizers.create_scheduler(self, num_training_steps, optimizer)
        return self.lr_scheduler

    @staticmethod
    def get_optimizer_cls_and_kwargs(
        args: TrainingArguments, model: nn.Module | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return the class and keywords of the optimizer that ``args`` names."""
        return optimizer_class_and_kwargs(args, model, semantics=resolve_semantics(args.semantics))

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return the names of ``model``'s parameters that decay: all but biases and those of normalisations."""
        return decay_parameter_names(model)

    def get_learning_rates(self) -> list[float]:
        """Return the learning rate of each parameter group.

        Raises:
            ValueError: If there is no optimizer yet.
        """
        return [group["lr"] for group in optimizers.optimizer_of(self).param_groups]

    def get_optimizer_group(self, param: str | nn.Parameter | None = None) -> Any:
        """Return the parameter group of ``param``, or all groups' parameters.

        Raises:
            ValueError: If there is no optimizer yet.
        """
        return optimizers.optimizer_group(self, param)

    def _get_learning_rate(self) -> float:
        """Return the learning rate of the first parameter group, as last scheduled."""
        return optimizers.learning_rate(self)

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        """Clip the gradients to ``max_grad_norm``; return their norm before."""
        return self.accelerator.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | None = None) -> Tensor | float:
        """Return ``grad_norm``, measured if it is None."""
        if grad_norm is None:
            return self.accelerator.clip_grad_norm_(model.parameters(), float("inf"))
        return grad_norm

    # ---- training ----

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
        **kwargs: Any,
    ) -> TrainOutput:
        """Train, and return the update steps made, the mean loss and the final metrics.

        Args:
            resume_from_checkpoint: A checkpoint folder to resume; True for the newest complete one in ``output_dir``;
                ``"auto"`` for the same if there is one, else from the start.
            trial: A trial of a hyperparameter search, handed to ``model_init``.
            ignore_keys_for_eval: Model outputs that evaluations during training leave out of the predictions.
            **kwargs: ``model_path``, the old name of ``resume_from_checkpoint``.

        Raises:
            CheckpointError: If there is no checkpoint to resume, or it cannot be read.
            DataError: If there is nothing to train on.
            ModelError: If the model returns no loss.
        """
        resume_from_checkpoint = _resume_argument(kwargs, resume_from_checkpoint)
        start = self._runtime.placement.start
        if start is not None:
            given = {"resume_from_checkpoint": resume_from_checkpoint, "trial": trial}
            run = functools.partial(Trainer.train, **given, ignore_keys_for_eval=ignore_keys_for_eval)
            return train_in_processes(self, start, run)
        return new_run(self, trial, ignore_keys_for_eval).train(resume_from_checkpoint)

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: Any = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Run one fit on Lightning with batches of ``batch_size`` and return its result."""
        return current_run(self).fit(batch_size, resume_from_checkpoint, trial, ignore_keys_for_eval)

    def set_initial_training_values(
        self, args: TrainingArguments, dataloader: Any, total_train_batch_size: int | None = None
    ) -> tuple[Any, ...]:
        """Return the numbers of a run over ``dataloader``, as the release that is followed lists them.

        Args:
            args: The training arguments.
            dataloader: The train loader.
            total_train_batch_size: Samples per update step. Default: counted.

        Returns:
            Epochs, update steps per epoch, samples per epoch, samples of the run; then, since transformers 5.3, samples
            per update step and batches per epoch, before it whether epochs decide and the loader's length; and the
            update steps of the run.
        """
        batches = len(dataloader) if has_length(dataloader) else None
        samples = self.get_total_train_batch_size(args) if total_train_batch_size is None else total_train_batch_size
        examples = self.num_examples(dataloader) if batches else None
        plan = build_plan(args, batches=batches, examples=examples, samples_per_update_step=samples)
        return to_values(plan, batches=batches, epochs_decide=args.max_steps < 0, semantics=self.semantics)

    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: str | None,
        trial: Any,
    ) -> tuple[int, int]:
        """Set ``state`` anew or from a checkpoint; return the epochs done and the batches into the next one."""
        return init_training_state(
            self,
            current_run(self).resume_point(resume_from_checkpoint),
            max_steps=max_steps,
            num_update_steps_per_epoch=num_update_steps_per_epoch,
            num_train_epochs=num_train_epochs,
            trial=trial,
        )

    def compare_trainer_and_checkpoint_args(
        self, training_args: TrainingArguments, trainer_state: TrainerState
    ) -> None:
        """Warn where the checkpoint's cadences, which win, or its batch size differ from the arguments'."""
        compare_with_checkpoint(training_args, trainer_state)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor | int | None]:
        """Return the next ``num_batches`` batches, fewer at the end, and the items they hold together.

        Args:
            epoch_iterator: The batches of the epoch under way.
            num_batches: Batches of the window.
            device: Where the item count is put.
        """
        batches = []
        for _ in range(num_batches):
            try:
                batches.append(next(epoch_iterator))
            except StopIteration:
                break
        return batches, self._get_num_items_in_batch(batches, device)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Tensor | int | None:
        """Return the labels that are scored in ``batch_samples``, ``()``; None if nobody asks or they have none."""
        return loss.count_items(self, batch_samples, device)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Run forward and backward on one batch and return its share of the window's loss, ``()``, detached.

        Args:
            model: The model to train.
            inputs: One batch, keyword arguments of the model's forward.
            num_items_in_batch: Scored items in the whole window.
        """
        context, inputs = self._prepare_context_parallel_inputs(model, inputs)
        with context():
            return loss.forward_and_backward(self, model, inputs, num_items_in_batch)

    def _prepare_context_parallel_inputs(
        self, model: nn.Module, inputs: dict[str, Any]
    ) -> tuple[Callable[[], contextlib.AbstractContextManager[Any]], dict[str, Any]]:
        """Return the context to run one batch in, and the batch: no context and the whole batch.

        No sequence is split over ranks here; a subclass may have a context of its own.
        """
        return contextlib.nullcontext, inputs

    def _prepare_input(self, data: Any) -> Any:
        """Return ``data`` with its tensors on the training device; a mapping as a new one, to be taken apart."""
        return loss.prepare_input(self, data)

    def _prepare_inputs(self, inputs: Any) -> Any:
        """Return one batch on the training device, with what the model remembers of the one before as ``mems``.

        Raises:
            DataError: If it is empty.
        """
        return loss.prepare_inputs(self, inputs)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of one batch, ``()``; with ``return_outputs`` also what the model returned.

        Args:
            model: The model.
            inputs: One batch; ``labels`` are taken out of it if a loss function or label smoothing scores them.
            return_outputs: Return ``(loss, outputs)``.
            num_items_in_batch: Scored items in the whole window, handed to a model or loss function that takes it.

        Raises:
            ModelError: If the model returns no loss.
        """
        return loss.compute_loss(
            self, model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
        )

    def compute_loss_context_manager(self) -> contextlib.ExitStack:
        """Return the context that the loss is computed in; autocast is around the model's forward already."""
        stack = contextlib.ExitStack()
        context = self.autocast_smart_context_manager()
        if not isinstance(context, contextlib.nullcontext):
            stack.enter_context(context)
        return stack

    def autocast_smart_context_manager(
        self, cache_enabled: bool | None = True
    ) -> contextlib.AbstractContextManager[Any]:
        """Return the autocast that ``compute_loss`` runs in besides the model's own; a subclass may want one."""
        return loss.autocast_around_loss(self, cache_enabled)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Return the floating-point operations of forward and backward on one batch; 0 if they cannot be estimated."""
        recounts = self._runtime.facts.recounts_parameters
        return progress.floating_point_ops(self, counts_of(self), inputs, recounts=recounts)

    def _track_num_input_tokens(self, inputs: dict[str, Any]) -> None:
        """Add the tokens of one batch to ``state.num_input_tokens_seen`` if they are counted."""
        progress.track_input_tokens(self, inputs, self._warn_once)

    def store_flos(self) -> None:
        """Move the floating-point operations counted since last time into the state."""
        counted = self.current_flos
        if self.args.world_size > 1:  # summed in float32, as upstream sums them
            counted = self.accelerator.gather(Tensor([counted]).to(self.args.device)).sum().item()
        self.state.total_flos += counted
        self.current_flos = 0

    def _maybe_log_save_evaluate(
        self,
        tr_loss: Tensor,
        grad_norm: Any,
        model: nn.Module,
        trial: Any,
        epoch: float,
        ignore_keys_for_eval: list[str] | None,
        start_time: float | None = None,
        learning_rate: float | None = None,
    ) -> None:
        """Log the mean loss since the last log, evaluate, and save, each if the control asks for it.

        Args:
            tr_loss: The loss summed since the last log, ``()``; set to 0 in place.
            grad_norm: The last gradient norm, None if it was not measured.
            model: What is saved.
            trial: The trial of a search, None without one.
            epoch: The epoch under way.
            ignore_keys_for_eval: Model outputs left out of the predictions.
            start_time: When the run began, in seconds of ``time.time``. Default: as the run noted it; overrides written
                before transformers 4.47 do not pass it on.
            learning_rate: What is logged. Default: the schedule's last.
        """
        flow = current_run(self).members.flow
        flow.log_evaluate_save(tr_loss, grad_norm, model, trial, ignore_keys_for_eval, start_time, learning_rate)

    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        """Evaluate, report to a search, and step a schedule that goes by a metric.

        Raises:
            BatchSizeError: If memory ran out, which smaller training batches would not change.
        """
        strategy = current_run(self).members.evaluation
        return strategy.evaluate(trial, ignore_keys_for_eval, skip_scheduler=skip_scheduler)

    def _finalize_training(self, trial: Any, num_train_samples: float, start_time: float) -> TrainOutput:
        """Log the final metrics, load the best model, fire ``on_train_end``.

        Args:
            trial: The trial of a search, None without one.
            num_train_samples: Samples of the whole run.
            start_time: When the run began, in seconds of ``time.time``.
        """
        saving = current_run(self).members.saving
        return finalize_training(self, counts_of(self), saving, num_train_samples, start_time)

    def end(self) -> None:
        """Close what a run holds open: nothing; Lightning closes its loggers with each run."""

    # ---- evaluation ----

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Return the metrics of an evaluation, logged too.

        Args:
            eval_dataset: What to evaluate on; a dict of data sets is evaluated one after the other, each under its key.
                Default: the Trainer's own.
            ignore_keys: Model outputs left out of the predictions.
            metric_key_prefix: What metric names start with.

        Raises:
            DataError: If there is no data set.
        """
        return evaluation.evaluate(self, eval_dataset, ignore_keys, metric_key_prefix)

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Return the predictions on ``test_dataset``, its labels, and metrics if it has labels.

        Args:
            test_dataset: What to predict.
            ignore_keys: Model outputs left out of the predictions.
            metric_key_prefix: What metric names start with.

        Returns:
            Arrays of ``(samples, ...)``; where lengths differ, filled up with -100 on the right.
        """
        return evaluation.predict(self, test_dataset, ignore_keys, metric_key_prefix)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Return predictions, labels, metrics and the number of samples of one pass over ``dataloader``.

        Runs in a Lightning evaluation loop, so that Lightning callbacks see it and can monitor its metrics.

        Args:
            dataloader: An iterable of batches.
            description: ``"Evaluation"`` or ``"Prediction"``; the latter keeps predictions in any case.
            prediction_loss_only: Keep losses alone; default: the argument of that name.
            ignore_keys: Model outputs left out of the predictions.
            metric_key_prefix: What metric names start with.
        """
        given = (dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        return evaluation.run_loop(self, EvaluationSession, *given)

    def prediction_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Return what :meth:`evaluation_loop` returns, by the rules of transformers before 4.5.

        ``evaluate`` and ``predict`` run it under ``use_legacy_prediction_loop``; arguments as for the newer loop.

        Raises:
            DataError: If ``dataloader`` does not tell its length or its batch size.
        """
        given = (dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        return evaluation.run_loop(self, LegacySession, *given)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Any, Any]:
        """Return the loss, ``()``, the logits and the labels of one batch; each may be None.

        Args:
            model: The model.
            inputs: One batch.
            prediction_loss_only: Return the loss alone.
            ignore_keys: Outputs left out; default: those the model's configuration names, else ``past_key_values``.
        """
        return evaluation.prediction_step(self, model, inputs, prediction_loss_only, ignore_keys)

    def torch_jit_model_eval(self, model: nn.Module, dataloader: Any, training: bool = False) -> Any:
        """Return ``model`` traced on the first batch of ``dataloader``, or itself if it cannot be traced or trains.

        Args:
            model: The model.
            dataloader: An iterable of batches, begun anew.
            training: Whether the model is about to train.
        """
        return model if training else evaluation.trace(self, model, dataloader)

    # ---- saving ----

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model, its configuration, the processing class and the arguments into ``output_dir``.

        Every rank has to call it; one, or one of each node, writes. ``from_pretrained`` reads the folder. With
        ``push_to_hub`` the output folder is then pushed too.

        Args:
            output_dir: Default: the output folder of the run.
            _internal_call: Whether a checkpoint is being saved, or a push begun.

        Raises:
            HubError: If the push fails after, or without, training.
        """
        model_files.save_model(self, output_dir, is_checkpoint=_internal_call)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Write model, processing class and arguments into ``output_dir``."""
        model_files.save_weights(self, output_dir, state_dict)

    def _save_checkpoint(self, model: nn.Module, trial: Any, metrics: dict[str, float] | None = None) -> None:
        """Write ``checkpoint-<update step>``, complete or not at all, then delete what is too old.

        With ``save_async`` the folder appears later: its content is copied in host memory, as many bytes as the
        checkpoint has, and written while the training continues; one checkpoint at a time. Of several ranks each
        writes its random states synchronously, and the one that writes the rest does so in the background, where it
        talks to no other. What a subclass writes in methods of its own is written synchronously, and published with the
        rest. Where a subclass overrides this method, or a callback ``on_save``, and may look at the folder, it is there
        before either goes on.

        Args:
            model: What was trained; the Trainer's own model is written.
            trial: The trial of a search, None without one.
            metrics: The evaluation just made, which overrides written before transformers 4.47 pass on; whether it is
                the best has been decided.
        """
        current_run(self).members.saving.write(trial)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Write ``optimizer.pt`` and ``scheduler.pt``."""
        model_files.save_optimizer_and_scheduler(self, output_dir)

    def _save_scaler(self, output_dir: str) -> None:
        """Write ``scaler.pt`` of an fp16 run."""
        model_files.save_scaler(self, output_dir)

    def _save_rng_state(self, output_dir: str) -> None:
        """Write the states of the random generators of python, numpy and torch."""
        rng.save_rng_state(output_dir, rank=self.args.process_index, world_size=self.args.world_size)

    def _rotate_checkpoints(self, use_mtime: bool = True, output_dir: str | None = None) -> None:
        """Delete the oldest checkpoints beyond ``save_total_limit``."""
        args = self.args
        if args.should_save and args.save_total_limit is not None and args.save_total_limit > 0:
            rotation.rotate(
                args.output_dir if output_dir is None else output_dir,
                limit=args.save_total_limit,
                best=self.state.best_model_checkpoint,
                protects_newest=self.semantics.rotation_protects_newest,
                ledger=self._checkpoints.ledger,
            )

    def _get_output_dir(self, trial: Any = None) -> str:
        """Return the folder that this run's checkpoints go to: for a search's trial, one of its own."""
        if self.hp_search_backend is None or trial is None:
            return self.args.output_dir
        name = f"run-{run_id(self.hp_search_backend, trial)}" if self.hp_name is None else self.hp_name(trial)
        return os.path.join(self.args.output_dir, name)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Return whether this evaluation is strictly better than all before, and remember it if so."""
        return best_model.determine_best_metric(self, metrics)

    def _load_best_model(self) -> None:
        """Load the weights of the best checkpoint into the model, if that is still there."""
        best_model.load_best_model(self.state, functools.partial(model_files.load_weights, self, trains_on=False))

    # ---- resuming ----

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load the weights of a checkpoint into ``model``, the Trainer's by default.

        Raises:
            CheckpointError: If the folder holds no weights, or they cannot be read.
        """
        model_files.load_weights(self, resume_from_checkpoint, model)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Warn of the weights that a checkpoint lacks, and of those that the model does not know.

        Args:
            load_result: Their names, in ``missing_keys`` and ``unexpected_keys``, as ``load_state_dict`` returns them.
        """
        model_files.warn_of_missing_weights(load_result)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Give optimizer and schedule the state of ``checkpoint`` if it has both."""
        model_files.load_optimizer_and_scheduler(self, checkpoint)

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Give the gradient scaler of an fp16 run the state of ``checkpoint`` if it has one."""
        model_files.load_scaler(self, checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Set the random generators to the states of ``checkpoint`` if it has them."""
        model_files.load_rng_state(self, checkpoint)

    def _load_callback_state(self) -> None:
        """Make the exportable callbacks anew with their saved states, if asked to."""
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
        """Write ``README.md`` into the output folder: metadata, evaluations and hyperparameters of the run.

        Args:
            language: The language of the model.
            license: Its licence. Default: that of ``finetuned_from``, if the Hub can be asked.
            tags: Tags besides ``generated_from_trainer``; those of a card that is there already are kept.
            model_name: Its name. Default: the output folder's.
            finetuned_from: The model it was trained from. Default: the one the model was loaded from.
            tasks: Tags of what it does. Default: what its class is made for.
            dataset_tags: Identifiers of the data sets on the Hub. Default: what the data set says of itself.
            dataset: Names of the data sets, for people. Default: ``dataset_tags``.
            dataset_args: Their configurations.
        """
        described = {name: value for name, value in locals().items() if name != "self"}
        write_model_card(self, described)

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Make the repository on the Hub if it is not there, and set ``hub_model_id``.

        Args:
            token: Default: ``hub_token``, else the one of this machine.
            private: Whether a new repository is private. Default: ``hub_private_repo``.

        Raises:
            HubError: If it cannot be made.
        """
        self._pusher.init_repo(self, token, private)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Save the model and its card into the output folder, and upload that.

        Args:
            commit_message: The commit's message.
            blocking: Whether to return only when the upload has ended.
            token: Default: ``hub_token``, else the one of this machine.
            revision: The branch to push to. Default: ``hub_revision``, else ``main``.
            private: Whether a repository that is not there yet is private. Default: ``hub_private_repo``.
            **kwargs: Arguments of ``create_model_card``.

        Returns:
            The commit, a ``CommitInfo``; a future of it if not ``blocking``; None on other ranks than the main one,
            and where a push during training failed, which is logged as a warning.

        Raises:
            HubError: If the push fails after, or without, training.
        """
        return self._pusher.push(self, commit_message, blocking, token, revision, private, kwargs)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Start to push a published checkpoint, as ``hub_strategy`` says; a failure is logged, never raised.

        Nothing is pushed while the push before is under way, unless ``hub_always_push`` is set.
        """
        self._pusher.push_checkpoint(self, Path(checkpoint_folder))

    def _finish_current_push(self) -> None:
        """Return when the pushes made during training have ended."""
        self._pusher.finish(self)

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
    ) -> BestRun | list[BestRun]:
        """Train ``n_trials`` times with arguments that a search library chooses; return the best trial.

        Afterwards ``args`` hold the last trial's values, and the Trainer has no model until the next ``train``.

        Args:
            hp_space: A trial to argument names and values. Default: learning rate, epochs, seed and batch size.
            compute_objective: Metrics of an evaluation to the number, or numbers, to compare. Default: the sum of the
                metrics, the loss if there are none.
            n_trials: How many trainings.
            direction: ``"minimize"`` or ``"maximize"``; with optuna also a list, one per objective.
            backend: ``"optuna"`` or ``"ray"``. Default: the first that is installed.
            hp_name: A trial to the name of its folder in ``output_dir``. Default: ``run-<id>``.
            **kwargs: Keywords of ``optuna.create_study`` and ``Study.optimize``, or of ``ray.tune.run``.

        Returns:
            The best trial; with several objectives, every trial that no other is better than in all of them.

        Raises:
            NotSupportedError: If ``backend`` is not supported.
            SearchError: If there is no ``model_init``, the library is not installed, or it cannot do what is asked.
        """
        return searching.search(
            self, hp_space, compute_objective, n_trials, direction, backend, hp_name, settings=kwargs
        )

    def _hp_search_setup(self, trial: Any) -> None:
        """Give ``args`` the values that ``trial`` tries."""
        searching.set_up_trial(self, trial)

    def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        """Report to the search library what the evaluation at update step ``step`` gave; it may end the training."""
        searching.report(self, trial, step, metrics)

    def _tune_save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write a checkpoint that Ray may resume into ``checkpoint_dir``."""
        current_run(self).members.saving.write_for_search(Path(checkpoint_dir))

    # ---- what only transformers 4 had ----

    @staticmethod
    def num_tokens(train_dl: Any, max_steps: int | None = None) -> int:
        """Return the tokens in ``input_ids`` of one pass over ``train_dl``.

        Args:
            train_dl: A loader; one whose batches have no ``input_ids`` counts as 0.
            max_steps: Count this many batches as large as the first instead.
        """
        return older.count_tokens(train_dl, max_steps)

    def _nested_gather(self, tensors: Any, name: str | None = None) -> Any:
        """Return ``tensors``, nested or not, of all ranks; None for None."""
        return None if tensors is None else self.accelerator.gather(tensors)

    def _sorted_checkpoints(
        self,
        output_dir: str | os.PathLike[str] | None = None,
        checkpoint_prefix: str = "checkpoint",
        use_mtime: bool = False,
    ) -> list[str]:
        """Return the checkpoint folders in ``output_dir``, oldest first, the best one next to last.

        Args:
            output_dir: Default: the run's output folder.
            checkpoint_prefix: What their names start with: ``"checkpoint"``, as all that a Trainer writes.
            use_mtime: Go by the time of the last change instead of the update step.

        Raises:
            ValueError: If ``checkpoint_prefix`` is another.
        """
        folder = self.args.output_dir if output_dir is None else output_dir
        best = self.state.best_model_checkpoint
        return older.sorted_checkpoints(folder, best, checkpoint_prefix=checkpoint_prefix, use_mtime=use_mtime)


def _resume_argument(kwargs: dict[str, Any], resume_from_checkpoint: str | bool | None) -> str | bool | None:
    """Return the checkpoint that ``kwargs`` names as ``model_path``, else ``resume_from_checkpoint``."""
    if "model_path" in kwargs:
        warnings.warn("`model_path` is now `resume_from_checkpoint`.", FutureWarning, stacklevel=3)
        resume_from_checkpoint = kwargs.pop("model_path")
    if kwargs:
        raise TypeError(f"train() got unexpected keyword arguments: {', '.join(kwargs)}.")
    return resume_from_checkpoint
