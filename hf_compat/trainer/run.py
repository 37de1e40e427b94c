"""``TrainingRun``: one call of ``train()``, with one fit or, under ``auto_find_batch_size``, several."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hf_compat.arguments.derived import epochs_to_train, make_output_folder, saves_checkpoints
from hf_compat.arguments.fields import declared
from hf_compat.arguments.process_facts import full_evaluation_precision
from hf_compat.arguments.releases import effective_args
from hf_compat.checkpoint import finding, publish
from hf_compat.checkpoint.completeness import incomplete_reason
from hf_compat.checkpoint.rotation import OwnedCheckpoints
from hf_compat.checkpoint.states import CheckpointReader, parameter_names
from hf_compat.data.loader import PreparedDataLoader, check_is_loader
from hf_compat.data.rank_batches import check_even
from hf_compat.data.stream_states import gather_stream_states
from hf_compat.data.windows import ResumePosition, WindowLoader
from hf_compat.distributed.oom_consensus import max_over_ranks
from hf_compat.engine.internals.loops import fast_forward, train_on
from hf_compat.engine.internals.strategies import voted_collectives
from hf_compat.engine.lightning_callbacks import averages_weights, logging_by_steps, prunes
from hf_compat.engine.loggers import open_loggers
from hf_compat.engine.module import HFModule
from hf_compat.engine.process_layout import slurm_signal
from hf_compat.errors import BatchSizeError, CheckpointError, CheckpointWriteError
from hf_compat.hub import quiet_progress_bars
from hf_compat.memory import WeakAttribute
from hf_compat.metrics import speed_metrics
from hf_compat.model_facts import sample_of_weights, unwrap_model
from hf_compat.optim.prepared import share_states
from hf_compat.overriding import call_override
from hf_compat.plan import RunPlan
from hf_compat.plan.plan import from_values, limited, samples_per_update_step
from hf_compat.trainer.batch_size import is_out_of_memory, with_smaller_batches
from hf_compat.trainer.loaders import share_sequences, warn_of_lost_steps
from hf_compat.trainer.loop import RunHooks, UpdateLoop
from hf_compat.trainer.optimization import RunOptimization
from hf_compat.trainer.outputs import TrainOutput
from hf_compat.trainer.preemption import Deadline, SignalWatch
from hf_compat.trainer.preparing import prepare_model, take_wrapper, wrap_to_train
from hf_compat.trainer.progress import (
    FrozenParameters,
    Progress,
    RunCounters,
    count_train_tokens,
)
from hf_compat.trainer.resume import check_start, without_extra_step
from hf_compat.trainer.run_warnings import (
    warn_of_lost_masks,
    warn_of_narrowed_model,
    warn_of_norms_counted_twice,
    warn_of_outer_autocast,
    warn_of_rounded_average,
    warn_of_shares_in_shares,
    warn_of_unseeded_shuffle,
    warn_of_untold_epochs,
)
from hf_compat.trainer.saving import CheckpointSaving

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from torch.optim import Optimizer

    from hf_compat.trainer.searching import Trial
    from hf_compat.trainer.trainer import Trainer

logger = logging.getLogger(__name__)


# A fit: limits and intervals of its Lightning trainer, and its windows.


def limits_of(trainer: Trainer, plan: RunPlan) -> dict[str, int]:
    """Return ``max_steps`` and ``max_epochs`` of the Lightning trainer of a fit."""
    return {
        # A resumed run that has made all its update steps makes one more, as in transformers.
        "max_steps": max(plan.max_steps, trainer.state.global_step + 1),
        "max_epochs": max(plan.num_train_epochs, 0) if plan.num_train_epochs < 2**31 else -1,  # -1: without end
    }


def _log_as_the_trainer(run: TrainingRun, plan: RunPlan, pl_trainer: pl.Trainer) -> None:
    """Let Lightning callbacks log at the update steps of the Trainer's logs, unless the user has set an interval.

    With ``logging_strategy="no"``, and the default of ``logging_steps``, Lightning's interval stays.
    """
    trainer, strategy = run.trainer, effective_args(run.trainer.args).logging_strategy
    every = plan.update_steps_per_epoch if strategy == "epoch" else trainer.state.logging_steps
    default = declared(type(trainer.args))["logging_steps"].default
    is_set = strategy == "epoch" or (strategy == "steps" and every != default)
    if is_set and "log_every_n_steps" not in run.backend.keywords:
        pl_trainer.log_every_n_steps = int(every)  # type: ignore[attr-defined]
    interval, names = pl_trainer.log_every_n_steps, logging_by_steps(run.backend.callbacks)  # type: ignore[attr-defined]
    if not (names and interval) or "fast_dev_run" in run.backend.keywords:
        return
    if plan.max_steps // interval == trainer.state.global_step // interval:
        logger.warning(
            "%s: Lightning callbacks log every %s update steps, and this run ends after %s, so nothing will be logged. "
            "Set `logging_steps`, or `lightning={'log_every_n_steps': ...}`.",
            *(", ".join(names), interval, plan.max_steps),
        )


# `TrainingRun`: one call of `train()`, with one fit or, under `auto_find_batch_size`, several.


class TrainingRun:
    """The state of one ``train()``, as module, strategy and loader of windows see it.

    Args:
        trainer: The Trainer, which owns the run.
        trial: The trial of a hyperparameter search, None outside one.
        ignore_keys: Model outputs excluded from the predictions of evaluations during training.

    Attributes:
        backend: Ranks, strategy, precision and ``lightning.Trainer``.
        counters: The run's counts.
        checkpoint_writer: Writes checkpoints.
        warn_once: Issues each warning once per Trainer.
        checkpoint: The checkpoint to resume from; None for a run that starts from the beginning.
        watch: Records the signals on which the run saves and exits; None if nothing is saved.
        progress: Counts batches and update steps.
        saving: Saves checkpoints.
        frozen: Warns of parameters that a callback unfreezes.
        hooks: The script of the current or last fit; None before the first.
        windows: What Lightning trains on in the current or last fit; None before the first.
        output: The result, None before the end.
        originals: The Trainer's methods that methods of the module or the data stand in for.
    """

    trainer: WeakAttribute[Trainer] = WeakAttribute()

    def __init__(self, trainer: Trainer, trial: Trial | None = None, ignore_keys: list[str] | None = None) -> None:
        self.trainer, self.backend, self.counters = trainer, trainer.lightning_backend, counts_of(trainer)
        self.checkpoint_writer, self.warn_once = trainer.checkpoint_writer, trainer.warn_once
        self.trial, self.ignore_keys = trial, ignore_keys
        self.checkpoint: CheckpointReader | None = None
        self.watch: SignalWatch | None = None
        self.windows: WindowLoader | None = None
        self.output: TrainOutput | None = None
        self.originals: dict[str, Callable[..., Any]] = {}
        self._is_finished = False
        self.optimization = RunOptimization(self, 0)
        self.progress, self.saving = Progress(trainer, self.counters), CheckpointSaving(self)
        self.frozen = FrozenParameters(self.warn_once)
        self._weights_before: Tensor | None = None  # an evaluation that has not ended
        self.hooks: RunHooks | None = None

    # ---- the run ----

    @contextmanager
    def begun(self, resume_from_checkpoint: str | bool | None) -> Iterator[TrainingRun]:
        """Context of the run's fits, with the run: the model has a checkpoint's weights, and signals are recorded."""
        self._begin(resume_from_checkpoint)
        try:
            prepare_model(self.trainer, self.trial)
            if self.checkpoint is None:
                self.checkpoint_writer.owned = OwnedCheckpoints.start()
            else:
                self.checkpoint_writer.owned = OwnedCheckpoints.resume(self.checkpoint.folder)
                if not self.backend.traits.shards_model:
                    self.trainer._load_from_checkpoint(self.checkpoint.path)
                self._resume_batch_size(self.checkpoint)
            with self._watching_signals(), quiet_progress_bars() if self.trainer.args.push_to_hub else nullcontext():
                yield self
        except CheckpointWriteError:
            raise
        except CheckpointError as error:
            self._note_incomplete(error)
            raise
        finally:
            self._end()

    def _begin(self, resume_from_checkpoint: str | bool | None) -> None:
        trainer, args = self.trainer, self.trainer.args
        output_dir = args.output_dir
        with publish.raise_on_all_ranks():
            if args.should_save:  # before looking for checkpoints: a killed process may have left incomplete folders
                make_output_folder(args)
                publish.clean_orphans(output_dir)
        trainer.accelerator.wait_for_everyone()
        folder = finding.find_checkpoint(output_dir, resume_from_checkpoint, is_main=trainer.is_world_process_zero())
        self.checkpoint = None if folder is None else CheckpointReader(folder)
        if not trainer.semantics.keeps_batch_size:
            self.counters.train_batch_size = args.train_batch_size
        trainer.is_in_train = True
        self.counters.memory.start("train")

    def _note_incomplete(self, error: CheckpointError) -> None:
        """Add to ``error`` what the checkpoint that the run resumes from lacks, and what to pass instead."""
        folder = None if self.checkpoint is None else self.checkpoint.folder
        if folder is None or not folder.is_dir():  # it may have been deleted since, in its turn
            return
        reason = incomplete_reason(folder)
        if reason is not None:
            error.add_note(
                f"`resume_from_checkpoint={str(folder)!r}`: the checkpoint is incomplete: {reason.removesuffix('.')}. "
                "Pass 'auto', or True, for the newest complete one in `output_dir`, or another one."
            )

    def _resume_batch_size(self, checkpoint: CheckpointReader) -> None:
        trainer, size = self.trainer, checkpoint.trainer_state().train_batch_size
        wins = trainer.args.auto_find_batch_size or not trainer.semantics.resumes_batch_size_if_searching
        if size is not None and wins:
            self.counters.train_batch_size = size

    def _make_states_equal(self) -> None:
        """Make what steps with the optimizer the same on all ranks; the next fit's wrapper does so with weights.

        A sharded model has on each rank states of its own, for weights that no other rank has, and an engine makes
        both anew.
        """
        if self.backend.traits.shards_model:
            self.backend.strategy.abandon(self.trainer.model)
            return
        trainer = self.trainer
        if max_over_ranks(int(trainer.optimizer is None), trainer.args.ddp_timeout_delta):
            return  # one failed before it had created its own, so none has made an update step
        scheduler = None if self.counters.created_schedule else trainer.lr_scheduler
        share_states(trainer.optimizer, scheduler, self.backend.scaler)

    @contextmanager
    def _watching_signals(self) -> Iterator[None]:
        """Context that records signals if the run saves, and waits for a background save however it ends."""
        args = effective_args(self.trainer.args)
        as_signalled, seconds = args.enable_jit_checkpoint, args.preemption_timeout
        saves = saves_checkpoints(args) or as_signalled
        writer = self.checkpoint_writer
        deadline = None if seconds is None else Deadline(seconds, lambda: writer.is_writing)
        watch = SignalWatch(slurm_signal(self.backend.plugins), replaces_handler=as_signalled, deadline=deadline)
        self.watch = watch if saves else None
        try:
            with watch.watching() if saves else nullcontext():
                yield
        except BaseException:
            try:
                self.checkpoint_writer.wait_here()
            except Exception as error:  # the error that ended the run is the one to raise
                logger.error("%s", error)
            raise
        finally:
            self.watch = None

    def _end(self) -> None:
        self.checkpoint_writer.end_run()
        self.backend.end_fit()
        if self.hooks is not None:
            self.hooks.end()  # again, in case of an error before Lightning's teardown
        self.counters.memory.cancel()

    # ---- one fit ----

    def begin_fit(
        self,
        batch_size: int | None,
        resume_from_checkpoint: str | None,
        trial: Trial | None,
        ignore_keys_for_eval: list[str] | None,
    ) -> tuple[HFModule, WindowLoader]:
        """Begin a fit with a per-device batch size of ``batch_size``; return what Lightning trains, and on what."""
        hooks, plan, loader, start = self._prepare_fit(batch_size, resume_from_checkpoint, trial, ignore_keys_for_eval)
        trainer, limits = self.trainer, limits_of(self.trainer, plan)
        loggers = open_loggers(trainer.callback_handler.callbacks, trainer.args, trainer.state)
        model = unwrap_model(trainer.model)
        pl_trainer = self.backend.build(trainer.args, model, limits=limits, hooks=hooks, loggers=loggers)
        module = HFModule(trainer.model, trainer.args)
        return module, self._start(pl_trainer, module, hooks, plan, loader, start)

    def fit_with_smaller_batches(self, fit: Callable[..., TrainOutput]) -> TrainOutput:
        """Return the result of ``fit``, called again with a smaller ``batch_size`` as long as it runs out of memory."""
        size, timeout = self.counters.train_batch_size, self.trainer.args.ddp_timeout_delta
        with voted_collectives() if self.backend.traits.shards_model else nullcontext():
            return with_smaller_batches(fit, size, equalise=self._make_states_equal, timeout=timeout)

    def begin_user_fit(self, pl_trainer: pl.Trainer, module: HFModule) -> RunHooks:
        """Begin the one fit of ``pl_trainer``, which a person has called, with that person's ``module``.

        Returns:
            What becomes one of its callbacks.
        """
        folder = None if self.checkpoint is None else self.checkpoint.path
        batch_size = self.counters.train_batch_size
        hooks, plan, loader, start = self._prepare_fit(batch_size, folder, self.trial, self.ignore_keys)
        module.model = self.trainer.model
        windows = self._start(pl_trainer, module, hooks, plan, loader, start)
        train_on(pl_trainer, windows, **limits_of(self.trainer, plan))
        return hooks

    def finish_without_epoch(self) -> None:
        """End the training if no epoch was left, for which Lightning calls no hook."""
        pl_trainer, module = self.backend.pl_trainer, self.backend.module
        if self._is_finished or self.windows is None or self.hooks is None:
            return
        if pl_trainer is not None and module is not None:
            self.hooks.on_train_start(pl_trainer, module)
            self.hooks.on_train_end(pl_trainer, module)

    def _prepare_fit(
        self,
        batch_size: int | None,
        resume_from_checkpoint: str | None,
        trial: Trial | None,
        ignore_keys_for_eval: list[str] | None,
    ) -> tuple[RunHooks, RunPlan, Iterable[Any], ResumePosition | None]:
        """Set up a fit; return its hooks, its plan, its loader, and where a resumed one starts."""
        self._is_finished = False
        self.windows = self.output = None
        self.backend.renew_callbacks()
        self.trainer.accelerator.free_memory()  # also of a fit that ran out of memory
        if self.trainer.args.auto_find_batch_size:
            self.trainer.model_wrapped = self.trainer.model
        self.counters.train_batch_size = batch_size or self.counters.train_batch_size
        self.ignore_keys = ignore_keys_for_eval
        self.checkpoint = self.checkpoint_in(resume_from_checkpoint)
        loader = self._train_loader()
        plan = self.trainer.run_plan = self._plan(loader)
        self.counters.train_tokens = count_train_tokens(self.trainer, plan, loader)
        loader = self._shared(loader)
        done = self.trainer._init_training_state(
            plan.max_steps, plan.update_steps_per_epoch, plan.num_train_epochs, resume_from_checkpoint, trial
        )
        check_start(done, is_resumed=self.checkpoint is not None)
        hooks = self.hooks = RunHooks(self)
        plan, start, offset = hooks.resume.start_in_data(plan, loader, done, self.warn_once)
        if start is not None:
            self.trainer.state.max_steps, self.trainer.state.num_train_epochs = plan.max_steps, plan.num_train_epochs
        self._warn(plan, loader, start)
        plan = without_extra_step(self.trainer, plan, 0 if start is None else start.epoch, self.warn_once)
        self.trainer.run_plan = plan
        if self.counters.created_schedule:
            self.trainer.lr_scheduler, self.counters.created_schedule = None, False
        self.optimization = RunOptimization(self, plan.max_steps)
        self.progress.begin(offset)
        self.saving.note_change()  # since a former fit, whose update steps have the same numbers
        self.trainer.callback_handler.train_dataloader = loader
        if self.backend.strategy.wraps_each_fit:
            self.trainer.model_wrapped = self.trainer.model
        self.trainer.deepspeed = None
        return hooks, plan, loader, start

    def _warn(self, plan: RunPlan, loader: Iterable[Any], start: ResumePosition | None) -> None:
        """Warn of what a fit with ``plan`` loses or counts wrong, before it begins at ``start``."""
        epoch, batches, rest = (0, 0, loader) if start is None else (start.epoch, start.batches, start.rest)
        warn_of_untold_epochs(loader, rest, self.trainer.semantics, self.warn_once)
        warn_of_shares_in_shares(loader, "train_dataset", self.warn_once)
        warn_of_unseeded_shuffle(loader, batches, self.warn_once)
        if not self.trainer.semantics.corrected:
            accelerator = self.trainer.accelerator
            warn_of_outer_autocast(self.trainer.args.device, accelerator.mixed_precision, self.warn_once)
        if self.backend.model_is_narrowed:
            warn_of_narrowed_model(self.trainer.model, full_evaluation_precision(self.trainer.args), self.warn_once)
        warn_of_rounded_average(self.trainer.model, averages_weights(self.backend.callbacks), self.warn_once)
        warn_of_norms_counted_twice(self.trainer.model, self.warn_once)
        warn_of_lost_steps(loader, plan, epoch, self.warn_once)
        if start is not None and prunes(self.backend.callbacks):
            warn_of_lost_masks(self.warn_once)

    def _start(
        self,
        pl_trainer: pl.Trainer,
        module: HFModule,
        hooks: RunHooks,
        plan: RunPlan,
        loader: Iterable[Any],
        start: ResumePosition | None,
    ) -> WindowLoader:
        """Have the fit of ``hooks`` start at ``start``, None for the beginning; return its windows."""
        _log_as_the_trainer(self, plan, pl_trainer)
        windows = self.windows = WindowLoader(loader, plan, start, self.trainer.semantics)
        UpdateLoop(pl_trainer, hooks, windows)  # which becomes the loop of `pl_trainer`
        self.backend.begin_fit(self.trainer.callback_handler.train_dataloader, module.connect(self))
        if start is not None:
            step = self.trainer.state.global_step
            fast_forward(pl_trainer, start.epoch, windows=start.windows, update_steps=step)
        return windows

    def _train_loader(self) -> Iterable[Any]:
        """Return a new train loader."""
        loader = self.trainer.get_train_dataloader()
        check_is_loader(loader, "`get_train_dataloader`")
        if isinstance(loader, PreparedDataLoader):
            loader.track_stream_states()
        return loader

    def _shared(self, loader: Iterable[Any]) -> Iterable[Any]:
        backend = weakref.proxy(self.backend)  # which has the loader itself in a fit
        return share_sequences(
            loader,
            backend.process_layout.sequences,
            backend.process_layout.launch.rank,
            lambda: backend.strategy.sequence_group,
            self.warn_once,
            carries_on=self.trainer.semantics.carries_on_with_shared_sequences,
        )

    def reload(self) -> None:
        """Train on a new train loader from the epoch on that begins now; the next evaluations have new ones too."""
        assert self.windows is not None, "called in a fit"
        loader = self._shared(self._train_loader())
        self.windows.replace(loader)
        self.backend.loaders.train = self.trainer.callback_handler.train_dataloader = loader
        self.counters.eval_loaders.clear()

    def checkpoint_in(self, folder: str | None) -> CheckpointReader | None:
        """Return the checkpoint ``folder``, with the run's caches if it is the one to resume; None for None."""
        if folder is None:
            return None
        own = self.checkpoint is not None and self.checkpoint.path == folder
        return self.checkpoint if own else CheckpointReader(folder)

    def _plan(self, loader: Iterable[Any]) -> RunPlan:
        """Return the plan of the run, from the Trainer's ``set_initial_training_values``."""
        check_even(loader, awaited="gradients")
        trainer, args = self.trainer, self.trainer.args
        by_batches = trainer.semantics.plans_by_batches
        samples = None if by_batches else samples_per_update_step(trainer, args)
        names = "args dataloader" if by_batches else "args dataloader total_train_batch_size"
        older = () if by_batches else (samples,)
        values = call_override(trainer.set_initial_training_values, names, args, loader, *older)
        plan = from_values(values, accumulate=args.gradient_accumulation_steps, samples_per_update_step=samples)
        if trainer.accelerator.split_batches:
            plan = replace(plan, ranks_of_batch=trainer.accelerator.data_parallel_size)
        return limited(plan, self.backend.limits, num_train_epochs=epochs_to_train(args))

    def lightning_state(self) -> dict[str, Any]:
        """Return the content of a checkpoint's ``lightning.pt``; every rank has to call it."""
        content: dict[str, Any] = {"callbacks": self.backend.callback_states()}
        made = self.checkpoint_writer.once("callback entries", self.backend.checkpoint_entries)
        entries = {name: value for name, value in made.items() if name != "state_dict"}  # the checkpoint's weights
        if entries:
            content["callback_entries"] = entries
        position = self.progress.position_to_resume()
        if position is not None:
            content["position"] = position.to_dict()
        is_whole = not self.backend.traits.shards_model
        known = parameter_names(self.trainer.optimizer, self.trainer.model) if is_whole else None
        if known is not None:
            content["parameters"] = asdict(known)
        stream = gather_stream_states(None if self.windows is None else self.windows.loader)
        if stream is not None:
            content["stream"] = stream
        return content

    def evaluate(self, ignore_keys: list[str] | None) -> dict[str, float]:
        """Evaluate in the middle of a fit and return the metrics.

        Args:
            ignore_keys: Model outputs excluded from the predictions.

        Raises:
            BatchSizeError: If it runs out of memory; ``auto_find_batch_size`` reduces only the training batch size.
        """
        trainer = self.trainer
        self._weights_before = sample_of_weights(trainer.model)
        try:
            metrics = call_override(trainer.evaluate, ignore_keys=ignore_keys)
        except Exception as error:
            self.exit_if_preempted()  # a signal may have ended loader workers
            if trainer.args.auto_find_batch_size and is_out_of_memory(error):
                raise BatchSizeError(
                    "Evaluation hit an out-of-memory error: `auto_find_batch_size=True` only reduces the training "
                    f"batch size. Set a `per_device_eval_batch_size` below {trainer.args.per_device_eval_batch_size}."
                ) from error
            raise
        self._weights_before = None
        return metrics  # type: ignore[no-any-return]

    def keeps_weights(self) -> bool:
        """Return whether the model has the weights of training, also where an evaluation has not come to its end.

        Callbacks and overrides may evaluate others, such as averages, and put the former back afterwards.
        """
        before = self._weights_before
        return before is None or torch.equal(before, sample_of_weights(self.trainer.model))

    def finalize(self, num_train_samples: float, start_time: float) -> TrainOutput:
        """Log the final metrics, load the best model, rotate, fire ``on_train_end``; return the run's result.

        Args:
            num_train_samples: Samples of the run.
            start_time: When the run started, in seconds of ``time.time``.
        """
        trainer, counters = self.trainer, self.counters
        logger.info("Training completed after %s update steps.", f"{trainer.state.global_step:,}")
        if counters.tr_loss is not None:  # else nothing was trained
            counters.total_loss_scalar += counters.tr_loss.item()
        self.saving.finish()
        loads_best = trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint is not None
        if loads_best and not trainer.semantics.loads_best_after_final_log:
            trainer._load_best_model()
        metrics = self._final_metrics(num_train_samples, start_time)
        trainer.is_in_train = trainer.semantics.loads_best_after_final_log
        counters.memory.stop_and_update_metrics(metrics, "train")
        trainer.log(metrics)
        if loads_best and trainer.semantics.loads_best_after_final_log:
            trainer._load_best_model()
        self.saving.rotate_finished(counters.trial)
        trainer.control = trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
        trainer._finish_current_push()
        trainer.is_in_train = False  # not after an error, as in transformers
        return TrainOutput(trainer.state.global_step, metrics["train_loss"], metrics)

    def _final_metrics(self, num_train_samples: float, start_time: float) -> dict[str, Any]:
        """Return speed metrics, floating-point operations and the mean loss of the run."""
        trainer, state, counters = self.trainer, self.trainer.state, self.counters
        if trainer.semantics.averages_over_session_steps:
            done = steps = state.global_step - counters.initial_step
            samples = num_train_samples * steps / max(state.max_steps, 1)
        else:
            steps, samples, done = state.max_steps, num_train_samples, state.global_step
        tokens = counters.train_tokens
        metrics = speed_metrics("train", start_time, num_samples=samples, num_steps=steps, num_tokens=tokens)
        trainer.store_flos()
        metrics["total_flos"] = state.total_flos
        metrics["train_loss"] = counters.total_loss_scalar / max(done, 0.001)
        return metrics

    def set_output(self, output: TrainOutput) -> None:
        """Store the run's result."""
        self.output, self._is_finished = output, True

    # ---- called by the engine ----

    def original(self, name: str) -> Callable[..., Any]:
        """Return the Trainer's method ``name``; where the module or the data stands in for it, the one before."""
        return self.originals.get(name) or getattr(self.trainer, name)

    def wrap(self) -> nn.Module:
        """Return the module to train if the strategy has not wrapped the model, by the Trainer's ``_wrap_model``."""
        return wrap_to_train(self.trainer)

    def take_wrapper(self, wrapped: nn.Module) -> None:
        """Train ``wrapped``, the model in the strategy's wrapper; a sharded model loads resumed weights now."""
        traits = self.backend.traits
        if traits.has_engine and self.backend.trains:
            self.wrap()  # for overrides of `_wrap_model`
        take_wrapper(self.trainer, wrapped)
        if traits.has_engine:
            self.trainer.deepspeed = wrapped
        elif traits.shards_model and self.checkpoint is not None and self.backend.trains:
            self.trainer._load_from_checkpoint(self.checkpoint.path)

    def take_optimizers(self, optimizer: Optimizer, scheduler: Any) -> None:
        """Use the optimizer and the schedule that the strategy has created."""
        self.trainer.optimizer, self.trainer.lr_scheduler = optimizer, scheduler

    def exit_if_preempted(self) -> None:
        """Save and exit, after an error in reading data, if the process has received a signal to exit."""
        pl_trainer, hooks = self.backend.pl_trainer, self.hooks
        if hooks is not None and hooks.preemption is not None and self.windows is not None and pl_trainer is not None:
            hooks.preemption.exit_without_workers(pl_trainer)


