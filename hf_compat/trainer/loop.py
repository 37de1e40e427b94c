"""An update step, in order, and the rest of a run's script: what each hook of Lightning calls."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hf_compat.arguments.enums import DebugOption
from hf_compat.arguments.releases import effective_args
from hf_compat.callbacks.handler import close_progress_bars
from hf_compat.data.windows import Window, WindowLoader, checked_draw
from hf_compat.engine.internals.exceptions import wraps_stop_iteration
from hf_compat.engine.internals.loops import allow_next_step, continues_epoch, is_fitting, may_stop
from hf_compat.engine.internals.stepping import TrainingLoop
from hf_compat.engine.lightning_callbacks import IdleHooks, decay_added_parameters
from hf_compat.engine.module import HFModule
from hf_compat.engine.strategies.base import ModelStrategy
from hf_compat.memory import WeakAttribute
from hf_compat.model_facts import zero_gradients
from hf_compat.optim.losses import check_loss
from hf_compat.overflow import DebugUnderflowOverflow
from hf_compat.overriding import call_override, check_is_module, is_overridden
from hf_compat.trainer.loaders import is_carried_on
from hf_compat.trainer.loss import NO_CONTEXT
from hf_compat.trainer.optimization import OptimizerStep
from hf_compat.trainer.preemption import Preemption
from hf_compat.trainer.progress import EvaluationTiming, log_start, warn_of_changed_accumulation
from hf_compat.trainer.resume import Resume
from hf_compat.trainer.run_warnings import is_inside_of_autocast, warn_of_untold_workers

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.trainer.run import TrainingRun
    from hf_compat.trainer.trainer import Trainer

logger = logging.getLogger(__name__)


# An update step, in order: what a run does with each window of batches.


class UpdateLoop(TrainingLoop):
    """The training loop of a fit. :meth:`advance` is an update step, :meth:`train` its batches and the optimizer.

    The objects that it calls belong to the run's hooks, and do one thing each. Methods of the Trainer are looked up at
    each call, so that ``trainer.log = f`` works in the middle of a run.

    Args:
        pl_trainer: The Lightning trainer, before it trains; this becomes its loop.
        hooks: The run's hooks for this fit.
        windows: How many windows each epoch has, and from which loader.
    """

    hf_trainer: Trainer
    """From the begin of the first epoch to the end of the fit."""

    def __init__(self, pl_trainer: pl.Trainer, hooks: RunHooks, windows: WindowLoader) -> None:
        super().__init__(pl_trainer, HFModule, ModelStrategy)
        self.run_hooks, self.windows, self._warn_once = hooks, windows, hooks.run.warn_once

    def advance(self, window: Window) -> None:  # type: ignore[override]  # Lightning's is given what fetches it
        """Make one update step; none if the data set has ended within the window."""
        trainer, pl_trainer, hooks, lightning = self.hf_trainer, self.trainer, self.run_hooks, self.lightning_hooks
        done = self.steps.completed
        window, index = self.begin_batch(window)

        trainer.accelerator.sync_gradients = window.is_complete and len(window.batches) == 1  # of its first batch
        lightning.begin("on_train_batch_start", window, index)  # the user's Lightning callbacks
        if hooks.counts_tokens_ahead:  # of `on_step_begin`, and each other batch of the window as it is trained on
            trainer._track_num_input_tokens(window.batches[0])
        trainer.current_gradient_accumulation_steps = window.drawn
        if window.begins_update:
            trainer.control = trainer.callback_handler.on_step_begin(trainer.args, trainer.state, trainer.control)
        if hooks.timing is not None:
            hooks.timing.begin_window()
        if hooks.preemption is not None:
            hooks.preemption.begin_step()
        if lightning.end("on_train_batch_start", window, index) == -1:  # a module's own hook ends the epoch
            self.skip_epoch()
            return

        outputs = self.call_training_step(window, index)  # which is `train`

        lightning.begin("on_train_batch_end", outputs, window, index)
        if hooks.preemption is not None:  # also where no update step ends
            hooks.preemption.end_step()
        if self.steps.completed > done:
            trainer.control = trainer.callback_handler.on_step_end(trainer.args, trainer.state, trainer.control)
            if hooks.timing is not None:
                hooks.timing.request_after_update(window)
            hooks.log_evaluate_save(trainer, pl_trainer)
            if hooks.preemption is not None and not self.batch_progress.is_last_batch:  # then the epoch ends first
                hooks.preemption.exit_if_signalled(pl_trainer)
        hooks.agree_on_stopping(trainer, pl_trainer)
        lightning.end("on_train_batch_end", outputs, window, index)
        self.end_batch()
        self.expect_rest_of(window)

    def expect_rest_of(self, window: Window) -> None:
        """Count what follows ``window`` as one with it, if its batches were drawn together."""
        if window.is_followed and not self.should_stop():
            self.begin_rest()

    def train(self, window: Window) -> dict[str, Tensor]:
        """Run forward and backward pass of each batch, then step the optimizer; return the summed loss, ``()``."""
        trainer, hooks, losses = self.hf_trainer, self.run_hooks, []
        for number, batch in enumerate(window.batches, start=1):
            is_last = number == len(window.batches)
            ends_update = is_last and window.is_complete
            if number > 1 and hooks.counts_tokens_ahead:
                trainer._track_num_input_tokens(batch)
            accelerator = trainer.accelerator  # a subclass may have put its own in place
            accelerator.sync_gradients = ends_update
            with NO_CONTEXT if is_last else accelerator.no_sync(trainer.model_wrapped):
                loss = call_override(
                    trainer.training_step,
                    "model inputs num_items_in_batch",
                    trainer.model_wrapped,
                    batch,
                    window.num_items,
                )
            if not isinstance(loss, Tensor):
                check_loss(loss, f"`{type(trainer).__name__}.training_step`")
            losses.append(loss)
            if trainer.optimizer is not hooks.optimizer_step.stepped:  # an override of training_step may replace it
                hooks.optimizer_step.give_to(trainer, self.strategy)
            hooks.progress.count_batch(trainer, loss, batch)
            if ends_update:
                self.step_optimizer()  # once gradients are unscaled: `on_before_optimizer_step` of the hooks, clipping
                if hooks.clears_copies:
                    torch.clear_autocast_cache()
                trainer.control = trainer.callback_handler.on_optimizer_step(
                    trainer.args, trainer.state, trainer.control
                )
                hooks.optimizer_step.step_schedule(trainer)
                zero_gradients(trainer.model_wrapped)
                hooks.progress.count_update(trainer, window, self.steps.completed)
                if hooks.preemption is not None:
                    hooks.preemption.end_step()
            else:
                trainer.control = trainer.callback_handler.on_substep_end(trainer.args, trainer.state, trainer.control)
            if not is_last and self.should_stop():
                break
        # A copy, since a callback may add up in it, and the loss of the window may be added to the log's only later.
        return {"loss": losses[0].clone() if len(losses) == 1 else torch.stack(losses).sum()}

    def teardown(self) -> None:
        """Let go of the Trainer."""
        super().teardown()
        self.__dict__.pop("hf_trainer", None)

    # ---- where windows come from ----

    def on_run_start(self, data_fetcher: Any) -> None:
        """Begin an epoch with its windows, none of which is drawn yet."""
        super().on_run_start(data_fetcher)
        self.hf_trainer = self.run_hooks.trainer
        self.batches = self.draw_windows()
        if self.windows.follows_length:
            self.expect(len(self.windows))

    def draw_windows(self) -> Iterator[Window]:
        """Yield the windows of the epoch until it ends or a callback stops it."""
        trainer, hooks, windows = self.hf_trainer, self.run_hooks, self.windows
        semantics, start = trainer.semantics, windows.open_epoch()
        must_restore_rng = start is windows.start  # once, in the epoch in which a run resumes
        if must_restore_rng and start.batches == 0:
            trainer._load_rng_state(hooks.resume.folder)
            must_restore_rng = False
        windows.tell_epoch(start)
        warn_of_untold_workers(start.rest, self._warn_once)
        reads = windows.plan.batches_per_epoch or semantics.asks_empty_loader
        # Also after the end of the data: an override may have an effect each time, or more batches later.
        asks_to_the_end = is_overridden(trainer.get_batch_samples) or is_carried_on(windows.train_loader)
        batches, position, makes_updates = iter(start.rest if reads else ()), start.batches, False
        for count in windows.sizes(start) if reads else ():
            drawn, num_items = self.draw(batches, count)
            if must_restore_rng and (drawn or semantics.restores_rng_without_batches):
                trainer._load_rng_state(hooks.resume.folder)
                must_restore_rng = False
            if drawn:
                # No batch is kept here while the window is trained on, nor later: Lightning does not read to the end.
                found = windows.split(drawn, num_items, start, position)
                position += len(drawn)
                makes_updates = makes_updates or found[0].is_complete
                del drawn, num_items
                yield found.pop(0)
                while found and not self.should_stop():
                    yield found.pop(0)
            elif not asks_to_the_end:
                break
            if self.should_stop():
                makes_updates = True
                break
        if position == 0:
            self.end_empty_epoch()
        elif not makes_updates:
            windows.check_end(start, position)

    def draw(self, batches: Iterator[Any], count: int) -> tuple[list[Any], Any]:
        """Return the next ``count`` of ``batches``, or fewer, and their number of items."""
        trainer, preemption = self.hf_trainer, self.run_hooks.preemption
        warn_of_changed_accumulation(trainer, self._warn_once)
        try:
            if preemption is not None and preemption.reads_together:
                batches = preemption.read_together(batches, count)
            drawn = trainer.get_batch_samples(batches, count, trainer.args.device)
        except Exception:  # of any class, where a batch is lost with the worker that sent it
            self.run_hooks.run.exit_if_preempted()
            raise
        return checked_draw(drawn)

    def should_stop(self) -> bool:
        """Return whether a callback has requested the end of the epoch or of training."""
        control = self.hf_trainer.control
        return control.should_epoch_stop or (control.should_training_stop and may_stop(self.trainer))

    def end_empty_epoch(self) -> None:
        """Warn that the train loader yielded no batch in an epoch, and stop the training."""
        trainer, state = self.hf_trainer, self.hf_trainer.state
        logger.warning(
            "There is not a single sample in your epoch_iterator, stopping training at step %s! `train_dataset` "
            "yielded no batches in epoch %s, but `max_steps=%s` is not reached.",
            *(state.global_step, state.epoch, state.max_steps),
        )
        trainer.control.should_training_stop = True
        self.run_hooks.run.backend.stop_without_minimum()


# The run in order: each hook of Lightning, and those inside a window, as a list of calls.


class RunHooks(IdleHooks):
    """The script of a fit, and the objects that it calls; a callback of a ``lightning.Trainer``, after the user's.

    Each hook is a list of calls, in their order; the objects, the run's or made here for the fit, do one thing each and
    know no hook. Methods of the Trainer are looked up at each call, so that ``trainer.log = f`` works in the middle of
    a run. A checkpoint contains what the user's Lightning callbacks, which are called before, did in the same update
    step.

    Args:
        run: The run of the fit, whose checkpoint is known.

    Attributes:
        run: The run, which its Trainer keeps alive.
    """

    run: WeakAttribute[TrainingRun] = WeakAttribute()
    trainer: WeakAttribute[Trainer] = WeakAttribute()

    def __init__(self, run: TrainingRun) -> None:
        trainer, settings = run.trainer, run.backend.loop_settings
        self.run, self.trainer, self.loop_settings = run, trainer, settings
        self.progress, self.saving, self.frozen = run.progress, run.saving, run.frozen
        self.counters = run.counters
        self._undo = ExitStack()
        self.resume = Resume(trainer, run.checkpoint)
        shards_model = run.backend.traits.shards_model
        self.optimizer_step = OptimizerStep(shards_model=shards_model, clip_value=settings.clip_value)
        times = settings.evaluation_times
        self.timing = None if times is None else EvaluationTiming(trainer, times)
        self._loaded_at: int | None = None
        """The epoch whose train loader is read, if new ones are made."""
        self.preemption = None if run.watch is None else Preemption(trainer, run.watch, run.saving)
        self._stops = False
        """Whether Lightning's ``should_stop`` is that of the Trainer's ``control``, and no Lightning callback's."""
        counts = trainer.args.include_num_input_tokens_seen != "no"
        self.counts_tokens_ahead = counts and not trainer.semantics.counts_tokens_after_batch
        self.clears_copies = trainer.semantics.corrected and is_inside_of_autocast(
            trainer.args.device, trainer.accelerator.mixed_precision
        )
        """Whether an autocast around the run would go on with weights as they were before the step."""
        self._keeps_past = effective_args(trainer.args).past_index >= 0

    # ---- before the first window ----

    def setup(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Change the model for the time of the fit; restore the user's Lightning callbacks, which have been set up."""
        if stage != "fit":
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
        trainer, handler = self.trainer, self.trainer.callback_handler
        if type(pl_module).configure_optimizers is not HFModule.configure_optimizers:
            self.run.optimization.take_configured(pl_trainer)
        if self.run.backend.model_is_prepared and not trainer.semantics.leaves_mode_to_training_step:
            trainer.model.train()  # not a model in the wrapper of an earlier run
        handler.model, handler.optimizer, handler.lr_scheduler = trainer.model, trainer.optimizer, trainer.lr_scheduler
        self.resume.load_optimizer(pl_trainer)
        self.optimizer_step.give_to(trainer, pl_trainer.strategy)  # type: ignore[arg-type]
        decay_added_parameters(pl_trainer, trainer.args.weight_decay)
        self.frozen.remember(trainer.model, self.run.backend.traits)
        # As in Lightning, not in a resumed run.
        if self.loop_settings.sanity_batches != 0 and self.run.checkpoint is None:
            with self.run.backend.sanity_check():
                self.run.evaluate(self.run.ignore_keys)
        self.progress.start_clock()
        trainer.model_wrapped.zero_grad()

    def on_train_start(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Announce the run."""
        assert self.run.windows is not None, "a fit has windows"
        self.run.backend.set_modes()
        trainer = self.trainer
        self.resume.drop_caches()
        log_start(trainer, self.counters.train_batch_size, self.resume.folder, self.run.windows.start)
        trainer.control = trainer.callback_handler.on_train_begin(trainer.args, trainer.state, trainer.control)
        if self.timing is not None:
            self.timing.begin()
        if trainer.args.eval_on_start:
            trainer._evaluate(self.counters.trial, self.run.ignore_keys, skip_scheduler=True)
        if continues_epoch(pl_trainer):
            self.on_train_epoch_start(pl_trainer, pl_module)

    @wraps_stop_iteration
    def on_train_epoch_start(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin an epoch; in a resumed one Lightning does not call it, but :meth:`on_train_start` does."""
        assert self.run.windows is not None, "a fit has windows"
        every, epoch = self.loop_settings.reload_every, pl_trainer.current_epoch
        if every and (self._loaded_at is None or epoch - self._loaded_at >= every):
            if self._loaded_at is not None:  # else the run's first epoch, which has a loader
                self.run.reload()
            self._loaded_at = epoch
        if self._keeps_past:
            self.counters.past = None
        self.run.windows.begin_epoch(epoch)
        trainer = self.trainer
        trainer.control = trainer.callback_handler.on_epoch_begin(trainer.args, trainer.state, trainer.control)

    # ---- an update step, whose order is that of `UpdateLoop` ----

    def on_before_optimizer_step(
        self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Clip the gradients, which a gradient scaler has unscaled."""
        trainer = self.trainer
        self.optimizer_step.clip(trainer)
        trainer.control = trainer.callback_handler.on_pre_optimizer_step(trainer.args, trainer.state, trainer.control)

    # ---- the end ----

    @wraps_stop_iteration
    def on_train_epoch_end(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End an epoch: log, evaluate and save."""
        trainer = self.trainer
        self.saving.note_change()
        trainer.control = trainer.callback_handler.on_epoch_end(trainer.args, trainer.state, trainer.control)
        if self.timing is not None:
            self.timing.request_after_epoch(pl_trainer.current_epoch)
        self.log_evaluate_save(trainer, pl_trainer)
        if self.preemption is not None:
            self.preemption.exit_if_signalled(pl_trainer)
        self.agree_on_stopping(trainer, pl_trainer)

    def on_train_end(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End the training: the final log, the best model, ``on_train_end`` of callbacks."""
        plan, trial = self.trainer.run_plan, self.counters.trial
        assert plan is not None, "a fit has a plan"
        if self.preemption is not None:
            self.preemption.end_training()
        self.optimizer_step.grad_norm = None  # its memory is not to count as that of the trained model
        output = self.trainer._finalize_training(trial, plan.num_train_samples, self.progress.start_time)
        self.run.set_output(output)

    def teardown(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Undo ``setup``."""
        if stage == "fit":
            self.end()

    def on_exception(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Save if code was interrupted; undo ``setup``: Lightning does not call ``teardown`` after an error."""
        if is_fitting(pl_trainer):
            if self.preemption is not None:
                self.preemption.save_if_interrupted(keeps_weights=self.run.keeps_weights())
            self.end()

    def end(self) -> None:
        """Undo ``setup``, also after an error in the fit; a second call has no effect."""
        with self._undo:
            close_progress_bars(self.trainer.callback_handler)  # of a run that ended without `on_train_end`
            if self._keeps_past:
                self.counters.forget_past()

    # ---- after an update step or an epoch ----

    def log_evaluate_save(self, trainer: Trainer, pl_trainer: pl.Trainer) -> None:
        """Call the Trainer's ``_maybe_log_save_evaluate``, unless it is ours and nothing is due."""
        method, control, counters = trainer._maybe_log_save_evaluate, trainer.control, self.counters
        if not is_overridden(method) and not (control.should_log or control.should_evaluate or control.should_save):
            return  # before the losses are added up for it
        call_override(
            method,
            "tr_loss grad_norm model trial epoch ignore_keys_for_eval start_time",
            counters.tr_loss,
            self.optimizer_step.grad_norm,
            trainer.model_wrapped,
            counters.trial,
            pl_trainer.current_epoch,
            self.run.ignore_keys,
            self.progress.start_time,
            learning_rate=self.optimizer_step.learning_rate,
        )

    def agree_on_stopping(self, trainer: Trainer, pl_trainer: pl.Trainer) -> None:
        """Keep ``control.should_training_stop`` and Lightning's ``should_stop`` equal.

        Callbacks may take back what was requested, also by the default flow at the last planned update step.
        """
        control, plan = trainer.control, trainer.run_plan
        if pl_trainer.should_stop and not self._stops:  # set by a Lightning callback, such as EarlyStopping
            control.should_training_stop = True
            return
        self._stops = pl_trainer.should_stop = control.should_training_stop
        if not self._stops and plan is not None and trainer.state.global_step >= plan.max_steps:
            allow_next_step(pl_trainer)
