"""What a run tells the log as it begins and resumes: the facts that transformers tells, at level info."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hf_compat.engine.callbacks import RunCallback
from hf_compat.model_facts import count_parameters

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.data.windows import EpochStart
    from hf_compat.plan import RunPlan
    from hf_compat.run.host import RunHost

__all__ = ["Announcements"]

logger = logging.getLogger(__name__)


class Announcements(RunCallback):
    """Logs the numbers of the run, and where a resumed one starts.

    Hooks: ``on_train_start``.

    Args:
        host: The Trainer.
        folder: The checkpoint to resume from, None without one.

    Attributes:
        start: Where a resumed run starts in the data; None for the beginning.
    """

    def __init__(self, host: RunHost, folder: str | None) -> None:
        self._host = host
        self._folder = folder
        self.start: EpochStart | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log them."""
        plan = self._host.run_plan
        if plan is None or not logger.isEnabledFor(logging.INFO):
            return
        logger.info("***** Running training *****")
        for line in (*_numbers(self._host, plan), *self._resumed()):
            logger.info("  %s", line)

    def _resumed(self) -> Iterator[str]:
        if self._folder is None or self.start is None:
            return
        yield f"Resuming training from checkpoint {self._folder}"
        yield f"Continuing training from epoch {self.start.epoch}"
        yield f"Continuing training from global step {self._host.state.global_step}"
        if not self._host.args.ignore_data_skip:
            skipped = f"the first {self.start.epoch} epochs then the first {self.start.batches} batches"
            yield f"Fast-forwarding the dataloader, will skip {skipped}"


def _numbers(host: RunHost, plan: RunPlan) -> Iterator[str]:
    per_device = host.args.per_device_train_batch_size
    yield f"Num examples = {plan.num_examples:,}"
    yield f"Num Epochs = {plan.num_train_epochs:,}"
    yield f"Num update steps per epoch = {plan.update_steps_per_epoch:,}"
    yield f"Instantaneous batch size per device = {per_device:,}"
    if host._train_batch_size != per_device:
        yield f"The batch size has been adjusted to: {host._train_batch_size:,}"
    total = plan.samples_per_update_step
    yield f"Total train batch size (w. parallel, distributed & accumulation) = {total:,}"
    yield f"Gradient Accumulation steps = {plan.accumulate}"
    yield f"Total optimization steps = {plan.max_steps:,}"
    trainable = count_parameters(host.model, trainable_only=True, whole=True)
    yield f"Number of trainable parameters = {trainable:,}"
