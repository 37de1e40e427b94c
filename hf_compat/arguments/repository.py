"""The repository on the Hub that the fields name, and what is pushed to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hf_compat.arguments.enums import HubStrategy

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["HubRepository", "card_name", "hub_repository", "path_of_checkpoint", "pushes_checkpoints"]


@dataclass(frozen=True, slots=True)
class HubRepository:
    """A repository, and the right to write to it."""

    name: str
    """``owner/name``, or the name alone for the owner of the token."""
    token: str | None
    """None for the token of this machine."""
    revision: str | None
    """The branch; None for ``main``."""
    private: bool | None
    """Whether it is private once it is created; None for the owner's default."""


def hub_repository(
    args: TrainingArguments, *, token: str | None = None, revision: str | None = None, private: bool | None = None
) -> HubRepository:
    """Return the repository of a run, named as the output folder unless ``hub_model_id`` is set.

    Args:
        args: The training arguments.
        token: The token. Default: ``hub_token``.
        revision: The branch. Default: ``hub_revision``.
        private: Whether it is private. Default: ``hub_private_repo``.
    """
    return HubRepository(
        args.hub_model_id or Path(args.output_dir).absolute().name,
        args.hub_token if token is None else token,
        args.hub_revision if revision is None else revision,
        args.hub_private_repo if private is None else private,
    )


def card_name(args: TrainingArguments) -> str | None:
    """Return the name of the model in its card; None for the card's default, in a process that writes no files."""
    named = args.hub_model_id or Path(args.output_dir).name
    return named.split("/")[-1] if args.should_save else None


def pushes_checkpoints(args: TrainingArguments, *, is_pushing: bool) -> bool:
    """Return whether a checkpoint that has been saved is pushed, perhaps while the push before is not done."""
    return args.hub_strategy != "end" and (args.hub_always_push or not is_pushing)


def path_of_checkpoint(args: TrainingArguments, name: str) -> str | None:
    """Return the folder in the repository of a checkpoint that is called ``name``; None if only its model is pushed."""
    paths = {HubStrategy.CHECKPOINT: "last-checkpoint", HubStrategy.ALL_CHECKPOINTS: name}
    return paths.get(HubStrategy(args.hub_strategy))
