"""Saving and loading the model's weights, full or sharded, and the other states of a checkpoint."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from hf_compat import hub
from hf_compat.arguments.derived import (
    card_name,
    folder_or_default,
    hub_repository,
    path_of_checkpoint,
    pushes_checkpoints,
)
from hf_compat.arguments.enums import ParallelMode
from hf_compat.arguments.releases import SINCE, effective_args, installed_release
from hf_compat.atomic_files import read_json_object, write_text
from hf_compat.checkpoint import names, states, weights
from hf_compat.checkpoint.background import CheckpointFile, HostBuffers, Put, clones_on_host, shell_of
from hf_compat.checkpoint.completeness import copy_model_files, model_files
from hf_compat.checkpoint.names import TRAINER_STATE_NAME
from hf_compat.checkpoint.publish import final_name, hidden_sibling
from hf_compat.errors import HubError
from hf_compat.model_card import TrainingSummary, as_list
from hf_compat.model_facts import is_pretrained_model
from hf_compat.overriding import is_overridden
from hf_compat.trainer.optimization import optimizer_of, scheduler_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future

    from huggingface_hub import CommitInfo, HfApi

    from hf_compat.trainer.trainer import Trainer

logger = logging.getLogger(__name__)


class LoadResult(NamedTuple):
    """Missing and unexpected names, as ``load_state_dict`` returns them."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def save_model(
    trainer: Trainer, output_dir: str | None, put: Put = CheckpointFile.write, *, is_checkpoint: bool
) -> None:
    """Save model, configuration, processing class and arguments; every rank has to call it.

    Args:
        trainer: The Trainer.
        output_dir: The folder. Default: ``args.output_dir``.
        put: Takes the files of weights, unless ``_save`` is overridden, which may read them.
        is_checkpoint: Whether it is a checkpoint, whose weights may be saved sharded.
    """
    strategy, writes = trainer.lightning_backend.strategy, trainer.args.should_save
    folder = folder_or_default(trainer.args, output_dir)
    calls_save = writes or calls_save_on_every_rank(trainer)
    save: Callable[..., None] = partial(save_files, trainer, put=put)
    if is_overridden(trainer._save):
        put, save = CheckpointFile.write, trainer._save
    if strategy.saves_sharded_weights and (is_checkpoint or not strategy.gathers_weights):
        if not strategy.gathers_weights and calls_save:
            save(folder, state_dict={})  # what lies beside the weights, which nothing gathers
        _save_sharded_weights(trainer, folder, put)
    elif strategy.gathers_weights:
        state_dict = state_dict_to_save(trainer, writes=writes, is_held=put is not CheckpointFile.write)
        if calls_save:
            save(folder, state_dict=state_dict)
    elif calls_save:
        save(folder, **(_weights_of_callbacks(trainer) if is_checkpoint and writes else {}))


def _save_sharded_weights(trainer: Trainer, folder: str, put: Put) -> None:
    """Save this rank's shards, and what lies beside them unless ``_save`` has saved it."""
    strategy, writes = trainer.lightning_backend.strategy, trainer.args.should_save
    model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    if strategy.gathers_weights:
        strategy.save_sharded_weights(model, folder, put)
        if writes:
            weights.save_configuration(model, Path(folder))
            save_beside_weights(trainer, Path(folder))
        return
    if writes:
        put(CheckpointFile(lambda _, path: weights.remove_weights(path), None, Path(folder)))
    trainer.checkpoint_writer.once(folder, partial(strategy.save_sharded_weights, model, folder, put))


def save_files(
    trainer: Trainer, output_dir: str | None, state_dict: dict[str, Any] | None = None, put: Put = CheckpointFile.write
) -> None:
    """Save model, processing class and arguments to ``output_dir``; see the Trainer's ``_save``."""
    writes, strategy = trainer.args.should_save, trainer.lightning_backend.strategy
    if state_dict is None and strategy.saves_on_every_rank:
        state_dict = state_dict_to_save(trainer, writes=writes)
    if not writes and calls_save_on_every_rank(trainer):
        return  # called as every rank is; a script that calls it on one rank has that rank's files
    folder = Path(folder_or_default(trainer.args, output_dir))
    folder.mkdir(parents=True, exist_ok=True)
    logger.info("Saving model checkpoint to %s", final_name(str(folder)))
    model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    args = effective_args(trainer.args)
    options: dict[str, Any] = {"safe_serialization": args.save_safetensors}
    if installed_release() >= SINCE["names_main_process"]:
        options["is_main_process"] = True
    if not weights.reads_state_dict_alone(model):
        put = CheckpointFile.write
    copied = partial(_copied_weights, copy=strategy.copy_of_weights)
    put(CheckpointFile(partial(_save_weights, **options), (model, state_dict), folder, copy=copied))
    save_beside_weights(trainer, folder)


