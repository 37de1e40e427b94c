"""The Trainer's evaluation and prediction."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import torch
from torch import Tensor, nn

from hf_compat.engine.precision import forward_precision
from hf_compat.engine.tracing import trace_model
from hf_compat.evaluation.accumulate import nested_detach
from hf_compat.evaluation.legacy import LegacySession
from hf_compat.evaluation.results import EvalLoopOutput, PredictionOutput
from hf_compat.evaluation.session import EvaluationSession
from hf_compat.metrics import has_length, speed_metrics
from hf_compat.overriding import call_as_defined
from hf_compat.trainer.steps import StepMethods

__all__ = ["EvaluationMethods"]

logger = logging.getLogger(__name__)

_READYING_TIMES = ("jit_compilation_time", "model_preparation_time")
"""Attributes that hold seconds which the speeds of an evaluation leave out."""


class EvaluationMethods(StepMethods):
    """``evaluate``, ``predict`` and the loop they share."""

    _model_is_prepared: bool = False

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Return the metrics of an evaluation, logged too.

        Args:
            eval_dataset: What to evaluate on; a dict of data sets is evaluated one after the other, each under its key.
                Default: the Trainer's own.
            ignore_keys: Model outputs left out of the predictions.
            metric_key_prefix: What metric names start with.

        Raises:
            DataError: If there is no data set.
        """
        given = eval_dataset is not None
        eval_dataset = eval_dataset if given else self.eval_dataset
        if isinstance(eval_dataset, dict):
            metrics: dict[str, float] = {}
            for name, dataset in eval_dataset.items():
                metrics |= call_as_defined(
                    self.evaluate,
                    eval_dataset=dataset if given else name,
                    ignore_keys=ignore_keys,
                    metric_key_prefix=f"{metric_key_prefix}_{name}",
                )
            return metrics
        with self._memory_tracker.measure("eval"):
            loader = self.get_eval_dataloader(eval_dataset)
            start_time = time.time()
            output: EvalLoopOutput = call_as_defined(
                self.prediction_loop if self.args.use_legacy_prediction_loop else self.evaluation_loop,
                ("dataloader", loader),
                description="Evaluation",
                prediction_loss_only=True if self.compute_metrics is None else None,
                ignore_keys=ignore_keys,
                metric_key_prefix=metric_key_prefix,
            )
            self._add_speed(output, metric_key_prefix, start_time)
            self.log(output.metrics)
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, output.metrics)
            self._memory_tracker.stop_and_update_metrics(output.metrics)
        return output.metrics

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Return the predictions on ``test_dataset``, its labels, and metrics if it has labels.

        Args:
            test_dataset: What to predict.
            ignore_keys: Model outputs left out of the predictions.
            metric_key_prefix: What metric names start with.

        Returns:
            Arrays of ``(samples, ...)``; where lengths differ, filled up with -100 on the right.
        """
        with self._memory_tracker.measure("test"):
            loader = self.get_test_dataloader(test_dataset)
            start_time = time.time()
            output: EvalLoopOutput = call_as_defined(
                self.prediction_loop if self.args.use_legacy_prediction_loop else self.evaluation_loop,
                ("dataloader", loader),
                description="Prediction",
                ignore_keys=ignore_keys,
                metric_key_prefix=metric_key_prefix,
            )
            self._add_speed(output, metric_key_prefix, start_time)
            self.control = self.callback_handler.on_predict(self.args, self.state, self.control, output.metrics)
            self._memory_tracker.stop_and_update_metrics(output.metrics)
        return PredictionOutput(predictions=output.predictions, label_ids=output.label_ids, metrics=output.metrics)

    def _add_speed(self, output: EvalLoopOutput, prefix: str, start_time: float) -> None:
        start_time += sum(output.metrics.get(f"{prefix}_{name}", 0.0) for name in _READYING_TIMES)
        steps = math.ceil(output.num_samples / (self.args.eval_batch_size * self.accelerator.data_parallel_size))
        output.metrics.update(speed_metrics(prefix, start_time, num_samples=output.num_samples, num_steps=steps))

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Return predictions, labels, metrics and the number of samples of one pass over ``dataloader``.

        Runs in a Lightning evaluation loop, so that Lightning callbacks see it and can monitor its metrics.

        Args:
            dataloader: An iterable of batches.
            description: ``"Evaluation"`` or ``"Prediction"``; the latter keeps predictions in any case.
            prediction_loss_only: Keep losses alone; default: the argument of that name.
            ignore_keys: Model outputs left out of the predictions.
            metric_key_prefix: What metric names start with.
        """
        return self._loop(
            EvaluationSession, dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
        )

    def prediction_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Return what :meth:`evaluation_loop` returns, by the rules of transformers before 4.5.

        ``evaluate`` and ``predict`` run it under ``use_legacy_prediction_loop``; arguments as for the newer loop.

        Raises:
            DataError: If ``dataloader`` does not tell its length or its batch size.
        """
        return self._loop(LegacySession, dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)

    def _loop(
        self,
        kind: type[EvaluationSession],
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None,
        ignore_keys: list[str] | None,
        prefix: str,
    ) -> EvalLoopOutput:
        loss_only = self.args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
        model = self._ready_for_evaluation(dataloader)
        if callable(getattr(self.optimizer, "eval", None)):  # a schedule-free optimizer
            self.optimizer.eval()
        self.callback_handler.eval_dataloader = dataloader
        if kind is not LegacySession and has_length(dataloader):  # that one asks itself, once
            logger.info("%s of %s samples.", description, self.num_examples(dataloader))
        names = () if kind is LegacySession else _READYING_TIMES
        session = kind(
            self,
            model,
            dataloader,
            prediction_loss_only=loss_only,
            ignore_keys=ignore_keys,
            prefix=prefix,
            keeps_predictions=description == "Prediction",
            times={name: self.__dict__[name] for name in names if name in self.__dict__},
        )
        memory, self._past = self._past, None
        try:
            self._run_session(session, test=description == "Prediction")
        finally:
            self._past = memory  # an evaluation in the middle of an epoch leaves the training's as it was
        if session.output is None:  # Lightning leaves an empty loader out
            session.finish()
        assert session.output is not None, "a finished session has an output"
        return session.output

    def _ready_for_evaluation(self, dataloader: Any) -> Any:
        """Return the model to evaluate: in its place, in evaluation mode, traced if asked for."""
        self._prepare_model_for_evaluation()
        wrapped = call_as_defined(self._wrap_model, ("model", self.model), training=False, dataloader=dataloader)
        model = self.accelerator.evaluation_model(self.model_wrapped) if wrapped is self.model else wrapped
        if self.args.jit_mode_eval:
            start = time.time()
            traced = self.torch_jit_model_eval(self.model, dataloader)
            self.jit_compilation_time = round(time.time() - start, 4)
            if traced is not self.model:
                self.__dict__.pop("model_preparation_time", None)  # the trace took its place
                model = traced
        model.eval()
        return model

    jit_compilation_time: float

    def torch_jit_model_eval(self, model: nn.Module, dataloader: Any, training: bool = False) -> Any:
        """Return ``model`` traced on the first batch of ``dataloader``, or itself if it cannot be traced or trains.

        Args:
            model: The model.
            dataloader: An iterable of batches, begun anew.
            training: Whether the model is about to train.
        """
        if training:
            return model
        if dataloader is None:
            logger.warning("`jit_mode_eval=True`: there is no loader to trace the model with, so it runs as it is.")
            return model
        example = self._prepare_inputs(next(iter(dataloader)))
        try:
            precision = forward_precision(self._precision)
            return trace_model(model, example, mixed_precision=precision, device=self.args.device)
        except (RuntimeError, TypeError, ValueError, NameError, IndexError) as error:
            logger.warning("`jit_mode_eval=True`: the model cannot be traced, so it runs as it is: %s", error)
            return model

    def _prepare_model_for_evaluation(self) -> None:
        """Put the model where and as it is evaluated; the first time, note how many seconds that took."""
        start = time.time()
        self._place_model(self.model)
        self._ready_strategy()
        if not self._model_is_prepared:
            self._model_is_prepared = True
            self.model_preparation_time = round(time.time() - start, 4)
        if not self.is_in_train:
            if self.args.fp16_full_eval:
                self.model_wrapped.to(dtype=torch.float16, device=self.args.device)
            elif self.args.bf16_full_eval:
                self.model_wrapped.to(dtype=torch.bfloat16, device=self.args.device)

    model_preparation_time: float

    def _build_lightning_trainer(self, plan: Any) -> Any:
        raise NotImplementedError

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        raise NotImplementedError

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        raise NotImplementedError

    def _place_model(self, model: nn.Module) -> None:
        raise NotImplementedError

    def _attach_strategy(self) -> None:
        """Build what evaluations run on unless there is a run's, so that its strategy says what they call."""
        if self.lightning_trainer is None:
            trainer = self.lightning_trainer = self._build_lightning_trainer(None)
            self.accelerator.attach(None, trainer.strategy)

    def _ready_strategy(self) -> None:
        """Let the strategy put around the model what it evaluates, or saves, through."""
        self._attach_strategy()
        wrapped = self.accelerator.strategy.prepare_evaluation(self.model)
        if wrapped is not None:
            self._take_wrapper(wrapped)

    def _take_wrapper(self, wrapped: nn.Module) -> None:
        raise NotImplementedError

    def _run_session(self, session: EvaluationSession, *, test: bool) -> None:
        raise NotImplementedError

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Any, Any]:
        """Return the loss, ``()``, the logits and the labels of one batch; each may be None.

        Args:
            model: The model.
            inputs: One batch.
            prediction_loss_only: Return the loss alone.
            ignore_keys: Outputs left out; default: those the model's configuration names, else ``past_key_values``.
        """
        has_labels = bool(self.label_names) and all(inputs.get(name) is not None for name in self.label_names)
        returns_loss = inputs.get("return_loss")
        returns_loss = self.can_return_loss if returns_loss is None else returns_loss
        scored = has_labels or (not self.label_names and bool(returns_loss))
        inputs = self._prepare_inputs(inputs)
        ignored = self._ignored_outputs(ignore_keys)
        # Taken first: computing the loss may take them out of the inputs.
        labels = nested_detach(tuple(inputs.get(name) for name in self.label_names)) if scored else None
        if labels is not None and len(labels) == 1:
            labels = labels[0]
        skips = scored and prediction_loss_only and self.semantics.liger_skips_unused_logits
        if skips and self.args.use_liger_kernel:
            inputs = {**inputs, "skip_logits": True}
        with torch.no_grad():
            loss, outputs = self._predict(model, inputs, scored)
        if prediction_loss_only:
            return loss, None, None
        if isinstance(outputs, dict):
            hidden = [*ignored, "loss"] if scored else ignored
            logits: Any = tuple(value for name, value in outputs.items() if name not in hidden)
        else:
            logits = outputs[1:] if scored else outputs
        logits = nested_detach(logits)
        return loss, logits[0] if len(logits) == 1 else logits, labels

    def _predict(self, model: nn.Module, inputs: dict[str, Any], scored: bool) -> tuple[Tensor | None, Any]:
        """Return the loss, None if the batch is not ``scored``, and what the model returned."""
        if not scored:
            with self.compute_loss_context_manager():
                outputs = model(**inputs)
                self._remember(outputs, self.args.past_index - 1)  # one place earlier: there is no loss
                return None, outputs
        count = self._get_num_items_in_batch([inputs], self.args.device)
        context, inputs = self._prepare_context_parallel_inputs(model, inputs)
        with self.compute_loss_context_manager(), context():
            loss, outputs = call_as_defined(
                self.compute_loss, ("model", model), ("inputs", inputs), return_outputs=True, num_items_in_batch=count
            )
        return loss.detach().mean(), outputs

    def _ignored_outputs(self, ignore_keys: list[str] | None) -> list[str]:
        if ignore_keys is not None:
            return ignore_keys
        if hasattr(self.model, "config"):
            return getattr(self.model.config, "keys_to_ignore_at_inference", ["past_key_values"])
        return []
