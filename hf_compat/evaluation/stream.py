"""Metrics of ``torchmetrics``, updated batch by batch: no predictions are stored, only the metrics' states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from hf_compat.nested import Nested, find_batch_size, map_nested

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["MetricStream", "is_metric", "synchronise_metric"]


def is_metric(compute_metrics: object) -> TypeGuard[Metric | MetricCollection]:
    """Return whether ``compute_metrics`` is a torchmetrics metric or collection, rather than a function."""
    return isinstance(compute_metrics, Metric | MetricCollection)


def real_samples(batch_size: int, remainder: int, process_index: int) -> int:
    """Return how many of the first samples of this rank's last batch are not duplicates.

    Of the last batch of all ranks, that of rank 0 first, the first ``remainder`` samples are of the dataset; the
    others are duplicates, so that all ranks have the same batch size.

    Args:
        batch_size: Samples of this rank's batch.
        remainder: Samples of the dataset in the batch of all ranks; 0 or less if there are no duplicates.
        process_index: Data-parallel rank.
    """
    if remainder <= 0:
        return batch_size
    return max(0, min(batch_size, remainder - process_index * batch_size))


class MetricStream:
    """A metric during one evaluation: reset first, updated with each batch, computed at the end.

    Each rank updates its own copy with its own samples, each sample once; ``compute`` then syncs the states over the
    ranks. That is exact for every metric that torchmetrics can sync, and communicates states, not predictions. The
    metric has to ignore labels of -100 itself, by ``ignore_index``; no padding is added to its inputs.

    Args:
        metric: The metric; it is moved to ``device`` and reset.
        device: The device of predictions and labels.
        process_index: Data-parallel rank.
    """

    def __init__(self, metric: Metric | MetricCollection, device: torch.device, process_index: int) -> None:
        self._metric = metric.to(device)
        self._metric.reset()
        self._process_index = process_index
        self._has_data = False

    def update(self, predictions: Nested, labels: Nested, *, remainder: int) -> None:
        """Update the metric with one batch.

        Args:
            predictions: Output of the model, or of ``preprocess_logits_for_metrics``; not gathered.
            labels: Labels of the batch; not gathered.
            remainder: Samples of the dataset in the batch of all ranks; 0 or less if there are no duplicates.
        """
        self._has_data = True
        size = find_batch_size(labels)
        if size is not None:
            count = real_samples(size, remainder, self._process_index)
            if count == 0:
                return
            if count < size:
                predictions, labels = (_first(data, count) for data in (predictions, labels))
        self._metric.update(predictions, labels)

    def compute(self) -> dict[str, Any]:
        """Return the metrics over all ranks by name, as plain numbers and lists.

        A single metric is named after its class, as in a ``MetricCollection``. A vector becomes one number per class:
        ``<name>_0``, ``<name>_1``, ...; anything larger a list of lists. Empty if no batch had labels.
        """
        if not self._has_data:
            return {}
        result = self._metric.compute()
        if not isinstance(result, dict):
            result = {type(self._metric).__name__: result}
        plain: dict[str, Any] = {}
        for name, value in result.items():
            plain.update(_plain(name, value))
        return plain


def _first(data: Nested, count: int) -> Any:
    return map_nested(lambda leaf: leaf[:count] if isinstance(leaf, Tensor) and leaf.ndim else leaf, data)


def _plain(name: str, value: object) -> dict[str, Any]:
    if isinstance(value, Tensor) and value.ndim == 1 and value.numel() > 1:
        return {f"{name}_{index}": number for index, number in enumerate(value.tolist())}
    return {name: map_nested(lambda leaf: leaf.tolist() if isinstance(leaf, Tensor) else leaf, value)}


def synchronise_metric(metric: Any, group: ProcessGroup | None) -> None:
    """Have a torchmetrics ``metric`` or collection merge each sample once.

    Args:
        metric: The metric.
        group: The ranks that see different batches; None for all.
    """
    if group is not None:
        for one in metric.values() if hasattr(metric, "values") else [metric]:
            one.process_group = group