def _save_weights(content: tuple[nn.Module, dict[str, Any] | None], folder: Path, **options: Any) -> None:
    model, state_dict = content
    weights.save_weights(model, folder, state_dict=state_dict, **options)


def _copied_weights(
    content: tuple[nn.Module, dict[str, Any] | None], buffers: HostBuffers, *, copy: Callable[[Any, HostBuffers], Any]
) -> tuple[nn.Module, dict[str, Any]]:
    model, state_dict = content
    # While it is written, training may change the modules and the configuration of a transformers model.
    shell = shell_of(model) if is_pretrained_model(model) else model
    return shell, copy(model.state_dict() if state_dict is None else state_dict, buffers)


def calls_save_on_every_rank(trainer: Trainer) -> bool:
    """Return whether ``_save`` is called on ranks, too, that write no files."""
    return trainer.lightning_backend.strategy.saves_on_every_rank or trainer.semantics.calls_save_on_every_rank


def _weights_of_callbacks(trainer: Trainer) -> dict[str, Any]:
    """Return the state dict that Lightning callbacks of the user put into a checkpoint, as a keyword of ``_save``."""
    made = trainer.checkpoint_writer.once("callback entries", trainer.lightning_backend.checkpoint_entries)
    if "state_dict" not in made:
        return {}
    # Of the module, whose model is named so.
    return {"state_dict": {name.removeprefix("model."): value for name, value in made["state_dict"].items()}}


def state_dict_to_save(trainer: Trainer, *, writes: bool, is_held: bool = False) -> dict[str, Any]:
    """Return the state dict to save, perhaps only on ranks that save it; every rank calls this.

    Args:
        trainer: The Trainer.
        writes: Whether this rank saves it.
        is_held: Whether nothing changes it before it is copied to host memory, so that weights need not be cloned.
    """
    accelerator, strategy = trainer.accelerator, trainer.lightning_backend.strategy
    adapters = strategy.state_dict_of_adapters()
    if adapters is not None:
        return adapters
    model = accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    if is_held and strategy.copy_of_weights is clones_on_host and weights.reads_state_dict_alone(model):
        return model.state_dict() if writes else {}
    return accelerator.get_state_dict(trainer.model)


def save_beside_weights(trainer: Trainer, folder: Path) -> None:
    """Save processing class and arguments to ``folder``."""
    processing_class = trainer.processing_class
    if processing_class is None:
        processing_class = getattr(trainer.data_collator, "tokenizer", None)
        if processing_class is not None:
            logger.info("Saving Trainer.data_collator.tokenizer by default as Trainer.processing_class is `None`")
    if processing_class is not None:
        processing_class.save_pretrained(str(folder))
    states.save_training_args(trainer.args, folder)


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
    target = trainer.accelerator.unwrap_model(trainer.model if model is None else model, keep_torch_compile=False)
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


def save_optimizer_and_scheduler(trainer: Trainer, output_dir: str, put: Put = CheckpointFile.write) -> None:
    """Save ``optimizer.pt`` and ``scheduler.pt``, or the strategy's files instead."""
    strategy, should_save = trainer.lightning_backend.strategy, trainer.args.should_save
    if strategy.engine is None:
        optimizer_of(trainer)
    optimizer: Any = trainer.optimizer  # None if the engine has it
    save = partial(strategy.save_optimizer, optimizer, output_dir, put, saves_common=should_save)
    if strategy.engine is None:
        for warning in _warnings_of_unsaved(trainer, optimizer):
            trainer.warn_once(warning)
        save()
    else:
        trainer.checkpoint_writer.once(output_dir, save)  # sharded weights are in the same files
    if should_save and not strategy.engine_has_scheduler:
        states.save_state_file(scheduler_of(trainer), output_dir, names.SCHEDULER_NAME, put)


def save_scaler(trainer: Trainer, output_dir: str, put: Put = CheckpointFile.write) -> None:
    """Save the gradient scaler's ``scaler.pt`` in an fp16 run."""
    scaler = trainer.accelerator.scaler
    if scaler is not None and trainer.args.should_save:
        states.save_state_file(scaler, output_dir, names.SCALER_NAME, put)


