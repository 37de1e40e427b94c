"""A training bar for terminals: tqdm's, with the figures of the run that fit into the line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from tqdm.std import tqdm  # type: ignore[import-untyped]
from tqdm.utils import disp_len  # type: ignore[import-untyped]

from hf_compat.callbacks.progress_stats import ProgressStats

__all__ = ["TerminalBar", "is_terminal"]

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
