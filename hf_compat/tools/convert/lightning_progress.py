"""Lightning's counters of epochs, batches and update steps, and the epoch in a Trainer's state that they mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Counters", "epochs_done", "loops_state"]


@dataclass(frozen=True)
class Counters:
    """Progress of a run."""

    update_steps: int
    epochs: int
    """Completed epochs."""
    batches: int
    """Batches per device of the current epoch; 0 at the end of one."""
    batches_per_epoch: int
    """Batches per device of an epoch."""


def epochs_done(loops: Any, epoch: int) -> float:
    """Return the epochs that a run has done by its loops' counters, with the fraction of the current one.

    Args:
        loops: The entry of a Lightning checkpoint; None in one without it.
        epoch: The number of the epoch under way, for a checkpoint without counters.
    """
    try:
        fit = loops["fit_loop"]
        done = fit["epoch_progress"]["total"]["processed"]
        started = fit["epoch_progress"]["total"]["started"]
        batches = fit["epoch_loop.batch_progress"]
        current, total = batches["current"]["processed"], batches["total"]["processed"]
        is_last = batches["is_last_batch"]
    except (KeyError, TypeError):
        return float(epoch)
    if started == done:  # an epoch has just ended
        return float(done)
    if is_last:
        return float(done + 1)
    # The length of an epoch is known when one has been completed.
    per_epoch = (total - current) / done if done else 0.0
    return float(done + (current / per_epoch if per_epoch else 0.0))


def loops_state(progress: Counters) -> dict[str, Any]:
    """Return the entry ``loops`` of a checkpoint saved at the end of an epoch, or after a batch in one."""
    steps, epochs = progress.update_steps, progress.epochs
    is_end = progress.batches == 0 and epochs > 0
    batches = progress.batches_per_epoch if is_end else progress.batches
    total = epochs * progress.batches_per_epoch + progress.batches
    # In the middle of an epoch Lightning saves while the last batch is not counted as completed.
    behind = 0 if is_end else 1
    started = epochs if is_end else epochs + 1
    epoch_counts = {"ready": started, "started": started, "processed": epochs, "completed": epochs - is_end}
    step_counts = {"ready": steps, "completed": steps}
    in_epoch = {"ready": batches, "completed": batches}
    fit = {
        "state_dict": {},
        "epoch_progress": {"total": dict(epoch_counts), "current": dict(epoch_counts)},
        "epoch_loop.state_dict": {"_batches_that_stepped": steps - behind},
        "epoch_loop.batch_progress": {
            "total": _batch_counts(total, behind),
            "current": _batch_counts(batches, behind),
            "is_last_batch": is_end,
        },
        "epoch_loop.scheduler_progress": {"total": dict(step_counts), "current": dict(in_epoch)},
        "epoch_loop.automatic_optimization.state_dict": {},
        "epoch_loop.automatic_optimization.optim_progress": {
            "optimizer": {
                "step": {"total": dict(step_counts), "current": dict(in_epoch)},
                "zero_grad": {
                    "total": {**step_counts, "started": steps},
                    "current": {**in_epoch, "started": batches},
                },
            }
        },
        "epoch_loop.manual_optimization.state_dict": {},
        "epoch_loop.manual_optimization.optim_step_progress": {
            "total": dict(step_counts),
            "current": dict(in_epoch),
        },
    }
    return {"fit_loop": fit, "validate_loop": {}, "test_loop": {}, "predict_loop": {}}


def _batch_counts(batches: int, behind: int) -> dict[str, int]:
    return {"ready": batches, "started": batches, "processed": batches, "completed": max(batches - behind, 0)}
