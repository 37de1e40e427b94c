"""Evaluation and prediction: the loop over a dataset, and one prediction step."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hf_compat.arguments.process_facts import full_evaluation_precision
from hf_compat.arguments.releases import SINCE, effective_args, installed_release
from hf_compat.callbacks.handler import close_progress_bars
from hf_compat.data.loader import FirstBatches
from hf_compat.data.rank_batches import check_even, check_gatherable
from hf_compat.engine.precision import forward_precision, without_autocast
from hf_compat.errors import MetricsError, described
from hf_compat.metrics import has_length, speed_metrics
from hf_compat.optim.losses import loss_and_outputs
from hf_compat.optim.prepared import set_mode
from hf_compat.overriding import call_override
from hf_compat.plan.plan import share_of
from hf_compat.trainer.construction import announce_evaluation
from hf_compat.trainer.diagnosis import noting
from hf_compat.trainer.evaluation_session import EvaluationSession, LegacySession
from hf_compat.trainer.loss import computing_loss, fresh_past, gather_whole, prepare_context, store_past
from hf_compat.trainer.outputs import EvalLoopOutput
from hf_compat.trainer.preparing import note_item_count, place_model, prepare_forward, wrap
from hf_compat.trainer.run import current_run, prepare_strategy

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer


logger = logging.getLogger(__name__)

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
    dataloader = _limited(trainer, dataloader, description)
    check_even(dataloader, awaited="outputs")
    if not trainer.args.eval_use_gather_object:
        check_gatherable(dataloader)
    model = _prepare_model(trainer, dataloader)
    names = () if kind is LegacySession else _PREPARATION_TIMES
    backend, is_prediction = trainer.lightning_backend, description == "Prediction"
    outer = backend.loaders.evaluation
    try:
        session = kind(
            trainer,
            model,
            dataloader,
            loaders=backend.loaders,
            warn_once=trainer.warn_once,
            data_parallel_group=backend.process_layout.data_parallel_group,
            gather_whole=gather_whole(trainer),
            prediction_loss_only=loss_only,
            ignore_keys=ignore_keys,
            prefix=prefix,
            keeps_predictions=is_prediction,
            fires_events=backend.sanity_batches is None,
            times={name: vars(trainer)[name] for name in names if name in vars(trainer)},
        )
        announce_evaluation(description, session.examples, session.batch_size)
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


def _prepare_model(trainer: Trainer, dataloader: Iterable[Any]) -> nn.Module:
    """Return the model to evaluate: on its device, traced under ``jit_mode_eval``."""
    model = prepare(trainer, dataloader)
    args = effective_args(trainer.args)
    if args.jit_mode_eval:
        start = time.time()
        traced = trainer.torch_jit_model_eval(trainer.model, dataloader, False)
        trainer.jit_compilation_time = round(time.time() - start, 4)
        if traced is not trainer.model:
            vars(trainer).pop("model_preparation_time", None)  # the trace is evaluated instead
            model = traced
    return model


def prepare(trainer: Trainer, dataloader: Iterable[Any] | None = None) -> nn.Module:
    """Move the model to its device, wrap and cast it for evaluation; the first time, store how long that took.

    Args:
        trainer: The Trainer.
        dataloader: The loader to evaluate on, for ``_wrap_model``.

    Returns:
        The module to call: what ``_wrap_model`` has returned; the model itself is called in its wrapper only if that
        shards it, and compiled only in the evaluation that has prepared it, as in transformers.
    """
    start, args, backend = time.time(), trainer.args, trainer.lightning_backend
    place_model(trainer, backend)
    model = wrapped = wrap(trainer, trainer.model, training=False, dataloader=dataloader)
    if wrapped is trainer.model and wrapped is not backend.cast_model:
        model = trainer.model_wrapped = prepare_forward(trainer, backend, trainer.warn_once)
    prepare_strategy(trainer)
    if wrapped is trainer.model and not backend.model_is_prepared:
        backend.model_is_prepared = True
        note_item_count(trainer, backend, trainer.warn_once)
        trainer.model_preparation_time = round(time.time() - start, 4)
        trainer.accelerator.hold(trainer.model_wrapped if backend.traits.shards_model else trainer.model)
    full = None if trainer.is_in_train else full_evaluation_precision(args)
    if full is not None:
        device = None if trainer.is_model_parallel else args.device
        trainer.model_wrapped.to(device=device, dtype=getattr(torch, full))
    if wrapped is trainer.model:
        model = backend.strategy.evaluation_model(trainer.model_wrapped if backend.traits.shards_model else model)
    return model


def trace(
    trainer: Trainer, model: nn.Module, dataloader: Iterable[Any] | None, prepare: Callable[[Any], dict[str, Any]]
) -> Any:
    """Return ``model`` traced with the first batch of ``dataloader``, prepared; ``model`` if it cannot be traced."""
    if dataloader is None:
        logger.warning("`jit_mode_eval=True`: failed to use PyTorch jit mode, as there is no loader to trace with.")
        return model
    example = prepare(next(iter(dataloader)))
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
