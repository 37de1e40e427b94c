"""One pass over an evaluation loader: batches in, predictions and metrics out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hf_compat.arguments.releases.semantics import Semantics
from hf_compat.callbacks.firing import fire
from hf_compat.evaluation.accumulate import EvalAccumulator
from hf_compat.evaluation.results import EvalLoopOutput, EvalPrediction
from hf_compat.evaluation.stream import MetricStream, is_metric, synchronise_metric
from hf_compat.metrics import denumpify_detensorize, has_length
from hf_compat.nested import find_batch_size

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["EvaluationSession"]

PADDING = -100
"""What fills predictions, labels and inputs of unequal length; upstream's ignored label."""


class _Host(Protocol):
    """The part of the Trainer that an evaluation calls, at upstream's points."""

    args: Any
    state: Any
    control: Any
    callback_handler: Any
    compute_metrics: Callable[..., dict[str, Any]] | None
    preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None
    gather_function: Callable[[Any], Any]
    accelerator: Any
    model: Any
    semantics: Semantics

    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Any, Any, Any]: ...

    def _prepare_input(self, data: Any) -> Any: ...

    def num_examples(self, dataloader: Any) -> int: ...


class WatchedLoaders(Protocol):
    """Keeps which loader is under way."""

    def watch_evaluation(self, loader: Any) -> Any:
        """Watch ``loader``, the train loader if None; return the one before."""


