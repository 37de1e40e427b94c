"""The run in order: each hook of Lightning, and those inside a window, as a list of calls."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.optim import Optimizer

from hf_compat.arguments.enums import DebugOption
from hf_compat.arguments.fields.redeclared import for_run
from hf_compat.callbacks.handler import close_progress_bars, fire
from hf_compat.data.windows import ResumePosition
from hf_compat.engine.internals.exceptions import wraps_stop_iteration
from hf_compat.engine.internals.loops import continues_epoch
from hf_compat.engine.lightning_callbacks import LastCallback, decay_added_parameters
from hf_compat.memory import WeakAttribute
from hf_compat.overflow import DebugUnderflowOverflow
from hf_compat.overriding import call_as_defined, check_is_module, is_ours
from hf_compat.plan import ResumeOffset
from hf_compat.run.optimization import CurrentOptimizer, GradientClipping, LRSchedule, Norm
from hf_compat.run.preemption import Preemption
from hf_compat.run.progress import Progress
from hf_compat.run.resume import Resume
from hf_compat.run.run_warnings import FrozenParameters
from hf_compat.run.saving import CheckpointSaving
from hf_compat.run.start_log import log_start
from hf_compat.run.tokens import counts_tokens
from hf_compat.run.train_loaders import Reloading
from hf_compat.run.training_evaluation import EvaluationTiming, TrainingEvaluation
from hf_compat.run.training_logs import TrainingLogs

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.run.run import TrainingRun
    from hf_compat.trainer.trainer import Trainer
    from hf_compat.tuning.spaces import Trial

__all__ = ["RunHooks"]


class RunHooks(LastCallback):
    """The script of a fit, and the objects that it calls; the last callback of a ``lightning.Trainer``.

    Each hook is a list of calls, in their order; the objects do one thing each and know no hook. Methods of the Trainer
    are looked up at each call, so that ``trainer.log = f`` works in the middle of a run. A checkpoint contains what the
    user's Lightning callbacks, which are called before, did in the same update step.

    Args:
        run: The run of the fit. Without one only ``setup`` and ``teardown`` of an evaluation may be called until
            :meth:`prepare`.

    Attributes:
        run: The run, which its Trainer keeps alive.
        start: Start of a resumed run in the data; None for the beginning.
    """

    run: WeakAttribute[TrainingRun | None] = WeakAttribute()
    trainer: WeakAttribute[Trainer] = WeakAttribute()

    def __init__(self, run: TrainingRun | None = None) -> None:
        self._undo = ExitStack()
        if run is not None:
            self.prepare(run)

    def prepare(self, run: TrainingRun) -> None:
        """Make the objects of one fit of ``run``."""
        trainer, counters, loop = run.trainer, run.counters, run.backend.loop
        self.run, self.trainer, self.loop = run, trainer, loop
        self.start: ResumePosition | None = None
        self.resume = Resume(trainer, run.point)
        self.optimizer = CurrentOptimizer(shards_model=run.backend.traits.shards_model)
        self.clipping = GradientClipping(loop.clip_value)
        self.schedule = LRSchedule()
        self.progress = Progress(trainer, counters)
        self.logs = TrainingLogs(run)
        self.evaluation = TrainingEvaluation(run)
        self.frozen = FrozenParameters(run.warn_once)
        self.saving = CheckpointSaving(run)
        self.timing = None if loop.evaluation_times is None else EvaluationTiming(trainer, loop.evaluation_times)
        self.reloading = Reloading(run, loop.reload_every) if loop.reload_every else None
        self.preemption = None if run.watch is None else Preemption(trainer, run.watch, self.saving)
        self.counts_tokens_ahead = counts_tokens(trainer) and not trainer.semantics.counts_tokens_after_batch
        self._keeps_past = for_run(trainer.args).past_index >= 0

    def start_at(self, start: ResumePosition | None, offset: ResumeOffset) -> None:
        """Have the fit begin at ``start``, None for the beginning of the data, and count samples from ``offset``."""
        self.start, self.progress.offset = start, offset

    # ---- before the first window ----

    def setup(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Change the model for the time of the fit; restore the user's Lightning callbacks, which have been set up."""
        if stage != "fit" or self.run is None:
            return
        if self.trainer.neftune_noise_alpha is not None:
            model = self.trainer._activate_neftune(pl_module.model)  # type: ignore[arg-type]  # perhaps another one
            check_is_module(model, "_activate_neftune")
            pl_module.model = self.trainer.model = model
            self._undo.callback(lambda: self.trainer._deactivate_neftune(model))
        if DebugOption.UNDERFLOW_OVERFLOW in self.trainer.args.debug:
            self._undo.callback(DebugUnderflowOverflow(pl_module.model).remove)  # type: ignore[arg-type]
        self.resume.restore_callbacks(pl_trainer)

    def on_fit_start(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Load the states of optimizer and schedule, which the strategy has created."""
        assert self.run is not None, "a fit has a run"
        if self.run.backend.model_is_prepared and not self.trainer.semantics.leaves_mode_to_training_step:
            self.trainer.model.train()  # not a model in the wrapper of an earlier run
        self.resume.load_optimizer(pl_trainer)
        self.optimizer.give_to(self.trainer, pl_trainer.strategy)  # type: ignore[arg-type]
        decay_added_parameters(pl_trainer, self.trainer.args.weight_decay)
        self.frozen.remember(self.trainer.model, self.run.backend.traits)
        if self.loop.sanity_batches != 0 and self.run.point is None:  # as in Lightning, not in a resumed run
            with self.run.backend.sanity_check():
                self.evaluation.measure(self.evaluation.ignore_keys)
        self.progress.start_clock()
        self.trainer.model_wrapped.zero_grad()

    def on_train_start(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Announce the run."""
        self.resume.drop_caches()
        log_start(self.trainer, self.progress.counters.train_batch_size, self.resume.folder, self.start)
        fire(self.trainer, "on_train_begin")
        if self.timing is not None:
            self.timing.begin()
        if self.trainer.args.eval_on_start:
            self.trainer._evaluate(self.progress.counters.trial, self.evaluation.ignore_keys, skip_scheduler=True)
        if continues_epoch(pl_trainer):
            self.on_train_epoch_start(pl_trainer, pl_module)

    @wraps_stop_iteration
    def on_train_epoch_start(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin an epoch; in a resumed one Lightning does not call it, but :meth:`on_train_start` does."""
        if self.reloading is not None:
            self.reloading.reload_if_due(pl_trainer.current_epoch)
        if self._keeps_past:
            self.progress.counters.past = None
        fire(self.trainer, "on_epoch_begin")

    # ---- an update step, whose order is in `run/loop.py` ----

    def on_before_optimizer_step(
        self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Clip the gradients, which a gradient scaler has unscaled."""
        trainer = self.trainer
        self.clipping.clip(trainer)
        fire(trainer, "on_pre_optimizer_step")

    # ---- the end ----

    @wraps_stop_iteration
    def on_train_epoch_end(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End an epoch: log, evaluate and save."""
        fire(self.trainer, "on_epoch_end")
        if self.timing is not None:
            self.timing.request_after_epoch(pl_trainer.current_epoch)
        self.call_log_evaluate_save(self.trainer, pl_trainer)
        if self.preemption is not None:
            self.preemption.exit_if_signalled(pl_trainer)
        self.agree_on_stopping(self.trainer, pl_trainer)

    def on_train_end(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End the training: the final log, the best model, ``on_train_end`` of callbacks."""
        assert self.run is not None, "a fit has a run"
        plan, trial = self.progress.plan, self.progress.counters.trial
        assert plan is not None, "a fit has a plan"
        if self.preemption is not None:
            self.preemption.end_training()
        self.clipping.norm = None  # its memory is not to count as that of the trained model
        output = self.trainer._finalize_training(trial, plan.num_train_samples, self.progress.start_time)
        self.run.set_output(output)

    def teardown(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Undo ``setup``."""
        self.end()

    def on_exception(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Save if code was interrupted; undo ``setup``: Lightning does not call ``teardown`` after an error."""
        self.save_if_interrupted()
        self.end()

    def save_if_interrupted(self) -> None:
        """Save the last update step if code was interrupted at the deadline of a signal."""
        if self.run is not None and self.preemption is not None:
            self.preemption.save_if_interrupted(keeps_weights=self.evaluation.keeps_weights())

    def end(self) -> None:
        """Undo ``setup``, also after an error in the fit; a second call has no effect."""
        with self._undo:
            if self.run is not None:
                close_progress_bars(self.trainer)  # of a run that ended without `on_train_end`
                if self._keeps_past:
                    self.progress.counters.forget_past()

    # ---- after an update step or an epoch ----

    def call_log_evaluate_save(self, trainer: Trainer, pl_trainer: pl.Trainer) -> None:
        """Call the Trainer's ``_maybe_log_save_evaluate``, whose default is :meth:`log_evaluate_save`."""
        self.saving.begin_step()
        method, control = trainer._maybe_log_save_evaluate, trainer.control
        if is_ours(method) and not (control.should_log or control.should_evaluate or control.should_save):
            return  # before the losses are added up for it
        call_as_defined(
            method,
            ("tr_loss", self.progress.counters.tr_loss),
            ("grad_norm", self.clipping.norm),
            ("model", trainer.model_wrapped),
            ("trial", self.progress.counters.trial),
            ("epoch", pl_trainer.current_epoch),
            ("ignore_keys_for_eval", self.evaluation.ignore_keys),
            ("start_time", self.progress.start_time),
            learning_rate=self.schedule.learning_rate,
        )

    def log_evaluate_save(
        self,
        tr_loss: Tensor,
        grad_norm: Norm,
        model: nn.Module,
        trial: Trial | None,
        ignore_keys_for_eval: list[str] | None,
        start_time: float | None,
        learning_rate: float | None,
    ) -> None:
        """Log, evaluate and save, each if the control says so; see the Trainer's ``_maybe_log_save_evaluate``."""
        trainer, metrics = self.trainer, None
        if trainer.control.should_log:
            self.frozen.warn_of_unfrozen(trainer)
        started = self.progress.start_time if start_time is None else start_time
        self.logs.log_if_due(tr_loss, grad_norm, learning_rate, started)
        if trainer.control.should_evaluate:
            metrics = trainer._evaluate(trial, ignore_keys_for_eval)
            is_best = trainer._determine_best_metric(metrics=metrics, trial=trial)
            if trainer.args.save_strategy == "best":
                trainer.control.should_save = is_best
        if trainer.control.should_save:
            self.saving.save(model, trial, metrics)

    def agree_on_stopping(self, trainer: Trainer, pl_trainer: pl.Trainer) -> None:
        """Keep ``control.should_training_stop`` and Lightning's ``should_stop`` equal."""
        control = trainer.control
        if pl_trainer.should_stop:  # set by a Lightning callback, such as EarlyStopping
            control.should_training_stop = True
        pl_trainer.should_stop = control.should_training_stop
