"""The Trainer's checkpoints: what is written when, and how a run goes on from one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from hf_compat.checkpoint import names, rng, rotation, state_dict_files, training_args, weights
from hf_compat.checkpoint.background import is_wanted
from hf_compat.checkpoint.reader import ResumePoint
from hf_compat.checkpoint.writer import CheckpointWriter, Part
from hf_compat.data.stream_states import gather_stream_states
from hf_compat.engine.internals.loops import callback_states, restore_callback_states
from hf_compat.errors import CheckpointError
from hf_compat.overriding import is_ours
from hf_compat.plan import DataPosition
from hf_compat.state import export_states
from hf_compat.trainer.pushing import PushingMethods

__all__ = ["SavingMethods"]

logger = logging.getLogger(__name__)


class LoadResult(NamedTuple):
    """Which weights did not fit, as ``load_state_dict`` says it."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class SavingMethods(PushingMethods):
    """Saving, resuming, the best model."""

    # ---- saving ----

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model, its configuration, the processing class and the arguments into ``output_dir``.

        Every process has to call it; one, or one of each node, writes. ``from_pretrained`` reads the folder. With
        ``push_to_hub`` the output folder is then pushed too.

        Args:
            output_dir: Default: the output folder of the run.
            _internal_call: Whether a checkpoint is being saved, or a push begun.

        Raises:
            HubError: If the push fails after, or without, training.
        """
        folder = self.args.output_dir if output_dir is None else output_dir
        if self._placement.facts.shards_as_it_loads(self.args):
            self._ready_strategy()
        strategy = self.accelerator.strategy
        if strategy.saves_sharded_weights and (_internal_call or not strategy.gathers_weights):
            strategy.save_sharded_weights(self.accelerator.unwrap_model(self.model), folder)
            if self.args.should_save:
                self._save_beside_weights(Path(folder), with_config=True)
        elif strategy.gathers_weights:
            state_dict = self.accelerator.get_state_dict(self.model)
            if self.args.should_save:
                self._save(folder, state_dict=state_dict)
        elif self.args.should_save:
            self._save(folder)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Write model, processing class and arguments into ``output_dir``."""
        folder = Path(self.args.output_dir if output_dir is None else output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        model = self.accelerator.unwrap_model(self.model)
        writes = self._checkpoints.writes
        writes(
            weights.save_weights,
            model,
            folder,
            state_dict=writes.state_of(model) if state_dict is None else writes.snapshot(state_dict),
            safe_serialization=self.args.save_safetensors,
        )
        self._save_beside_weights(folder)

    def _save_beside_weights(self, folder: Path, *, with_config: bool = False) -> None:
        """Write processing class and arguments into ``folder``, and the model's configuration if nothing else does."""
        if with_config:
            weights.save_configuration(self.accelerator.unwrap_model(self.model), folder)
        processing_class = self.processing_class
        if processing_class is None:
            processing_class = getattr(self.data_collator, "tokenizer", None)
        if processing_class is not None:
            processing_class.save_pretrained(folder)
        training_args.save_training_args(self.args, folder)

    def _save_checkpoint(self, model: nn.Module, trial: Any, metrics: dict[str, float] | None = None) -> None:
        """Write ``checkpoint-<update step>``, complete or not at all, then delete what is too old.

        With ``save_async`` it is written in the background; see ``CheckpointWriter.write``. Each rank writes its random
        states synchronously, and so does a subclass what it writes in methods of its own. Where a subclass overrides
        this method, or a callback ``on_save``, and may look at the folder, it is there before either continues.

        Args:
            model: What was trained; the Trainer's own model is written.
            trial: The trial of a search, None without one.
            metrics: The evaluation just made, which overrides written before transformers 4.47 pass on; whether it is
                the best has been decided.
        """
        if self.hp_search_backend is None and trial is None:
            self.store_flos()
        run_dir = Path(self._get_output_dir(trial=trial))
        step = self.state.global_step
        self._checkpoints.write(
            run_dir / names.checkpoint_name(step),
            self._checkpoint_parts(run_dir),
            step=step,
            launch=self.args.launch,
            writes_files=self.args.should_save,
            background=is_wanted(self.args),
            then=(self._after_publishing,),
            looked_at=self._folder_is_looked_at,
        )

    def _checkpoint_parts(self, run_dir: Path) -> list[Part]:
        """Return what a checkpoint consists of, in upstream's order."""
        saves_model = is_ours(self.save_model) and is_ours(self._save)
        parts = [
            Part(lambda staged: self.save_model(str(staged), _internal_call=True), may_wait=saves_model),
            Part(lambda staged: self._note_best_checkpoint(run_dir)),
        ]
        if not self.args.save_only_model:
            for save in (self._save_optimizer_and_scheduler, self._save_scaler, self._save_rng_state):
                parts.append(_part_of(save))
            parts.append(Part(self._save_lightning_state, may_wait=True))
        parts.append(Part(self._save_state))
        return parts

    def _save_state(self, folder: Path) -> None:
        """Write ``trainer_state.json``, with the states of callbacks that have one."""
        if self.args.should_save:
            export_states(self.state.stateful_callbacks, [*self.callback_handler.callbacks, self.control])
            self.state.save_to_json(str(folder / names.TRAINER_STATE_NAME))

    def _after_publishing(self, folder: Path) -> None:
        """Push the checkpoint ``folder`` if asked to, and delete what is too old."""
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(folder))
        self._rotate_checkpoints(output_dir=str(folder.parent))

    def _folder_is_looked_at(self) -> bool:
        """Return whether others than we are told of a save, and may expect its folder to be there."""
        told = [callback for callback in self.callback_handler.callbacks if _is_told_of_saves(callback)]
        if told:
            names_of_callbacks = ", ".join(sorted({type(callback).__name__ for callback in told}))
            logger.info("Saving in the background waits for its end, as `on_save` of %s is told.", names_of_callbacks)
        return bool(told) or not is_ours(self._save_checkpoint)

    def _note_best_checkpoint(self, run_dir: Path) -> None:
        """Set ``state.best_model_checkpoint`` if the best evaluation's update step is, or was, saved."""
        best_step = self.state.best_global_step
        if not best_step or self.args.save_strategy not in ("steps", "epoch", "best"):
            return
        best = run_dir / names.checkpoint_name(best_step)
        if best_step == self.state.global_step or best.exists():
            self.state.best_model_checkpoint = os.path.join(self._get_output_dir(self._trial), best.name)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Write ``optimizer.pt`` and ``scheduler.pt``."""
        strategy, writes = self.accelerator.strategy, self._checkpoints.writes
        strategy.save_optimizer(self.optimizer, output_dir, writes=writes if self.args.should_save else None)
        if self.args.should_save and not strategy.saves_scheduler:
            state_dict_files.save_state_file(self.lr_scheduler, output_dir, names.SCHEDULER_NAME, writes=writes)

    def _save_scaler(self, output_dir: str) -> None:
        """Write ``scaler.pt`` of an fp16 run."""
        if self.accelerator.scaler is not None and self.args.should_save:
            scaler, writes = self.accelerator.scaler, self._checkpoints.writes
            state_dict_files.save_state_file(scaler, output_dir, names.SCALER_NAME, writes=writes)

    def _save_rng_state(self, output_dir: str) -> None:
        """Write the states of the random generators of python, numpy and torch."""
        rng.save_rng_state(output_dir, rank=self.args.process_index, world_size=self.args.world_size)

    def _save_lightning_state(self, folder: Path) -> None:
        """Write ``lightning.pt``: the states of Lightning callbacks, and where in the data the run is."""
        content: dict[str, Any] = {"callbacks": callback_states(self.lightning_trainer)}  # type: ignore[arg-type]
        if self._position is not None:
            content["position"] = self._position.to_dict()
        stream = gather_stream_states(getattr(self._windows, "loader", None))
        if stream is not None:
            content["stream"] = stream
        if self.args.should_save:
            writes = self._checkpoints.writes
            writes(torch.save, writes.snapshot(content), folder / names.LIGHTNING_STATE_NAME)

    def _rotate_checkpoints(self, use_mtime: bool = True, output_dir: str | None = None) -> None:
        """Delete the oldest checkpoints beyond ``save_total_limit``."""
        if self.args.should_save and self.args.save_total_limit is not None and self.args.save_total_limit > 0:
            rotation.rotate(
                self.args.output_dir if output_dir is None else output_dir,
                limit=self.args.save_total_limit,
                best=self.state.best_model_checkpoint,
                protects_newest=self.semantics.rotation_protects_newest,
                ledger=self._checkpoints.ledger,
            )

    # ---- the best model ----

    def _metric_for_best(self, metrics: dict[str, float]) -> float:
        """Return the value of ``metric_for_best_model``.

        Raises:
            KeyError: If the evaluation did not give it.
        """
        name = self.args.metric_for_best_model or "loss"
        name = name if name.startswith("eval_") else f"eval_{name}"
        if name not in metrics:
            raise KeyError(
                f"`metric_for_best_model={self.args.metric_for_best_model!r}`: the evaluation gave no `{name}`, only "
                f"{', '.join(metrics)}. Return it from `compute_metrics`, or name one of these."
            )
        return metrics[name]

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Return whether this evaluation is strictly better than all before, and remember it if so."""
        if self.args.metric_for_best_model is None:
            return False
        value = self._metric_for_best(metrics)
        greater = self.args.greater_is_better
        if self.state.best_metric is None:
            self.state.best_metric = float("-inf") if greater else float("inf")
        if not (value > self.state.best_metric if greater else value < self.state.best_metric):
            return False
        self.state.best_metric = value
        tracked = ("steps", "epoch", "best") if self.semantics.best_strategy_sets_best_step else ("steps", "epoch")
        if self.args.save_strategy in tracked:
            self.state.best_global_step = self.state.global_step
        return True

    def _load_best_model(self) -> None:
        """Load the weights of the best checkpoint into the model, if that is still there."""
        best = str(self.state.best_model_checkpoint)
        if not Path(best).is_dir():  # no error: it would cost the result of the whole training
            logger.warning("The best checkpoint `%s` is gone: the model keeps its last weights.", best)
            return
        logger.info("Loading the best model from %s.", best)
        self._load_weights(best, trains_on=False)

    # ---- resuming ----

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load the weights of a checkpoint into ``model``, the Trainer's by default.

        Raises:
            CheckpointError: If the folder holds no weights, or they cannot be read.
        """
        self._load_weights(resume_from_checkpoint, model)

    def _load_weights(self, folder: str, model: nn.Module | None = None, *, trains_on: bool = True) -> None:
        target = self.accelerator.unwrap_model(self.model if model is None else model)
        missing, unexpected = self.accelerator.strategy.load_weights(target, folder, trains_on=trains_on)
        self._issue_warnings_after_load(LoadResult(list(missing), list(unexpected)))

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Warn of the weights that a checkpoint lacks, and of those that the model does not know.

        Args:
            load_result: Their names, in ``missing_keys`` and ``unexpected_keys``, as ``load_state_dict`` returns them.
        """
        if load_result.missing_keys:
            logger.warning("The checkpoint has no weights for %s.", load_result.missing_keys)
        if load_result.unexpected_keys:
            logger.warning("The checkpoint has weights the model does not know: %s.", load_result.unexpected_keys)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Give optimizer and schedule the state of ``checkpoint`` if it has both."""
        if checkpoint is None:
            return
        strategy = self.accelerator.strategy
        if not strategy.has_optimizer(checkpoint):
            return
        strategy.load_optimizer(self.optimizer, checkpoint)
        if not strategy.saves_scheduler:
            ResumePoint(checkpoint).load(self.lr_scheduler, names.SCHEDULER_NAME)

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Give the gradient scaler of an fp16 run the state of ``checkpoint`` if it has one."""
        if checkpoint is not None and self.accelerator.scaler is not None:
            ResumePoint(checkpoint).load(self.accelerator.scaler, names.SCALER_NAME)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Set the random generators to the states of ``checkpoint`` if it has them."""
        if checkpoint is not None:
            ResumePoint(checkpoint).restore_rng(self.args.process_index, self.args.world_size)

    def _load_callback_state(self) -> None:
        """Make the exportable callbacks anew with their saved states, if asked to."""
        if not self.args.restore_callback_states_from_checkpoint:
            return
        for name, saved in self.state.stateful_callbacks.items():
            current = [*self.callback_handler.callbacks, self.control]
            same = [callback for callback in current if type(callback).__name__ == name]
            if not same:
                logger.warning("The checkpoint has a state for %s, which is not among the callbacks.", name)
            for callback, state in zip(same, saved if isinstance(saved, list) else [saved], strict=False):
                restored = _rebuilt(callback, state)
                if callback is self.control:
                    self.control = restored
                else:
                    self.callback_handler.remove_callback(callback)
                    self.callback_handler.add_callback(restored)

    def _restore_lightning_callbacks(self) -> None:
        """Give Lightning callbacks the states of a resumed checkpoint that has some."""
        if self._resume_path is None:
            return
        restore = partial(restore_callback_states, self.lightning_trainer)  # type: ignore[arg-type]
        self._resume_point(self._resume_path).lightning("callbacks", restore)

    def _resume_point(self, folder: str) -> ResumePoint:
        raise NotImplementedError

    _resume_path: str | None = None
    _resume: ResumePoint | None = None
    _position: DataPosition | None = None
    _windows: Any = None
    """The windows of the run under way."""
    _checkpoints: CheckpointWriter


def _part_of(save: Callable[[str], object]) -> Part:
    """Return the part of a checkpoint that the method ``save`` writes."""
    return Part(lambda staged: save(str(staged)), may_wait=is_ours(save))


def _rebuilt(callback: Any, state: Any) -> Any:
    """Return a new object of ``callback``'s class in ``state``, as a checkpoint has it."""
    try:
        return type(callback).from_state(state)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"The checkpoint's `{names.TRAINER_STATE_NAME}` holds no state of a {type(callback).__name__} under "
            f"`stateful_callbacks`: {error or type(error).__name__}. Resume without "
            "`restore_callback_states_from_checkpoint`."
        ) from error


def _is_told_of_saves(callback: Any) -> bool:
    function = getattr(type(callback), "on_save", None)
    # A base class's own, here or in transformers, does nothing.
    return function is not None and function.__qualname__ != "TrainerCallback.on_save" and not is_ours(function)
