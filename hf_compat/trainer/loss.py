"""The loss of one batch: preparing inputs, counting items, forward and backward pass, past state."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.utils.rnn import PackedSequence

from hf_compat.arguments.fields.redeclared import for_run
from hf_compat.arguments.run_precision import uses_cpu_amp
from hf_compat.data.transfer import move_to_device
from hf_compat.distributed import collectives
from hf_compat.errors import DataError, LoaderError, LossError, ModelOutputError, described
from hf_compat.memory import empty_cache
from hf_compat.model_facts import is_causal_lm, is_in_training_mode, is_renamed_causal_lm
from hf_compat.nested import MAPPINGS, SEQUENCES, rebuild
from hf_compat.optim.in_backward import UPDATED_IN_BACKWARD
from hf_compat.optim.losses import check_loss, divide_scalar
from hf_compat.overriding import call_as_defined, check_returned, is_ours
from hf_compat.trainer.diagnosis import explain_backward, note_inputs

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

__all__ = [
    "autocast_around_loss",
    "check_is_named",
    "compute_loss",
    "computing_loss",
    "count_items",
    "forward_and_backward",
    "fresh_past",
    "loss_context",
    "prepare_input",
    "prepare_inputs",
    "store_past",
]

logger = logging.getLogger(__name__)

_NOTHING = contextlib.nullcontext()

_NOT_SHIFTED = (
    "`label_smoothing_factor={}` with FSDP 2: transformers does not recognize a causal language model by the class "
    "that FSDP 2 gives it, and compares each prediction with the label of its own token, not of the next one; so does "
    "this run. Set `TrainingArguments(semantics='corrected')` to correct that."
)
_DIVIDED = (
    "`average_tokens_across_devices=False`: transformers divides the items of a window over the {} ranks that have the "
    "same batches, so that losses and gradients are as many times too large; so does this run. Set it to True, or "
    "`TrainingArguments(semantics='corrected')`."
)


def count_items(trainer: Trainer, batches: Sequence[Any], device: torch.device) -> Tensor | int | None:
    """Return the number of scored labels in ``batches``, ``()``; None if there are none, or it is not used."""
    is_used = trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None
    if not batches:
        return None
    if isinstance(batches[0], Tensor) or not (hasattr(batches[0], "__iter__") or hasattr(batches[0], "__contains__")):
        check_is_named(batches[0])
    if "labels" not in batches[0] or not is_used:
        return None
    try:
        count = sum(_scored_labels(trainer, batch).ne(-100).sum() for batch in batches)
    except (TypeError, AttributeError):  # labels that are not tensors, as in object detection
        return None
    if isinstance(count, Tensor):
        scored, parts = _shared_count(trainer, count.to(device)), _parts_of_count(trainer)
        return scored / parts if trainer.semantics.item_count_is_float else scored // parts
    return int(count)


def check_is_named(batch: object) -> None:
    """Raise if ``batch`` has no names, by which a model takes its inputs.

    Raises:
        LoaderError: If it is no mapping.
    """
    if not hasattr(batch, "keys"):
        raise LoaderError(
            f"`data_collator`: a batch is {described(batch)}, but the model takes its inputs by name. Return a dict of "
            "them, or override `compute_loss` and `prediction_step`."
        )


def _shared_count(trainer: Trainer, count: Tensor) -> Tensor:
    """Return the ``count`` of this process, ``()``, as the forward pass takes it.

    That is the number over all ranks, or, with a row for each replica that ``DataParallel`` makes, over all replicas;
    without ``average_tokens_across_devices`` the mean over the replicas.
    """
    replicas = trainer.args.n_gpu
    if trainer.args.average_tokens_across_devices:
        count = trainer.accelerator.gather(count).sum()
    elif replicas > 1:
        count = count // replicas
    return count.unsqueeze(0).expand(replicas, -1) if replicas > 1 else count


def _parts_of_count(trainer: Trainer) -> int:
    """Return the number of ranks over which a count is divided: those of whose sequences each has a part.

    Without ``average_tokens_across_devices`` upstream divides it over ranks with the same batches too.
    """
    size = trainer.get_cp_size()
    if trainer.args.average_tokens_across_devices or not trainer.semantics.divides_own_item_count:
        return size
    same = trainer.get_tp_size()
    if same > 1:
        trainer.warn_once(_DIVIDED.format(same))
    return size * same


def _scored_labels(trainer: Trainer, batch: Mapping[str, Any]) -> Any:
    if not trainer.semantics.counts_shifted_labels:
        return batch["labels"]
    if "shift_labels" in batch:
        return batch["shift_labels"]
    return batch["labels"][..., 1:] if trainer.run_counters.loss_shifts_labels else batch["labels"]


def forward_and_backward(
    trainer: Trainer, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None
) -> Tensor:
    """Run forward and backward pass of one batch; return its share of the window's loss, ``()``, detached."""
    args = trainer.args
    if not is_in_training_mode(model):
        model.train()
    train_mode: Any = getattr(trainer.optimizer, "train", None)  # of a schedule-free one
    if train_mode is not None and callable(train_mode):
        train_mode()
    inputs = trainer._prepare_inputs(inputs)
    with computing_loss(trainer):
        try:
            loss: Tensor = call_as_defined(
                trainer.compute_loss, ("model", model), ("inputs", inputs), num_items_in_batch=num_items_in_batch
            )
        except Exception as error:
            note_inputs(error, trainer, inputs)
            raise
    source = f"`{type(trainer).__name__}.compute_loss`"
    if not isinstance(loss, Tensor):
        check_loss(loss, source)
    returned = loss  # the quotient of one without gradients has other properties
    del inputs
    every = args.torch_empty_cache_steps
    if every is not None and trainer.state.global_step % every == 0:
        empty_cache()
    if args.n_gpu > 1:
        loss = loss.mean()  # one of each replica
    is_scaled = _is_scaled(trainer, num_items_in_batch)
    if not is_scaled:
        loss = divide_scalar(loss, trainer.current_gradient_accumulation_steps)
    divisor = args.gradient_accumulation_steps if trainer.semantics.divides_gradients_twice else 1
    kwargs = {"learning_rate": trainer._get_learning_rate()} if args.optim in UPDATED_IN_BACKWARD else {}
    try:
        trainer.accelerator.backward(loss if divisor == 1 else divide_scalar(loss, divisor), **kwargs)
    except RuntimeError as error:
        explain_backward(source, trainer.model, returned, error)
        raise
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
    group = trainer.lightning_backend.strategy.sequence_group
    if group is not None and trainer.model.training:
        return _loss_of_shared_sequences(model, inputs, group, return_outputs=return_outputs)
    if not isinstance(inputs, dict):
        check_is_named(inputs)
    own_loss = trainer.label_smoother is not None or trainer.compute_loss_func is not None
    labels = inputs.pop("labels") if own_loss and "labels" in inputs else None
    if trainer.model_accepts_loss_kwargs and num_items_in_batch is not None:
        inputs = {**inputs, "num_items_in_batch": num_items_in_batch}
    outputs = model(**inputs)
    args = for_run(trainer.args)
    if args.past_index >= 0:
        store_past(trainer, outputs)
    if trainer.compute_loss_func is not None:
        if labels is None:
            text = "`compute_loss_func` is defined but `labels=None`: batches have no `labels`, it is called with None."
            trainer.warn_once.in_log(logger, text)
        loss = trainer.compute_loss_func(outputs, labels, num_items_in_batch=num_items_in_batch)
        check_loss(loss, "`compute_loss_func`")
    elif labels is not None:
        loss = _smoothed_loss(trainer, model, outputs, inputs, labels, num_items_in_batch)
    else:
        loss = _loss_of(trainer, outputs, inputs)
    by_count = trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None
    if trainer.args.average_tokens_across_devices and by_count and num_items_in_batch is not None:
        # Gradients are averaged over ranks, the loss over replicas. In place, so that the outputs have this loss too.
        loss *= max(trainer.lightning_backend.process_layout.loss_group_size, trainer.args.n_gpu)
    return (loss, outputs) if return_outputs else loss


