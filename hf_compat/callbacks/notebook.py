"""The callback for notebooks: a progress bar and a table of losses and metrics."""

from __future__ import annotations

import html
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from hf_compat.arguments.derived import evaluates_in_training
from hf_compat.callbacks.console import Pace, ProgressStats, clock
from hf_compat.callbacks.trainer_callback import TrainerCallback
from hf_compat.errors import require_package
from hf_compat.metrics import has_length
from hf_compat.state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

# Progress bars and a table of metrics for notebooks, as HTML that is updated in place.


_REDRAW_SECONDS = 0.2
_NO_VALUE = "No Log"


class _Display(Protocol):
    """IPython's handle of an output."""

    def update(self, html: object, /) -> None:
        """Replace the output."""


def _cell(value: object) -> str:
    return f"{value:.6f}" if isinstance(value, float) else html.escape(str(value))


class NotebookProgressBar:
    """A progress bar with elapsed time, remaining time and speed, redrawn at most five times a second.

    Args:
        total: The final value.
        prefix: Text before the bar.
        leave: Whether the bar stays at the end.
        parent: The tracker that shows it below its table; None to show it on its own.
        width: Its width in pixels.

    Attributes:
        html_code: The current HTML.
        value: The current value.
    """

    def __init__(
        self,
        total: int,
        prefix: str | None = None,
        leave: bool = True,
        parent: NotebookTrainingTracker | None = None,
        width: int = 300,
    ) -> None:
        self.total = total
        self.prefix = prefix or ""
        self.leave = leave
        self.parent = parent
        self.width = width
        self.value = 0
        self.comment = ""
        self.html_code = ""
        self._output: _Display | None = None
        self._pace: Pace | None = None
        self._drawn_at = 0.0

    def begin(self, value: int) -> None:
        """Draw the bar with ``value`` done before, by the run that is resumed; without it, the first update begins."""
        self.value, self._pace = value, Pace(value)
        self.display()

    def update(self, value: int, force_update: bool = False, comment: str | None = None) -> None:
        """Set ``value``, and redraw at most five times a second.

        Args:
            value: 0 to ``total``.
            force_update: Always redraw.
            comment: Text after the speed. Default: unchanged.
        """
        now = time.monotonic()
        self.value = min(value, self.total)
        self.comment = self.comment if comment is None else comment
        is_first, is_full = self._pace is None, value >= self.total
        self._pace = self._pace or Pace(self.value)
        self._pace.advance(self.value)
        if is_first or is_full or force_update or now - self._drawn_at >= _REDRAW_SECONDS:
            self._drawn_at = now
            self.display()
        if is_full and not self.leave:
            self.close()

    def display(self) -> None:
        """Draw the bar, or have its parent draw it."""
        self.html_code = self._bar()
        if self.parent is not None:
            self.parent.display()
        else:
            self._show(self.html_code)

    def close(self) -> None:
        """Remove the bar from the output."""
        if self.parent is None and self._output is not None:
            self._show("")

    def _bar(self) -> str:
        return (
            f"<div>{html.escape(self.prefix)}<progress value='{self.value}' max='{self.total}' "
            f"style='width:{self.width}px; height:20px; vertical-align: middle;'></progress> {self._label()}</div>"
        )

    def _label(self) -> str:
        pace = self._pace or Pace(self.value)
        parts = [f"{self.value:>{len(str(self.total))}}/{self.total} {clock(pace.elapsed)}"]
        left, rate = pace.seconds_left(self.total), pace.rate
        if left and rate:  # not before the first step, and not after the last
            parts[0] += f" &lt; {clock(left)}"
            parts.append(f"{rate:.2f} it/s")
        if self.comment:
            parts.append(html.escape(self.comment))
        return f"[{', '.join(parts)}]"

    def _show(self, code: str) -> None:
        self._output = show(code, self._output)


class NotebookTrainingTracker(NotebookProgressBar):
    """A progress bar over the update steps, a table of metrics, and below it the bar of an evaluation.

    Args:
        num_steps: Update steps of the run.
        column_names: The first columns of the table. Default: those of the first row.

    Attributes:
        column_names: The columns; the first one identifies a row.
        rows: The rows of the table, column → value.
    """

    def __init__(self, num_steps: int, column_names: list[str] | None = None) -> None:
        super().__init__(num_steps)
        self.column_names = list(column_names or ())
        self.rows: list[dict[str, Any]] = []
        self.child_bar: NotebookProgressBar | None = None

    @property
    def inner_table(self) -> list[list[Any]]:
        """The table: the columns, then the rows, with ``"No Log"`` for missing values."""
        return [self.column_names, *([row.get(name, _NO_VALUE) for name in self.column_names] for row in self.rows)]

    def display(self) -> None:
        """Draw the bar, the table and the evaluation bar."""
        self.html_code = self._bar() + (table(self.inner_table) if self.column_names else "")
        if self.child_bar is not None:
            self.html_code += self.child_bar.html_code
        self._show(self.html_code)

    def write_line(self, values: Mapping[str, Any]) -> None:
        """Add a row, or update the last one if the value in the first column is the same.

        Args:
            values: Column → value; new columns are added on the right.
        """
        self.column_names.extend(name for name in values if name not in self.column_names)
        first = self.column_names[0]
        if self.rows and self.rows[-1].get(first) == values.get(first):
            self.rows[-1].update(values)
        else:
            self.rows.append(dict(values))

    def add_child(self, total: int, prefix: str | None = None, width: int = 300) -> NotebookProgressBar:
        """Return a new bar, shown below the table until it is removed; arguments as of the class."""
        self.child_bar = NotebookProgressBar(total, prefix=prefix, parent=self, width=width)
        return self.child_bar

    def remove_child(self) -> None:
        """Remove the bar below the table."""
        self.child_bar = None
        self.display()


def show(code: str, output: _Display | None = None) -> _Display:
    """Show HTML below the running cell, or update an earlier ``output`` of this function; return its handle.

    Raises:
        MissingPackageError: If IPython is not installed.
    """
    display = require_package("IPython.display", extra="notebook", purpose="NotebookProgressCallback")
    if output is None:
        created: _Display = display.display(display.HTML(code), display_id=True)
        return created
    output.update(display.HTML(code))
    return output


def table(lines: list[list[Any]]) -> str:
    """Return ``lines`` as an HTML table, with the columns in the first line; floats have six decimals."""
    head = "".join(f"<th>{_cell(name)}</th>" for name in lines[0])
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in line)}</tr>" for line in lines[1:])
    return (
        f'<table border="1" class="dataframe"><thead><tr style="text-align: left;">{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


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
