"""Rich's bars of a run, on the terminal that the standard error stream is."""

from __future__ import annotations

import sys
import time

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hf_compat.callbacks.console import Pace, ProgressStats, clock

_REDRAW_SECONDS = 0.1


class RichBars:
    """The bar of the training, that of an evaluation below it, and a line with the figures of the run.

    What is printed appears above them. They are redrawn by the calls below, at most ten times a second: a thread that
    redraws them could hold a lock while a data loader forks its workers.

    Args:
        stats: The figures of the training.
        total: Its update steps; None for an evaluation outside of training.
    """

    def __init__(self, stats: ProgressStats, total: int | None = None) -> None:
        self._stats = stats
        self._total = total
        self._evaluation: tuple[Pace, int] | None = None
        self._drawn_at = 0.0
        # What is printed to a file must not go to the terminal.
        prints_here = sys.stdout is not None and sys.stdout.isatty()
        self._live = Live(
            get_renderable=self._lines,
            console=Console(stderr=True),
            auto_refresh=False,
            redirect_stdout=prints_here,
            vertical_overflow="visible",
        )
        self._live.start(refresh=True)

    def draw(self, *, always: bool = False) -> None:
        """Draw the bars again, if that was not done just now or is to be done ``always``."""
        now = time.monotonic()
        if always or now - self._drawn_at >= _REDRAW_SECONDS:
            self._drawn_at = now
            self._live.refresh()

    def advance_evaluation(self, total: int) -> None:
        """Advance the bar of an evaluation of ``total`` batches by one."""
        if self._evaluation is None:
            self._evaluation = (Pace(1), total)  # how long the first batch took is not known
        else:
            self._evaluation[0].advance(self._evaluation[0].done + 1)
        self.draw(always=self._evaluation[0].done in (1, total))

    def close_evaluation(self) -> None:
        """Remove the bar of the evaluation."""
        self._evaluation = None
        self.draw(always=True)

    def close(self) -> None:
        """Leave the bars as they are, below them what comes next."""
        self._live.stop()

    def _lines(self) -> Group:
        bars = Table.grid(padding=(0, 1), expand=True)
        for ratio in (None, 1, None, None, None):
            bars.add_column(ratio=ratio, no_wrap=True)
        stats = self._stats
        if self._total is not None:
            bars.add_row(*_cells(stats.epoch, stats.pace, self._total, *stats.texts("speed")))
        if self._evaluation is not None:
            pace, total = self._evaluation
            speed = [] if pace.rate is None else [f"{pace.rate:.2f} it/s"]
            bars.add_row(*_cells("Evaluation", pace, total, *speed))
        return Group(bars) if self._total is None else Group(bars, self._figures_line())

    def _figures_line(self) -> Text:
        texts = self._stats.texts("loss", "learning_rate", "samples")
        return Text("  ".join(texts), style="cyan", no_wrap=True, overflow="ellipsis")


def _cells(name: str, pace: Pace, total: int, *speed: str) -> list[Text | ProgressBar]:
    left = pace.seconds_left(total)
    times = f"{clock(pace.elapsed)} < {'--:--' if left is None else clock(left)}"
    return [
        Text(name, style="bold"),
        ProgressBar(total=total, completed=pace.done),
        Text(f"{pace.done:>{len(str(total))}}/{total}", style="green"),
        Text(times, style="yellow"),
        *(Text(text, style="dim") for text in speed),
    ]
