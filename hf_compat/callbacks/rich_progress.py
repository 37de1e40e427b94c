"""The callback that shows a run's progress with Rich."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hf_compat.callbacks.progress_stats import Pace, ProgressStats, clock, log_line
from hf_compat.callbacks.terminal_bars import is_terminal
from hf_compat.callbacks.trainer_callback import TrainerCallback
from hf_compat.errors import require_package
from hf_compat.metrics import has_length
from hf_compat.state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["RichBars", "RichProgressCallback"]

_REDRAW_SECONDS = 0.1


class RichProgressCallback(TrainerCallback):
    """Shows what :class:`~hf_compat.ProgressCallback` shows, drawn by Rich.

    A Trainer that gets one in ``callbacks`` adds no other bar and no ``PrinterCallback``. Logs are printed above the
    bars. There are no bars where the standard error stream is no terminal; the logs are printed all the same.

    Args:
        max_str_len: Maximum length of a string in the logs; longer ones are not shown.

    Raises:
        MissingPackageError: If Rich is not installed.
    """

    def __init__(self, max_str_len: int = 100) -> None:
        require_package("rich", extra="rich", purpose="RichProgressCallback")
        self.max_str_len = max_str_len
        self._stats = ProgressStats()
        self._bars: RichBars | None = None
        self._trains = False

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: object = None,
        **kwargs: Any,
    ) -> None:
        """Open the bar, at the update step that the run resumes from; again if training restarts."""
        self.close_progress_bars()
        self._stats.begin(args, state, train_dataloader)
        self._trains = True
        if state.is_world_process_zero:
            self._open(state.max_steps)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Advance the bar to the update step."""
        self._stats.advance(state)
        if self._bars is not None:
            self._bars.draw()

    def on_prediction_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        eval_dataloader: object = None,
        **kwargs: Any,
    ) -> None:
        """Advance the second bar by a batch; there is none for a data loader without length."""
        if not (state.is_world_process_zero and has_length(eval_dataloader)):
            return
        if self._bars is None:
            self._open(None)
        if self._bars is not None:
            self._bars.advance_evaluation(len(eval_dataloader))

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Close the second bar."""
        self.close_progress_bars(evaluation_only=True)

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Close the second bar."""
        self.close_progress_bars(evaluation_only=True)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Print the logs above the bars, without ``total_flos``."""
        if self._trains and state.is_world_process_zero:
            self._stats.log(logs or {})
            print(log_line(args, logs or {}, self.max_str_len))  # noqa: T201  (a purpose of this class)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the bar as it is."""
        self.close_progress_bars()

    def close_progress_bars(self, *, evaluation_only: bool = False) -> None:
        """Close the bars that an error has left open, so that the traceback starts on a new line.

        Args:
            evaluation_only: Leave the bar of the training.
        """
        if self._bars is not None and self._trains:
            self._bars.close_evaluation()
        if evaluation_only and self._trains:
            return
        self._stats.end()
        self._trains = False
        if self._bars is not None:
            self._bars.close()
        self._bars = None

    def _open(self, total: int | None) -> None:
        if is_terminal() and os.environ.get("TERM") != "dumb":
            from hf_compat.callbacks.rich_progress import RichBars

            self._bars = RichBars(self._stats, total)


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
