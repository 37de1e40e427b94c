"""Where in the data a resumed run goes on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from hf_compat.checkpoint import names
from hf_compat.checkpoint.unpickle import load_trusted
from hf_compat.data.skipping import skip_batches, skip_samples
from hf_compat.data.windows import Start
from hf_compat.errors import CheckpointError
from hf_compat.metrics import has_length
from hf_compat.plan import DataPosition, RunPlan, plan_for_rest
from hf_compat.trainer.older import OlderMethods

__all__ = ["ResumingMethods"]

logger = logging.getLogger(__name__)


class ResumingMethods(OlderMethods):
    """From a checkpoint's position in the data to the loader of what is left."""

    def _resumed_start(
        self, plan: RunPlan, loader: Any, checkpoint: str, done: tuple[int, int]
    ) -> tuple[RunPlan, Start]:
        """Return the plan of the rest of the run and where it goes on.

        With the windows that the checkpoint was written with, that is where transformers goes on. With others, of
        another batch size, accumulation or number of processes, it is the first sample that was not trained on, and
        the run makes the update steps that are left of its epochs.

        Args:
            plan: The plan of a run with this run's windows from the start.
            loader: The train loader.
            checkpoint: What the run goes on from.
            done: The epochs and the batches of the next one that transformers leaves out.
        """
        self._shift = (0, 0)
        epoch, batches = done
        saved = None if self.args.ignore_data_skip else self._saved_position(checkpoint)
        if saved is not None and not saved.agrees(plan, self.state.global_step):
            rest = skip_samples(loader, saved.samples) if saved.samples else loader
            if rest is not None:
                return self._start_with_other_windows(plan, saved, rest, loader)
            logger.warning(
                "The checkpoint %s was written in windows of %s x %s samples, this run's are of %s x %s. The order of "
                "its samples depends on their batches, so it goes on after as many of its own windows: some samples of "
                "this epoch are seen twice, or not at all.",
                checkpoint,
                saved.accumulate,
                saved.samples_per_batch,
                plan.accumulate,
                plan.samples_per_batch,
            )
        return plan, Start(
            epoch, batches // plan.accumulate, batches, skip_batches(loader, batches) if batches else loader
        )

    def _start_with_other_windows(
        self, plan: RunPlan, saved: DataPosition, rest: Any, loader: Any
    ) -> tuple[RunPlan, Start]:
        epoch, left = saved.epoch, plan.batches_per_epoch
        if has_length(rest):
            left = len(rest)
        elif saved.samples:
            left -= saved.samples // plan.samples_per_batch
        if left == 0:  # what is left of the epoch is less than a batch, and such batches are dropped
            epoch, left, rest = epoch + 1, plan.batches_per_epoch, loader
        resumed, done = plan_for_rest(
            plan,
            num_train_epochs=None if self.args.max_steps > 0 else self.args.num_train_epochs,
            global_step=self.state.global_step,
            epoch=epoch,
            batches_left=left,
        )
        batches = plan.batches_per_epoch - left
        if epoch == saved.epoch:
            self._shift = (epoch, saved.samples - batches * plan.samples_per_batch)
        return resumed, Start(epoch, done, batches, rest)

    def _saved_position(self, checkpoint: str) -> DataPosition | None:
        """Return the position that ``checkpoint`` keeps; None if transformers wrote it."""
        path = Path(checkpoint, names.LIGHTNING_STATE_NAME)
        saved = load_trusted(path) if path.is_file() else {}
        if not isinstance(saved, dict) or "position" not in saved:
            return None
        try:
            return DataPosition.from_dict(saved["position"])
        except ValueError as error:
            raise CheckpointError(f"`{path}` is damaged: {error}") from error
