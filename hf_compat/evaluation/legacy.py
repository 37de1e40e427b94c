"""The evaluation that transformers 4 ran under ``use_legacy_prediction_loop``."""

from __future__ import annotations

from typing import Any

from hf_compat.errors import DataError
from hf_compat.evaluation.accumulate import EvalAccumulator
from hf_compat.evaluation.session import PADDING, EvaluationSession
from hf_compat.metrics import has_length

__all__ = ["LegacySession"]


class LegacySession(EvaluationSession):
    """An evaluation that always joins and keeps predictions as the model made them.

    So ``preprocess_logits_for_metrics`` and ``eval_do_concat_batches`` have no effect on it, metrics of one batch are
    given its main input alone, and the loss counts infinite batches whatever the release.

    Raises:
        DataError: If the loader does not tell its length or its batch size.

    References:
        Same numbers as transformers 4.57 ``Trainer.prediction_loop``.
    """

    def __init__(self, host: Any, model: Any, loader: Any, **settings: Any) -> None:
        if not has_length(loader):
            raise DataError(
                "`use_legacy_prediction_loop=True`: this loop needs a loader that implements a working `__len__`; "
                "set it to False for data without length."
            )
        size = getattr(loader, "total_batch_size", None) or getattr(loader, "batch_size", None)
        if size is None:
            raise DataError("`use_legacy_prediction_loop=True`: the loader has no `batch_size`; set it to False.")
        super().__init__(host, model, loader, **{**settings, "keeps_predictions": True})
        self._batch_size = size
        self._losses, self._predictions, self._labels, self._inputs = (
            EvalAccumulator(padding_index=PADDING) for _ in range(4)
        )

    def _preprocess(self, logits: Any, labels: Any) -> Any:
        return logits

    def _batch_inputs(self, inputs: Any, decoded: Any) -> Any:
        return decoded

    def _mean_loss(self, losses: Any) -> float | None:
        return None if losses is None else float(losses.mean().item())

    def _count_samples(self) -> int:
        return self._host.num_examples(self._loader)
