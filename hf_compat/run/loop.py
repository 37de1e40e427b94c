"""An update step, in order: what a run does with each window of batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hf_compat.callbacks.handler import fire
from hf_compat.data.windows import Window, WindowLoader
from hf_compat.engine.internals.loops import may_stop
from hf_compat.engine.internals.stepping import TrainingLoop
from hf_compat.engine.module import HFModule
from hf_compat.memory import WeakAttribute
from hf_compat.model_facts import zero_gradients
from hf_compat.optim.losses import check_loss
from hf_compat.overriding import call_as_defined
from hf_compat.run.run_warnings import warn_of_changed_accumulation

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.run.hooks import RunHooks
    from hf_compat.run.run import TrainingRun
    from hf_compat.trainer.trainer import Trainer

__all__ = ["UpdateLoop"]

logger = logging.getLogger(__name__)

_SYNCS = nullcontext()


class UpdateLoop(TrainingLoop):
    """The training loop of a fit. :meth:`advance` is an update step, :meth:`train` its batches and the optimizer.

    The objects that it calls belong to the run's hooks, and do one thing each. Methods of the Trainer are looked up at
    each call, so that ``trainer.log = f`` works in the middle of a run.

    Args:
        pl_trainer: The Lightning trainer, before it trains; this becomes its loop.
        run: The run, with the hooks of the fit.

    Attributes:
        windows: The windows of each epoch, set before the fit.
    """

    windows: WindowLoader
    _run: WeakAttribute[TrainingRun] = WeakAttribute()
    _fit: tuple[TrainingRun, RunHooks, Trainer]
    """What every batch reads, kept from the begin of the first epoch to the end of the fit."""

    def __init__(self, pl_trainer: pl.Trainer, run: TrainingRun) -> None:
        super().__init__(pl_trainer, HFModule)
        self._run = run

    def advance(self, window: Window) -> None:  # type: ignore[override]  # Lightning's is given what fetches it
        """Make one update step; none if the data set has ended within the window."""
        (_, hooks, trainer), lightning, done = self._fit, self.hooks, self.optimizer_steps
        window, index = self.begin_batch(window)

        lightning.begin("on_train_batch_start", window, index)  # the user's Lightning callbacks
        if hooks.counts_tokens_ahead:
            trainer._track_num_input_tokens(window.batches[0])
        trainer.current_gradient_accumulation_steps = len(window.batches)
        fire(trainer, "on_step_begin")
        if hooks.timing is not None:
            hooks.timing.begin_window()
        if hooks.preemption is not None:
            hooks.preemption.begin_step()
        if lightning.end("on_train_batch_start", window, index) == -1:  # a module's own hook ends the epoch
            self.skip_epoch()
            return

        outputs = self.call_training_step(window, index)  # which is `train`

        lightning.begin("on_train_batch_end", outputs, window, index)
        if hooks.preemption is not None:
            hooks.preemption.end_step()
        if self.optimizer_steps > done:
            fire(trainer, "on_step_end")
            if hooks.timing is not None:
                hooks.timing.request_after_update(window)
            hooks.call_log_evaluate_save(trainer, self.trainer)
            if hooks.preemption is not None and not self.batch_progress.is_last_batch:  # then the epoch ends first
                hooks.preemption.exit_if_signalled(self.trainer)
        hooks.agree_on_stopping(trainer, self.trainer)
        lightning.end("on_train_batch_end", outputs, window, index)
        self.end_batch()

    def train(self, window: Window) -> dict[str, Tensor]:
        """Run forward and backward pass of each batch, then step the optimizer; return the summed loss, ``()``."""
        (_, hooks, trainer), losses = self._fit, []
        for number, batch in enumerate(window.batches, start=1):
            is_last = number == len(window.batches)
            ends_update = is_last and window.is_complete
            if number > 1 and hooks.counts_tokens_ahead:
                trainer._track_num_input_tokens(batch)
            accelerator = trainer.accelerator  # a subclass may have put its own in place
            accelerator.sync_gradients = ends_update
            with _SYNCS if is_last else accelerator.no_sync(trainer.model_wrapped):
                loss = call_as_defined(
                    trainer.training_step,
                    ("model", trainer.model_wrapped),
                    ("inputs", batch),
                    ("num_items_in_batch", window.num_items),
                )
            if not isinstance(loss, Tensor):
                check_loss(loss, f"`{type(trainer).__name__}.training_step`")
            losses.append(loss)
            hooks.optimizer.give_if_replaced(trainer, self.strategy)
            hooks.progress.count_batch(trainer, loss, batch)
            if ends_update:
                self.step_optimizer()  # once gradients are unscaled: `on_before_optimizer_step` of the hooks, clipping
                fire(trainer, "on_optimizer_step")
                hooks.schedule.step(trainer)
                zero_gradients(trainer.model_wrapped)
                hooks.progress.count_update(trainer, window, self.optimizer_steps)
                if hooks.preemption is not None:
                    hooks.preemption.end_step()
            else:
                fire(trainer, "on_substep_end")
            if self.should_stop():
                break
        return {"loss": losses[0] if len(losses) == 1 else torch.stack(losses).sum()}

    def teardown(self) -> None:
        """Let go of the run."""
        super().teardown()
        self.__dict__.pop("_fit", None)

    # ---- where windows come from ----

    def on_run_start(self, data_fetcher: Any) -> None:
        """Begin an epoch with its windows, none of which is drawn yet."""
        super().on_run_start(data_fetcher)
        self._fit = self._run, self._run.hooks, self._run.trainer
        self.batches = iter(self.windows)

    def draw_window(self, batches: Iterator[Any], count: int) -> tuple[list[Any], Any]:
        """Return the next ``count`` of ``batches``, or fewer, and their number of items."""
        run, hooks, trainer = self._fit
        preemption = hooks.preemption
        warn_of_changed_accumulation(trainer, run.warn_once)
        try:
            if preemption is not None and preemption.reads_together:
                batches = preemption.read_together(batches, count)
            return trainer.get_batch_samples(batches, count, trainer.args.device)
        except Exception:  # of any class, where a batch is lost with the worker that sent it
            run.exit_if_preempted()
            raise

    def should_stop(self) -> bool:
        """Return whether a callback has requested the end of the epoch or of training."""
        control = self._fit[2].control
        return control.should_epoch_stop or (control.should_training_stop and may_stop(self.trainer))

    def restore_rng(self) -> None:
        """Restore the random states of the resumed checkpoint."""
        self._fit[1].resume.restore_rng()

    def warn_of_empty_epoch(self) -> None:
        """Warn that the train loader yielded no batch in an epoch, and stop the training."""
        run, _, trainer = self._fit
        state = trainer.state
        logger.warning(
            "There is not a single sample in your epoch_iterator, stopping training at step %s! `train_dataset` "
            "yielded no batches in epoch %s, but `max_steps=%s` is not reached.",
            *(state.global_step, state.epoch, state.max_steps),
        )
        trainer.control.should_training_stop = True
        run.backend.stop_without_minimum()