def _loss_of_shared_sequences(
    model: nn.Module, inputs: dict[str, Any], group: ProcessGroup, *, return_outputs: bool
) -> Any:
    """Return the loss of sequences of which each rank of ``group`` has a chunk: the mean over all scored tokens."""
    shifted = inputs["shift_labels"]
    inputs.setdefault("labels", shifted)  # without them the model computes no loss
    outputs = model(**inputs)
    loss = collectives.mean_over_ranks(outputs.loss, shifted.ne(-100).sum(), group)
    return (loss, outputs) if return_outputs else loss


def _smoothed_loss(
    trainer: Trainer,
    model: nn.Module,
    outputs: Any,
    inputs: Mapping[str, Any],
    labels: Tensor,
    num_items_in_batch: Tensor | int | None,
) -> Tensor:
    given: dict[str, Any] = {}
    if trainer.semantics.smoother_takes_item_count:
        given["num_items_in_batch"] = num_items_in_batch
    unwrapped = trainer.accelerator.unwrap_model(model)
    is_renamed = is_renamed_causal_lm(unwrapped)
    if is_renamed and not trainer.semantics.corrected:
        trainer.warn_once(_NOT_SHIFTED.format(trainer.args.label_smoothing_factor))
    elif is_renamed and trainer.get_cp_size() > 1:
        labels = inputs["shift_labels"]
    elif is_renamed or is_causal_lm(unwrapped):
        given["shift_labels"] = True
    loss: Tensor = trainer.label_smoother(outputs, labels, **given)
    return loss


