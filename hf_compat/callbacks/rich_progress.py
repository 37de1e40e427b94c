"""The callback that shows a run's progress with Rich."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hf_compat.callbacks.console import ProgressStats, is_terminal, log_line
from hf_compat.callbacks.trainer_callback import TrainerCallback
from hf_compat.errors import require_package
from hf_compat.metrics import has_length
from hf_compat.state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments
    from hf_compat.callbacks.rich_bars import RichBars


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
            from hf_compat.callbacks.rich_bars import RichBars

            self._bars = RichBars(self._stats, total)
