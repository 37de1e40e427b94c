"""The end of training: final metrics, the best model, the checkpoints that are left, ``on_train_end``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from hf_compat.callbacks.handler import fire
from hf_compat.evaluation.results import TrainOutput
from hf_compat.metrics import speed_metrics

if TYPE_CHECKING:
    from hf_compat.run.progress import RunCounters
    from hf_compat.run.saving import CheckpointSaving
    from hf_compat.trainer.trainer import Trainer

__all__ = ["finalize_training"]

logger = logging.getLogger(__name__)


def finalize_training(
    trainer: Trainer, counters: RunCounters, saving: CheckpointSaving, num_train_samples: float, start_time: float
) -> TrainOutput:
    """Log the final metrics, load the best model, rotate, fire ``on_train_end``; return the run's result.

    Args:
        trainer: The Trainer.
        counters: The run's counts, with its total loss.
        saving: Waits for a checkpoint that is being saved in the background, and deletes the checkpoints that a
            finished run no longer needs.
        num_train_samples: Samples of the run.
        start_time: When the run started, in seconds of ``time.time``.
    """
    logger.info("Training completed after %s update steps.", f"{trainer.state.global_step:,}")
    if counters.tr_loss is not None:  # else nothing was trained
        counters.total_loss_scalar += counters.tr_loss.item()
    saving.finish()
    loads_best = trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint is not None
    if loads_best and not trainer.semantics.loads_best_after_final_log:
        trainer._load_best_model()
    metrics = _final_metrics(trainer, counters, num_train_samples, start_time)
    trainer.is_in_train = trainer.semantics.loads_best_after_final_log
    counters.memory.stop_and_update_metrics(metrics, "train")
    trainer.log(metrics)
    if loads_best and trainer.semantics.loads_best_after_final_log:
        trainer._load_best_model()
    saving.rotate_finished(counters.trial)
    fire(trainer, "on_train_end")
    trainer._finish_current_push()
    return TrainOutput(trainer.state.global_step, metrics["train_loss"], metrics)


def _final_metrics(
    trainer: Trainer, counters: RunCounters, num_train_samples: float, start_time: float
) -> dict[str, Any]:
    """Return speed metrics, floating-point operations and the mean loss of the run."""
    state = trainer.state
    if trainer.semantics.averages_over_session_steps:
        done = steps = state.global_step - counters.initial_step
        samples = num_train_samples * steps / max(state.max_steps, 1)
    else:
        steps, samples, done = state.max_steps, num_train_samples, state.global_step
    metrics = speed_metrics("train", start_time, num_samples=samples, num_steps=steps, num_tokens=counters.train_tokens)
    trainer.store_flos()
    metrics["total_flos"] = state.total_flos
    metrics["train_loss"] = counters.total_loss_scalar / max(done, 0.001)
    return metrics
