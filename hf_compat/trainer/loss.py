"""The loss of one batch: preparing inputs, counting items, forward and backward pass, past state."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hf_compat.arguments.fields.redeclared import for_run
from hf_compat.data.transfer import move_to_device
from hf_compat.errors import DataError, ModelError, ModelOutputError
from hf_compat.memory import empty_cache
from hf_compat.model_facts import is_causal_lm, is_in_training_mode
from hf_compat.nested import MAPPINGS, map_nested
from hf_compat.optim.division import divided
from hf_compat.optim.in_backward import UPDATED_IN_BACKWARD
from hf_compat.overriding import call_as_defined, is_ours

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments
    from hf_compat.trainer.trainer import Trainer

__all__ = [
    "autocast_around_loss",
    "compute_loss",
    "count_items",
    "forward_and_backward",
    "loss_context",
    "prepare_input",
    "prepare_inputs",
    "store_past",
]

logger = logging.getLogger(__name__)


def count_items(trainer: Trainer, batches: Sequence[Any], device: torch.device) -> Tensor | int | None:
    """Return the number of scored labels in ``batches``, ``()``; None if there are none, or it is not used."""
    is_used = trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None
    if not batches or "labels" not in batches[0] or not is_used:
        return None
    try:
        count = sum(_scored_labels(trainer, batch).ne(-100).sum() for batch in batches)
    except (TypeError, AttributeError):  # labels that are not tensors, as in object detection
        return None
    if isinstance(count, Tensor):
        scored = _shared_count(trainer, count.to(device))
        return scored / 1 if trainer.semantics.item_count_is_float else scored
    return int(count)


def _shared_count(trainer: Trainer, count: Tensor) -> Tensor:
    """Return the ``count`` of this process, ``()``, as the forward pass takes it.

    That is the number over all ranks, or, with a row for each replica that ``DataParallel`` makes, over all replicas;
    without ``average_tokens_across_devices`` the mean over the replicas.
    """
    args = trainer.args
    if args.average_tokens_across_devices:
        count = trainer.accelerator.gather(count).sum()
    elif args.n_gpu > 1:
        count = count // args.n_gpu
    return count.unsqueeze(0).expand(args.n_gpu, -1) if args.n_gpu > 1 else count


def _scored_labels(trainer: Trainer, batch: Mapping[str, Any]) -> Any:
    if not trainer.semantics.counts_shifted_labels:
        return batch["labels"]
    if "shift_labels" in batch:
        return batch["shift_labels"]
    return batch["labels"][..., 1:] if trainer._loss_shifts_labels else batch["labels"]


def forward_and_backward(
    trainer: Trainer, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None
) -> Tensor:
    """Run forward and backward pass of one batch; return its share of the window's loss, ``()``, detached."""
    args = trainer.args
    if not is_in_training_mode(model):
        model.train()
    if callable(getattr(trainer.optimizer, "train", None)):  # a schedule-free optimizer
        trainer.optimizer.train()
    inputs = trainer._prepare_inputs(inputs)
    with trainer.compute_loss_context_manager():
        loss: Tensor = call_as_defined(
            trainer.compute_loss, ("model", model), ("inputs", inputs), num_items_in_batch=num_items_in_batch
        )
    del inputs
    every = args.torch_empty_cache_steps
    if every is not None and trainer.state.global_step % every == 0:
        empty_cache()
    if args.n_gpu > 1:
        loss = loss.mean()  # one of each replica
    is_scaled = _is_scaled(trainer, num_items_in_batch)
    if not is_scaled:
        loss = divided(loss, trainer.current_gradient_accumulation_steps)
    divisor = args.gradient_accumulation_steps if trainer.semantics.divides_gradients_twice else 1
    kwargs = {"learning_rate": trainer._get_learning_rate()} if args.optim in UPDATED_IN_BACKWARD else {}
    trainer.accelerator.backward(loss if divisor == 1 else divided(loss, divisor), **kwargs)
    # What the model itself returned may be memory that its next forward pass writes to, as with CUDA graphs.
    return loss.detach().clone() if is_scaled else loss.detach()


def _is_scaled(trainer: Trainer, num_items_in_batch: Tensor | int | None) -> bool:
    """Return whether the loss is averaged over the window already."""
    if trainer.loss_is_scaled_for_ga is not None:
        return trainer.loss_is_scaled_for_ga
    by_model = trainer.model_accepts_loss_kwargs and num_items_in_batch is not None
    return by_model or trainer.compute_loss_func is not None


def compute_loss(
    trainer: Trainer,
    model: nn.Module,
    inputs: dict[str, Any],
    *,
    return_outputs: bool,
    num_items_in_batch: Tensor | int | None,
) -> Any:
    """Return the loss of one batch; see the Trainer's ``compute_loss``."""
    own_loss = trainer.label_smoother is not None or trainer.compute_loss_func is not None
    labels = inputs.pop("labels") if own_loss and "labels" in inputs else None
    if trainer.model_accepts_loss_kwargs and num_items_in_batch is not None:
        inputs = {**inputs, "num_items_in_batch": num_items_in_batch}
    outputs = model(**inputs)
    store_past(trainer, outputs)
    if trainer.compute_loss_func is not None:
        if labels is None:
            text = "`compute_loss_func` is defined but `labels=None`: batches have no `labels`, it is called with None."
            trainer._warn_once.in_log(logger, text)
        loss = trainer.compute_loss_func(outputs, labels, num_items_in_batch=num_items_in_batch)
    elif labels is not None:
        loss = _smoothed_loss(trainer, model, outputs, labels, num_items_in_batch)
    else:
        loss = _loss_of(trainer, outputs, inputs)
    by_count = trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None
    if trainer.args.average_tokens_across_devices and by_count and num_items_in_batch is not None:
        # Gradients are averaged over ranks, the loss over replicas. In place, so that the outputs have this loss too.
        loss *= max(trainer.accelerator.data_parallel_size, trainer.args.n_gpu)
    return (loss, outputs) if return_outputs else loss


