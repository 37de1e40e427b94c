"""The best evaluation, its checkpoint, and loading the best model."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.best_metric import is_better, notes_best_step, worst_value
from hf_compat.arguments.cadence import saves_checkpoints
from hf_compat.checkpoint import names
from hf_compat.errors import MetricNameError, MetricsError, MissingWeightsError, described
from hf_compat.overriding import check_returned

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments
    from hf_compat.state import TrainerState
    from hf_compat.trainer.trainer import Trainer

__all__ = ["checked_output_dir", "determine_best_metric", "load_best_model", "metric_for_best", "note_best_checkpoint"]

logger = logging.getLogger(__name__)


def metric_for_best(args: TrainingArguments, metrics: Mapping[str, float]) -> float:
    """Return the value of ``metric_for_best_model``.

    Raises:
        MetricsError: If the evaluation returned no dict.
        MetricNameError: If that lacks it.
    """
    if not isinstance(metrics, Mapping):
        raise MetricsError(
            f"`evaluate` returned {described(metrics)}, but a model is chosen by its metrics. Return what it computes."
        )
    wanted = args.metric_for_best_model
    name = f"eval_{(wanted or 'loss').removeprefix('eval_')}"
    if name not in metrics:
        there = f"only {', '.join(metrics)}" if metrics else "and no other metric"
        remedy = ", or use one of these" if metrics else ""
        if name == "eval_loss":
            remedy += f"; there is a loss if batches have labels, by the names in `label_names={args.label_names}`"
        raise MetricNameError(
            f"`metric_for_best_model={wanted!r}`, which is not found in the evaluation metrics: "
            f"there is no `{name}`, {there}. Return it from `compute_metrics`{remedy}."
        )
    return metrics[name]


def determine_best_metric(trainer: Trainer, metrics: Mapping[str, float]) -> bool:
    """Return whether this evaluation is strictly better than all previous ones; if so, store it in the state."""
    args, state = trainer.args, trainer.state
    if args.metric_for_best_model is None:
        return False
    value = metric_for_best(args, metrics)
    if state.best_metric is None:
        state.best_metric = worst_value(args)
    if not is_better(args, value, state.best_metric):
        return False
    state.best_metric = value
    if notes_best_step(args, trainer.semantics):
        state.best_global_step = state.global_step
    return True


def checked_output_dir(folder: Any) -> str:
    """Return ``folder``, which the Trainer's ``_get_output_dir`` has returned.

    Raises:
        OverrideError: If it is no path.
    """
    check_returned(isinstance(folder, str | os.PathLike), folder, "_get_output_dir", "the path of a folder")
    return folder  # type: ignore[no-any-return]


def note_best_checkpoint(trainer: Trainer, output_dir: str) -> None:
    """Set ``state.best_model_checkpoint`` if the update step of the best evaluation is saved."""
    state: TrainerState = trainer.state
    if not state.best_global_step or not saves_checkpoints(trainer.args):
        return
    best = os.path.join(output_dir, names.checkpoint_name(state.best_global_step))
    if state.best_global_step == state.global_step or os.path.exists(best):
        state.best_model_checkpoint = best


def load_best_model(state: TrainerState, load: Callable[[str], None]) -> None:
    """Load the weights of the best checkpoint if it still exists.

    Args:
        state: The state with the path of the best checkpoint.
        load: Loads the weights in a folder into the model.
    """
    if state.best_model_checkpoint is None:
        logger.warning("No best checkpoint was recorded; keeping the current weights.")
        return
    best = state.best_model_checkpoint
    if not Path(best).is_dir():  # not an error, which would lose the result of the training
        logger.warning(
            "Could not locate the best model at %s: the checkpoint no longer exists. Keeping the last weights.", best
        )
        return
    logger.info("Loading best model from %s (score: %s).", best, state.best_metric)
    try:
        load(best)
    except MissingWeightsError as error:
        logger.warning("Could not locate the best model at %s; keeping the last weights. %s", best, error)
