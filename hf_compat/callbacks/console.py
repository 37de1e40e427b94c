"""The callbacks for the console: progress bars, or printed logs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm  # type: ignore[import-untyped]
from tqdm.std import tqdm as StandardBar  # type: ignore[import-untyped]
from tqdm.utils import disp_len  # type: ignore[import-untyped]

from hf_compat.arguments.releases import resolve_semantics
from hf_compat.callbacks.trainer_callback import TrainerCallback
from hf_compat.environment import is_switched_on
from hf_compat.errors import TrainerSetupError
from hf_compat.metrics import has_length
from hf_compat.state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

# Numbers beside a progress bar, such as the loss and samples per second, and logs as lines.


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


# Bars of tqdm's with the figures of a run: for terminals, where they fit into the line, and as lines of a log file.


_LAYOUTS = tuple(
    f"{begin}{{bar}}| {{n_fmt}}/{{total_fmt}} [{{elapsed}}<{{remaining}}{{postfix}}]"
    for begin in ("{l_bar}", "{desc}: |")  # with the percentage, and without
)
_PLAIN_WIDTH = 10
"""Characters of the bar itself in a line of unlimited length, to ``tqdm``."""
_LEAST_WIDTH = 6
"""Characters of the bar itself that are left of it at least."""


def is_terminal() -> bool:
    """Return whether bars are drawn on a terminal: whether the standard error stream is one."""
    return sys.stderr is not None and sys.stderr.isatty()


class TerminalBar(StandardBar):
    """A bar over update steps, with epoch, loss, learning rate and samples per second.

    A narrow terminal shows fewer of them. A description or postfix that a script sets is shown instead.

    Args:
        stats: The figures; read whenever the bar is drawn.
        **settings: The keywords of ``tqdm``.
    """

    def __init__(self, stats: ProgressStats, **settings: Any) -> None:
        self.stats = stats
        super().__init__(**settings)

    @property
    def format_dict(self) -> dict[str, Any]:
        """Text that ``tqdm`` formats: with the pace of the run, and the texts that fit."""
        shown: dict[str, Any] = super().format_dict
        if not hasattr(self, "unit"):  # it is disabled, and has no texts either
            return shown
        shown["rate"] = self.stats.rate
        room = (shown["ncols"] or sys.maxsize) + _PLAIN_WIDTH - _LEAST_WIDTH
        for layout in self._layouts():
            fitting = shown | layout
            if disp_len(self.format_meter(**fitting | {"ncols": None})) <= room:
                break
        return fitting

    def _layouts(self) -> Iterator[dict[str, Any]]:
        """Yield what may be shown, the most first."""
        texts = self.stats.texts("loss", "learning_rate", "samples", "speed")
        for count in range(len(texts), -1, -1):
            prefix, postfix = self.desc or self.stats.epoch, self.postfix or ", ".join(texts[:count])
            for layout in _LAYOUTS:
                yield {"prefix": prefix, "postfix": postfix, "bar_format": self.bar_format or layout}
        yield {"prefix": self.desc, "postfix": self.postfix, "bar_format": self.bar_format or _LAYOUTS[0]}


class LogBar(StandardBar):
    """Progress as lines of text: one at most every ``seconds``, and a last one when a bar that is left there is closed.

    Args:
        seconds: Least time between two lines.
        stats: The figures of the training; None for an evaluation or prediction.
        **settings: The keywords of ``tqdm``.
    """

    disable: bool

    def __init__(self, seconds: float, stats: ProgressStats | None, **settings: Any) -> None:
        self._seconds, self._stats, self._last = seconds, stats, ""
        self._pace = Pace(settings.get("initial", 0))
        self._shown = time.monotonic()
        super().__init__(**settings, mininterval=seconds, maxinterval=seconds, miniters=1, delay=sys.float_info.min)

    def update(self, n: float = 1) -> None:
        """Count ``n`` steps, and write a line if it is time for one."""
        self._pace.advance(self.n + n)
        super().update(n)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Write a line, if it is time for one or the bar is closed."""
        if self.disable or time.monotonic() - self._shown >= self._seconds:
            self._shown, before, self._last = time.monotonic(), self._last, self._line()
            if self._last != before:
                self.fp.write(f"{self._last}\n")
                self.fp.flush()

    def clear(self, nolock: bool = False) -> None:
        """Leave the lines where they are."""

    def close(self) -> None:
        """Write the last line, if the bar is left there."""
        if not self.disable:
            self.disable = True
            self._decr_instances(self)
            if self.leave:
                self.display()

    def _line(self) -> str:
        title = self.desc.removesuffix(": ") or ("Batches" if self._stats is None else self._stats.epoch)
        left, rate = self._pace.seconds_left(self.total), self._pace.rate
        texts = [f"{self.n}/{self.total} ({self.n / max(self.total, 1):.0%}) in {clock(self._pace.elapsed)}"]
        texts += [f"{clock(left)} left"] if left else []
        texts += [self.postfix] if self.postfix else []
        texts += self._stats.texts("loss", "learning_rate", "samples") if self._stats is not None else []
        texts += [f"{rate:.2f} it/s" if rate >= 1 else f"{1 / max(rate, 1e-9):.2f} s/it"] if rate else []
        return f"{title}: {', '.join(texts)}"


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
        """Return a bar where there is no terminal: lines of text if they are switched on, or transformers' bar."""
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
