"""Log records of a run that begins or resumes: the facts that transformers logs, at level info."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hf_compat.model_facts import count_parameters

if TYPE_CHECKING:
    from hf_compat.data.windows import ResumePosition
    from hf_compat.plan import RunPlan
    from hf_compat.trainer.trainer import Trainer

__all__ = ["log_start"]

logger = logging.getLogger(__name__)


def log_start(trainer: Trainer, batch_size: int, folder: str | None, start: ResumePosition | None) -> None:
    """Log the numbers of the run, and the start of a resumed one.

    Args:
        trainer: The Trainer.
        batch_size: Samples of a batch on each device.
        folder: The checkpoint to resume from, None without one.
        start: Start of a resumed run in the data; None for the beginning.
    """
    plan = trainer.run_plan
    if plan is None or not logger.isEnabledFor(logging.INFO):
        return
    logger.info("***** Running training *****")
    resumed = () if folder is None or start is None else _resumed(trainer, folder, start)
    for line in (*_numbers(trainer, batch_size, plan), *resumed):
        logger.info("  %s", line)


def _resumed(trainer: Trainer, folder: str, start: ResumePosition) -> Iterator[str]:
    yield f"Resuming training from checkpoint {folder}"
    yield f"Continuing training from epoch {start.epoch}"
    yield f"Continuing training from global step {trainer.state.global_step}"
    if not trainer.args.ignore_data_skip:
        skipped = f"the first {start.epoch} epochs then the first {start.batches} batches"
        yield f"Fast-forwarding the dataloader, will skip {skipped}"


def _numbers(trainer: Trainer, batch_size: int, plan: RunPlan) -> Iterator[str]:
    per_device = trainer.args.per_device_train_batch_size
    yield f"Num examples = {plan.num_examples:,}"
    yield f"Num Epochs = {plan.num_train_epochs:,}"
    yield f"Num update steps per epoch = {plan.update_steps_per_epoch:,}"
    yield f"Instantaneous batch size per device = {per_device:,}"
    if batch_size != per_device:
        yield f"The batch size has been adjusted to: {batch_size:,}"
    total = plan.samples_per_update_step
    yield f"Total train batch size (w. parallel, distributed & accumulation) = {total:,}"
    yield f"Gradient Accumulation steps = {plan.accumulate}"
    yield f"Total optimization steps = {plan.max_steps:,}"
    trainable = count_parameters(trainer.model, trainable_only=True, whole=True)
    yield f"Number of trainable parameters = {trainable:,}"
