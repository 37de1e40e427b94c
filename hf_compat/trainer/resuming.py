"""Where in the data a resumed run goes on."""

from __future__ import annotations

import functools
import logging
from typing import Any

from hf_compat.checkpoint.reader import ResumePoint
from hf_compat.data.dispatching import DispatchingDataLoader
from hf_compat.data.skipping import resume_stream, skip_batches, skip_samples
from hf_compat.data.stream_states import StreamStates
from hf_compat.data.windows import EpochStart
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
    ) -> tuple[RunPlan, EpochStart]:
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
        stream = None
        if saved is not None and saved.samples:
            same_batches = saved.samples_per_batch == plan.samples_per_batch
            stream = self._saved_stream(loader, checkpoint, same_batches=same_batches)
        if saved is not None and not saved.agrees(plan, self.state.global_step):
            rest = loader
            if saved.samples:
                rest = skip_samples(loader, saved.samples) if stream is None else stream
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
        elif stream is not None:
            return plan, EpochStart(epoch, batches // plan.accumulate, batches, stream)
        rest = skip_batches(loader, batches) if batches else loader
        return plan, EpochStart(epoch, batches // plan.accumulate, batches, rest)

    def _start_with_other_windows(
        self, plan: RunPlan, saved: DataPosition, rest: Any, loader: Any
    ) -> tuple[RunPlan, EpochStart]:
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
        return resumed, EpochStart(epoch, done, batches, rest)

    def _saved_position(self, checkpoint: str) -> DataPosition | None:
        """Return the position that ``checkpoint`` keeps; None if transformers wrote it."""
        return self._resume_point(checkpoint).lightning("position", DataPosition.from_dict)

    def _saved_stream(self, loader: Any, checkpoint: str, *, same_batches: bool) -> Any:
        """Return the loader of what is left of a stream that said where it was; None if that is not to be used.

        Raises:
            CheckpointError: If the state that ``checkpoint`` keeps does not fit the stream.
        """
        alone = isinstance(loader, DispatchingDataLoader)
        process, processes = (0 if alone else self.args.process_index), self.args.world_size
        read = functools.partial(StreamStates.of_process, process=process, processes=processes, alone=alone)
        saved = self._resume_point(checkpoint).lightning("stream", read)
        # What the workers gave since they had all had their turn is counted in batches of the old size.
        if saved is None or (saved.since and not same_batches):
            return None
        try:
            return resume_stream(loader, saved)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"The state of the stream in `{checkpoint}` does not fit `train_dataset`: {error}. Resume with the "
                "data that the checkpoint was written with, or set `ignore_data_skip=True`."
            ) from error

    def _resume_point(self, folder: str) -> ResumePoint:
        raise NotImplementedError
