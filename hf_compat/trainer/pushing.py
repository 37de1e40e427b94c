"""The model card, and pushes to the Hub."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_compat import hub
from hf_compat.arguments.repository import card_name, hub_repository, path_of_checkpoint, pushes_checkpoints
from hf_compat.atomic_files import read_json_object, write_text
from hf_compat.checkpoint import state_dict_files
from hf_compat.checkpoint.hidden_folders import final_name, hidden_sibling
from hf_compat.checkpoint.names import TRAINER_STATE_NAME
from hf_compat.checkpoint.weight_files import copy_model_files, model_files
from hf_compat.errors import HubError
from hf_compat.model_card import TrainingSummary
from hf_compat.model_card.summary import as_list

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from huggingface_hub import CommitInfo, HfApi

    from hf_compat.trainer.trainer import Trainer

__all__ = ["Pusher", "write_model_card"]

logger = logging.getLogger(__name__)


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
        inner: Any = trainer.accelerator.unwrap_model(trainer.model)
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
            return self._push_output(trainer, commit_message, blocking, token, revision, private, described)
        except HubError as error:
            if not trainer.is_in_train:
                raise
            logger.warning("%s Training continues; the files are still on this machine.", error)
            return None

    def _push_output(
        self,
        trainer: Trainer,
        commit_message: str | None,
        blocking: bool,
        token: str | None,
        revision: str | None,
        private: bool | None,
        described: dict[str, Any],
    ) -> CommitInfo | Future[CommitInfo] | None:
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
        state_dict_files.save_training_args(args, output)
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
