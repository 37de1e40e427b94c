"""Train loaders during a run: new ones by epochs, and those of ranks that share sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torch.distributed import ProcessGroup

from hf_compat.arguments.parallelism import read_sequence_parallelism
from hf_compat.data.sequence_shards import SequenceShards
from hf_compat.memory import WeakAttribute
from hf_compat.overriding import WarnOnce
from hf_compat.plan import RunPlan

if TYPE_CHECKING:
    from hf_compat.run.run import TrainingRun
    from hf_compat.trainer.trainer import Trainer

__all__ = ["Reloading", "is_carried_on", "share_sequences", "warn_of_lost_steps"]


def share_sequences(
    trainer: Trainer, loader: Iterable[Any], group: Callable[[], ProcessGroup | None], warn_once: WarnOnce
) -> Iterable[Any]:
    """Return this rank's chunks of the batches of ``loader``; ``loader`` itself, if no rank shares its sequences.

    Args:
        trainer: The Trainer.
        loader: The train loader of this rank.
        group: Returns the ranks that share sequences; called when the first batch is read.
        warn_once: Warns of batches whose attention mask would be needed.
    """
    sequences = read_sequence_parallelism(trainer.args)
    if sequences is None:
        return loader
    return SequenceShards(
        loader,
        group,
        rank=trainer.args.process_index % sequences.size,
        size=sequences.size,
        attends_across=sequences.attention == "sdpa",
        warn_once=warn_once,
        carries_on=trainer.semantics.carries_on_with_shared_sequences,
    )


def is_carried_on(loader: object) -> bool:
    """Return whether an epoch of ``loader`` goes on with the pass of the one before, as under transformers."""
    return isinstance(loader, SequenceShards) and loader.carries_on


def warn_of_lost_steps(loader: object, plan: RunPlan, epoch: int, warn_once: WarnOnce) -> None:
    """Warn if ``loader`` is carried on from one epoch to the next.

    Args:
        loader: The train loader.
        plan: The plan of the run.
        epoch: Completed epochs at its start.
        warn_once: Warns.
    """
    if is_carried_on(loader) and plan.num_train_epochs > epoch + 1:
        warn_once(
            "With sequence parallelism each epoch after the first has one update step less, as under transformers, so "
            f"the run may end before `max_steps={plan.max_steps}`. Set `TrainingArguments(semantics='corrected')` to "
            "train on all batches of each epoch."
        )


class Reloading:
    """Makes a new train loader every ``epochs`` epochs.

    Args:
        run: The run, which makes it.
        epochs: Epochs after which the loader is made again.
    """

    _run: WeakAttribute[TrainingRun] = WeakAttribute()

    def __init__(self, run: TrainingRun, epochs: int) -> None:
        self._run = run
        self._epochs = epochs
        self._last: int | None = None

    def reload_if_due(self, epoch: int) -> None:
        """Reload at the start of ``epoch`` if that is due; the first epoch of a run has a new loader anyway."""
        if self._last is not None and epoch - self._last < self._epochs:
            return
        if self._last is not None:
            self._run.reload()
        self._last = epoch
