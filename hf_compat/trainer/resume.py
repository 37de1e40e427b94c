"""Resuming: position in the data, trainer state, callbacks, optimizer, schedule, gradient scaler, random states."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hf_compat.arguments.derived import epochs_to_train
from hf_compat.checkpoint.finding import relocated
from hf_compat.checkpoint.states import CheckpointReader
from hf_compat.data.loader import DispatchingDataLoader
from hf_compat.data.skipping import resume_stream, skip_batches, skip_samples
from hf_compat.data.stream_states import StreamStates
from hf_compat.data.windows import ResumePosition
from hf_compat.engine.internals.callbacks import restore_callback_states, restore_checkpoint_entries, unfreeze_restored
from hf_compat.engine.lightning_callbacks import defines_hook, thaws_by_phases
from hf_compat.errors import CheckpointError, TrainerSetupError
from hf_compat.memory import WeakAttribute
from hf_compat.metrics import has_length
from hf_compat.overriding import WarnOnce, check_returned
from hf_compat.plan import DataPosition, ResumeOffset, RunPlan, plan_for_rest
from hf_compat.state import TrainerState, is_exportable

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from torch.optim import Optimizer

    from hf_compat.arguments.training_arguments import TrainingArguments
    from hf_compat.data.loader import PreparedDataLoader
    from hf_compat.engine.strategies.base import ModelStrategy
    from hf_compat.trainer.searching import Trial
    from hf_compat.trainer.trainer import Trainer

logger = logging.getLogger(__name__)
upstream_logger = logging.getLogger("transformers.trainer")
"""Upstream's: scripts look there for the messages on callbacks."""


def check_start(done: Any, *, is_resumed: bool) -> None:
    """Raise unless a run can start where an override of ``_init_training_state`` says.

    Args:
        done: What it returned.
        is_resumed: Whether there is a checkpoint, without which a run starts at the beginning.

    Raises:
        OverrideError: If that is no pair of numbers, or there is nothing to skip.
    """
    is_pair = isinstance(done, tuple | list) and len(done) == 2 and all(isinstance(number, int) for number in done)
    wanted = "the epochs that are done and the batches to skip in the next one; without a checkpoint both are 0"
    check_returned(is_pair and (is_resumed or list(done) == [0, 0]), done, "_init_training_state", wanted)


