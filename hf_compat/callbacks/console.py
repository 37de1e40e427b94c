"""The callbacks for the console: progress bars, or printed logs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm  # type: ignore[import-untyped]

from hf_compat.callbacks.progress_stats import ProgressStats, log_line, shorten_floats, shortens_floats
from hf_compat.callbacks.terminal_bars import LogBar, TerminalBar, is_terminal
from hf_compat.callbacks.trainer_callback import TrainerCallback
from hf_compat.environment import is_switched_on
from hf_compat.errors import TrainerSetupError
from hf_compat.metrics import has_length
from hf_compat.state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["ENVIRONMENT_VARIABLE", "PrinterCallback", "ProgressCallback"]

ENVIRONMENT_VARIABLE = "HF_COMPAT_TERMINAL_BARS_ONLY"
"""If set to 1, bars are drawn on a terminal alone, as with ``ProgressCallback(terminal_only=True)``."""
SECONDS_VARIABLE = "HF_COMPAT_PROGRESS_SECONDS"
"""If set, bars are lines of text where there is no terminal, as with ``ProgressCallback(seconds=...)``."""


class ProgressCallback(TrainerCallback):
    """Shows a progress bar over the update steps, a second one over the batches of an evaluation, and the logs.

    On a terminal the bar has the epoch, the loss, the learning rate and the samples per second, as far as they fit, and
    the bar of an evaluation vanishes with its end. Elsewhere, such as in a file, bars are drawn as transformers draws
    them.

    Args:
        max_str_len: Maximum length of a string in the logs; longer ones are not shown.
        terminal_only: Whether to draw no bars but on a terminal; logs are written anyway. Default: whether
            ``HF_COMPAT_TERMINAL_BARS_ONLY`` is set to 1.
        seconds: Write progress as lines of text where there is no terminal, one at most every so many seconds, in the
            place of bars. Default: the value of ``HF_COMPAT_PROGRESS_SECONDS``, or bars if it is not set.

    Attributes:
        training_bar: The bar of the training; None outside it and on all ranks but 0.
        prediction_bar: The bar of the current evaluation or prediction.
        current_step: The update step that the bar shows.
    """

    def __init__(self, max_str_len: int = 100, terminal_only: bool | None = None, seconds: float | None = None) -> None:
        self.training_bar: Any = None
        self.prediction_bar: Any = None
        self.max_str_len = max_str_len
        self.terminal_only = terminal_only
        self.seconds = seconds
        self.current_step = 0
        self._stats = ProgressStats()

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
        self.current_step = state.global_step
        if state.is_world_process_zero:
            settings = {"total": state.max_steps, "initial": state.global_step, **self._settings()}
            self.training_bar = TerminalBar(self._stats, **settings) if is_terminal() else self._plain(**settings)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Advance the bar to the update step."""
        self._stats.advance(state)
        if self.training_bar is not None:
            self.training_bar.update(state.global_step - self.current_step)
        self.current_step = state.global_step

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
        if self.prediction_bar is None:
            is_nested = self.training_bar is not None
            settings = {"total": len(eval_dataloader), "leave": not is_nested, **self._settings()}
            desc = "Evaluation" if is_nested else None
            self.prediction_bar = tqdm(desc=desc, **settings) if is_terminal() else self._plain(desc=desc, **settings)
        self.prediction_bar.update(1)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Close the second bar."""
        self._close_prediction_bar()

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Close the second bar."""
        self._close_prediction_bar()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write the logs above the bar, without ``total_flos``."""
        if self.training_bar is not None:
            self._stats.log(logs or {})
            self.training_bar.write(log_line(args, logs or {}, self.max_str_len))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the bar."""
        self._close_training_bar()

    def close_progress_bars(self, *, evaluation_only: bool = False) -> None:
        """Close the bars that an error has left open, so that the traceback starts on a new line.

        Args:
            evaluation_only: Leave the bar of the training.
        """
        self._close_prediction_bar()
        if not evaluation_only:
            self._close_training_bar()

    def _plain(self, *, desc: str | None = None, **settings: Any) -> Any:
        """Return a bar where there is no terminal: lines of text if they are asked for, or transformers' bar."""
        seconds = _seconds_set() if self.seconds is None else self.seconds
        if seconds is None:
            return tqdm(**settings)
        return LogBar(seconds, None if "leave" in settings else self._stats, desc=desc, **settings)

    def _settings(self) -> dict[str, Any]:
        chosen = is_switched_on(ENVIRONMENT_VARIABLE) if self.terminal_only is None else self.terminal_only
        # `disable` is left out otherwise, so that TQDM_DISABLE has its effect.
        return {"dynamic_ncols": True, **({"disable": True} if chosen and not is_terminal() else {})}

    def _close_training_bar(self) -> None:
        self._stats.end()
        if self.training_bar is not None:
            self.training_bar.close()
        self.training_bar = None

    def _close_prediction_bar(self) -> None:
        if self.prediction_bar is not None:
            self.prediction_bar.close()
        self.prediction_bar = None


def _seconds_set() -> float | None:
    text = os.environ.get(SECONDS_VARIABLE)
    try:
        return float(text) if text else None
    except ValueError:
        raise TrainerSetupError(
            f"`{SECONDS_VARIABLE}={text}`: not a number of seconds. Set it to 60, say, or unset it."
        ) from None


class PrinterCallback(TrainerCallback):
    """Prints the logs, one line each, on local rank 0 of every node."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Print ``logs`` without ``total_flos``, which is also removed for later callbacks and the caller."""
        if logs is not None:
            logs.pop("total_flos", None)
        if state.is_local_process_zero:
            shortens = logs is not None and shortens_floats(args)
            print(shorten_floats(logs) if shortens and logs is not None else logs)  # noqa: T201  (the purpose of this class)
