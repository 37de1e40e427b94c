"""Numbers beside a progress bar, such as the loss and samples per second, and logs as lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.releases.semantics import resolve_semantics

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments
    from hf_compat.state import TrainerState

__all__ = ["Pace", "ProgressStats", "clock", "log_line", "shorten_floats", "shortens_floats"]

_LOGGED = {"loss": "loss={:.4g}", "learning_rate": "lr={:.3g}"}
"""Name in the logs → what is shown of it."""


def clock(seconds: float) -> str:
    """Return a time as ``mm:ss``, or ``h:mm:ss`` from an hour up."""
    hours, rest = divmod(int(seconds), 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes:02d}:{seconds:02d}"


class Pace:
    """Speed of progress, as the mean since the end of its first step.

    The first step is left out because it takes longer than others: it compiles kernels, starts workers and skips the
    data of a resumed epoch. Pauses are included, such as evaluations, as there are more of them to come.

    Args:
        done: Steps that were done before, by the run that is resumed.
    """

    def __init__(self, done: int = 0) -> None:
        self.done = self._first = done
        self._began = time.monotonic()
        self._warm: tuple[float, int] | None = None

    def advance(self, done: int) -> None:
        """Note that ``done`` steps are done."""
        self.done = done
        if self._warm is None and done > self._first:
            self._warm = (time.monotonic(), done)

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    @property
    def mean(self) -> float | None:
        """Steps per second since the beginning; None before the first."""
        return (self.done - self._first) / max(self.elapsed, 1e-9) if self.done > self._first else None

    @property
    def rate(self) -> float | None:
        """Steps per second, without the first step if there is another; None before the first."""
        began, first = self._warm or (0.0, self.done)
        return (self.done - first) / max(time.monotonic() - began, 1e-9) if self.done > first else self.mean

    def seconds_left(self, total: int) -> float | None:
        """Return the seconds until ``total`` steps are done; None before the first."""
        rate = self.rate
        return None if rate is None else max(total - self.done, 0) / rate


class ProgressStats:
    """The current figures of a run. Losses and learning rates are those of the last log, which costs nothing.

    Attributes:
        pace: The pace in update steps.
        is_over: Whether training is over, so that speeds are means of the whole session.
    """

    def __init__(self) -> None:
        self.pace = Pace()
        self.is_over = False
        self._epoch: float = 0
        self._epochs = 0
        self._samples: int | None = None
        self._values: dict[str, float] = {}

    def begin(self, args: TrainingArguments, state: TrainerState, loader: object) -> None:
        """Begin with the update steps that ``state`` has done; samples are counted by ``loader``'s batches."""
        self.pace = Pace(state.global_step)
        self.is_over = False
        self._epoch, self._epochs = state.epoch or 0, state.num_train_epochs
        self._samples = _samples_per_update_step(args, loader)
        self._values = {}

    def advance(self, state: TrainerState) -> None:
        """Note an update step."""
        self.pace.advance(state.global_step)
        self._epoch = state.epoch or 0

    def log(self, logs: Mapping[str, Any]) -> None:
        """Note what was logged."""
        self._values |= {name: logs[name] for name in _LOGGED if isinstance(logs.get(name), int | float)}

    def end(self) -> None:
        """Note that training is over."""
        self.is_over = True

    @property
    def rate(self) -> float | None:
        """Update steps per second; None before the first."""
        return self.pace.mean if self.is_over else self.pace.rate

    @property
    def epoch(self) -> str:
        """``"Epoch 1.50/3"``, without the total where it is not known."""
        known = 0 < self._epochs < sys.maxsize
        return f"Epoch {self._epoch:.2f}/{self._epochs}" if known else f"Epoch {self._epoch:.2f}"

    def texts(self, *names: str) -> list[str]:
        """Return what is known of ``names``: ``["loss=0.7266", "lr=0.026", "31 samples/s", "7.80 it/s"]``.

        Args:
            *names: ``"loss"``, ``"learning_rate"``, ``"samples"`` and ``"speed"``, the last two per second.
        """
        known = {name: text.format(self._values[name]) for name, text in _LOGGED.items() if name in self._values}
        rate = self.rate
        if rate is not None:
            known["speed"] = f"{rate:.2f} it/s" if rate >= 1 else f"{1 / max(rate, 1e-9):.2f} s/it"
            if self._samples is not None:
                known["samples"] = f"{_two_digits(rate * self._samples)} samples/s"
        return [known[name] for name in names if name in known]


def _two_digits(speed: float) -> str:
    return f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}"


def _samples_per_update_step(args: TrainingArguments, loader: object) -> int | None:
    """Return the samples of a full update step over all ranks; None if the loader has no batch size."""
    over_all_ranks = getattr(loader, "total_batch_size", None)
    size = getattr(loader, "batch_size", None) if over_all_ranks is None else over_all_ranks
    if not isinstance(size, int):
        return None
    return size * (args.world_size if over_all_ranks is None else 1) * args.gradient_accumulation_steps


def shortens_floats(args: TrainingArguments) -> bool:
    """Return whether the release shows floats with 4 significant digits, as 5.0 and later do."""
    return resolve_semantics(getattr(args, "semantics", None)).release.major >= 5


def shorten_floats(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``logs`` with floats as texts of 4 significant digits."""
    return {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in logs.items()}


def log_line(args: TrainingArguments, logs: Mapping[str, Any], max_str_len: int) -> str:
    """Return the line that is written above a bar: ``logs`` without ``total_flos``, as a dict.

    Args:
        args: The arguments of the run.
        logs: What is logged.
        max_str_len: Maximum length of a string; longer ones are not shown.
    """
    shown = {name: _shorten(value, max_str_len) for name, value in logs.items() if name != "total_flos"}
    if shortens_floats(args):
        shown = shorten_floats(shown)
    elif "epoch" in shown:
        shown["epoch"] = round(shown["epoch"], 2)
    return str(shown)


def _shorten(value: Any, max_str_len: int) -> Any:
    if isinstance(value, str) and len(value) > max_str_len:
        return f"[{len(value)} characters, more than `max_str_len={max_str_len}`]"
    return value
