"""Metrics of ``torchmetrics``, fed batch by batch: nothing is stored but their own state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from hf_compat.nested import find_batch_size, map_nested

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["MetricStream", "is_metric", "synchronise_metric"]


def is_metric(compute_metrics: Any) -> TypeGuard[Metric | MetricCollection]:
    """Return whether ``compute_metrics`` is a metric, or a collection of them, rather than a function."""
    return isinstance(compute_metrics, Metric | MetricCollection)


def real_samples(batch_size: int, remainder: int, process_index: int) -> int:
    """Return how many samples at the head of this process's share of the last batch are not repetitions.

    The batch that the processes hold together lists the share of process 0 first; its first ``remainder`` samples are
    of the data set, the others were drawn again so that all shares are as large.

    Args:
        batch_size: Samples of the share.
        remainder: Samples of the data set in the batch of all processes; 0 or less if all of it is.
        process_index: Whose share it is.
    """
    if remainder <= 0:
        return batch_size
    return max(0, min(batch_size, remainder - process_index * batch_size))


class MetricStream:
    """One evaluation's worth of a metric: emptied first, updated with each batch, computed at the end.

    Each process updates its own copy with its own samples, each sample once; ``compute`` then merges the states over
    the processes. That is exact for every metric that torchmetrics can synchronise, and sends states, not predictions.
    Labels of -100 are the metric's to leave out, by ``ignore_index``; no padding is ever added to what it is given.

    Args:
        metric: The metric, moved to ``device`` and emptied.
        device: Where predictions and labels are.
        process_index: The number of this process.
    """

    def __init__(self, metric: Metric | MetricCollection, device: torch.device, process_index: int) -> None:
        self._metric = metric.to(device)
        self._metric.reset()
        self._process_index = process_index
        self._has_data = False

    def update(self, predictions: Any, labels: Any, *, remainder: int) -> None:
        """Add one batch.

        Args:
            predictions: What the model, or ``preprocess_logits_for_metrics``, made of the batch; not gathered.
            labels: Its labels; not gathered.
            remainder: Samples of the data set in the batch of all processes; 0 or less if all of it is.
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
        """Return the metrics of all samples of all processes by name, ready to be logged and written as JSON.

        A single metric is named as a ``MetricCollection`` names it, after its class. A vector is one number per class:
        ``<name>_0``, ``<name>_1``, ...; anything larger is a list of lists. Empty if no batch had labels.
        """
        if not self._has_data:
            return {}
        result = self._metric.compute()
        if not isinstance(result, dict):
            result = {type(self._metric).__name__: result}
        plain: dict[str, Any] = {}
        for name, value in result.items():
            plain.update(_spread(name, value))
        return plain


def _first(data: Any, count: int) -> Any:
    return map_nested(lambda leaf: leaf[:count] if isinstance(leaf, Tensor) and leaf.ndim else leaf, data)


def _spread(name: str, value: Any) -> dict[str, Any]:
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
