"""Saving and loading the model's weights, full or sharded, and the other states of a checkpoint."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from hf_compat.arguments.enums import ParallelMode
from hf_compat.arguments.fields.redeclared import for_run
from hf_compat.arguments.output_folder import checkpoints_kept, folder_or_default
from hf_compat.arguments.releases.semantics import installed_release
from hf_compat.arguments.releases.versions import SINCE
from hf_compat.atomic_files import read_json_object
from hf_compat.checkpoint import names, optimizer_states, rng, rotation, state_dict_files, weights
from hf_compat.checkpoint.hidden_folders import final_name
from hf_compat.model_facts import is_pretrained_model
from hf_compat.trainer.current_run import prepare_strategy
from hf_compat.trainer.optimizer_and_schedule import optimizer_of, scheduler_of

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

__all__ = [
    "LoadResult",
    "load_optimizer_and_scheduler",
    "load_rng_state",
    "load_scaler",
    "load_weights",
    "rotate_checkpoints",
    "save_model",
    "save_optimizer_and_scheduler",
    "save_rng_state",
    "save_scaler",
    "save_weights",
    "warn_of_missing_weights",
]

logger = logging.getLogger(__name__)


class LoadResult(NamedTuple):
    """Missing and unexpected names, as ``load_state_dict`` returns them."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def save_model(trainer: Trainer, output_dir: str | None, *, save: Callable[..., None], is_checkpoint: bool) -> None:
    """Save model, configuration, processing class and arguments; every rank has to call it.

    Args:
        trainer: The Trainer.
        output_dir: The folder. Default: ``args.output_dir``.
        save: The Trainer's ``_save``.
        is_checkpoint: Whether it is a checkpoint, whose weights may be saved sharded.
    """
    args, backend = trainer.args, trainer.lightning_backend
    folder = folder_or_default(args, output_dir)
    if backend.traits.shards_as_it_loads(args):
        prepare_strategy(trainer)
    strategy = backend.strategy
    writes, file_writer = args.should_save, trainer.checkpoint_writer.file_writer
    calls_save = writes or _calls_save_on_every_rank(trainer)
    if strategy.saves_sharded_weights and (is_checkpoint or not strategy.gathers_weights):
        model = trainer.accelerator.unwrap_model(trainer.model)
        if not strategy.gathers_weights:
            if calls_save:
                save(folder, state_dict={})  # what lies beside the weights, which nothing gathers
            if writes:
                file_writer(weights.remove_weights, folder)
        strategy.save_sharded_weights(model, folder, file_writer=file_writer)
        if strategy.gathers_weights and writes:
            weights.save_configuration(model, Path(folder))
            _save_beside_weights(trainer, Path(folder))
    elif strategy.gathers_weights:
        state_dict = _state_dict_to_save(trainer, writes=writes)
        if calls_save:
            with file_writer.already_copied(state_dict if strategy.copies_weights else {}):
                save(folder, state_dict=state_dict)
    elif calls_save:
        save(folder, **(_weights_of_callbacks(trainer) if is_checkpoint and writes else {}))


def _calls_save_on_every_rank(trainer: Trainer) -> bool:
    """Return whether ``_save`` is called on ranks, too, that write no files."""
    return trainer.lightning_backend.strategy.saves_on_every_rank or trainer.semantics.calls_save_on_every_rank


def _weights_of_callbacks(trainer: Trainer) -> dict[str, Any]:
    """Return the state dict that Lightning callbacks of the user put into a checkpoint, as a keyword of ``_save``."""
    made = trainer.lightning_backend.checkpoint_entries(trainer.checkpoint_writer.file_writer)
    if "state_dict" not in made:
        return {}
    # Of the module, whose model is named so.
    return {"state_dict": {name.removeprefix("model."): value for name, value in made["state_dict"].items()}}


def _state_dict_to_save(trainer: Trainer, *, writes: bool) -> dict[str, Any]:
    """Return the state dict to save, perhaps only on ranks that save it; every rank calls this."""
    accelerator, file_writer = trainer.accelerator, trainer.checkpoint_writer.file_writer
    strategy = trainer.lightning_backend.strategy
    adapters = strategy.state_dict_of_adapters()
    if adapters is not None:
        return adapters
    if not (strategy.clones_weights and file_writer.is_deferring):
        return accelerator.get_state_dict(trainer.model)
    # Into the memory of the snapshot before.
    return file_writer.clones_of(accelerator.unwrap_model(trainer.model).state_dict()) if writes else {}