def save_rng_state(trainer: Trainer, output_dir: str, put: Put = CheckpointFile.write) -> None:
    """Save the random states of Python, numpy and torch."""
    launch = trainer.lightning_backend.process_layout.launch
    distributed = trainer.args.parallel_mode == ParallelMode.DISTRIBUTED
    states.save_rng_state(output_dir, put, rank=launch.rank, world_size=launch.world_size, distributed=distributed)


def _warnings_of_unsaved(trainer: Trainer, optimizer: Any) -> Iterator[str]:
    """Yield warnings of what a run that resumes lacks and does not restore."""
    if not hasattr(optimizer, "param_groups"):
        return
    if not trainer.semantics.corrected and (warning := states.warning_of_unsaved_state(optimizer)):
        yield warning
    if count := states.parameters_outside(optimizer, trainer.model):
        yield (
            f"{count} parameters of the optimizer are not the model's, but for example a loss's. Like transformers, "
            "checkpoints have their averages without their values: a run that resumes goes on with those that they are "
            "made with. Make them a part of the model, or save and load them yourself, in a callback's `on_save` and "
            "before `train`."
        )
    if getattr(trainer.args, "sync_ref_model", False):
        yield (
            "`sync_ref_model=True`: the reference that follows the model is in no checkpoint. Like transformers, a run "
            "that resumes goes on with the reference of the beginning, and has other losses. Save and load "
            "`trainer.ref_model` yourself, in a callback's `on_save` and before `train`."
        )
    model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    for name, config in (getattr(model, "peft_config", None) or {}).items():
        start = getattr(config, "init_lora_weights", None)
        if isinstance(start, str) and start.startswith("pissa_niter"):
            yield (
                f"`init_lora_weights={start!r}` of the adapter `{name}`: what it took out of the base model depends on "
                "random numbers, and is in no checkpoint. Like transformers, a run that resumes trains beside other "
                "weights, unless its random state was the same when it made the adapter. Set a seed right before that, "
                "or use 'pissa'."
            )


# The model card, and pushes to the Hub.


def write_model_card(trainer: Trainer, described: Mapping[str, Any]) -> None:
    """Write ``README.md`` into the output folder; see the Trainer's ``create_model_card``.

    Args:
        trainer: The Trainer.
        described: The arguments of ``create_model_card``.
    """
    if not trainer.is_world_process_zero():
        return
    folder = Path(trainer.args.output_dir)
    path = folder / "README.md"
    existing = _metadata_of(path)
    tags = described.get("tags")
    if tags is not None:
        tags = list(dict.fromkeys([*as_list(tags), *as_list(existing.get("tags"))]))
    summary = TrainingSummary.from_trainer(trainer, **{**described, "tags": tags})
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, summary.to_model_card())
    if existing.get("library_name") == "peft":  # a card that peft wrote when saving: peft updates it
        inner: Any = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
        inner.create_or_update_model_card(str(folder))


def _metadata_of(card: Path) -> dict[str, Any]:
    """Return the metadata of a model card, empty if there is none."""
    if not card.is_file():
        return {}
    from huggingface_hub import ModelCard  # slow to import

    return dict(ModelCard.load(card).data.to_dict())


