"""Bars of tqdm's with the figures of a run: for terminals, where they fit into the line, and as lines of a log file."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

from tqdm.std import tqdm  # type: ignore[import-untyped]
from tqdm.utils import disp_len  # type: ignore[import-untyped]

from hf_compat.callbacks.progress_stats import Pace, ProgressStats, clock

__all__ = ["LogBar", "TerminalBar", "is_terminal"]

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


class TerminalBar(tqdm):
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


class LogBar(tqdm):
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