def save_weights(trainer: Trainer, output_dir: str | None, state_dict: dict[str, Any] | None) -> None:
    """Save model, processing class and arguments to ``output_dir``, by default ``args.output_dir``."""
    writes = trainer.args.should_save
    if state_dict is None and trainer.lightning_backend.strategy.saves_on_every_rank:
        state_dict = _state_dict_to_save(trainer, writes=writes)
    if not writes and _calls_save_on_every_rank(trainer):
        return
    folder = Path(folder_or_default(trainer.args, output_dir))
    folder.mkdir(parents=True, exist_ok=True)
    logger.info("Saving model checkpoint to %s", final_name(str(folder)))
    model, file_writer = trainer.accelerator.unwrap_model(trainer.model), trainer.checkpoint_writer.file_writer
    args = for_run(trainer.args)
    options: dict[str, Any] = {"safe_serialization": args.save_safetensors}
    if installed_release() >= SINCE["names_main_process"]:
        options["is_main_process"] = True
    if not weights.reads_state_dict_alone(model):
        weights.save_weights(model, folder, state_dict=state_dict, **options)
    else:
        # Together with the optimizer's state, unless memory was taken for the weights: more would be for the state.
        write = file_writer.concurrently if state_dict is None else file_writer
        write(
            weights.save_weights,
            # While it is written, training may change the modules and the configuration of a transformers model.
            file_writer.shell_of(model) if is_pretrained_model(model) else model,
            folder,
            state_dict=file_writer.state_of(model) if state_dict is None else file_writer.snapshot(state_dict),
            **options,
        )
    _save_beside_weights(trainer, folder)


def _save_beside_weights(trainer: Trainer, folder: Path) -> None:
    """Save processing class and arguments to ``folder``."""
    processing_class = trainer.processing_class
    if processing_class is None:
        processing_class = getattr(trainer.data_collator, "tokenizer", None)
        if processing_class is not None:
            logger.info("Saving Trainer.data_collator.tokenizer by default as Trainer.processing_class is `None`")
    if processing_class is not None:
        processing_class.save_pretrained(str(folder))
    state_dict_files.save_training_args(trainer.args, folder)


def load_weights(
    trainer: Trainer, folder: str, model: nn.Module | None = None, *, trains_on: bool = True
) -> LoadResult:
    """Load the weights of a checkpoint into ``model``, the Trainer's by default; return which were missing.

    Raises:
        CheckpointError: If the folder has no weights, or they cannot be read.
    """
    if trains_on:
        logger.info("Loading model from %s.", folder)
        warn_of_other_release(folder)
    target = trainer.accelerator.unwrap_model(trainer.model if model is None else model)
    missing, unexpected = trainer.lightning_backend.strategy.load_weights(target, folder, trains_on=trains_on)
    return LoadResult(list(missing), list(unexpected))


def warn_of_other_release(folder: str) -> None:
    """Warn if the configuration in ``folder`` is of another release of transformers than the installed one."""
    path = Path(folder, "config.json")
    library = sys.modules.get("transformers")
    if library is None or not path.is_file():
        return
    written, installed = read_json_object(path).get("transformers_version"), library.__version__
    if written not in (None, installed):
        logger.warning(
            "You are resuming training from a checkpoint trained with %s of transformers but your current version is "
            "%s; results may differ.",
            written,
            installed,
        )


def warn_of_missing_weights(load_result: LoadResult) -> None:
    """Warn about missing and unexpected weights."""
    if load_result.missing_keys:
        logger.warning("There were missing keys in the checkpoint: no weights for %s.", load_result.missing_keys)
    if load_result.unexpected_keys:
        logger.warning(
            "There were unexpected keys in the checkpoint: the model has no weights %s.", load_result.unexpected_keys
        )


# Optimizer, schedule, gradient scaler and random states


