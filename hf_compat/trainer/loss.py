"""The loss of one batch: preparing inputs, counting items, forward and backward pass, past state."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from hf_compat.accelerator.accelerator import gather_outputs
from hf_compat.arguments.process_facts import uses_cpu_amp
from hf_compat.arguments.releases import effective_args
from hf_compat.data.sequence_shards import shifted_labels
from hf_compat.distributed import collectives
from hf_compat.engine.rank_mesh import CONTEXT_PARALLEL
from hf_compat.engine.ring_attention import whole_sequences
from hf_compat.errors import DataError, LoaderError, LossError, ModelOutputError, described
from hf_compat.model_facts import is_causal_lm, is_compiled, is_renamed_causal_lm, unwrap_model, unwrap_peft
from hf_compat.nested import Nested, map_nested
from hf_compat.optim.optimizers import UPDATED_IN_BACKWARD
from hf_compat.overriding import check_returned, is_overridden
from hf_compat.trainer.diagnosis import missing_labels

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

logger = logging.getLogger(__name__)


NO_CONTEXT = nullcontext()
"""Entered by each batch, without one that is made for it."""

_NOT_SHIFTED = (
    "`label_smoothing_factor={}` with {}: transformers does not recognize a causal language model by the class "
    "that {} gives it, and compares each prediction with the label of its own token, not of the next one; so does "
    "this run. Set `TrainingArguments(semantics='corrected')` to correct that."
)
_DIVIDED = (
    "`average_tokens_across_devices=False`: transformers divides the items of a window over the {} ranks that have the "
    "same batches, so that losses and gradients are as many times too large; so does this run. Set it to True, or "
    "`TrainingArguments(semantics='corrected')`."
)


def divide_scalar(value: Tensor, by: int) -> Tensor:
    """Return ``value / by``, the same bits: by a tensor in host memory, where torch would make a new one each time.

    Args:
        value: On any device. Not of float32, or of a subclass: divided as it is.
        by: The number.
    """
    if type(value) is Tensor and value.dtype is torch.float32:
        return value / _in_host_memory(by)
    return value / by


@lru_cache(maxsize=64)
def _in_host_memory(number: int) -> Tensor:
    with torch.inference_mode(mode=False):  # whoever asks first: it may be saved for a backward pass later
        return torch.tensor(number, dtype=torch.float32, device="cpu")


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


def shared_count(trainer: Trainer, count: Tensor) -> Tensor:
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


def parts_of_count(trainer: Trainer) -> int:
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


def scored_labels(trainer: Trainer, batch: Mapping[str, Any]) -> Any:
    """Return the labels that the loss is made of: without the first ones if the model shifts them."""
    if not trainer.semantics.counts_shifted_labels:
        return batch["labels"]
    if "shift_labels" in batch:
        return batch["shift_labels"]
    return batch["labels"][..., 1:] if trainer.run_counters.loss_shifts_labels else batch["labels"]


def is_scaled(trainer: Trainer, num_items_in_batch: Tensor | int | None) -> bool:
    """Return whether the loss is averaged over the window already."""
    if trainer.loss_is_scaled_for_ga is not None:
        return trainer.loss_is_scaled_for_ga
    by_model = trainer.model_accepts_loss_kwargs and num_items_in_batch is not None
    return by_model or trainer.compute_loss_func is not None


def keywords_of_backward(trainer: Trainer) -> dict[str, Any]:
    """Return the keywords of the accelerator's ``backward`` in ``training_step``, as upstream's."""
    keywords: dict[str, Any] = {}
    if trainer.args.optim in UPDATED_IN_BACKWARD:
        keywords["learning_rate"] = trainer._get_learning_rate()
    if trainer.lightning_backend.traits.has_engine:
        keywords["scale_wrt_gas"] = False  # the loss is averaged over the window already
    return keywords


def loss_of_shared_sequences(
    model: nn.Module, inputs: dict[str, Any], group: ProcessGroup, *, return_outputs: bool
) -> Any:
    """Return the loss of sequences of which each rank of ``group`` has a chunk: the mean over all scored tokens."""
    shifted = inputs["shift_labels"]
    inputs.setdefault("labels", shifted)  # without them the model computes no loss
    outputs = model(**inputs)
    loss = collectives.mean_over_ranks(outputs.loss, shifted.ne(-100).sum(), group)
    return (loss, outputs) if return_outputs else loss


def smoothed_loss(
    trainer: Trainer,
    model: nn.Module,
    outputs: Any,
    inputs: Mapping[str, Any],
    labels: Tensor,
    num_items_in_batch: Tensor | int | None,
) -> Tensor:
    """Return the loss of ``label_smoother``, as the reproduced release calls it; ``()``."""
    given: dict[str, Any] = {}
    if trainer.semantics.smoother_takes_item_count:
        given["num_items_in_batch"] = num_items_in_batch
    inner = unwrap_model(model)
    renames = "FSDP 2" if is_renamed_causal_lm(inner) else None
    if renames is None and is_compiled(model) and is_causal_lm(inner):
        renames = "`torch.compile`"
    if renames is not None and not trainer.semantics.corrected:
        trainer.warn_once(_NOT_SHIFTED.format(trainer.args.label_smoothing_factor, renames, renames))
    elif renames is not None and trainer.get_cp_size() > 1:
        labels = inputs["shift_labels"]
    elif renames is not None or is_causal_lm(inner):
        given["shift_labels"] = True
    loss: Tensor = trainer.label_smoother(outputs, labels, **given)
    return loss


def loss_of(trainer: Trainer, outputs: Any, inputs: Mapping[str, Any]) -> Any:
    """Return the loss among the ``outputs`` of the model.

    Raises:
        LossError: If there is none.
    """
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
            f"{given}. {missing_labels(trainer, inputs)}pass `compute_loss_func`, or override `compute_loss`."
        )
    if isinstance(outputs, Tensor) and outputs.numel() > max(trainer.args.n_gpu, 1):  # one of each replica
        raise LossError(
            f"`model`: {type(trainer.model).__name__} returned a tensor of shape {tuple(outputs.shape)}, not a loss. "
            "Return a dict with `loss` or a tuple that starts with it, or override `compute_loss`."
        )
    return outputs.squeeze() if isinstance(outputs, Tensor) else outputs[0]


def has_cpu_autocast(trainer: Trainer) -> bool:
    """Return whether the loss is computed under autocast on the CPU."""
    if trainer.semantics.leaves_loss_out_of_cpu_autocast:
        return False
    return uses_cpu_amp(effective_args(trainer.args)) and not trainer.lightning_backend.traits.own_precision


def computing_loss(trainer: Trainer) -> AbstractContextManager[Any]:
    """Return the Trainer's ``compute_loss_context_manager``.

    Raises:
        OverrideError: If that returns no context.
    """
    method = trainer.compute_loss_context_manager
    overridden = is_overridden(method) or is_overridden(trainer.autocast_smart_context_manager)
    if not overridden and not has_cpu_autocast(trainer):
        return NO_CONTEXT
    context = method()
    check_is_context(context, "compute_loss_context_manager")
    return context


def check_is_context(context: object, method: str) -> None:
    """Raise if what the overridable ``method`` returned is no context manager."""
    check_returned(
        isinstance(context, AbstractContextManager),
        context,
        method,
        "a context manager, `contextlib.nullcontext()` for none",
    )


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def refuse_empty_batch(trainer: Trainer) -> NoReturn:
    """Raise for a batch without inputs.

    Raises:
        DataError: Always.
    """
    model = unwrap_peft(trainer.model)
    if all(parameter.kind in _VARIADIC for parameter in inspect.signature(model.forward).parameters.values()):
        raise DataError(
            f"`train_dataset`: The batch received was empty. `{type(model).__name__}.forward` takes any arguments, "
            "so that its columns are not known. Set `remove_unused_columns=False`."
        )
    columns = trainer.run_counters.signature_columns or ["(any)"]
    raise DataError(
        f"`train_dataset`: The batch received was empty. {type(trainer.model).__name__} takes the columns "
        f"{', '.join(columns)}. Add at least one of them to the dataset, or set "
        "`remove_unused_columns=False`."
    )


def store_past(trainer: Trainer, outputs: Any, *, is_scored: bool = True) -> None:
    """Store the past state for the next batch, if ``past_index`` is set; without a loss its index is one less."""
    args = effective_args(trainer.args)
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
    """Context for an evaluation: starts without past state, and restores that of the training, if there is one.

    With ``past_index=0`` that of the evaluation's last batch stays, as transformers takes this 0 for "not set" there;
    if ``semantics`` is corrected, it does not.
    """
    counters, unset = trainer.run_counters, object()
    outside = getattr(counters, "past", unset)
    counters.past = None
    try:
        yield
    finally:
        if effective_args(trainer.args).past_index or trainer.semantics.corrected:
            counters.forget_past()
            if outside is not unset:
                counters.past = outside
        elif trainer.is_in_train and trainer.args.eval_strategy == "steps":  # else a new epoch begins without any
            trainer.warn_once(
                "`past_index=0`: like transformers, training goes on with the past state of the evaluation's last "
                "batch. Set `TrainingArguments(semantics='corrected')` to go on with its own."
            )


# Context parallelism: the inputs of one batch whose sequences ranks share, and whole outputs made of their parts.


_SHARED = ("input_ids", "labels", "shift_labels", "attention_mask", "position_ids")
"""The inputs with a place for each token."""

Shared: TypeAlias = tuple[Callable[[], AbstractContextManager[Any]], dict[str, Any]]
"""A function that returns a context, and the inputs of a batch."""


def prepare_context(trainer: Trainer, model: nn.Module, inputs: dict[str, Any]) -> Shared:
    """Return what the Trainer's ``_prepare_context_parallel_inputs`` returns for one batch.

    Raises:
        OverrideError: If that is no pair of a function and a batch.
    """
    returned: Any = trainer._prepare_context_parallel_inputs(model, inputs)
    if type(returned) is not tuple or len(returned) != 2 or returned[0] is not nullcontext:
        fits = isinstance(returned, tuple | list) and len(returned) == 2 and callable(returned[0])
        wanted = "a function that returns a context manager, and the batch: `return contextlib.nullcontext, inputs`"
        check_returned(fits, returned, "_prepare_context_parallel_inputs", wanted)
    context, inputs = returned
    return context, inputs


def split_sequences(trainer: Trainer, inputs: dict[str, Any]) -> Shared:
    """Return a context for one batch, and the batch; inside the context it has this rank's parts of the sequences.

    The tensors of ``inputs`` stay whole. ``shift_labels`` and ``position_ids`` are added, as a rank has neither the
    label of the token after its last one nor the places of its tokens.

    References:
        Same inputs as transformers' ``Trainer._prepare_context_parallel_inputs``.

    Raises:
        DataError: If the sequences cannot be shared.
    """
    _check(inputs, trainer.get_cp_size())
    inputs = dict(inputs)
    if inputs.get("shift_labels") is None and inputs.get("labels") is not None:
        inputs["shift_labels"] = shifted_labels(inputs["labels"])
    tokens = inputs["input_ids"]
    if inputs.get("position_ids") is None:
        inputs["position_ids"] = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
    shared = [name for name in _SHARED if inputs.get(name) is not None and inputs[name].ndim == 2]
    for name in shared:  # the context writes to its buffers
        inputs[name] = inputs[name].clone(memory_format=torch.contiguous_format)
    buffers = [inputs[name] for name in shared]
    context = functools.partial(
        trainer.accelerator.maybe_context_parallel,
        buffers=buffers,
        buffer_seq_dims=[1] * len(buffers),
        no_restore_buffers=set(buffers),
    )
    return context, inputs


def _check(inputs: dict[str, Any], size: int) -> None:
    """Raise if the sequences of ``inputs`` cannot be shared by ``size`` ranks, or have a mask that is not causal."""
    tokens = inputs.get("input_ids")
    if not isinstance(tokens, Tensor) or tokens.ndim != 2:
        raise DataError(
            f"`data_collator`: a batch has no `input_ids` of shape (batch, tokens), which `cp_size={size}` requires. "
            "Add them, or remove `cp_size`."
        )
    length = tokens.shape[1]
    if length % size:
        raise DataError(
            f"`data_collator`: sequences of {length} tokens cannot be shared out over `cp_size={size}` ranks. Pad them "
            f"to a multiple of {2 * size}, for instance by the collator's `pad_to_multiple_of`: with a multiple of "
            f"{size} alone the ranks have unequally much to compute."
        )
    mask = inputs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.ndim > 2 and not _is_causal(mask):
        raise DataError(
            f"`data_collator`: the `attention_mask` of shape {tuple(mask.shape)} is not causal, but `cp_size={size}` "
            "only supports causal attention masks. Remove it from the batches."
        )


def _is_causal(mask: Tensor) -> bool:
    """Return whether ``mask``, ``(batch, ..., tokens, tokens)``, hides from each token those after it.

    Of 0 and 1, or added to the scores; the first of the batch stands for all, as in transformers.
    """
    after = mask.flatten(0, -3)[0].triu(1)
    return bool((after <= 1e-6).all())


def gather_whole(trainer: Trainer) -> Callable[[Any], Any] | None:
    """Return what gathers outputs that :func:`join_sequences` has made whole; None without context parallelism."""
    layout, accelerator = trainer.lightning_backend.process_layout, trainer.accelerator
    if layout.sizes.cp == 1:
        return None
    return functools.partial(
        gather_outputs,
        layout=layout,
        state=accelerator.gradient_state,
        of_parts=False,
        use_gather_object=trainer.args.eval_use_gather_object,
    )


def join_sequences(trainer: Trainer, inputs: dict[str, Any], outputs: Nested) -> Nested:
    """Return ``outputs`` with the whole sequences of all ranks' parts in their second dimension; every rank calls it.

    Args:
        trainer: The Trainer.
        inputs: The batch, with whole sequences.
        outputs: What the model has returned for this rank's parts.
    """
    size, mesh = trainer.get_cp_size(), trainer.lightning_backend.process_layout.mesh
    if size == 1 or mesh is None:
        return outputs
    length = inputs["input_ids"].shape[1] // size

    def join(leaf: object) -> object:
        has_part = isinstance(leaf, Tensor) and leaf.ndim > 1 and leaf.shape[1] == length
        return whole_sequences(mesh[CONTEXT_PARALLEL], leaf) if has_part else leaf  # type: ignore[arg-type]

    joined: Nested = map_nested(join, outputs)
    return joined
