"""``PreemptionSaving``: on SIGTERM, and SLURM's signal, a run saves a checkpoint and exits; SLURM starts it again."""

from __future__ import annotations

import logging
import signal
from contextlib import ExitStack

import lightning.pytorch as pl

from hf_compat.distributed.oom_consensus import PacedVotes
from hf_compat.engine.clusters import slurm_signal
from hf_compat.engine.internals.loops import disable_signal_handlers
from hf_compat.lightning.hf_checkpoints import HFCheckpoints
from hf_compat.run.preemption import SignalWatch, exit_status, requeue

__all__ = ["PreemptionSaving"]

logger = logging.getLogger(__name__)


class PreemptionSaving(pl.Callback):
    """Saves a checkpoint and exits on a signal; for any module.

    Lightning exits with status 0 on SIGTERM without saving, and under SLURM saves inside the signal handler. Here the
    handler only records the signal; the run saves after the current update step and exits with 128 + signal (143 for
    SIGTERM). SLURM's signal (SIGUSR1) also requeues the job. With several processes, ranks check about twice a second,
    and at least every 16 steps, whether any of them received one.

    Args:
        checkpoints: What saves; a callback of the same trainer.
    """

    def __init__(self, checkpoints: HFCheckpoints) -> None:
        self._checkpoints = checkpoints
        self._watching = ExitStack()
        self._watch: SignalWatch | None = None
        self._last_step = 0
        self._votes = PacedVotes()

    def setup(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Note signals from now on."""
        if stage == "fit":
            disable_signal_handlers(pl_trainer)
            cluster = getattr(pl_trainer.strategy, "cluster_environment", None)
            self._watch = SignalWatch(slurm_signal([cluster]))
            self._watching.enter_context(self._watch.watching())

    def on_train_start(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note where the run starts."""
        self._last_step = pl_trainer.global_step
        self._votes = PacedVotes()

    def on_train_batch_end(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, *_: object) -> None:
        """Save and exit if a rank has received a signal and an update step was made.

        Raises:
            SystemExit: With status 128 + signal.
        """
        if self._watch is None or pl_trainer.global_step == self._last_step:
            return
        self._last_step = pl_trainer.global_step
        signum = self._votes.max_over_ranks(pl_trainer.global_step, self._watch.received)
        if not signum:
            return
        folder = self._checkpoints.save(pl_trainer)
        logger.warning("%s: saved %s; exiting.", signal.Signals(signum).name, folder)
        pl_trainer.strategy.barrier()
        if signum == self._watch.requeue_signal and pl_trainer.is_global_zero:
            requeue()
        raise SystemExit(exit_status(signum))

    def on_exception(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Restore the signal handlers."""
        self._watching.__exit__(type(exception), exception, exception.__traceback__)

    def teardown(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Restore the signal handlers; a signal that came after the last update step is raised again."""
        self._watching.close()
