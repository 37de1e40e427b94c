"""The Trainer's ``train``: from a plan through Lightning's fit to the final metrics."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hf_compat.arguments.enums import DebugOption
from hf_compat.checkpoint import publish
from hf_compat.checkpoint.background import is_wanted
from hf_compat.checkpoint.layout import moved_along, to_resume
from hf_compat.checkpoint.reader import ResumePoint
from hf_compat.checkpoint.rotation import Ledger
from hf_compat.data.loader import PreparedDataLoader
from hf_compat.data.windows import EpochStart, WindowLoader
from hf_compat.engine.module import HFModule
from hf_compat.engine.runner import fit
from hf_compat.evaluation.results import TrainOutput
from hf_compat.hub import quiet_progress_bars
from hf_compat.model_facts import number_of_arguments
from hf_compat.optim.liger import apply_liger_kernels
from hf_compat.overflow import DebugUnderflowOverflow
from hf_compat.plan import RunPlan
from hf_compat.seeding import enable_full_determinism, set_seed
from hf_compat.state import TrainerState, is_exportable
from hf_compat.trainer.batch_size import with_smaller_batches
from hf_compat.trainer.engine_host import TrainerHost
from hf_compat.trainer.launching import train_in_processes
from hf_compat.trainer.resuming import ResumingMethods

__all__ = ["TrainingMethods"]

logger = logging.getLogger(__name__)


class TrainingMethods(ResumingMethods):
    """``train``, and what Lightning's hooks call while it runs."""

    _has_begun: bool = False

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
        **kwargs: Any,
    ) -> TrainOutput:
        """Train, and return the update steps made, the mean loss and the final metrics.

        Args:
            resume_from_checkpoint: A checkpoint folder to go on from; True for the newest complete one in
                ``output_dir``; ``"auto"`` for the same if there is one, else from the start.
            trial: A trial of a hyperparameter search, handed to ``model_init``.
            ignore_keys_for_eval: Model outputs that evaluations during training leave out of the predictions.
            **kwargs: ``model_path``, the old name of ``resume_from_checkpoint``.

        Raises:
            CheckpointError: If there is no checkpoint to go on from, or it cannot be read.
            DataError: If there is nothing to train on.
            ModelError: If the model returns no loss.
        """
        resume_from_checkpoint = _older_name(kwargs, resume_from_checkpoint)
        if self._placement.start is not None:
            run = functools.partial(
                TrainingMethods.train,
                resume_from_checkpoint=resume_from_checkpoint,
                trial=trial,
                ignore_keys_for_eval=ignore_keys_for_eval,
            )
            return train_in_processes(self, self._placement.start, run)
        if self.args.should_save:  # first: a killed process may have left a checkpoint without its name
            self._prepare_output_dir()
            publish.clean_orphans(self.args.output_dir)
        self.accelerator.wait_for_everyone()
        if is_wanted(self.args):
            self._checkpoints.check_disks(
                self.args.output_dir, launch=self.args.launch, save_async=self.args.save_async
            )
        resume_path = to_resume(self.args.output_dir, resume_from_checkpoint, is_main=self.is_world_process_zero())
        self._resume = None
        if not (self.args.auto_find_batch_size and self.semantics.keeps_batch_size_found):
            self._train_batch_size = self.args.train_batch_size
        self.is_in_train = True
        self._memory_tracker.start()
        added = contextlib.ExitStack()
        try:
            self._prepare_model(trial)
            if self.neftune_noise_alpha is not None:
                self.model = self._activate_neftune(self.model)
                added.callback(self._deactivate_neftune, self.model)
            if DebugOption.UNDERFLOW_OVERFLOW in self.args.debug:
                added.enter_context(DebugUnderflowOverflow(self.model))
            self._checkpoints.ledger = Ledger.start() if resume_path is None else Ledger.resume(resume_path)
            if resume_path is not None:
                if not self._placement.facts.shards_model:
                    self._load_from_checkpoint(resume_path)
                self._resumed_batch_size(resume_path)
            run = functools.partial(
                self._inner_training_loop,
                args=self.args,
                resume_from_checkpoint=resume_path,
                trial=trial,
                ignore_keys_for_eval=ignore_keys_for_eval,
            )
            quiet = quiet_progress_bars() if self.args.push_to_hub else contextlib.nullcontext()
            with self._watching_signals(), quiet:
                if self.args.auto_find_batch_size:
                    return with_smaller_batches(run, self._train_batch_size)
                return run(batch_size=self._train_batch_size)
        finally:
            self.is_in_train = False
            self.accelerator.attach(None)
            added.close()
            self._memory_tracker.cancel()
            self._past = None

    def _resume_point(self, folder: str) -> ResumePoint:
        """Return the reader of the checkpoint ``folder``: the same one as long as it is asked for the same folder."""
        if self._resume is None or self._resume.folder != Path(folder):
            self._resume = ResumePoint(folder)
        return self._resume

    # ---- before the run ----

    def _prepare_model(self, trial: Any) -> None:
        """Make the model anew if there is a ``model_init``, and ready it for training."""
        args = self.args
        if not self.semantics.applies_trial_after_model_init:
            self._hp_search_setup(trial)
        if self.model_init is not None:
            (enable_full_determinism if args.full_determinism else set_seed)(args.seed)
            self.model = self.model_wrapped = self.call_model_init(trial)
            self.optimizer = self.lr_scheduler = None
            self._signature_columns = None
            if self.place_model_on_device:
                self._move_model_to_device(self.model, args.device)
        if args.use_liger_kernel and self.semantics.applies_liger_in_train:
            apply_liger_kernels(self.model, args.liger_kernel_config)
        if self.model_init is None and (args.fp16_full_eval or args.bf16_full_eval):
            self._move_model_to_device(self.model, args.device)
        if self.semantics.applies_trial_after_model_init:
            self._hp_search_setup(trial)
        self._place_model(self.model)
        self.model_wrapped = self._wrap_model(self.model_wrapped)
        if args.activation_checkpointing or args.gradient_checkpointing:
            self._enable_checkpointing(args.activation_checkpointing_kwargs or args.gradient_checkpointing_kwargs)
        if self.processing_class is not None and hasattr(self.model, "config"):
            self._align_special_tokens()
        self._settle_loss_scaling()

    def _enable_checkpointing(self, settings: dict[str, Any] | None) -> None:
        """Have the model compute activations again in the backward pass, by the name its release has for that."""
        if not hasattr(self.model, "activation_checkpointing_enable"):
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)
            return
        # Arguments of their own since 5.23; the rest goes on to ``torch.utils.checkpoint``.
        own = ("every_n_layers", "offload")
        options = {name: value for name, value in (settings or {}).items() if name in own}
        rest = {name: value for name, value in (settings or {}).items() if name not in own}
        self.model.activation_checkpointing_enable(activation_checkpointing_kwargs=rest or None, **options)

    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: str | None,
        trial: Any,
    ) -> tuple[int, int]:
        """Set ``state`` anew or from a checkpoint; return the epochs done and the batches into the next one."""
        exportable = [cb for cb in [*self.callback_handler.callbacks, self.control] if is_exportable(cb)]
        self.state = TrainerState(stateful_callbacks=exportable)
        self.state.epoch = 0
        self.state.is_hyper_param_search = trial is not None
        self.state.train_batch_size = self._train_batch_size
        self.state.compute_steps(self.args, max_steps)
        position = (0, 0)
        if resume_from_checkpoint is not None:
            self.state = self._resume_point(resume_from_checkpoint).trainer_state()
            if self.state.best_model_checkpoint is not None:
                self.state.best_model_checkpoint = moved_along(self.state.best_model_checkpoint, resume_from_checkpoint)
            self._forget_missing_best_checkpoint()
            self.compare_trainer_and_checkpoint_args(self.args, self.state)
            self._load_callback_state()
            epochs, windows = divmod(self.state.global_step, num_update_steps_per_epoch)
            position = (epochs, 0 if self.args.ignore_data_skip else windows * self.args.gradient_accumulation_steps)
        self.state.init_training_references(self, max_steps, num_train_epochs, trial)
        return position

    def _without_surplus_step(self, plan: RunPlan, epochs_done: int) -> RunPlan:
        """Return ``plan``, cut where all its update steps are made but upstream would make one more."""
        if self.state.global_step < plan.max_steps or epochs_done >= plan.num_train_epochs:
            return plan
        if self.semantics.corrected:
            return replace(plan, num_train_epochs=epochs_done)
        self._warn_once(
            f"All of `max_steps={plan.max_steps}` update steps are made, but transformers makes one more where an "
            "epoch has begun, and so does this run. Set `TrainingArguments(semantics='corrected')` to make none."
        )
        return plan

    def _forget_missing_best_checkpoint(self) -> None:
        best = self.state.best_model_checkpoint
        if self.semantics.drops_missing_best_checkpoint and best is not None and not Path(best).is_dir():
            logger.warning("The best checkpoint `%s` of the resumed run is gone; it is not counted any more.", best)
            self.state.best_model_checkpoint = None

    def _resumed_batch_size(self, resume_from_checkpoint: str) -> None:
        state = self._resume_point(resume_from_checkpoint).trainer_state()
        wins = self.args.auto_find_batch_size or not self.semantics.resumes_batch_size_if_searching
        if state.train_batch_size is not None and wins:
            self._train_batch_size = state.train_batch_size

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: Any = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Run one fit on Lightning with batches of ``batch_size`` and return its result."""
        self._train_batch_size = batch_size or self._train_batch_size
        train_dataloader = self.get_train_dataloader()
        if isinstance(train_dataloader, PreparedDataLoader):
            train_dataloader.track_stream_states()
        plan = self.run_plan = self._plan(train_dataloader)
        done = self._init_training_state(
            plan.max_steps, plan.update_steps_per_epoch, plan.num_train_epochs, resume_from_checkpoint, trial
        )
        start = None
        if resume_from_checkpoint is not None:
            plan, start = self._resumed_start(plan, train_dataloader, resume_from_checkpoint, done)
            self.state.max_steps, self.state.num_train_epochs = plan.max_steps, plan.num_train_epochs
        plan = self.run_plan = self._without_surplus_step(plan, 0 if start is None else start.epoch)
        if self._created_lr_scheduler:
            self.lr_scheduler, self._created_lr_scheduler = None, False
        self._ignore_keys_for_eval = ignore_keys_for_eval
        self._resume_path = resume_from_checkpoint
        self._begin_counting()
        self.callback_handler.train_dataloader = train_dataloader
        self._fit(train_dataloader, plan, start)
        assert self._train_output is not None, "a finished run has a result"
        return self._train_output

    def _begin_counting(self) -> None:
        self._has_begun = False
        self._train_output = None
        self._initial_num_input_tokens_seen = self.state.num_input_tokens_seen
        self._initial_global_step = self._globalstep_last_logged = self.state.global_step
        self._tr_loss = torch.tensor(0.0, device=self.args.device)
        self._total_loss_scalar = 0.0
        self._grad_norm = self._learning_rate = self._position = None
        self._model_is_prepared = True

    def _fit(self, train_dataloader: Any, plan: RunPlan, start: EpochStart | None) -> None:
        self.model_wrapped = self.accelerator.evaluation_model(self.model_wrapped)  # the last run's wrapper goes
        trainer = self.lightning_trainer = self._build_lightning_trainer(plan)
        module = self.lightning_module = HFModule(self.model, self)
        self.accelerator.attach(module, trainer.strategy, train_dataloader)
        self._restore_lightning_callbacks()
        windows = self._windows = WindowLoader(
            train_dataloader,
            plan,
            self,
            lambda: trainer.current_epoch,
            start,
            restores_without_batches=self.semantics.restores_rng_without_batches,
        )
        step = self.state.global_step
        fit(trainer, module, windows, start=None if start is None else (start.epoch, step, step))
        if not self._has_begun:  # no epoch was left to run, so Lightning called no hook
            self._begin_training()
            self._finish_training()

    def _build_lightning_trainer(self, plan: RunPlan | None) -> Any:
        raise NotImplementedError

    def _take_wrapper(self, wrapped: nn.Module) -> None:
        """Train ``wrapped``, the model with what the strategy put around it."""
        raise NotImplementedError

    # ---- during the run: called by the engine ----

    @property
    def _engine_host(self) -> TrainerHost:
        """This Trainer as the engine's module and strategies see it."""
        return TrainerHost(self)

    def _build_optimizer_and_scheduler(self) -> None:
        """Create the optimizer and its schedule, and give them the state of a resumed checkpoint."""
        assert self.run_plan is not None, "a run has a plan"
        max_steps = self.run_plan.max_steps
        if self.semantics.creates_scheduler_apart:
            self.create_optimizer()
            self.create_scheduler(num_training_steps=max_steps)
        else:
            self.create_optimizer_and_scheduler(num_training_steps=max_steps)
        self._resume_optimizer_and_scheduler()

    def _resume_optimizer_and_scheduler(self) -> None:
        """Show optimizer and schedule to callbacks, and give them the state of a resumed checkpoint."""
        self.callback_handler.model = self.model
        self.callback_handler.optimizer = self.optimizer
        self.callback_handler.lr_scheduler = self.lr_scheduler
        if self._resume_path is not None:
            self.accelerator.strategy.resume_engine(self._resume_path)
        if self._resume_path is not None or not self.semantics.loads_state_if_resumed:
            self._load_optimizer_and_scheduler(self._resume_path)
            self._load_scaler(self._resume_path)

    def _begin_training(self) -> None:
        """Fire ``on_train_begin``, and evaluate once if asked to."""
        self._has_begun = True
        if self._resume is not None:
            self._resume.drop_caches()
        self._start_time = time.time()
        self.model_wrapped.zero_grad()
        self.control = self.callback_handler.on_train_begin(self.args, self.state, self.control)
        if self.args.eval_on_start:
            self._evaluate(self._trial, self._ignore_keys_for_eval, skip_scheduler=True)

    def _begin_epoch(self) -> None:
        """Fire ``on_epoch_begin``; a model with memory begins without one."""
        self._past = None
        self.control = self.callback_handler.on_epoch_begin(self.args, self.state, self.control)

    def restore_rng(self) -> None:
        """Set the random generators to where the resumed checkpoint left them."""
        self._load_rng_state(self._resume_path)

    def warn_of_empty_epoch(self) -> None:
        """Stop the training: the train loader gave no batch in a whole epoch."""
        logger.warning(
            "`train_dataset` gave no batch in epoch %s; training stops after %s of `max_steps=%s` update steps.",
            self.state.epoch,
            self.state.global_step,
            self.state.max_steps,
        )
        self.control.should_training_stop = True

    def call_model_init(self, trial: Any = None) -> Any:
        """Return a fresh model from ``model_init``, called with ``trial`` if it takes an argument.

        Raises:
            RuntimeError: If it takes more than one argument, or returns None.
        """
        assert self.model_init is not None, "only called with a model_init"
        arguments = number_of_arguments(self.model_init)
        if arguments > 1:
            raise RuntimeError(f"`model_init` takes {arguments} arguments; it may take none, or the trial.")
        model = self.model_init(trial) if arguments else self.model_init()
        if model is None:
            raise RuntimeError("`model_init` returned None; it has to return the model.")
        return model


def _older_name(kwargs: dict[str, Any], resume_from_checkpoint: str | bool | None) -> str | bool | None:
    """Return the checkpoint that ``kwargs`` names as ``model_path``, else ``resume_from_checkpoint``."""
    if "model_path" in kwargs:
        warnings.warn("`model_path` is now `resume_from_checkpoint`.", FutureWarning, stacklevel=3)
        resume_from_checkpoint = kwargs.pop("model_path")
    if kwargs:
        raise TypeError(f"train() got unexpected keyword arguments: {', '.join(kwargs)}.")
    return resume_from_checkpoint