class FollowedLoader:
    """A loader that says of the batch being used, not of the one loaded last, whether it is the last of the pass.

    Lightning loads ahead where no length is known.

    Attributes:
        end_of_dataloader: Whether the batch being used is the last.
        remainder: Samples in the last, partial batch; 0 if all are full, -1 if unknown.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._ahead: deque[tuple[bool, int]] = deque()
        self.end_of_dataloader = False
        self.remainder = -1

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        loader = self._loader
        for index, batch in enumerate(loader):
            if hasattr(loader, "end_of_dataloader"):
                is_last = bool(loader.end_of_dataloader)
            else:
                is_last = has_length(loader) and index + 1 == len(loader)
            self._ahead.append((is_last, getattr(loader, "remainder", -1)))
            yield batch

    def advance(self) -> None:
        """Go on to the next batch."""
        self.end_of_dataloader, self.remainder = self._ahead.popleft()


class EvaluationSession:
    """Runs ``prediction_step`` on each batch and gathers what metrics are computed from.

    Args:
        host: The Trainer.
        model: What ``prediction_step`` is called with.
        loader: Where the batches come from; asked for its data set and its length.
        loaders: Told which loader is under way, by whose last batch gathered results are trimmed.
        prediction_loss_only: Keep losses alone.
        ignore_keys: Model outputs left out of the predictions.
        prefix: What metric names start with, without the underscore.
        keeps_predictions: Keep predictions where metrics do not need them all at once too, as ``predict`` does.
        data_parallel_group: The ranks that see different batches. Default: all.
        times: Seconds that readying the model took, by name, reported with the metrics.

    Attributes:
        batches: The loader, to be gone through once.
        output: What the Trainer's ``evaluation_loop`` returns, set by :meth:`finish`.

    References:
        Same numbers as transformers' ``Trainer.evaluation_loop``.
    """

    def __init__(
        self,
        host: _Host,
        model: Any,
        loader: Any,
        *,
        loaders: WatchedLoaders,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None,
        prefix: str,
        keeps_predictions: bool,
        data_parallel_group: ProcessGroup | None = None,
        times: Mapping[str, float] | None = None,
    ) -> None:
        self._host = host
        self._model = model
        self._loader = loader
        self.batches = FollowedLoader(loader)
        self._loaders = loaders
        self._loader_around = loaders.watch_evaluation(self.batches)
        self._loss_only = prediction_loss_only
        self._ignore_keys = ignore_keys
        self._prefix = prefix
        self._times = dict(times or {})
        args = host.args
        self._batch_size: int | None = args.eval_batch_size
        self._stream: MetricStream | None = None
        if is_metric(host.compute_metrics):
            synchronise_metric(host.compute_metrics, data_parallel_group)
            self._stream = MetricStream(host.compute_metrics, args.device, host.accelerator.data_parallel_rank)
        self._per_batch = bool(args.batch_eval_metrics) and self._stream is None
        self._keeps = keeps_predictions or not (self._per_batch or self._stream is not None)
        self._losses, self._predictions, self._labels, self._inputs = (
            EvalAccumulator(args.eval_do_concat_batches, padding_index=PADDING) for _ in range(4)
        )
        self._observed = 0
        self._steps = 0
        self._metrics: dict[str, Any] | None = None
        self.output: EvalLoopOutput | None = None

    def step(self, inputs: Any) -> None:
        """Predict one batch."""
        self.batches.advance()
        host, args = self._host, self._host.args
        observed = find_batch_size(inputs)
        if observed is not None:
            self._observed += observed
            self._batch_size = self._batch_size or observed
        losses, logits, labels = host.prediction_step(
            self._model, inputs, self._loss_only, ignore_keys=self._ignore_keys
        )
        if losses is not None:
            # One value a sample, so that the mean over all samples weighs each batch by its size.
            losses = host.gather_function(losses.repeat(self._batch_size))
            self._losses.add(losses)
        if self._stream is not None:
            logits = self._feed(self._stream, logits, labels)
        if self._keeps or self._per_batch:
            logits, labels, decoded = self._gather(inputs, logits, labels)
        fire(host, "on_prediction_step")
        self._steps += 1
        if self._per_batch:
            self._compute_batch_metrics(losses, logits, labels, self._batch_inputs(inputs, decoded))
        elif args.eval_accumulation_steps is not None and self._steps % args.eval_accumulation_steps == 0:
            for kept in (self._losses, self._predictions, self._labels, self._inputs):
                kept.to_cpu_and_numpy()

    def _feed(self, stream: MetricStream, logits: Any, labels: Any) -> Any:
        """Add a batch to the metric; return its predictions, preprocessed."""
        host = self._host
        if logits is not None:
            logits = self._preprocess(logits, labels)
        if logits is not None and labels is not None:
            # Only several processes repeat samples; what one draws is all real.
            is_shared_last = self.batches.end_of_dataloader and host.accelerator.data_parallel_size > 1
            stream.update(logits, labels, remainder=self.batches.remainder if is_shared_last else -1)
        return logits

    def _preprocess(self, logits: Any, labels: Any) -> Any:
        change = self._host.preprocess_logits_for_metrics
        return logits if change is None else change(logits, labels)

    def _gather(self, inputs: Any, logits: Any, labels: Any) -> tuple[Any, Any, Any]:
        """Collect predictions, labels and main inputs of the batch over all processes, keep and return them."""
        host = self._host
        decoded = None
        pad = host.accelerator.pad_across_processes
        if "inputs" in host.args.include_for_metrics:
            name = getattr(host.model, "main_input_name", "input_ids")
            decoded = host.gather_function(pad(host._prepare_input(inputs[name]), dim=1, pad_index=PADDING))
            self._keep(self._inputs, decoded)
        if labels is not None:
            labels = pad(labels, dim=1, pad_index=PADDING)
        if logits is not None:
            logits = pad(logits, dim=1, pad_index=PADDING)
            if self._stream is None:  # it had them preprocessed
                logits = self._preprocess(logits, labels)
            logits = host.gather_function(logits)
            self._keep(self._predictions, logits)
        if labels is not None:
            labels = host.gather_function(labels)
            self._keep(self._labels, labels)
        return logits, labels, decoded

    def _keep(self, kept: EvalAccumulator, values: Any) -> None:
        if self._keeps:
            kept.add(values)

    def _batch_inputs(self, inputs: Any, decoded: Any) -> Any:
        """Return what metrics of one batch are given as its inputs: all of it, as transformers does."""
        return inputs

    def _compute_batch_metrics(self, losses: Any, logits: Any, labels: Any, inputs: Any) -> None:
        if self._host.compute_metrics is None or logits is None or labels is None:
            return
        self._metrics = self._host.compute_metrics(
            self._prediction(logits, labels, inputs, losses), compute_result=self.batches.end_of_dataloader
        )

    def _prediction(self, predictions: Any, labels: Any, inputs: Any, losses: Any) -> EvalPrediction:
        """Return what ``compute_metrics`` is given; inputs and losses only if they are asked for."""
        wanted = self._host.args.include_for_metrics
        return EvalPrediction(
            predictions=predictions,
            label_ids=labels,
            inputs=inputs if "inputs" in wanted else None,
            losses=losses if "loss" in wanted else None,
        )

    def finish(self) -> dict[str, Any]:
        """Compute the metrics and return them, their names prefixed."""
        host = self._host
        self._loaders.watch_evaluation(self._loader_around)
        host.gather_function = host.accelerator.gather_for_metrics
        losses, predictions, labels, inputs = (
            kept.get_arrays() for kept in (self._losses, self._predictions, self._labels, self._inputs)
        )
        metrics = self._metrics
        has_pairs = predictions is not None and labels is not None
        if self._stream is not None:
            metrics = self._stream.compute()
        elif host.compute_metrics is not None and has_pairs and not self._per_batch:
            metrics = host.compute_metrics(self._prediction(predictions, labels, inputs, losses))
        metrics = dict(denumpify_detensorize(metrics if metrics is not None else {}))
        mean_loss = self._mean_loss(losses)
        if mean_loss is not None:
            metrics[f"{self._prefix}_loss"] = mean_loss
        metrics.update({f"{self._prefix}_{name}": seconds for name, seconds in self._times.items()})
        for key in list(metrics):
            if not key.startswith(f"{self._prefix}_"):
                metrics[f"{self._prefix}_{key}"] = metrics.pop(key)
        self.output = EvalLoopOutput(predictions, labels, metrics, self._count_samples())
        return metrics

    def _mean_loss(self, losses: Any) -> float | None:
        if isinstance(losses, list) and losses:
            losses = np.concatenate(losses)
        if not isinstance(losses, np.ndarray):
            return None
        if self._host.semantics.drops_non_finite_eval_losses and self._host.args.logging_nan_inf_filter:
            finite = np.isfinite(losses)
            losses = losses[finite] if finite.any() else losses
        return float(losses.mean().item())

    def _count_samples(self) -> int:
        dataset = getattr(self._loader, "dataset", None)
        if has_length(dataset):
            samples = len(dataset)
        elif has_length(self._loader):
            samples = self._host.num_examples(self._loader)
        else:
            samples = self._observed
        return samples or self._observed
