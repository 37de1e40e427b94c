"""Progress bars and a table of metrics for notebooks, as HTML that is updated in place."""

from __future__ import annotations

import html
import time
from collections.abc import Mapping
from typing import Any, Protocol

from hf_compat.callbacks.progress_stats import Pace, clock
from hf_compat.errors import require_package

__all__ = ["NotebookProgressBar", "NotebookTrainingTracker", "show", "table"]

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