# The current or last run of a Trainer, and its counts as attributes of the Trainer with transformers' names.


_UNSET = object()


def new_run(trainer: Trainer, trial: Trial | None = None, ignore_keys: list[str] | None = None) -> TrainingRun:
    """Create a run, set it as the current one of ``trainer`` and return it.

    Args:
        trainer: The Trainer.
        trial: The trial of a hyperparameter search, None outside one.
        ignore_keys: Model outputs excluded from the predictions of evaluations during training.
    """
    run = trainer.training_run = TrainingRun(trainer, trial, ignore_keys)
    return run


def current_run(trainer: Trainer) -> TrainingRun:
    """Return the current or last run; before the first, a new one."""
    return new_run(trainer) if trainer.training_run is None else trainer.training_run


def prepare_strategy(trainer: Trainer) -> None:
    """Let the strategy wrap the model if it needs a wrapper to be evaluated or saved."""
    backend, callbacks = trainer.lightning_backend, trainer.callback_handler.callbacks
    # Opening them begins a new run of each tracker in a search: only where a Lightning trainer is about to be built.
    loggers = open_loggers(callbacks, trainer.args, trainer.state) if backend.pl_trainer is None else ()
    wrapped = backend.prepare_evaluation(trainer.args, trainer.model, loggers)
    if wrapped is not None:
        current_run(trainer).take_wrapper(wrapped)


