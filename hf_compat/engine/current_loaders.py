"""The train and evaluation loaders currently in use."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Loaders"]


@dataclass(slots=True)
class Loaders:
    """The current loaders; ``gather_for_metrics`` drops the duplicates in their last batch.

    Attributes:
        train: The train loader of the current or last fit.
        evaluation: The loader of the evaluation under way.
    """

    train: object = None
    evaluation: object = None

    @property
    def current(self) -> object:
        """The evaluation loader inside an evaluation, else the train loader in a pass over it; None without either.

        As in accelerate, a train loader counts as in use until a pass over it is exhausted or it is freed.
        """
        if self.evaluation is not None:
            return self.evaluation
        return self.train if getattr(self.train, "in_pass", False) else None

    def watch_evaluation(self, loader: object) -> object:
        """Set the evaluation loader, None at the end of the evaluation; return the previous one."""
        before, self.evaluation = self.evaluation, loader
        return before
