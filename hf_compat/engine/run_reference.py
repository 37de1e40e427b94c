"""The weak reference of a module, or of its data, to the run."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from hf_compat.errors import TrainerSetupError

if TYPE_CHECKING:
    from hf_compat.run.run import TrainingRun

__all__ = ["RunReference"]


class RunReference:
    """The run of a module or of its data, a weak reference.

    A Lightning callback that copies the module must not copy the Trainer and its datasets.

    Args:
        missing: The error without a run.
    """

    def __init__(self, missing: str) -> None:
        self._missing = missing
        self._reference: weakref.ref[TrainingRun] | None = None

    def set(self, run: TrainingRun) -> None:
        """Refer to ``run``."""
        self._reference = weakref.ref(run)

    def is_to(self, run: TrainingRun) -> bool:
        """Return whether ``run`` is the run."""
        return self._reference is not None and self._reference() is run

    def get(self) -> TrainingRun:
        """Return the run.

        Raises:
            TrainerSetupError: If there is none, or it is gone.
        """
        run = None if self._reference is None else self._reference()
        if run is None:
            raise TrainerSetupError(self._missing)
        return run