def _loss_of(trainer: Trainer, outputs: Any, inputs: Mapping[str, Any]) -> Any:
    if outputs is None:
        raise LossError(
            f"`model`: {type(trainer.model).__name__} returned None. Return a dict with `loss`, or a tuple."
        )
    if isinstance(outputs, dict):
        if outputs.get("loss") is not None:
            return outputs["loss"]
        returned = ", ".join(f"{name}=None" if value is None else name for name, value in outputs.items())
        given = ", ".join(inputs)
        raise LossError(
            f"`model`: {type(trainer.model).__name__} did not return a loss, only: {returned}. Its inputs were: "
            f"{given}. Name the labels as its forward does, pass `compute_loss_func`, or override `compute_loss`."
        )
    if isinstance(outputs, Tensor) and outputs.numel() > max(trainer.args.n_gpu, 1):  # one of each replica
        raise LossError(
            f"`model`: {type(trainer.model).__name__} returned a tensor of shape {tuple(outputs.shape)}, not a loss. "
            "Return a dict with `loss` or a tuple that starts with it, or override `compute_loss`."
        )
    return outputs.squeeze() if isinstance(outputs, Tensor) else outputs[0]


def autocast_around_loss(trainer: Trainer, cache_enabled: bool | None) -> contextlib.AbstractContextManager[Any]:
    """Return the autocast around the loss, which some releases of transformers have on the CPU: always bfloat16."""
    if _has_cpu_autocast(trainer):
        return torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=bool(cache_enabled))
    return contextlib.nullcontext()


def _has_cpu_autocast(trainer: Trainer) -> bool:
    if trainer.semantics.leaves_loss_out_of_cpu_autocast:
        return False
    return uses_cpu_amp(for_run(trainer.args)) and not trainer.lightning_backend.traits.own_precision


def computing_loss(trainer: Trainer) -> contextlib.AbstractContextManager[Any]:
    """Return the Trainer's ``compute_loss_context_manager``.

    Raises:
        OverrideError: If that returns no context.
    """
    method = trainer.compute_loss_context_manager
    is_plain = trainer.semantics.leaves_loss_out_of_cpu_autocast or not _has_cpu_autocast(trainer)
    if is_plain and is_ours(method) and is_ours(trainer.autocast_smart_context_manager):
        return _NOTHING  # without making a stack of no contexts for each batch
    context = method()
    _check_is_context(context, "compute_loss_context_manager")
    return context