class Pusher:
    """Pushes a Trainer's output folder and checkpoints to the Hub; its client is created on first use."""

    def __init__(self) -> None:
        self._api: HfApi | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_api": None}  # each process creates its own client

    @property
    def api(self) -> HfApi:
        """The client of the Hub."""
        if self._api is None:
            self._api = hub.hub_api()
        return self._api

    def init_repo(self, trainer: Trainer, token: str | None, private: bool | None) -> None:
        """Create the repository on the Hub if it does not exist; see the Trainer's ``init_hf_repo``."""
        if not trainer.is_world_process_zero():
            return
        wanted = hub_repository(trainer.args, token=token, private=private)
        trainer.hub_model_id = hub.create_repository(self.api, wanted.name, token=wanted.token, private=wanted.private)
        trainer.push_in_progress = None

    def push(
        self,
        trainer: Trainer,
        commit_message: str | None,
        blocking: bool,
        token: str | None,
        revision: str | None,
        private: bool | None,
        described: dict[str, Any],
    ) -> CommitInfo | Future[CommitInfo] | None:
        """Save the model and its card, and upload the output folder; see the Trainer's ``push_to_hub``."""
        try:
            args = trainer.args
            _fire_push_begin(trainer)
            if described.get("model_name") is None:
                described["model_name"] = card_name(args)
            token = hub_repository(args, token=token).token
            if trainer.hub_model_id is None:
                trainer.init_hf_repo(token=token, private=private)
            trainer.save_model(_internal_call=True)
            if not trainer.is_world_process_zero() or trainer.hub_model_id is None:
                return None
            own_tags = getattr(trainer.model, "model_tags", None)
            if own_tags is not None:
                described["tags"] = list(dict.fromkeys([*as_list(described.get("tags")), *own_tags]))
            trainer.create_model_card(**described)
            trainer._finish_current_push()
            upload = partial(
                hub.upload,
                self.api,
                trainer.hub_model_id,
                Path(args.output_dir).absolute(),  # which may be relative, and another thread uploads it
                commit_message=commit_message,
                token=token,
                revision=hub_repository(args, revision=revision).revision,
            )
            return upload() if blocking else self.api.run_as_future(upload)
        except HubError as error:
            if not trainer.lightning_backend.trains:
                raise
            logger.warning("%s Training continues; the files are still on this machine.", error)
            return None

    def push_checkpoint(self, trainer: Trainer, checkpoint: Path) -> None:
        """Start pushing a complete checkpoint, by ``hub_strategy``; a failure is logged, not raised.

        While the previous push is running, nothing is pushed, unless ``hub_always_push`` is set.
        """
        current = trainer.push_in_progress
        under_way = current is not None and not current.is_done()
        if not trainer.is_world_process_zero() or trainer.hub_model_id is None:
            return
        if not pushes_checkpoints(trainer.args, is_pushing=under_way):
            return
        _fire_push_begin(trainer)
        try:
            jobs = self._start_push(trainer, checkpoint, trainer.hub_model_id)
        except Exception as error:  # a failed push must not end training
            logger.warning("`%s` was not pushed to the Hub: %s", checkpoint, final_name(repr(error)))
            return
        trainer.push_in_progress = hub.PushInProgress([*(current.jobs if current and under_way else ()), *jobs])

    def _start_push(self, trainer: Trainer, checkpoint: Path, repo_id: str) -> list[Future[Any]]:
        """Update the output folder with ``checkpoint``; start and return its upload, and the checkpoint's."""
        args, output = trainer.args, trainer.checkpoint_writer.begun_in / trainer.args.output_dir
        weights = model_files(checkpoint)
        copy_model_files(weights, output)
        if trainer.processing_class is not None:
            trainer.processing_class.save_pretrained(output)
        states.save_training_args(args, output)
        # From the checkpoint: with background saving, training is ahead of it.
        state = read_json_object(checkpoint / TRAINER_STATE_NAME)
        progress = f"step {state['global_step']}" if args.save_strategy == "steps" else f"epoch {int(state['epoch'])}"
        message = f"Training in progress, {progress}"
        # The checkpoint's weights, not their copies: a checkpoint's files do not change.
        files = {**hub.shared_files(output), **{path.name: path for path in weights}}
        pushes: list[tuple[Path, str, str | None]] = [(_snapshot(checkpoint, files, frozen=False), message, None)]
        path_in_repo = path_of_checkpoint(args, checkpoint.name)
        if path_in_repo is not None:
            every = {path.relative_to(checkpoint).as_posix(): path for path in checkpoint.rglob("*") if path.is_file()}
            pushes.append((_snapshot(checkpoint, every, frozen=True), f"{message}, checkpoint", path_in_repo))
        target = hub_repository(args)
        return [
            self.api.run_as_future(
                hub.push_snapshot,
                self.api,
                repo_id,
                folder,
                commit_message=message,
                path_in_repo=path_in_repo,
                token=target.token,
                revision=target.revision,
            )
            for folder, message, path_in_repo in pushes
        ]

    def finish(self, trainer: Trainer) -> None:
        """Wait for pushes that are running."""
        current = trainer.push_in_progress
        if current is not None and not current.is_done():
            logger.info("Waiting for the current checkpoint push to be finished.")
            current.wait_until_done()


def _snapshot(checkpoint: Path, files: dict[str, Path], *, frozen: bool) -> Path:
    return hub.snapshot(files, hidden_sibling(checkpoint.absolute(), "pushed"), frozen=frozen)


def _fire_push_begin(trainer: Trainer) -> None:
    if trainer.semantics.announces_pushes:
        trainer.callback_handler.on_push_begin(trainer.args, trainer.state, trainer.control)
