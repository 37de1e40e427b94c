"""One pass over an evaluation loader: batches in, predictions and metrics out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from hf_compat.data.loader import TrackedLoader
from hf_compat.errors import DataError, LossError, MetricsError, described
from hf_compat.metrics import denumpify_detensorize, has_length
from hf_compat.nested import Nested, find_batch_size, leaves, map_nested
from hf_compat.optim.losses import loss_logits_and_labels
from hf_compat.overriding import WarnOnce, is_overridden
from hf_compat.trainer.outputs import (
    PAD_INDEX,
    EvalAccumulator,
    EvalLoopOutput,
    EvalPrediction,
    note_logits,
    note_prediction,
)

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from hf_compat.engine.module import Loaders
    from hf_compat.trainer.trainer import Trainer

# Metrics of `torchmetrics`, updated batch by batch: no predictions are stored, only the metrics' states.


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


# One pass over an evaluation loader: batches in, predictions and metrics out.


_REMEDY = "Prepare the loader, or set `TrainingArguments(semantics='corrected')`."

_LOGITS_REMEDY = (
    "Leave that output of the model out: name it in `ignore_keys`, or in `keys_to_ignore_at_inference` of its config."
)

_Losses: TypeAlias = "np.ndarray[Any, Any] | list[np.ndarray[Any, Any]]"
"""A loss per sample: one array, or one per batch with ``eval_do_concat_batches=False``."""


class EvaluationSession:
    """Runs ``prediction_step`` on each batch, gathers its outputs and computes the metrics.

    Args:
        trainer: The Trainer.
        model: Passed to ``prediction_step``.
        loader: The data loader.
        loaders: The current loaders, for dropping the duplicates in the last batch.
        warn_once: Warns where transformers takes another loader's last batch for this one's.
        prediction_loss_only: Keep only the losses.
        ignore_keys: Model outputs that are not in the predictions.
        prefix: Prefix of metric names, without the underscore.
        keeps_predictions: Keep predictions even if the metrics are computed batch by batch, as ``predict`` does.
        data_parallel_group: The ranks that see different batches. Default: all.
        gather_whole: Gathers predictions, labels and inputs, where they are the same on ranks that share sequences.
            Default: the Trainer's ``gather_function``, as for the losses.
        fires_events: Whether callbacks get an event for each batch.
        times: Seconds for preparing the model, by name; reported with the metrics.

    Attributes:
        batches: The loader, to be iterated over once.
        batch_size: Samples of a rank's batch, by which its loss is weighted; None until the first batch if the
            arguments do not say.
        examples: Samples in the dataset of the loader; None if it has no length.
        gradients: Whether gradients are enabled for ``prediction_step`` and ``compute_metrics``, which may compute
            some: as they are where the evaluation is called. Lightning runs its loop under ``torch.no_grad``.
        output: The return value of the Trainer's ``evaluation_loop``, set by :meth:`finish`.

    References:
        Same numbers as transformers' ``Trainer.evaluation_loop``.
    """

    gathers_for_metrics = True
    """Whether transformers gathers with ``gather_for_metrics``, which drops the duplicates in the last batch."""

    def __init__(
        self,
        trainer: Trainer,
        model: nn.Module,
        loader: Iterable[Any],
        *,
        loaders: Loaders,
        warn_once: WarnOnce,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None,
        prefix: str,
        keeps_predictions: bool,
        data_parallel_group: ProcessGroup | None = None,
        gather_whole: Callable[[Any], Any] | None = None,
        fires_events: bool = True,
        times: Mapping[str, float] | None = None,
    ) -> None:
        self._trainer = trainer
        self._model = model
        self._loader: Any = loader
        self.batches = TrackedLoader(loader, knows_end=trainer.semantics.corrected)
        self._loaders = loaders
        self._warn_once = warn_once
        # accelerate knows the loaders that it has prepared alone: for it, the train loader is still the one in use.
        self._sees_train_loader = not (self.batches.is_prepared or trainer.semantics.corrected)
        self._counted: Any = loaders.current if self._sees_train_loader else self.batches
        cuts = self.gathers_for_metrics and self._sees_train_loader
        self._outer_loader = loaders.watch_evaluation(self._counted if cuts else self.batches)
        # Otherwise the copies of a partial batch's loss that are too many are cut off as they are gathered.
        self._weighs_by_samples = not (cuts or self.batches.is_prepared)
        self._loss_only = prediction_loss_only
        self._gather_whole = gather_whole
        self._ignore_keys = ignore_keys
        self._prefix = prefix
        self._fires_events = fires_events
        self._times = dict(times or {})
        args = trainer.args
        self.batch_size: int | None = args.eval_batch_size
        self.examples = trainer.num_examples(loader) if has_length(loader) else None
        self._stream: MetricStream | None = None
        if is_metric(trainer.compute_metrics):
            synchronise_metric(trainer.compute_metrics, data_parallel_group)
            self._stream = MetricStream(trainer.compute_metrics, args.device, trainer.accelerator.data_parallel_rank)
        self._per_batch = bool(args.batch_eval_metrics) and self._stream is None
        self._keeps = keeps_predictions or not (self._per_batch or self._stream is not None)
        self._losses, self._predictions, self._labels, self._inputs = (
            EvalAccumulator(args.eval_do_concat_batches) for _ in range(4)
        )
        self.gradients = torch.is_grad_enabled()
        # Ours are in memory of their own, which is written to no more; a compute_metrics may write to what it gets.
        # On a GPU they are copied, so that the memory in the metrics is upstream's.
        is_kept = args.eval_do_concat_batches and not self._per_batch
        self._views_losses = is_kept and args.device.type == "cpu"
        self._observed = 0
        self._steps = 0
        self._metrics: dict[str, Any] | None = None
        self.output: EvalLoopOutput | None = None

    def step(self, inputs: dict[str, Any]) -> Nested | None:
        """Run ``prediction_step`` on one batch; return its predictions, of all ranks if they are kept."""
        trainer, args = self._trainer, self._trainer.args
        observed = find_batch_size(inputs)
        if observed is not None:
            self._observed += observed
            self.batch_size = self.batch_size or observed
        if self._sees_train_loader:
            self._warn_of_train_loader(observed or 0)
        logits: Nested | None
        returned = trainer.prediction_step(self._model, inputs, self._loss_only, ignore_keys=self._ignore_keys)
        losses, logits, labels = loss_logits_and_labels(returned, f"`{type(trainer).__name__}.prediction_step`")
        if losses is not None:
            # One value per sample, so that the mean weights each batch by its size.
            size: Any = observed if self._weighs_by_samples and observed else self.batch_size
            is_own = self._views_losses and losses.ndim == 0 and not is_overridden(trainer.prediction_step)
            losses = trainer.gather_function(losses.expand(size) if is_own else losses.repeat(size))
            self._losses.add(losses)
        if self._stream is not None:
            logits = self._update_stream(self._stream, logits, labels)
        if self._keeps or self._per_batch:
            logits, labels, main_inputs = self._gather(inputs, observed or 0, logits, labels)
        if self._fires_events:
            trainer.control = trainer.callback_handler.on_prediction_step(trainer.args, trainer.state, trainer.control)
        self._steps += 1
        if self._per_batch:
            self._compute_batch_metrics(losses, logits, labels, self._batch_inputs(inputs, main_inputs))
        elif (every := args.eval_accumulation_steps) is not None and self._steps % every == 0:
            for accumulator in (self._losses, self._predictions, self._labels, self._inputs):
                accumulator.to_cpu_and_numpy()
        return logits

    def _update_stream(self, stream: MetricStream, logits: Nested | None, labels: Nested | None) -> Nested | None:
        """Update the metric with a batch; return the preprocessed logits."""
        trainer = self._trainer
        if logits is not None:
            logits = self._preprocess(logits, labels)
        if logits is not None and labels is not None:
            # With one rank there are no duplicates.
            may_have_duplicates = self.batches.end_of_dataloader and trainer.accelerator.data_parallel_size > 1
            stream.update(logits, labels, remainder=self.batches.remainder if may_have_duplicates else -1)
        return logits

    def _preprocess(self, logits: Nested, labels: Nested | None) -> Nested | None:
        """Return the predictions of a batch; None if ``preprocess_logits_for_metrics`` keeps none of them."""
        preprocess = self._trainer.preprocess_logits_for_metrics
        if preprocess is None:
            return logits
        try:
            predictions: Nested | None = preprocess(logits, labels)
        except Exception as error:
            note_logits(error, logits)
            raise
        return predictions

    def _gather(
        self, inputs: dict[str, Any], samples: int, logits: Nested | None, labels: Nested | None
    ) -> tuple[Nested | None, Nested | None, Nested | None]:
        """Gather, accumulate and return predictions, labels and main inputs of the batch over all ranks."""
        trainer = self._trainer
        main_inputs, gather = None, self._gather_whole or trainer.gather_function
        if self._includes("inputs"):
            name = getattr(trainer.model, "main_input_name", "input_ids")
            main_inputs = self._trainer._prepare_input(inputs[name])
            main_inputs = gather(trainer.accelerator.pad_across_processes(main_inputs, dim=1, pad_index=PAD_INDEX))
            self._keep(self._inputs, main_inputs)
        if labels is not None:
            labels = self._pad(labels, "labels", "Labels are tensors, in lists, tuples or dicts.")
        if logits is not None:
            logits = self._pad(logits, "logits", _LOGITS_REMEDY)
            if self._stream is None:  # otherwise they are preprocessed already
                logits = self._preprocess(logits, labels)
        has_parts = logits is not None or labels is not None
        if has_parts and self.gathers_for_metrics and trainer.accelerator.gradient_state.end_of_dataloader:
            self._warn_of_cut_rows(samples, predictions=logits, labels=labels)
        if logits is not None:
            logits = gather(logits)
            self._keep(self._predictions, logits)
        if labels is not None:
            labels = gather(labels)
            self._keep(self._labels, labels)
        return logits, labels, main_inputs

    def _warn_of_cut_rows(self, samples: int, **parts: Nested | None) -> None:
        """Warn if parts of the last batch have more rows than ``samples``: only as many rows as samples are kept."""
        kept = self._trainer.accelerator.gradient_state.remainder
        if not samples or kept <= 0:
            return
        for name, values in parts.items():
            rows = max((len(leaf) for leaf in leaves(values) if isinstance(leaf, Tensor) and leaf.dim()), default=0)
            if rows > samples:
                self._warn_once(
                    f"The {name} of the last batch, of {samples} samples, have {rows} rows. Like transformers, this "
                    f"run keeps the first {kept} rows over all processes, as many as there are samples, and drops the "
                    "rest. Return a row for each sample from `preprocess_logits_for_metrics` and `prediction_step`; "
                    "select tokens in `compute_metrics`."
                )

    def _pad(self, values: Nested, part: str, remedy: str) -> Nested:
        """Return the ``part`` of ``prediction_step``'s result padded to one shape on all ranks."""
        trainer = self._trainer
        try:
            padded: Nested = trainer.accelerator.pad_across_processes(values, dim=1, pad_index=PAD_INDEX)
        except TypeError as error:
            wrong = [leaf for leaf in leaves(values) if not isinstance(leaf, Tensor)]
            if not wrong:
                raise
            found = f"`{type(trainer).__name__}.prediction_step` returned {part} with {described(wrong[0])}"
            raise LossError(f"{found}, but only tensors can be gathered. {remedy}") from error
        return padded

    def _keep(self, accumulator: EvalAccumulator, values: Nested) -> None:
        if self._keeps:
            accumulator.add(values)

    def _batch_inputs(self, inputs: Nested, main_inputs: Nested | None) -> Nested | None:
        """Return the inputs in the ``EvalPrediction`` of one batch: all of them, as in transformers."""
        return inputs

    def _compute_batch_metrics(
        self, losses: Tensor | None, logits: Nested | None, labels: Nested | None, inputs: Nested | None
    ) -> None:
        if self._trainer.compute_metrics is None or logits is None or labels is None:
            return
        prediction = self._prediction(logits, labels, inputs, losses)
        try:
            self._metrics = self._trainer.compute_metrics(prediction, compute_result=self._is_last_batch)
        except Exception as error:
            note_prediction(error, prediction)
            raise

    @property
    def _is_last_batch(self) -> bool:
        """Whether the loader whose last batch counts is at it."""
        return bool(getattr(self._counted, "end_of_dataloader", False))

    def _warn_of_train_loader(self, samples: int) -> None:
        """Warn if the train loader's last batch is taken for that of a loader that was not prepared."""
        remainder = getattr(self._counted, "remainder", -1) if self._is_last_batch else -1
        if self.gathers_for_metrics and 0 < remainder < samples:
            self._warn_once(
                "The evaluation loader was not prepared with `trainer.accelerator.prepare`. Like transformers, this "
                f"run therefore truncates each batch to {remainder} samples (the size of the train loader's last "
                f"batch); losses, predictions and metrics omit the rest. {_REMEDY}"
            )
        if self._per_batch:
            self._warn_once(
                "`batch_eval_metrics=True`: the evaluation loader was not prepared with "
                "`trainer.accelerator.prepare`. Like transformers, this run therefore cannot detect its last batch: "
                f"`compute_metrics` gets `compute_result={self._is_last_batch}` for each batch. {_REMEDY}"
            )

    def _prediction(self, predictions: Any, labels: Any, inputs: Any, losses: Any) -> EvalPrediction:
        """Return the argument of ``compute_metrics``; inputs and losses as ``include_for_metrics`` says."""
        return EvalPrediction(
            predictions=predictions,
            label_ids=labels,
            inputs=inputs if self._includes("inputs") else None,
            losses=losses if self._includes("loss") else None,
        )

    def _includes(self, part: str) -> bool:
        return part in self._trainer.args.include_for_metrics

    def finish(self) -> dict[str, Any]:
        """Compute and return the metrics, with prefixed names."""
        trainer = self._trainer
        if not self._steps:
            self._check_is_read()
        self._loaders.watch_evaluation(self._outer_loader)
        trainer.gather_function = trainer.accelerator.gather_for_metrics
        losses, predictions, labels, inputs = (
            accumulator.get_arrays() for accumulator in (self._losses, self._predictions, self._labels, self._inputs)
        )
        metrics = self._metrics
        has_pairs = predictions is not None and labels is not None
        if self._stream is not None:
            metrics = self._stream.compute()
        elif trainer.compute_metrics is not None and has_pairs and not self._per_batch:
            prediction = self._prediction(predictions, labels, inputs, losses)
            try:
                metrics = trainer.compute_metrics(prediction)
            except Exception as error:
                note_prediction(error, prediction)
                raise
            del prediction
        elif metrics is None:  # of each batch none
            metrics = {}
        if not isinstance(metrics, Mapping):
            raise MetricsError(
                f"`compute_metrics` returned {described(metrics)}. Return a dict of metric names and values."
            )
        metrics = dict(denumpify_detensorize(metrics))
        mean_loss = self._mean_loss(losses)
        if mean_loss is not None:
            metrics[f"{self._prefix}_loss"] = mean_loss
        metrics.update({f"{self._prefix}_{name}": seconds for name, seconds in self._times.items()})
        for key in list(metrics):
            if not key.startswith(f"{self._prefix}_"):
                metrics[f"{self._prefix}_{key}"] = metrics.pop(key)
        self.output = EvalLoopOutput(predictions, labels, metrics, self._count_samples())
        return metrics

    def _check_is_read(self) -> None:
        """Raise if the loader, of which there was no batch, is one that rank 0 reads for all: accelerate's raises.

        Raises:
            DataError: If so; not if there was to be none.
        """
        if getattr(self._loader, "remainder_from_batch", False) and getattr(self._loader, "most", None) != 0:
            kind = type(getattr(self._loader, "dataset", None)).__name__
            raise DataError(
                f"The dataset to evaluate, {kind}, has no samples: Batch does not contain any data. If it can be read "
                "once, as a generator can, another evaluation has read it: begin anew in `__iter__`. An evaluation "
                "without samples needs `accelerator_config={'dispatch_batches': False}`."
            )

    def _mean_loss(self, losses: _Losses | None) -> float | None:
        if isinstance(losses, list) and losses:
            losses = np.concatenate([np.atleast_1d(loss) for loss in losses])  # gathered as objects they have no axis
        if not isinstance(losses, np.ndarray):
            return None
        if self._trainer.semantics.drops_non_finite_eval_losses and self._trainer.args.logging_nan_inf_filter:
            finite = np.isfinite(losses)
            losses = losses[finite] if finite.any() else losses
        return float(losses.mean().item())

    def _count_samples(self) -> int:
        dataset = getattr(self._loader, "dataset", None)
        if has_length(dataset):
            samples = len(dataset)
        elif has_length(self._loader):
            samples = self._trainer.num_examples(self._loader)
        else:
            samples = self._observed
        return samples or self._observed


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
