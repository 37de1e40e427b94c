"""What follows an update step and an epoch: log, evaluate, save; and what ends the run."""

from __future__ import annotations

from typing import Any

import torch

from hf_compat.data.windows import Window
from hf_compat.errors import BatchSizeError
from hf_compat.evaluation.results import TrainOutput
from hf_compat.metrics import speed_metrics
from hf_compat.overriding import call_as_defined
from hf_compat.plan import DataPosition
from hf_compat.trainer.batch_size import is_out_of_memory
from hf_compat.trainer.search import SearchMethods

__all__ = ["FlowMethods"]


class FlowMethods(SearchMethods):
    """Called by the engine while Lightning's fit runs, in upstream's order."""

    _ignore_keys_for_eval: list[str] | None = None
    _learning_rate: float | None = None
    _start_time: float = 0.0
    _train_output: TrainOutput | None = None
    _initial_global_step: int = 0
    _shift: tuple[int, int] = (0, 0)
    """The epoch that was resumed with other batches, and by how many samples its batches are off."""

    def _count_update(self, window: Window) -> None:
        """Step the schedule and count the update step that ``window`` made."""
        assert self.run_plan is not None, "a run has a plan"
        assert self.lightning_trainer is not None, "a run has a Lightning trainer"
        self._learning_rate = self._get_learning_rate()
        if not self.accelerator.optimizer_step_was_skipped and not self._steps_on_metric():
            self.lr_scheduler.step()
        self.model_wrapped.zero_grad()
        self.state.global_step = self.lightning_trainer.global_step
        done = window.batches_before + len(window.batches)
        self.state.epoch = window.epoch + done / self.run_plan.batches_per_epoch
        shift = self._shift[1] if window.epoch == self._shift[0] else 0
        self._position = DataPosition.after(self.run_plan, window.epoch, done, shift)

    def _log_evaluate_save(self) -> None:
        """Log, evaluate and save, each if the control asks for it."""
        assert self.lightning_trainer is not None, "a run has a Lightning trainer"
        self._checkpoints.last_step = None  # what is logged or evaluated next is in no checkpoint yet
        call_as_defined(
            self._maybe_log_save_evaluate,
            ("tr_loss", self._tr_loss),
            ("grad_norm", self._grad_norm),
            ("model", self.model_wrapped),
            ("trial", self._trial),
            ("epoch", self.lightning_trainer.current_epoch),
            ("ignore_keys_for_eval", self._ignore_keys_for_eval),
            ("start_time", self._start_time),
            learning_rate=self._learning_rate,
        )

    def _maybe_log_save_evaluate(
        self,
        tr_loss: torch.Tensor,
        grad_norm: Any,
        model: Any,
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
        if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
            logs = self._training_logs(tr_loss, grad_norm, learning_rate)
            call_as_defined(
                self.log, ("logs", logs), ("start_time", self._start_time if start_time is None else start_time)
            )
        metrics = None
        if self.control.should_evaluate:
            metrics = self._evaluate(trial, ignore_keys_for_eval)
            is_best = self._determine_best_metric(metrics=metrics, trial=trial)
            if self.args.save_strategy == "best":
                self.control.should_save = is_best
        if self.control.should_save:
            self._save_and_tell(model, trial, metrics)

    def _training_logs(self, tr_loss: torch.Tensor, grad_norm: Any, learning_rate: float | None) -> dict[str, float]:
        """Return what is logged of the update steps since the last log, and start counting anew."""
        summed = self.accelerator.gather(tr_loss).mean().item()
        tr_loss -= tr_loss  # in place, as callers hold it; a NaN stays, as upstream's does
        mean = summed / (self.state.global_step - self._globalstep_last_logged)
        logs = {"loss": mean if self.semantics.logs_unrounded_loss else round(mean, 4)}
        if grad_norm is not None:
            logs["grad_norm"] = grad_norm.item() if isinstance(grad_norm, torch.Tensor) else grad_norm
        logs["learning_rate"] = self._get_learning_rate() if learning_rate is None else learning_rate
        self._total_loss_scalar += summed
        self._globalstep_last_logged = self.state.global_step
        self.store_flos()
        return logs

    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        """Evaluate, tell a search of it, and step a schedule that goes by a metric.

        Raises:
            BatchSizeError: If memory ran out, which smaller training batches would not change.
        """
        try:
            metrics: dict[str, float] = call_as_defined(self.evaluate, ignore_keys=ignore_keys_for_eval)
        except RuntimeError as error:
            if self.args.auto_find_batch_size and is_out_of_memory(error):
                raise BatchSizeError(
                    "An evaluation ran out of memory, and `auto_find_batch_size=True` makes training batches smaller "
                    f"alone: set a `per_device_eval_batch_size` below {self.args.per_device_eval_batch_size}."
                ) from error
            raise
        call_as_defined(
            self._report_to_hp_search, ("trial", trial), ("step", self.state.global_step), ("metrics", metrics)
        )
        if self._steps_on_metric() and not skip_scheduler:
            self.lr_scheduler.step(self._metric_for_best(metrics))
        return metrics

    # ---- after the run ----

    def _finish_training(self) -> None:
        """Finish the run and keep its result."""
        assert self.run_plan is not None, "a run has a plan"
        self._train_output = self._finalize_training(self._trial, self.run_plan.num_train_samples, self._start_time)

    def _finalize_training(self, trial: Any, num_train_samples: float, start_time: float) -> TrainOutput:
        """Log the final metrics, load the best model, fire ``on_train_end``.

        Args:
            trial: The trial of a search, None without one.
            num_train_samples: Samples of the whole run.
            start_time: When the run began, in seconds of ``time.time``.
        """
        self._total_loss_scalar += self._tr_loss.item()
        self._finish_saving()
        loads_best = self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None
        if loads_best and not self.semantics.loads_best_after_final_log:
            self._load_best_model()
        metrics = self._final_metrics(num_train_samples, start_time)
        self.is_in_train = self.semantics.loads_best_after_final_log
        self._memory_tracker.stop_and_update_metrics(metrics, "train")
        self.log(metrics)
        if loads_best and self.semantics.loads_best_after_final_log:
            self._load_best_model()
        self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
        self._finish_current_push()
        return TrainOutput(self.state.global_step, metrics["train_loss"], metrics)

    def _final_metrics(self, num_train_samples: float, start_time: float) -> dict[str, Any]:
        """Return speeds, floating-point operations and the mean loss of the run."""
        if self.semantics.averages_over_session_steps:
            steps = self.state.global_step - self._initial_global_step
            samples = num_train_samples * steps / max(self.state.max_steps, 1)
            done = steps
        else:
            steps, samples, done = self.state.max_steps, num_train_samples, self.state.global_step
        metrics = speed_metrics("train", start_time, num_samples=samples, num_steps=steps)
        self.store_flos()
        metrics["total_flos"] = self.state.total_flos
        metrics["train_loss"] = self._total_loss_scalar / max(done, 0.001)
        return metrics
