"""Settings of a run that several fields make: when it logs, saves and ends, its folders, names and loaders."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import numpy as np

from hf_compat.arguments.enums import HubStrategy
from hf_compat.arguments.releases import Semantics, effective_args, resolve_semantics
from hf_compat.errors import MetricNameError, MetricsError, OutputFolderError, described

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

# The best evaluation of a run, as the fields define it.


def is_better(args: TrainingArguments, value: float, than: float) -> bool:
    """Return whether ``value`` of the metric is strictly better ``than`` another."""
    return bool(value > than if args.greater_is_better else value < than)


def worst_value(args: TrainingArguments) -> float:
    """Return the value of the metric than which all others are better."""
    return float("-inf") if args.greater_is_better else float("inf")


def notes_best_step(args: TrainingArguments, semantics: Semantics) -> bool:
    """Return whether the state has the update step of the best evaluation: where checkpoints are saved."""
    noted = ("steps", "epoch", "best") if semantics.best_strategy_sets_best_step else ("steps", "epoch")
    return args.save_strategy in noted


def metric_for_best(args: TrainingArguments, metrics: Mapping[str, float]) -> float:
    """Return the value of ``metric_for_best_model``.

    Raises:
        MetricsError: If the evaluation returned no dict, or several numbers by that name.
        MetricNameError: If that lacks it.
    """
    if not isinstance(metrics, Mapping):
        raise MetricsError(
            f"`evaluate` returned {described(metrics)}, but a model is chosen by its metrics. Return what it computes."
        )
    wanted = args.metric_for_best_model
    name = f"eval_{(wanted or 'loss').removeprefix('eval_')}"
    if name not in metrics:
        there = f"only {', '.join(metrics)}" if metrics else "and no other metric"
        remedy = ", or use one of these" if metrics else ""
        if name == "eval_loss":
            remedy += f"; there is a loss if batches have labels, by the names in `label_names={args.label_names}`"
        elif metrics and not any(key.endswith("loss") for key in metrics):
            remedy += (
                f"; that is called if batches have labels, in a column `labels` or by `label_names={args.label_names}`"
            )
        raise MetricNameError(
            f"`metric_for_best_model={wanted!r}`, which is not found in the evaluation metrics: "
            f"there is no `{name}`, {there}. Return it from `compute_metrics`{remedy}."
        )
    shape: tuple[int, ...] = tuple(np.shape(metrics[name]))
    if math.prod(shape) > 1:
        raise MetricsError.also(RuntimeError, ValueError)(
            f"`metric_for_best_model={wanted!r}`: `{name}` is {described(metrics[name])} of shape {shape}, but "
            "a model is chosen by one number. Return it from `compute_metrics`, such as `value.mean().item()`."
        )
    return metrics[name]


# Logging, evaluations, saves and the end of a run, as far as training arguments alone decide them.


def evaluates_in_training(args: TrainingArguments) -> bool:
    """Return whether a strategy evaluates during training."""
    return args.eval_strategy != "no"


def evaluates(args: TrainingArguments) -> bool:
    """Return whether the script or a strategy evaluates."""
    return args.do_eval or evaluates_in_training(args)


def saves_checkpoints(args: TrainingArguments) -> bool:
    """Return whether a strategy saves checkpoints during training."""
    return args.save_strategy != "no"


def epochs_to_train(args: TrainingArguments) -> float | None:
    """Return the epochs of a run; None if ``max_steps``, which may be 0, says when it ends."""
    return args.num_train_epochs if args.max_steps < 0 else None


def warmup_update_steps(args: TrainingArguments, num_training_steps: int) -> int:
    """Return the update steps of warmup in a run of ``num_training_steps``; a fraction is rounded up.

    ``warmup_steps`` takes precedence over ``warmup_ratio``, the older field for a fraction.
    """
    args = effective_args(args)
    steps = args.warmup_steps
    if steps >= 1 or (steps and not resolve_semantics(args.semantics).warmup_below_one_is_ratio):
        return int(steps)
    return math.ceil(num_training_steps * (steps or args.warmup_ratio or 0.0))


# Compiled models, as the fields describe them.


class CompileKeywords(TypedDict):
    """Keywords of ``torch.compile``."""

    backend: str
    mode: str | None


def compile_keywords(args: TrainingArguments) -> CompileKeywords | None:
    """Return the keywords with which models are compiled; None if they are not."""
    if not args.torch_compile:
        return None
    return {"backend": args.torch_compile_backend or "inductor", "mode": args.torch_compile_mode}


# Data loaders as the fields describe them: the keywords of each, and the seed of their order.


def loader_keywords(args: TrainingArguments) -> dict[str, Any]:
    """Return the keywords of every ``DataLoader``, which say how workers load batches."""
    args = effective_args(args)
    return {
        "num_workers": args.dataloader_num_workers,
        "pin_memory": args.dataloader_pin_memory,
        "persistent_workers": args.dataloader_persistent_workers,
        "multiprocessing_context": args.dataloader_multiprocessing_context,
        "prefetch_factor": args.dataloader_prefetch_factor,
        "in_order": args.dataloader_in_order,
    }


def order_seed(args: TrainingArguments) -> int:
    """Return the seed of an order of samples that has a generator of its own."""
    return args.seed if args.data_seed is None else args.data_seed


# The output folder: made by the processes that write files, the default of what is saved, with so many checkpoints.


_Given = TypeVar("_Given", bound="str | os.PathLike[str]")


def checkpoints_kept(args: TrainingArguments) -> int | None:
    """Return how many checkpoints stay when this process deletes older ones; None if it deletes none."""
    limit = args.save_total_limit
    return limit if args.should_save and limit is not None and limit > 0 else None


def folder_or_default(args: TrainingArguments, folder: _Given | None) -> _Given | str:
    """Return ``folder``; for None the output folder."""
    return args.output_dir if folder is None else folder


def make_output_folder(args: TrainingArguments) -> None:
    """Make the output folder if it is not there and this process writes files.

    Raises:
        OutputFolderError: If it cannot be made.
    """
    if not args.should_save:
        return
    try:
        os.makedirs(args.output_dir, exist_ok=True)
    except OSError as error:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        remedy = "and it is no folder. Remove the file" if is_file else "so it cannot be made. Have it made"
        raise OutputFolderError(
            f"`output_dir={args.output_dir!r}`: {error.strerror}, {remedy}, or name another folder.",
            errno=error.errno,
            filename=os.fspath(args.output_dir),
        ) from error


# Names of a run in trackers, as the fields make them.


def default_event_folder(args: TrainingArguments) -> str:
    """Return a new folder in the output folder, named after the time and this machine."""
    stamp = datetime.now().strftime("%b%d_%H-%M-%S")
    return os.path.join(args.output_dir, "runs", f"{stamp}_{socket.gethostname()}")


def event_folder(args: TrainingArguments) -> str:
    """Return TensorBoard's folder: of the field, of the environment, or a new one in the output folder."""
    args = effective_args(args)
    given = args.logging_dir or os.environ.get("TENSORBOARD_LOGGING_DIR")
    return str(Path(default_event_folder(args))) if given is None else os.path.expanduser(given)


def has_name_of_its_own(args: TrainingArguments) -> bool:
    """Return whether ``run_name`` is set, to something else than the output folder."""
    return args.run_name not in (None, args.output_dir)


def group_of_trials(args: TrainingArguments) -> str:
    """Return the name that the trials of a search have in common."""
    return args.run_name or args.output_dir


# The repository on the Hub that the fields name, and what is pushed to it.


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
