"""Names of a run in trackers, as the fields make them."""

from __future__ import annotations

import os
import socket
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hf_compat.arguments.fields.redeclared import for_run

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["default_event_folder", "event_folder", "group_of_trials", "has_name_of_its_own"]


def default_event_folder(args: TrainingArguments) -> str:
    """Return a new folder in the output folder, named after the time and this machine."""
    stamp = datetime.now().strftime("%b%d_%H-%M-%S")
    return os.path.join(args.output_dir, "runs", f"{stamp}_{socket.gethostname()}")


def event_folder(args: TrainingArguments) -> str:
    """Return TensorBoard's folder: of the field, of the environment, or a new one in the output folder."""
    args = for_run(args)
    given = args.logging_dir or os.environ.get("TENSORBOARD_LOGGING_DIR")
    return str(Path(default_event_folder(args))) if given is None else os.path.expanduser(given)


def has_name_of_its_own(args: TrainingArguments) -> bool:
    """Return whether ``run_name`` is set, to something else than the output folder."""
    return args.run_name not in (None, args.output_dir)


def group_of_trials(args: TrainingArguments) -> str:
    """Return the name that the trials of a search have in common."""
    return args.run_name or args.output_dir
