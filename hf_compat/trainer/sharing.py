"""The methods that are not carried out yet, and the one that ends it all."""

from __future__ import annotations

from typing import Any, NoReturn

from hf_compat.errors import NotCarriedOutError
from hf_compat.trainer.training import TrainingMethods

__all__ = ["SharingMethods"]


class SharingMethods(TrainingMethods):
    """``hyperparameter_search``, ``end``."""

    def hyperparameter_search(self, *_: Any, **__: Any) -> NoReturn:
        """Say that searches are not carried out yet.

        Raises:
            NotCarriedOutError: Always.
        """
        raise NotCarriedOutError(
            "`hyperparameter_search` is not carried out yet: build a Trainer for each trial in a study of your own."
        )

    def end(self) -> None:
        """Close what a run holds open: nothing, with one process; Lightning closes its loggers with each run."""