def save_optimizer_and_scheduler(trainer: Trainer, output_dir: str) -> None:
    """Save ``optimizer.pt`` and ``scheduler.pt``, or the strategy's files instead."""
    strategy, should_save = trainer.lightning_backend.strategy, trainer.args.should_save
    file_writer = trainer.checkpoint_writer.file_writer
    if strategy.engine is None:
        optimizer_of(trainer)
    optimizer: Any = trainer.optimizer  # None if the engine has it
    if strategy.engine is None and (loss := _loss(trainer, optimizer)):
        trainer.warn_once(loss)
    strategy.save_optimizer(optimizer, output_dir, file_writer=file_writer, saves_common=should_save)
    if should_save and not strategy.saves_scheduler:
        state_dict_files.save_state_file(
            scheduler_of(trainer), output_dir, names.SCHEDULER_NAME, file_writer=file_writer
        )


def _loss(trainer: Trainer, optimizer: Any) -> str | None:
    """Return the warning of what a run that resumes lacks; None if it lacks nothing, or restores it."""
    if trainer.semantics.corrected or not hasattr(optimizer, "param_groups"):
        return None
    return optimizer_states.warning_of_loss(optimizer)


def load_optimizer_and_scheduler(trainer: Trainer, checkpoint: str | None) -> None:
    """Load the states of optimizer and schedule if ``checkpoint`` has both; an engine has loaded its own already."""
    if checkpoint is None:
        return
    strategy = trainer.lightning_backend.strategy
    if strategy.has_optimizer(checkpoint):
        optimizer = optimizer_of(trainer)
        restores = trainer.semantics.corrected and strategy.engine is None
        file = Path(checkpoint, names.OPTIMIZER_NAME)
        with optimizer_states.loads_all(optimizer, file) if restores else nullcontext():
            strategy.load_optimizer(optimizer, checkpoint)
        if not strategy.saves_scheduler:
            state_dict_files.load_state_file(scheduler_of(trainer), checkpoint, names.SCHEDULER_NAME)
    elif optimizer_states.exists(Path(checkpoint)):
        logger.warning(
            "`%s` has no `%s`, without which the optimizer's state is not loaded either, as with transformers: both "
            "start anew.",
            checkpoint,
            names.SCHEDULER_NAME,
        )


def rotate_checkpoints(trainer: Trainer, output_dir: str | None) -> None:
    """Delete the oldest checkpoints in ``output_dir``, by default ``args.output_dir``, beyond ``save_total_limit``."""
    writer, best, limit = trainer.checkpoint_writer, trainer.state.best_model_checkpoint, checkpoints_kept(trainer.args)
    if limit is not None:
        rotation.rotate(
            folder_or_default(trainer.args, output_dir),
            limit=limit,
            best=None if best is None else writer.begun_in / best,
            protects_newest=trainer.semantics.rotation_protects_newest,
            owned=writer.owned,
            remover=writer.remover if trainer.is_in_train else None,
        )


def save_scaler(trainer: Trainer, output_dir: str) -> None:
    """Save the gradient scaler's ``scaler.pt`` in an fp16 run."""
    scaler = trainer.accelerator.scaler
    if scaler is not None and trainer.args.should_save:
        state_dict_files.save_state_file(
            scaler, output_dir, names.SCALER_NAME, file_writer=trainer.checkpoint_writer.file_writer
        )


def load_scaler(trainer: Trainer, checkpoint: str | None) -> None:
    """Load the gradient scaler's state if ``checkpoint`` has one."""
    scaler = trainer.accelerator.scaler
    if checkpoint is None or scaler is None:
        return
    if Path(checkpoint, names.SCALER_NAME).is_file():
        state_dict_files.load_state_file(scaler, checkpoint, names.SCALER_NAME)


def save_rng_state(trainer: Trainer, output_dir: str) -> None:
    """Save the random states of this process: of all GPUs that it sees if a launcher started it, else of its own."""
    launch = trainer.lightning_backend.process_layout.launch
    distributed = trainer.args.parallel_mode == ParallelMode.DISTRIBUTED
    rng.save_rng_state(output_dir, rank=launch.rank, world_size=launch.world_size, distributed=distributed)


def load_rng_state(trainer: Trainer, checkpoint: str | None) -> None:
    """Restore the random states if ``checkpoint`` has them."""
    if checkpoint is not None:
        launch = trainer.lightning_backend.process_layout.launch
        rng.load_rng_state(checkpoint, rank=launch.rank, world_size=launch.world_size)
