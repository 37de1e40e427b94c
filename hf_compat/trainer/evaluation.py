"""Evaluation and prediction: one pass over a loader, batches in, predictions and metrics out."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from hf_compat.arguments.process_facts import full_evaluation_precision
from hf_compat.arguments.releases import SINCE, effective_args, installed_release
from hf_compat.callbacks.handler import close_progress_bars
from hf_compat.data.loader import FirstBatches, TrackedLoader
from hf_compat.data.rank_batches import check_even, check_gatherable
from hf_compat.engine.precision import forward_precision, without_autocast
from hf_compat.errors import DataError, LossError, MetricsError, described
from hf_compat.metrics import denumpify_detensorize, has_length, speed_metrics
from hf_compat.model_facts import unwrap_model
from hf_compat.nested import Nested, find_batch_size, leaves, map_nested
from hf_compat.optim.losses import loss_and_outputs, loss_logits_and_labels
from hf_compat.optim.prepared import set_mode
from hf_compat.overriding import call_override, is_overridden
from hf_compat.plan.plan import share_of
from hf_compat.trainer.diagnosis import noting
from hf_compat.trainer.loss import computing_loss, fresh_past, gather_whole, prepare_context, store_past
from hf_compat.trainer.outputs import (
    PAD_INDEX,
    EvalAccumulator,
    EvalLoopOutput,
    EvalPrediction,
    note_logits,
    note_prediction,
)
from hf_compat.trainer.preparing import note_item_count, place_model, prepare_forward, wrap
from hf_compat.trainer.run import current_run, prepare_strategy
from hf_compat.trainer.run_warnings import warn_of_shares_in_shares

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from hf_compat.trainer.trainer import Trainer


logger = logging.getLogger(__name__)


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
        prediction_loss_only: Keep only the losses.
        ignore_keys: Model outputs that are not in the predictions.
        prefix: Prefix of metric names, without the underscore.
        keeps_predictions: Keep predictions even if the metrics are computed batch by batch, as ``predict`` does.

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
    reports_times = True
    """Whether the seconds that the model's preparation took are reported with the metrics."""

    def __init__(
        self,
        trainer: Trainer,
        model: nn.Module,
        loader: Iterable[Any],
        *,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None,
        prefix: str,
        keeps_predictions: bool,
    ) -> None:
        backend = trainer.lightning_backend
        self._trainer = trainer
        self._model = model
        self._loader: Any = loader
        self.batches = TrackedLoader(loader, knows_end=trainer.semantics.corrected)
        loaders = self._loaders = backend.loaders
        # accelerate knows the loaders that it has prepared alone: for it, the train loader is still the one in use.
        self._sees_train_loader = not (self.batches.is_prepared or trainer.semantics.corrected)
        self._counted: Any = loaders.current if self._sees_train_loader else self.batches
        cuts = self.gathers_for_metrics and self._sees_train_loader
        self._outer_loader = loaders.watch_evaluation(self._counted if cuts else self.batches)
        # Otherwise the copies of a partial batch's loss that are too many are cut off as they are gathered.
        self._weighs_by_samples = not (cuts or self.batches.is_prepared)
        self._loss_only = prediction_loss_only
        self._gather_whole = gather_whole(trainer)
        self._ignore_keys = ignore_keys
        self._prefix = prefix
        self._fires_events = backend.sanity_batches is None
        times = _PREPARATION_TIMES if self.reports_times else ()
        self._times = {name: vars(trainer)[name] for name in times if name in vars(trainer)}
        args = trainer.args
        self.batch_size: int | None = args.eval_batch_size
        self.examples = trainer.num_examples(loader) if has_length(loader) else None
        self._stream: MetricStream | None = None
        if is_metric(trainer.compute_metrics):
            synchronise_metric(trainer.compute_metrics, backend.process_layout.data_parallel_group)
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
                self._trainer.warn_once(
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
            self._trainer.warn_once(
                "The evaluation loader was not prepared with `trainer.accelerator.prepare`. Like transformers, this "
                f"run therefore truncates each batch to {remainder} samples (the size of the train loader's last "
                f"batch); losses, predictions and metrics omit the rest. {_REMEDY}"
            )
        if self._per_batch:
            self._trainer.warn_once(
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

    gathers_for_metrics = reports_times = False

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


# The pass itself: its loader, the model that is evaluated, its speed, and one prediction step.

_PREPARATION_TIMES = ("jit_compilation_time", "model_preparation_time")
"""Attributes with times in seconds that are excluded from an evaluation's speed metrics."""

_WARM_UP_PASSES = 2  # torch.jit optimises in the first passes; evaluation is timed without them


def loop_of(trainer: Trainer) -> Callable[..., EvalLoopOutput]:
    """Return the method that runs an evaluation: ``evaluation_loop``, or the one of older releases."""
    args = effective_args(trainer.args)
    return trainer.prediction_loop if args.use_legacy_prediction_loop else trainer.evaluation_loop


def add_speed(trainer: Trainer, output: EvalLoopOutput, prefix: str, start_time: float) -> None:
    """Add seconds, samples and steps per second since ``start_time`` to the metrics of ``output``.

    Raises:
        MetricsError: If what the loop returned is no ``EvalLoopOutput``, or another tuple with its names.
    """
    if not isinstance(getattr(output, "metrics", None), MutableMapping) or not hasattr(output, "num_samples"):
        name = "prediction_loop" if effective_args(trainer.args).use_legacy_prediction_loop else "evaluation_loop"
        raise MetricsError(
            f"`{name}` returned {described(output)}. Return an `EvalLoopOutput` of predictions, labels, metrics and "
            "the number of samples."
        )
    for name in _PREPARATION_TIMES:
        start_time += output.metrics.get(f"{prefix}_{name}", 0.0)
    steps = math.ceil(output.num_samples / (trainer.args.eval_batch_size * trainer.accelerator.data_parallel_size))
    output.metrics.update(speed_metrics(prefix, start_time, num_samples=output.num_samples, num_steps=steps))


def run_loop(
    trainer: Trainer,
    kind: type[EvaluationSession],
    dataloader: Iterable[Any],
    description: str,
    prediction_loss_only: bool | None,
    ignore_keys: list[str] | None,
    prefix: str,
) -> EvalLoopOutput:
    """Run one pass over ``dataloader`` with a session of class ``kind``; return its output."""
    loss_only = trainer.args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
    warn_of_shares_in_shares(
        dataloader, "test_dataset" if description == "Prediction" else "eval_dataset", trainer.warn_once
    )
    dataloader = _limited(trainer, dataloader, description)
    check_even(dataloader, awaited="outputs")
    if not trainer.args.eval_use_gather_object:
        check_gatherable(dataloader)
    model = _model_to_evaluate(trainer, dataloader)
    backend, is_prediction = trainer.lightning_backend, description == "Prediction"
    outer = backend.loaders.evaluation
    try:
        session = kind(
            trainer,
            model,
            dataloader,
            prediction_loss_only=loss_only,
            ignore_keys=ignore_keys,
            prefix=prefix,
            keeps_predictions=is_prediction,
        )
        logger.info("***** Running %s *****", description)
        logger.info("  Num examples: Unknown" if session.examples is None else f"  Num examples = {session.examples}")
        logger.info("  Batch size = %s", session.batch_size)
        model.eval()
        set_mode(trainer.optimizer, training=False)
        trainer.callback_handler.eval_dataloader = dataloader
        past = fresh_past(trainer) if effective_args(trainer.args).past_index >= 0 else nullcontext()
        with noting(trainer, evaluates=True), past:
            backend.evaluate(trainer.model, session, current_run(trainer), test=is_prediction)
    except BaseException:
        close_progress_bars(trainer.callback_handler, evaluation_only=True)
        raise
    finally:
        backend.loaders.watch_evaluation(outer)  # also after an error
    assert session.output is not None, "a finished session has an output"
    return session.output


def _limited(trainer: Trainer, dataloader: Iterable[Any], description: str) -> Iterable[Any]:
    """Return ``dataloader``, or its first batches if Lightning's keywords limit them."""
    limits, most = trainer.lightning_backend.limits, trainer.lightning_backend.sanity_batches
    share, keyword = limits.evaluation, "limit_val_batches"
    if description == "Prediction":
        share, keyword = limits.prediction, "limit_predict_batches"
    of_length = isinstance(share, float) and share < 1.0  # a number of batches is not bounded by the length
    batches = share_of(share, len(dataloader) if of_length and has_length(dataloader) else None, keyword)
    least = min(math.inf if limit is None else limit for limit in (batches, most))
    if least == math.inf:
        return dataloader
    return FirstBatches(dataloader, int(least), trainer.accelerator.data_parallel_size)


def _model_to_evaluate(trainer: Trainer, dataloader: Iterable[Any]) -> nn.Module:
    """Return the model to evaluate: on its device, traced under ``jit_mode_eval``."""
    model = prepare_to_evaluate(trainer, dataloader)
    args = effective_args(trainer.args)
    if args.jit_mode_eval:
        start = time.time()
        traced = trainer.torch_jit_model_eval(trainer.model, dataloader, False)
        trainer.jit_compilation_time = round(time.time() - start, 4)
        if traced is not trainer.model:
            vars(trainer).pop("model_preparation_time", None)  # the trace is evaluated instead
            model = traced
    return model


def prepare_to_evaluate(trainer: Trainer, dataloader: Iterable[Any] | None = None) -> nn.Module:
    """Move the model to its device, wrap and cast it for evaluation; the first time, store how long that took.

    Args:
        trainer: The Trainer.
        dataloader: The loader to evaluate on, for ``_wrap_model``.

    Returns:
        The module to call: what ``_wrap_model`` has returned; the model itself is called in its wrapper only if that
        shards it, and compiled only in the evaluation that has prepared it, as in transformers. What an override has
        put in the place of the model that is trained, such as an average, is called as it is; and so is the model
        where the accelerator has prepared another one.
    """
    start, args, backend = time.time(), trainer.args, trainer.lightning_backend
    if backend.trains and unwrap_model(trainer.model_wrapped) is not trainer.model:
        return wrap(trainer, trainer.model, training=False, dataloader=dataloader)
    place_model(trainer)
    model = wrapped = wrap(trainer, trainer.model, training=False, dataloader=dataloader)
    prepares = backend.traits.shards_model or not trainer.accelerator.has_models
    if wrapped is trainer.model and wrapped is not backend.cast_model and prepares:
        model = trainer.model_wrapped = prepare_forward(trainer)
    prepare_strategy(trainer)
    if wrapped is trainer.model and not backend.model_is_prepared and prepares:
        backend.model_is_prepared = True
        note_item_count(trainer)
        trainer.model_preparation_time = round(time.time() - start, 4)
        trainer.accelerator.hold(trainer.model_wrapped if backend.traits.shards_model else trainer.model)
    full = None if trainer.is_in_train else full_evaluation_precision(args)
    if full is not None:
        device, weights = None if trainer.is_model_parallel else args.device, trainer.model.parameters()
        backend.model_is_narrowed |= any(each.requires_grad and each.dtype is torch.float32 for each in weights)
        trainer.model_wrapped.to(device=device, dtype=getattr(torch, full))
    if wrapped is trainer.model:
        model = backend.strategy.evaluation_model(trainer.model_wrapped if backend.traits.shards_model else model)
    return model


def trace(trainer: Trainer, model: nn.Module, dataloader: Iterable[Any] | None) -> Any:
    """Return ``model`` traced with the first batch of ``dataloader``, prepared; ``model`` if it cannot be traced."""
    if dataloader is None:
        logger.warning("`jit_mode_eval=True`: failed to use PyTorch jit mode, as there is no loader to trace with.")
        return model
    example = trainer._prepare_inputs(next(iter(dataloader)))
    try:
        precision = forward_precision(trainer.lightning_backend.precision)
        return trace_model(model, example, mixed_precision=precision, device=trainer.args.device)
    except (RuntimeError, TypeError, ValueError, NameError, IndexError) as error:
        text = "`jit_mode_eval=True`: failed to use PyTorch jit mode due to: %s. The model is evaluated untraced."
        logger.warning(text, error)
        return model


def forward(trainer: Trainer, model: nn.Module, inputs: dict[str, Any], scored: bool) -> tuple[Tensor | None, Any]:
    """Return the loss, None if the batch is not ``scored``, and the model's outputs."""
    if not scored:
        with computing_loss(trainer):
            outputs = model(**inputs)
            store_past(trainer, outputs, is_scored=False)
            return None, outputs
    count = trainer._get_num_items_in_batch([inputs], trainer.args.device)
    context, inputs = prepare_context(trainer, model, inputs)
    with computing_loss(trainer), context():
        returned = call_override(
            trainer.compute_loss, "model inputs", model, inputs, return_outputs=True, num_items_in_batch=count
        )
    loss, outputs = loss_and_outputs(returned, f"`{type(trainer).__name__}.compute_loss`")
    return loss.detach().mean(), outputs


def ignored_outputs(trainer: Trainer, ignore_keys: list[str] | None) -> list[str]:
    """Return the names of outputs that are no predictions: as given, else as the model's configuration says."""
    if ignore_keys is not None:
        return ignore_keys
    if not hasattr(trainer.model, "config"):
        return []
    # Outputs have the names of the installed release, whichever one the run reproduces.
    is_renamed = installed_release() >= SINCE["renames_past_key_values"]
    return getattr(trainer.model.config, "keys_to_ignore_at_inference", ["cache" if is_renamed else "past_key_values"])


def trace_model(model: nn.Module, example: Mapping[str, Any], *, mixed_precision: str, device: torch.device) -> Any:
    """Return ``model`` traced with ``example`` in evaluation mode, and frozen.

    Args:
        model: The model; it is not changed, and later changes of its weights do not affect the trace.
        example: One batch: keyword arguments of the forward, of which the trace takes the same.
        mixed_precision: ``"no"``, ``"bf16"`` or ``"fp16"``: autocast of the trace.
        device: Device of the model.

    Raises:
        RuntimeError: If the model cannot be traced; torch may also raise IndexError, NameError, TypeError, ValueError.

    References:
        As transformers 4.57 ``Trainer.torch_jit_model_eval``.
    """
    traced = without_autocast(copy.copy(model))
    traced.eval()
    context: AbstractContextManager[Any] = nullcontext()
    if mixed_precision != "no":
        # The weight cache would make casted weights constants of the trace.
        dtype = torch.bfloat16 if mixed_precision == "bf16" else torch.float16
        context = torch.autocast(device.type, dtype=dtype, cache_enabled=False)
    with context, torch.no_grad():
        program = torch.jit.trace(traced, example_kwarg_inputs=dict(example), strict=False)  # type: ignore[no-untyped-call]
    program = torch.jit.freeze(program)
    with torch.no_grad():
        for _ in range(_WARM_UP_PASSES):
            program(**example)
    return program