class Resume:
    """Loads the states of callbacks, optimizer, schedule and gradient scaler from a checkpoint; finds where it goes on.

    Args:
        trainer: The Trainer.
        checkpoint: The checkpoint; None for a run that starts from the beginning.
    """

    _trainer: WeakAttribute[Trainer] = WeakAttribute()

    def __init__(self, trainer: Trainer, checkpoint: CheckpointReader | None) -> None:
        self._trainer = trainer
        self._checkpoint = checkpoint

    @property
    def folder(self) -> str | None:
        """The checkpoint's folder, None without one."""
        return None if self._checkpoint is None else self._checkpoint.path

    def restore_callbacks(self, pl_trainer: pl.Trainer) -> None:
        """Restore the user's Lightning callbacks, which have been set up.

        Raises:
            TrainerSetupError: If one of them cannot be resumed.
        """
        if self._checkpoint is None:
            return

        if any(thaws_by_phases(callback) for callback in pl_trainer.callbacks):  # type: ignore[attr-defined]
            raise TrainerSetupError(
                f"`resume_from_checkpoint={self._checkpoint.path!r}`: FinetuningScheduler cannot be resumed: it "
                "restores its phase and the optimizer's groups of parameters from Lightning checkpoints only. Train "
                "without resuming, or remove it."
            )

        content = self._checkpoint.lightning_state()

        def restore(states: dict[str, Any]) -> None:  # a checkpoint of `HFCheckpointIO` may have none
            restore_callback_states(pl_trainer, states)
            if any(defines_hook(callback, "on_load_checkpoint") for callback in pl_trainer.callbacks):  # type: ignore[attr-defined]
                restore_checkpoint_entries(pl_trainer, states, content.get("callback_entries", {}))

        self._checkpoint.lightning("callbacks", restore)

    def load_optimizer(self, pl_trainer: pl.Trainer) -> None:
        """Load the states of optimizer, schedule and scaler, which the strategy has created."""
        folder = self.folder
        strategy: ModelStrategy = pl_trainer.strategy  # type: ignore[assignment]
        if folder is not None:
            unfreeze_restored(pl_trainer)
            strategy.resume_engine(folder)
        if folder is not None or not self._trainer.semantics.loads_state_if_resumed:
            self._trainer._load_optimizer_and_scheduler(folder)
            self._trainer._load_scaler(folder)

    def drop_caches(self) -> None:
        """Free the cached content of the checkpoint."""
        if self._checkpoint is not None:
            self._checkpoint.drop_caches()

    # ---- position in the data ----

    def start_in_data(
        self, plan: RunPlan, loader: Iterable[Any], done: tuple[int, int], warn_once: WarnOnce
    ) -> tuple[RunPlan, ResumePosition | None, ResumeOffset]:
        """Return the plan of the resumed run, where it starts, and how it counts its samples.

        Without a checkpoint that is ``plan``, from the beginning. With the checkpoint's batch size, accumulation and
        world size, it starts where transformers does. With different ones, it starts at the first sample that was not
        trained on, with the update steps left in its epochs.

        Args:
            plan: The plan of this run from the beginning.
            loader: The train loader.
            done: Epochs, and batches of the next epoch, that transformers skips.
            warn_once: Warns where transformers starts in the wrong place.
        """
        if self._checkpoint is None:
            return plan, None, ResumeOffset()
        args = self._trainer.args
        saved = None if args.ignore_data_skip else self._checkpoint.lightning("position", DataPosition.from_dict)
        saved = saved and saved.counted_once(plan)
        if saved is None or saved.agrees(plan, self._trainer.state.global_step):
            return plan, self._start_at(plan, loader, done, saved), ResumeOffset()
        if saved.has_windows_of(plan) and plan.has_length:
            return plan, self._start_after_other_epochs(plan, loader, done, saved, warn_once), ResumeOffset()
        rest = self._rest_of_epoch(plan, saved, loader) if saved.samples else loader
        if rest is not None:
            return self._start_with_different_windows(plan, saved, rest, loader)
        logger.warning(
            "Checkpoint %s was written with %s x %s samples per update step (accumulation x batch size); this run "
            "uses %s x %s. The order of the samples depends on the batch size, so the run skips the same number of "
            "update steps; some samples of this epoch may be repeated or skipped.",
            self.folder,
            saved.accumulate,
            saved.samples_per_batch,
            plan.accumulate,
            plan.samples_per_batch,
        )
        return plan, self._start_at(plan, loader, done, None), ResumeOffset(other_windows=True)

    def _start_at(
        self, plan: RunPlan, loader: Iterable[Any], done: tuple[int, int], saved: DataPosition | None
    ) -> ResumePosition:
        """Return the start after ``done``, epochs and batches; from the state of a stream if it was ``saved`` there."""
        epoch, batches = done
        rest: Iterable[Any] | None = None
        if saved is not None and saved.samples:
            rest = self._stream_of(saved, plan, loader)
        if rest is None:
            rest = skip_batches(loader, batches) if batches else loader
        return ResumePosition(epoch, batches // plan.accumulate, batches, rest)

    def _start_after_other_epochs(
        self,
        plan: RunPlan,
        loader: Iterable[Any],
        done: tuple[int, int],
        saved: DataPosition,
        warn_once: WarnOnce,
    ) -> ResumePosition:
        """Return the start after epochs that were shorter or longer than this run's: as transformers', with a warning.

        If ``semantics`` is corrected, it is where the checkpoint's run was.
        """
        if self._trainer.semantics.corrected:
            batches = saved.samples // plan.samples_per_batch
            exact = (saved.epoch, batches) if batches < plan.batches_per_epoch else (saved.epoch + 1, 0)
            return self._start_at(plan, loader, exact, saved)
        warn_once(
            f"Checkpoint {self.folder} was written after an epoch that a callback had ended early, or with a "
            "train loader of a different length. Like transformers, this run computes the position in the data "
            "from the number of update steps alone, so some samples may be skipped or repeated. Set "
            "`TrainingArguments(semantics='corrected')` to continue where that run stopped."
        )
        return self._start_at(plan, loader, done, None)

    def _rest_of_epoch(self, plan: RunPlan, saved: DataPosition, loader: Iterable[Any]) -> Iterable[Any] | None:
        """Return a loader of the samples that are left of an epoch; None if its batches determine their order."""
        stream = self._stream_of(saved, plan, loader)
        rest = skip_samples(loader, saved.samples) if stream is None else stream
        if rest is None and saved.has_windows_of(plan):  # an unsized stream, in a later pass
            return skip_batches(loader, saved.samples // plan.samples_per_batch)
        return rest

    def _start_with_different_windows(
        self, plan: RunPlan, saved: DataPosition, batches_left: Iterable[Any], loader: Iterable[Any]
    ) -> tuple[RunPlan, ResumePosition, ResumeOffset]:
        args = self._trainer.args
        epoch, left = saved.epoch, plan.batches_per_epoch
        if has_length(batches_left):
            left = max(min(len(batches_left), left - saved.samples // plan.samples_per_batch), 0)
        elif saved.samples:
            left -= saved.samples // plan.samples_per_batch
        if left == 0:  # the rest of the epoch is a partial batch, which is dropped
            epoch, left, batches_left = epoch + 1, plan.batches_per_epoch, loader
        resumed, done = plan_for_rest(
            plan,
            num_train_epochs=epochs_to_train(args),
            global_step=self._trainer.state.global_step,
            epoch=epoch,
            batches_left=left,
        )
        batches = plan.batches_per_epoch - left
        uncounted = saved.samples - batches * plan.samples_per_batch if epoch == saved.epoch else 0
        return (
            resumed,
            ResumePosition(epoch, done, batches, batches_left),
            # In a later pass of a stream without a length the windows may be the same.
            ResumeOffset(epoch, uncounted, other_windows=not saved.has_windows_of(plan)),
        )

    def _stream_of(self, position: DataPosition, plan: RunPlan, loader: Iterable[Any]) -> PreparedDataLoader | None:
        """Return a loader of the rest of a stateful stream; None if the checkpoint has no state that can be used.

        Raises:
            CheckpointError: If the state in the checkpoint does not fit the stream.
        """
        assert self._checkpoint is not None, "called if there is a checkpoint"
        args = self._trainer.args
        dispatches = isinstance(loader, DispatchingDataLoader)  # rank 0 reads for all ranks
        rank, world_size = (0 if dispatches else args.process_index), args.world_size
        read = functools.partial(StreamStates.of_process, process=rank, processes=world_size, alone=dispatches)
        saved = self._checkpoint.lightning("stream", read)
        # `since`, the batches since the workers' states were saved, has the checkpoint's batch size.
        same_batches = position.samples_per_batch == plan.samples_per_batch
        if saved is None or (saved.since and not same_batches):
            return None
        try:
            return resume_stream(loader, saved)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError.also(type(error))(
                f"The stream's state in `{self.folder}` does not fit `train_dataset`: {error}. Resume with the same "
                "dataset, or set `ignore_data_skip=True`."
            ) from error


def init_training_state(
    trainer: Trainer,
    checkpoint: CheckpointReader | None,
    batch_size: int,
    max_steps: int,
    num_update_steps_per_epoch: int,
    num_train_epochs: int,
    trial: Trial | None,
) -> tuple[int, int]:
    """Set ``state``, new or from a checkpoint; return completed epochs, and batches to skip in the next one.

    Args:
        trainer: The Trainer.
        checkpoint: The checkpoint; None for a run that starts from the beginning.
        batch_size: Samples of a batch on each device.
        max_steps: Update steps of the run.
        num_update_steps_per_epoch: Update steps per epoch.
        num_train_epochs: Epochs of the run, a partial one included.
        trial: The trial of a hyperparameter search, None outside one.

    Raises:
        CheckpointError: If the run would log or evaluate every 0 update steps.
    """
    args = trainer.args
    exportable = [each for each in [*trainer.callback_handler.callbacks, trainer.control] if is_exportable(each)]
    trainer.state = TrainerState(epoch=0, stateful_callbacks=exportable)
    trainer.state.is_hyper_param_search = trial is not None
    trainer.state.train_batch_size = batch_size
    trainer.state.compute_steps(args, max_steps)
    position = (0, 0)
    if checkpoint is not None:
        fresh, state = trainer.state, checkpoint.trainer_state()
        trainer.state = state
        if missing := checkpoint.missing_from_state():
            for name in missing:
                setattr(state, name, getattr(fresh, name))
            logger.info("%s has no %s: those of the arguments are used.", checkpoint.folder, ", ".join(missing))
        if state.best_model_checkpoint is not None:
            state.best_model_checkpoint = relocated(state.best_model_checkpoint, checkpoint.folder)
        _forget_missing_best_checkpoint(trainer)
        _check_intervals(args, state)
        trainer.compare_trainer_and_checkpoint_args(args, state)
        trainer._load_callback_state()
        epochs, windows = divmod(state.global_step, num_update_steps_per_epoch)
        position = (epochs, 0 if args.ignore_data_skip else windows * args.gradient_accumulation_steps)
    trainer.state.init_training_references(trainer, max_steps, num_train_epochs, trial)
    return position


def _check_intervals(args: TrainingArguments, state: TrainerState) -> None:
    for interval, strategy in (("logging_steps", "logging_strategy"), ("eval_steps", "eval_strategy")):
        if getattr(args, strategy) == "steps" and getattr(state, interval) == 0:
            raise CheckpointError(
                f"`{strategy}='steps'`, but `{interval}` is 0 in the checkpoint's `trainer_state.json`, and a resumed "
                f"run takes it from there. Set `{strategy}` as in the run that saved it, or use another checkpoint."
            )


def _forget_missing_best_checkpoint(trainer: Trainer) -> None:
    best = trainer.state.best_model_checkpoint
    if trainer.semantics.drops_missing_best_checkpoint and best is not None and not Path(best).is_dir():
        logger.warning("The best checkpoint %s of the resumed run does not exist anymore; it is ignored.", best)
        trainer.state.best_model_checkpoint = None


def without_extra_step(trainer: Trainer, plan: RunPlan, epochs_done: int, warn_once: WarnOnce) -> RunPlan:
    """Return ``plan``, without the extra update step that transformers makes after the last one of a resumed run."""
    if trainer.state.global_step < plan.max_steps or epochs_done >= plan.num_train_epochs:
        return plan
    if trainer.semantics.corrected:
        return replace(plan, num_train_epochs=epochs_done)
    warn_once(
        f"All `max_steps={plan.max_steps}` update steps are already done; like transformers, this run makes one extra "
        "step. Set `TrainingArguments(semantics='corrected')` to avoid it."
    )
    return plan


def compare_with_checkpoint(args: TrainingArguments, state: TrainerState) -> None:
    """Warn if the checkpoint's batch size, or its logging, evaluation and save steps, which are used, differ."""
    total = state.train_batch_size
    size = None if total is None else total // max(args.n_gpu, 1)
    pairs = [
        *((name, getattr(args, name), getattr(state, name)) for name in ("logging_steps", "eval_steps", "save_steps")),
        ("per_device_train_batch_size", args.per_device_train_batch_size, size),
    ]
    differing = [pair for pair in pairs if None not in pair and pair[1] != pair[2]]
    if differing:
        texts = [f"{name}: {given} (from args) != {kept} (from trainer_state.json)" for name, given, kept in differing]
        logger.warning(
            "These arguments do not match the ones in the `trainer_state.json` of the checkpoint: %s. The checkpoint's "
            "`logging_steps`, `eval_steps` and `save_steps` are used.",
            ", ".join(texts),
        )


# The settings of an optimizer, of which the checkpoint's win.


_SETTINGS = ("initial_lr", "weight_decay", "betas", "eps", "momentum")


def optimizer_settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the hyperparameters of each group of parameters, which its checkpoints have too."""
    return [
        {name: group[name] for name in _SETTINGS if not isinstance(group.get(name), Tensor | None)}
        for group in optimizer.param_groups
    ]


def warn_of_other_settings(given: list[dict[str, Any]], optimizer: Optimizer, warn_once: WarnOnce) -> None:
    """Warn if settings of the checkpoint have taken the place of those that the optimizer was ``given``."""
    kept = {
        f"`{name}` {new[name]} instead of {value}"
        for old, new in zip(given, optimizer_settings(optimizer), strict=False)
        for name, value in old.items()
        if new.get(name, value) != value
    }
    if kept:
        warn_once(
            f"The optimizer goes on with the checkpoint's settings, as with transformers: {', '.join(sorted(kept))}. "
            "To have others in a resumed run, set them in `optimizer.param_groups` in a callback's `on_train_begin`, "
            "and a learning rate in `lr_scheduler.base_lrs`, from which it comes after the first update step."
        )


# The states of callbacks in a resumed checkpoint, restored into new callbacks.


def load_callback_state(trainer: Trainer) -> None:
    """Replace the exportable callbacks, and the control, by new ones with their states in ``trainer.state``."""
    handler, restored, missing = trainer.callback_handler, [], []
    present = [*handler.callbacks, trainer.control]
    for name, saved in trainer.state.stateful_callbacks.items():
        same = [each for each in present if type(each).__name__ == name]
        if not same:
            missing.append(name)
        for callback, state in zip(same, _latest_states(name, saved, len(same)), strict=False):
            new = _restore_callback(callback, state)
            if callback is trainer.control:
                trainer.control = new
            else:
                handler.callbacks[:] = [each for each in handler.callbacks if each is not callback]
                restored.append(new)
    found = [name for name in trainer.state.stateful_callbacks if name not in missing]
    if found:
        upstream_logger.info("Continuing training from checkpoint, restoring callbacks: %s.", ", ".join(found))
    if missing:
        text = (
            f"Checkpoint included callbacks not included in current configuration: {', '.join(missing)}. Their states "
            "are ignored."
        )
        upstream_logger.warning(text)
    for callback in restored:
        handler.add_callback(callback)


def _latest_states(name: str, saved: Any, count: int) -> list[Any]:
    """Return the last states of ``count`` callbacks of the class ``name``; fewer if there are not as many.

    transformers appends to the list at every save, so that the first ones in its checkpoints are those before training.
    """
    states = saved if isinstance(saved, list) else [saved]
    if count and (len(states) % count or (count == 1 and len(states) > 1)):
        upstream_logger.warning(
            "The checkpoint has %s states of %s, but the Trainer has %s such callbacks. The last %s states are "
            "restored into the first %s of them; the others keep their initial state.",
            *(len(states), name, count),
            *[min(len(states), count)] * 2,
        )
    return states[-count:] if count else []


def _restore_callback(callback: Any, state: dict[str, Any]) -> Any:
    """Return a new object of ``callback``'s class with the saved ``state``."""
    try:
        return type(callback).from_state({"args": {}, "attributes": {}, **state})
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError.also(type(error))(
            f"`stateful_callbacks` in the checkpoint's `trainer_state.json` has no valid state of a "
            f"{type(callback).__name__}: {error or type(error).__name__}. Set "
            "`restore_callback_states_from_checkpoint=False`."
        ) from error
