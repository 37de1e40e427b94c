"""The callback for notebooks: a progress bar and a table of losses and metrics."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.cadence import evaluates_in_training
from hf_compat.callbacks.notebook_bars import NotebookProgressBar, NotebookTrainingTracker, show, table
from hf_compat.callbacks.progress_stats import ProgressStats
from hf_compat.callbacks.trainer_callback import TrainerCallback
from hf_compat.metrics import has_length
from hf_compat.state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["NotebookProgressCallback", "is_in_notebook"]

_HIDDEN_SUFFIXES = (
    "runtime",
    "samples_per_second",
    "steps_per_second",
    "model_preparation_time",
    "jit_compilation_time",
)
"""Suffixes of values that an evaluation reports besides its metrics."""


def is_in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook: Jupyter's, Colab's, VS Code's or marimo."""
    if "marimo" in sys.modules:
        return True
    if os.environ.get("DATABRICKS_RUNTIME_VERSION", "11.0") < "11.0":  # older releases do not support the display
        return False
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "IPKernelApp" in getattr(shell, "config", ())


class NotebookProgressCallback(TrainerCallback):
    """Shows a progress bar, and a table of losses and metrics with one row per evaluation.

    Without evaluations there is one row per log. An evaluation outside of training has its own table.

    References:
        Same columns and values as transformers ``utils/notebook.py``, whose callback also removes times from
        the metrics that ``evaluate`` returns; this one keeps them.
    """

    def __init__(self) -> None:
        self.training_tracker: NotebookTrainingTracker | None = None
        self.prediction_bar: NotebookProgressBar | None = None
        self._force_next_update = False
        self._stats = ProgressStats()

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: object = None,
        **kwargs: Any,
    ) -> None:
        """Draw the bar, at the update step that the run resumes from, and the table."""
        self.close_progress_bars()
        self._stats.begin(args, state, train_dataloader)
        validation = ["Validation Loss"] if evaluates_in_training(args) else []
        self.training_tracker = NotebookTrainingTracker(
            state.max_steps, [_first_column(args), "Training Loss", *validation]
        )
        self.training_tracker.begin(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Advance the bar."""
        self._stats.advance(state)
        if self.training_tracker is not None:
            self.training_tracker.update(
                state.global_step, comment=self._comment(), force_update=self._force_next_update
            )
        self._force_next_update = False

    def on_prediction_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        eval_dataloader: object = None,
        **kwargs: Any,
    ) -> None:
        """Advance the evaluation bar; there is none for a data loader without length."""
        if not has_length(eval_dataloader):
            return
        if self.prediction_bar is None:
            total, tracker = len(eval_dataloader), self.training_tracker
            self.prediction_bar = NotebookProgressBar(total) if tracker is None else tracker.add_child(total)
        self.prediction_bar.update(self.prediction_bar.value + 1)

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Close the bar."""
        self._close_prediction_bar()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add a row, if there are no evaluations."""
        self._stats.log(logs or {})
        if self.training_tracker is not None and not evaluates_in_training(args) and logs and "loss" in logs:
            self.training_tracker.write_line({"Training Loss": logs["loss"], "Step": state.global_step})

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add a row; outside of training, show a separate table."""
        line = _evaluation_line(args, state, metrics or {})
        if self.training_tracker is not None:
            self.training_tracker.write_line(line)
            self.training_tracker.remove_child()
            self._force_next_update = True  # the bar is out of date after an evaluation
            self.prediction_bar = None
        else:
            self._close_prediction_bar()
            show(table([list(line), list(line.values())]))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Draw the bar and the table one last time."""
        if self.training_tracker is not None:
            self._stats.end()
            self.training_tracker.update(state.global_step, comment=self._comment(), force_update=True)
        self.training_tracker = None

    def close_progress_bars(self, *, evaluation_only: bool = False) -> None:
        """Forget the bars that an error has left open; they stay as they are.

        Args:
            evaluation_only: Keep the bar of the training.
        """
        self.prediction_bar = None
        if not evaluation_only:
            self.training_tracker = None

    def _comment(self) -> str:
        return ", ".join([self._stats.epoch, *self._stats.texts("learning_rate", "samples")])

    def _close_prediction_bar(self) -> None:
        if self.prediction_bar is not None:
            self.prediction_bar.close()
        self.prediction_bar = None


def _first_column(args: TrainingArguments) -> str:
    return "Epoch" if args.eval_strategy == "epoch" else "Step"


def _evaluation_line(args: TrainingArguments, state: TrainerState, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return column → value: the last training loss, the step or epoch, and the metrics of one evaluation."""
    loss = next((log["loss"] for log in reversed(state.log_history) if "loss" in log), "No log")
    line: dict[str, Any] = {"Training Loss": loss, "Validation Loss": "No log"}
    column = _first_column(args)
    line[column] = int(state.epoch or 0) if column == "Epoch" else state.global_step
    prefix = next((name.removesuffix("_loss") for name in reversed(list(metrics)) if name.endswith("_loss")), "eval")
    hidden = {"total_flos", "epoch", *(f"{prefix}_{suffix}" for suffix in _HIDDEN_SUFFIXES)}
    for name, value in metrics.items():
        if name not in hidden:
            title = " ".join(part.capitalize() for part in name.split("_")[1:])
            line["Validation Loss" if title == "Loss" else title] = value
    return line
