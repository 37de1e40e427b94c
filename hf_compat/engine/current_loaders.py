"""The train and evaluation loaders currently in use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Loaders"]


@dataclass(slots=True)
class Loaders:
    """The current loaders; ``gather_for_metrics`` drops the duplicates in their last batch.

    Attributes:
        train: The train loader of the current or last fit.
        evaluation: The loader of the evaluation under way.
        prepared: The loaders that the Trainer's accelerator has prepared; a copy of upstream's loop reads those.
    """

    train: object = None
    evaluation: object = None
    prepared: list[Any] = field(default_factory=list)

    @property
    def current(self) -> object:
        """The evaluation loader inside an evaluation, else the loader whose pass began last; None without either.

        As in accelerate, a loader counts as in use until a pass over it is exhausted or it is freed.
        """
        if self.evaluation is not None:
            return self.evaluation
        in_use = [loader for loader in (self.train, *self.prepared) if getattr(loader, "in_pass", False)]
        return max(in_use, key=lambda loader: loader.pass_number, default=None)

    def watch_evaluation(self, loader: object) -> object:
        """Set the evaluation loader, None at the end of the evaluation; return the previous one."""
        before, self.evaluation = self.evaluation, loader
        if loader is None:  # the evaluation has read what it needs, without asking for a batch after the last
            for each in self.prepared:
                each.in_pass = each.in_pass and each is self.train
        return before
