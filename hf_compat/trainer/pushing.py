"""The Trainer's model card and its pushes to the Hub."""

from __future__ import annotations

import logging
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_compat import hub
from hf_compat.arguments import HubStrategy
from hf_compat.checkpoint import publish, training_args
from hf_compat.checkpoint.model_files import copy_model_files, model_files
from hf_compat.checkpoint.names import TRAINER_STATE_NAME
from hf_compat.errors import HubError
from hf_compat.files import read_json_object, write_text
from hf_compat.model_card import TrainingSummary
from hf_compat.model_card.summary import as_list
from hf_compat.trainer.evaluation import EvaluationMethods

if TYPE_CHECKING:
    from huggingface_hub import HfApi

__all__ = ["PushingMethods"]

logger = logging.getLogger(__name__)


class PushingMethods(EvaluationMethods):
    """``create_model_card``, ``init_hf_repo``, ``push_to_hub``."""

    hub_model_id: str | None = None
    """The repository pushed to, ``owner/name``, once it is known."""
    push_in_progress: hub.PushInProgress | None = None
    """The pushes made during training."""

    @cached_property
    def _hub(self) -> HfApi:
        return hub.hub_api()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model; see ``SavingMethods``."""
        raise NotImplementedError

    # ---- the card ----

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,  # noqa: A002 - upstream's name
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Write ``README.md`` into the output folder: metadata, evaluations and hyperparameters of the run.

        Args:
            language: The language of the model.
            license: Its licence. Default: that of ``finetuned_from``, if the Hub can be asked.
            tags: Tags besides ``generated_from_trainer``; those of a card that is there already are kept.
            model_name: Its name. Default: the output folder's.
            finetuned_from: The model it was trained from. Default: the one the model was loaded from.
            tasks: Tags of what it does. Default: what its class is made for.
            dataset_tags: Identifiers of the data sets on the Hub. Default: what the data set says of itself.
            dataset: Names of the data sets, for people. Default: ``dataset_tags``.
            dataset_args: Their configurations.
        """
        if not self.is_world_process_zero():
            return
        folder = Path(self.args.output_dir)
        path = folder / "README.md"
        former = _metadata_of(path)
        if tags is not None:
            tags = list(dict.fromkeys([*as_list(tags), *as_list(former.get("tags"))]))
        summary = TrainingSummary.from_trainer(
            self,
            language=language,
            license=license,
            tags=tags,
            model_name=model_name,
            finetuned_from=finetuned_from,
            tasks=tasks,
            dataset_tags=dataset_tags,
            dataset=dataset,
            dataset_args=dataset_args,
        )
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, summary.to_model_card())
        if former.get("library_name") == "peft":  # written by peft as it saved: it adds what it knows
            inner: Any = self.accelerator.unwrap_model(self.model)
            inner.create_or_update_model_card(str(folder))

    # ---- pushing ----

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Make the repository on the Hub if it is not there, and set ``hub_model_id``.

        Args:
            token: Default: ``hub_token``, else the one of this machine.
            private: Whether a new repository is private. Default: ``hub_private_repo``.

        Raises:
            HubError: If it cannot be made.
        """
        if not self.is_world_process_zero():
            return
        args = self.args
        self.hub_model_id = hub.create_repository(
            self._hub,
            args.hub_model_id or Path(args.output_dir).absolute().name,
            token=args.hub_token if token is None else token,
            private=args.hub_private_repo if private is None else private,
        )
        self.push_in_progress = None

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Save the model and its card into the output folder, and upload that.

        Args:
            commit_message: The commit's message.
            blocking: Whether to return only when the upload has ended.
            token: Default: ``hub_token``, else the one of this machine.
            revision: The branch to push to. Default: ``hub_revision``, else ``main``.
            private: Whether a repository that is not there yet is private. Default: ``hub_private_repo``.
            **kwargs: Arguments of ``create_model_card``.

        Returns:
            The commit, a ``CommitInfo``; a future of it if not ``blocking``; None on other processes than the main one,
            and where a push during training failed, which is logged as a warning.

        Raises:
            HubError: If the push fails after, or without, training.
        """
        try:
            return self._push_output(commit_message, blocking, token, revision, private, kwargs)
        except HubError as error:
            if not self.is_in_train:
                raise
            logger.warning("%s Training goes on; nothing is lost on this machine.", error)
            return None

    def _push_output(
        self,
        commit_message: str | None,
        blocking: bool,
        token: str | None,
        revision: str | None,
        private: bool | None,
        described: dict[str, Any],
    ) -> Any:
        args = self.args
        self._announce_push()
        if described.get("model_name") is None:
            named = args.hub_model_id or Path(args.output_dir).name
            described["model_name"] = named.split("/")[-1] if args.should_save else None
        token = args.hub_token if token is None else token
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero() or self.hub_model_id is None:
            return None
        own_tags = getattr(self.model, "model_tags", None)
        if own_tags is not None:
            described["tags"] = list(dict.fromkeys([*as_list(described.get("tags")), *own_tags]))
        self.create_model_card(**described)
        self._finish_current_push()
        upload = partial(
            hub.upload,
            self._hub,
            self.hub_model_id,
            args.output_dir,
            commit_message=commit_message,
            token=token,
            revision=args.hub_revision if revision is None else revision,
        )
        return upload() if blocking else self._hub.run_as_future(upload)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Start to push a published checkpoint, as ``hub_strategy`` says; a failure is logged, never raised.

        Nothing is pushed while the push before is under way, unless ``hub_always_push`` is set.
        """
        current = self.push_in_progress
        under_way = current is not None and not current.is_done()
        if not self.is_world_process_zero() or self.args.hub_strategy == "end":
            return
        if self.hub_model_id is None or (under_way and not self.args.hub_always_push):
            return
        self._announce_push()
        try:
            jobs = self._start_push(Path(checkpoint_folder), self.hub_model_id)
        except Exception as error:  # a full disk, say: no push is worth the training
            logger.warning("`%s` is not pushed to the Hub: %r", checkpoint_folder, error)
            return
        self.push_in_progress = hub.PushInProgress([*(current.jobs if current and under_way else ()), *jobs])

    def _start_push(self, checkpoint: Path, repo_id: str) -> list[Any]:
        """Bring the output folder up to date with ``checkpoint``; return the uploads of it, and of the checkpoint."""
        args, output = self.args, Path(self.args.output_dir)
        weights = model_files(checkpoint)
        copy_model_files(weights, output)
        if self.processing_class is not None:
            self.processing_class.save_pretrained(output)
        training_args.save_training_args(args, output)
        # Of the checkpoint: one that was written in the background is behind the training.
        state = read_json_object(checkpoint / TRAINER_STATE_NAME)
        progress = f"step {state['global_step']}" if args.save_strategy == "steps" else f"epoch {int(state['epoch'])}"
        message = f"Training in progress, {progress}"
        # The weights of the checkpoint, not their copies: a checkpoint's files are never written to again.
        files = {**hub.shared_files(output), **{path.name: path for path in weights}}
        pushes: list[tuple[Path, str, str | None]] = [(self._snapshot(checkpoint, files, frozen=False), message, None)]
        path_in_repo = {
            HubStrategy.CHECKPOINT: "last-checkpoint",
            HubStrategy.ALL_CHECKPOINTS: checkpoint.name,
        }.get(HubStrategy(args.hub_strategy))
        if path_in_repo is not None:
            whole = {path.relative_to(checkpoint).as_posix(): path for path in checkpoint.rglob("*") if path.is_file()}
            pushes.append((self._snapshot(checkpoint, whole, frozen=True), f"{message}, checkpoint", path_in_repo))
        return [
            self._hub.run_as_future(
                hub.push_snapshot,
                self._hub,
                repo_id,
                folder,
                commit_message=message,
                path_in_repo=path_in_repo,
                token=args.hub_token,
                revision=args.hub_revision,
            )
            for folder, message, path_in_repo in pushes
        ]

    def _snapshot(self, checkpoint: Path, files: dict[str, Path], *, frozen: bool) -> Path:
        return hub.snapshot(files, publish.hidden_sibling(checkpoint, "pushed"), frozen=frozen)

    def _announce_push(self) -> None:
        if self.semantics.announces_pushes:
            self.callback_handler.on_push_begin(self.args, self.state, self.control)

    def _finish_current_push(self) -> None:
        """Return when the pushes made during training have ended."""
        if self.push_in_progress is not None and not self.push_in_progress.is_done():
            logger.info("Waiting for the last push to the Hub to end.")
            self.push_in_progress.wait_until_done()


def _metadata_of(card: Path) -> dict[str, Any]:
    """Return the metadata of a card, empty if there is none."""
    if not card.is_file():
        return {}
    from huggingface_hub import ModelCard  # comes with datasets; loading it takes a while

    return dict(ModelCard.load(card).data.to_dict())
