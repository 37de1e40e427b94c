"""The evaluation loop of transformers 4 with ``use_legacy_prediction_loop``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from hf_compat.errors import DataError
from hf_compat.evaluation.accumulate import EvalAccumulator
from hf_compat.evaluation.session import EvaluationSession
from hf_compat.metrics import has_length
from hf_compat.nested import Nested

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

__all__ = ["LegacySession"]


class LegacySession(EvaluationSession):
    """An evaluation that always keeps predictions as the model returned them, and concatenates them.

    So ``preprocess_logits_for_metrics`` and ``eval_do_concat_batches`` have no effect, ``batch_eval_metrics`` gets the
    main input only, and the mean loss includes infinite losses in all releases.

    Raises:
        DataError: If the loader has no length or no batch size.

    References:
        Same numbers as transformers 4.57 ``Trainer.prediction_loop``.
    """

    gathers_for_metrics = False

    def __init__(self, trainer: Trainer, model: nn.Module, loader: Iterable[Any], **settings: Any) -> None:
        length_is_known = has_length(loader)
        if not length_is_known:
            raise DataError(
                "`use_legacy_prediction_loop=True`: the dataloader must implement a working __len__. Set it to False "
                "for data without length."
            )
        size = getattr(loader, "total_batch_size", None) or getattr(loader, "batch_size", None)
        if size is None:
            raise DataError(
                "`use_legacy_prediction_loop=True`: Batch size cannot be None in the loader. Set it to False."
            )
        super().__init__(trainer, model, loader, **{**settings, "keeps_predictions": True})
        self.batch_size = size
        self._losses, self._predictions, self._labels, self._inputs = (EvalAccumulator() for _ in range(4))

    def _preprocess(self, logits: Nested, labels: Nested | None) -> Nested:
        return logits

    def _batch_inputs(self, inputs: Nested, main_inputs: Nested | None) -> Nested | None:
        return main_inputs

    def _mean_loss(self, losses: np.ndarray[Any, Any] | list[np.ndarray[Any, Any]] | None) -> float | None:
        return float(losses.mean().item()) if isinstance(losses, np.ndarray) else None

    def _count_samples(self) -> int:
        assert self.examples is not None, "a loader without length is refused"
        return self.examples
