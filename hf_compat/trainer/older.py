"""Methods that older releases of transformers had, for subclasses and scripts that call them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hf_compat.checkpoint.layout import list_checkpoints
from hf_compat.checkpoint.names import PREFIX_CHECKPOINT_DIR
from hf_compat.checkpoint.rotation import by_age
from hf_compat.trainer.planning import PlanningMethods

__all__ = ["OlderMethods"]


class OlderMethods(PlanningMethods):
    """What transformers 4 had and 5 has not; no run calls these."""

    @staticmethod
    def num_tokens(train_dl: Any, max_steps: int | None = None) -> int:
        """Return the tokens in ``input_ids`` of one pass over ``train_dl``.

        Args:
            train_dl: A loader; one whose batches have no ``input_ids`` counts as 0.
            max_steps: Count this many batches as large as the first instead.
        """
        total = 0
        for batch in train_dl:
            if "input_ids" not in batch:
                return total
            tokens = int(batch["input_ids"].numel())
            if max_steps is not None:
                return tokens * max_steps
            total += tokens
        return total

    def _nested_gather(self, tensors: Any, name: str | None = None) -> Any:
        """Return ``tensors``, nested or not, of all processes; None for None."""
        return None if tensors is None else self.accelerator.gather(tensors)

    def _sorted_checkpoints(
        self,
        output_dir: str | os.PathLike[str] | None = None,
        checkpoint_prefix: str = PREFIX_CHECKPOINT_DIR,
        use_mtime: bool = False,
    ) -> list[str]:
        """Return the checkpoint folders in ``output_dir``, oldest first, the best one next to last.

        Args:
            output_dir: Default: the run's output folder.
            checkpoint_prefix: What their names start with: ``"checkpoint"``, as all that a Trainer writes.
            use_mtime: Go by the time of the last change instead of the update step.

        Raises:
            ValueError: If ``checkpoint_prefix`` is another.
        """
        if checkpoint_prefix != PREFIX_CHECKPOINT_DIR:
            raise ValueError(f"`checkpoint_prefix={checkpoint_prefix!r}`: use {PREFIX_CHECKPOINT_DIR!r}.")
        found = list_checkpoints(self.args.output_dir if output_dir is None else output_dir)
        paths = by_age(found) if use_mtime else [item.path for item in found]
        best = self.state.best_model_checkpoint
        if best is not None and Path(best) in paths[:-1]:
            paths.remove(Path(best))
            paths.insert(len(paths) - 1, Path(best))
        return [str(path) for path in paths]