def _check_is_context(context: object, method: str) -> None:
    check_returned(
        isinstance(context, contextlib.AbstractContextManager),
        context,
        method,
        "a context manager, `contextlib.nullcontext()` for none",
    )


def loss_context(trainer: Trainer) -> contextlib.ExitStack:
    """Return the context of ``autocast_smart_context_manager``, entered."""
    stack = contextlib.ExitStack()
    context = trainer.autocast_smart_context_manager()
    _check_is_context(context, "autocast_smart_context_manager")
    if not isinstance(context, contextlib.nullcontext):
        stack.enter_context(context)
    return stack


def prepare_input(
    data: object, device: torch.device, dtype: torch.dtype | None, prepare: Callable[[object], Any]
) -> Any:
    """Return ``data`` with its tensors on ``device``, in ``dtype`` if given; parts of it go to ``prepare``.

    Other objects that have a method ``to`` are where the loader has moved them.
    """
    if isinstance(data, Tensor):
        is_cast = dtype is not None and (data.is_floating_point() or data.is_complex())
        return data.to(device=device, dtype=dtype) if is_cast else data.to(device=device)
    own = is_ours(prepare)
    part = partial(prepare_input, device=device, dtype=dtype, prepare=prepare) if own else prepare
    if isinstance(data, MAPPINGS):
        stays = dtype is None and own  # a plain tensor that is on the device
        return type(data)(  # type: ignore[call-arg]
            {
                name: value if stays and type(value) is Tensor and value.device == device else part(value)
                for name, value in data.items()
            }
        )
    if isinstance(data, PackedSequence):  # some of whose tensors stay on the CPU
        return move_to_device(data, device)
    return rebuild(data, map(part, data)) if isinstance(data, SEQUENCES) else data


def prepare_inputs(trainer: Trainer, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return ``inputs``, on the training device, with the past state of the previous batch as ``mems``.

    Raises:
        DataError: If they are empty.
        OverrideError: If they are none.
    """
    if type(inputs) is not dict:
        check_returned(hasattr(inputs, "__len__"), inputs, "_prepare_input", "what it was given, on `args.device`")
    if len(inputs) == 0:
        columns = trainer.run_counters.signature_columns or ["(any)"]
        raise DataError(
            f"`train_dataset`: The batch received was empty. {type(trainer.model).__name__} takes the columns "
            f"{', '.join(columns)}. Add at least one of them to the dataset, or set "
            "`remove_unused_columns=False`."
        )
    past = getattr(trainer.run_counters, "past", None)
    if past is not None:
        inputs["mems"] = past
    return trainer.lightning_backend.precision.convert_input(inputs)  # type: ignore[no-any-return]


def store_past(trainer: Trainer, outputs: Any, *, is_scored: bool = True) -> None:
    """Store the past state for the next batch, if ``past_index`` is set; without a loss its index is one less."""
    args = for_run(trainer.args)
    index = args.past_index
    if index < 0:
        return
    try:
        trainer.run_counters.past = outputs[index - (not is_scored)]
    except (IndexError, KeyError):
        raise ModelOutputError(
            f"`past_index={index}`: {type(trainer.model).__name__} returned {len(outputs)} values "
            f"in a {type(outputs).__name__}. Return a tuple or a `ModelOutput`, and set `past_index` to the index of "
            "the past state in it, counted from 0 with the loss."
        ) from None


@contextmanager
def fresh_past(trainer: Trainer) -> Iterator[None]:
    """Context for an evaluation: starts without past state, and restores that of the training, if there is one."""
    counters, unset = trainer.run_counters, object()
    outside = getattr(counters, "past", unset)
    counters.past = None
    try:
        yield
    finally:
        counters.forget_past()
        if outside is not unset:
            counters.past = outside