def _smoothed_loss(
    trainer: Trainer, model: nn.Module, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None
) -> Tensor:
    given: dict[str, Any] = {}
    if trainer.semantics.smoother_takes_item_count:
        given["num_items_in_batch"] = num_items_in_batch
    if is_causal_lm(trainer.accelerator.unwrap_model(model)):
        given["shift_labels"] = True
    loss: Tensor = trainer.label_smoother(outputs, labels, **given)
    return loss


def _loss_of(trainer: Trainer, outputs: Any, inputs: Mapping[str, Any]) -> Any:
    if isinstance(outputs, dict):
        if outputs.get("loss") is not None:
            return outputs["loss"]
        returned, given = ", ".join(outputs), ", ".join(inputs)
        raise ModelError(
            f"`model`: {type(trainer.model).__name__} did not return a loss, only: {returned}. Its inputs were: "
            f"{given}. Name the labels as its forward does, pass `compute_loss_func`, or override `compute_loss`."
        )
    if isinstance(outputs, Tensor) and outputs.numel() > max(trainer.args.n_gpu, 1):  # one of each replica
        raise ModelError(
            f"`model`: {type(trainer.model).__name__} returned a tensor of shape {tuple(outputs.shape)}, not a loss. "
            "Return a dict with `loss` or a tuple that starts with it, or override `compute_loss`."
        )
    return outputs.squeeze() if isinstance(outputs, Tensor) else outputs[0]


def autocast_around_loss(trainer: Trainer, cache_enabled: bool | None) -> contextlib.AbstractContextManager[Any]:
    """Return the autocast around the loss, which some releases of transformers have on the CPU: always bfloat16."""
    releases_differ = not trainer.semantics.leaves_loss_out_of_cpu_autocast
    if releases_differ and _uses_cpu_amp(for_run(trainer.args)) and not trainer._lightning_runtime.facts.own_precision:
        return torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=bool(cache_enabled))
    return contextlib.nullcontext()


def _uses_cpu_amp(args: TrainingArguments) -> bool:
    """Return whether transformers 4.57 has this autocast: if asked for, or for bf16 on the CPU, in one process."""
    if args.half_precision_backend == "auto":
        return args.bf16 and args.device.type == "cpu" and args.world_size == 1
    return args.half_precision_backend == "cpu_amp" and (args.fp16 or args.bf16)


def loss_context(trainer: Trainer) -> contextlib.ExitStack:
    """Return the context of ``autocast_smart_context_manager``, entered."""
    stack = contextlib.ExitStack()
    context = trainer.autocast_smart_context_manager()
    if not isinstance(context, contextlib.nullcontext):
        stack.enter_context(context)
    return stack


def prepare_input(trainer: Trainer, data: object) -> Any:
    """Return ``data`` with its tensors on the training device; a mapping is copied."""
    device, dtype = trainer.args.device, trainer._lightning_runtime.input_dtype(trainer.args)
    if isinstance(data, Tensor) or not isinstance(data, MAPPINGS):
        return _moved(data, device, dtype)
    prepare = trainer._prepare_input
    if not is_ours(prepare):
        return type(data)({name: prepare(value) for name, value in data.items()})  # type: ignore[call-arg]
    return type(data)(  # type: ignore[call-arg]
        {
            name: _moved(value, device, dtype) if isinstance(value, Tensor) else prepare(value)
            for name, value in data.items()
        }
    )


def _moved(data: object, device: torch.device, dtype: torch.dtype | None) -> Any:
    data = move_to_device(data, device)
    return data if dtype is None else _cast(data, dtype)


def _cast(data: object, dtype: torch.dtype) -> Any:
    """Return ``data`` with its floating-point tensors cast to ``dtype``."""

    def cast(leaf: object) -> object:
        if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            return leaf.to(dtype)
        return leaf

    return map_nested(cast, data)


def prepare_inputs(trainer: Trainer, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return one batch on the training device, with the past state of the previous one as ``mems``.

    Raises:
        DataError: If it is empty.
    """
    inputs = trainer._prepare_input(inputs)
    if len(inputs) == 0:
        raise DataError(
            f"`train_dataset`: The batch received was empty. {type(trainer.model).__name__} takes the columns "
            f"{', '.join(trainer._signature_columns or ['(any)'])}. Add at least one of them to the dataset, or set "
            "`remove_unused_columns=False`."
        )
    if trainer._past is not None:
        inputs["mems"] = trainer._past
    return trainer._lightning_runtime.precision.convert_input(inputs)  # type: ignore[no-any-return]


def store_past(trainer: Trainer, outputs: Any, *, is_scored: bool = True) -> None:
    """Store the past state for the next batch, if ``past_index`` is set; without a loss its index is one less."""
    args = for_run(trainer.args)
    if args.past_index < 0:
        return
    try:
        trainer._past = outputs[args.past_index - (not is_scored)]
    except (IndexError, KeyError):
        raise ModelOutputError(
            f"`past_index={args.past_index}`: {type(trainer.model).__name__} returned {len(outputs)} values "
            f"in a {type(outputs).__name__}. Return a tuple or a `ModelOutput`, and set `past_index` to the index of "
            "the past state in it, counted from 0 with the loss."
        ) from None