class CounterAttribute:
    """An attribute of the Trainer that reads and writes a field of its counts.

    Args:
        field: The field's name in :class:`~hf_compat.trainer.progress.RunCounters`.
        initial: Its first value. Default: that of ``RunCounters``.
    """

    def __init__(self, field: str, initial: object = _UNSET) -> None:
        self.field = field
        self.initial = initial

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, trainer: Trainer | None, owner: type) -> Any:
        if trainer is None:
            return self
        try:
            return getattr(counts_of(trainer), self.field)
        except AttributeError:
            raise AttributeError(f"{type(trainer).__name__!r} object has no attribute {self.name!r}") from None

    def __set__(self, trainer: Trainer, value: object) -> None:
        setattr(counts_of(trainer), self.field, value)

    def __delete__(self, trainer: Trainer) -> None:
        delattr(counts_of(trainer), self.field)


def counts_of(trainer: Trainer) -> RunCounters:
    """Return the counts of ``trainer``, created on first use, which may be before ``super().__init__()``."""
    counters: RunCounters | None = vars(trainer).get("run_counters")
    if counters is None:
        counters = vars(trainer)["run_counters"] = RunCounters()
        kind = type(trainer)
        for attribute in (getattr(kind, name) for name in _counter_attributes(kind)):
            # It may have been overridden by a property.
            if isinstance(attribute, CounterAttribute) and attribute.initial is not _UNSET:
                setattr(counters, attribute.field, attribute.initial)
    return counters


def keep_counter_attributes(kind: type) -> None:
    """Make each plain value that the class ``kind`` has under the name of a counter attribute its first value."""
    for name, value in list(vars(kind).items()):
        inherited = next((vars(base)[name] for base in kind.__mro__[1:] if name in vars(base)), None)
        if isinstance(inherited, CounterAttribute) and not hasattr(value, "__get__"):
            attribute = CounterAttribute(inherited.field, value)
            attribute.__set_name__(kind, name)
            setattr(kind, name, attribute)


def _counter_attributes(kind: type) -> list[str]:
    return [name for base in kind.__mro__ for name, value in vars(base).items() if isinstance(value, CounterAttribute)]
