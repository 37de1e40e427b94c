"""Logging, evaluations, saves and the end of a run, as far as training arguments alone decide them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["due_by", "epochs_to_train", "evaluates", "evaluates_in_training", "saves_checkpoints"]


def due_by(unit: Literal["steps", "epoch"], args: TrainingArguments, done: float) -> tuple[bool, bool, bool]:
    """Return whether a run logs, evaluates and saves by ``unit``; evaluations have to wait for ``eval_delay``.

    Args:
        unit: Update steps or epochs.
        args: The training arguments; perhaps transformers' own, which callbacks can be given.
        done: Update steps or epochs that are done.
    """
    evaluates = args.eval_strategy == unit and args.eval_delay <= done
    return args.logging_strategy == unit, evaluates, args.save_strategy == unit


def evaluates_in_training(args: TrainingArguments) -> bool:
    """Return whether a strategy evaluates during training."""
    return args.eval_strategy != "no"


def evaluates(args: TrainingArguments) -> bool:
    """Return whether the script or a strategy evaluates."""
    return args.do_eval or evaluates_in_training(args)


def saves_checkpoints(args: TrainingArguments) -> bool:
    """Return whether a strategy saves checkpoints during training."""
    return args.save_strategy != "no"


def epochs_to_train(args: TrainingArguments) -> float | None:
    """Return the epochs of a run; None if ``max_steps``, which may be 0, says when it ends."""
    return args.num_train_epochs if args.max_steps < 0 else None
