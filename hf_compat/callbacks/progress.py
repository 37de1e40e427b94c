"""The callbacks for the console: progress bars, or printed logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm  # type: ignore[import-untyped]

from hf_compat.arguments.releases.semantics import resolve_semantics
from hf_compat.callbacks.trainer_callback import TrainerCallback
from hf_compat.metrics import has_length
from hf_compat.state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["PrinterCallback", "ProgressCallback"]


def _shortens_floats(args: TrainingArguments) -> bool:
    """Return whether the release shows floats with 4 significant digits, as 5.0 and later do."""
    return resolve_semantics(getattr(args, "semantics", None)).release.major >= 5


def _shorten_floats(logs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in logs.items()}


class ProgressCallback(TrainerCallback):
    """Shows a progress bar over the update steps, a second one over the batches of an evaluation, and the logs.

    Args:
        max_str_len: Maximum length of a string in the logs; longer ones are not shown.
    """

    def __init__(self, max_str_len: int = 100) -> None:
        self.training_bar: Any = None
        self.prediction_bar: Any = None
        self.max_str_len = max_str_len
        self.current_step = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the bar; again if training restarts with a smaller batch size."""
        if state.is_world_process_zero:
            self._close_training_bar()
            self.training_bar = tqdm(total=state.max_steps, dynamic_ncols=True)
        self.current_step = 0

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Advance the bar to the update step; after a resume it jumps there from 0."""
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
            # The bar stays only if there is no training bar above it.
            self.prediction_bar = tqdm(total=len(eval_dataloader), leave=self.training_bar is None, dynamic_ncols=True)
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
        if self.training_bar is None:
            return
        shown: dict[str, Any] = {
            name: self._shown(value) for name, value in (logs or {}).items() if name != "total_flos"
        }
        if _shortens_floats(args):
            shown = _shorten_floats(shown)
        elif "epoch" in shown:
            shown["epoch"] = round(shown["epoch"], 2)
        self.training_bar.write(str(shown))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the bar."""
        self._close_training_bar()

    def _shown(self, value: object) -> object:
        if isinstance(value, str) and len(value) > self.max_str_len:
            return f"[{len(value)} characters, more than `max_str_len={self.max_str_len}`]"
        return value

    def _close_training_bar(self) -> None:
        if self.training_bar is not None:
            self.training_bar.close()
        self.training_bar = None

    def _close_prediction_bar(self) -> None:
        if self.prediction_bar is not None:
            self.prediction_bar.close()
        self.prediction_bar = None


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
            shortens = logs is not None and _shortens_floats(args)
            print(_shorten_floats(logs) if shortens and logs is not None else logs)  # noqa: T201  (the purpose of this class)
