"""Explanations of errors of a model or of torch, found after they were raised: a run without errors pays nothing.

Notes are added to errors of the user's own code, which stay as they are; errors of torch about a loss become ours.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hf_compat.errors import LossError, UntrainableModelError

__all__ = ["explain_backward", "note_inputs"]

_NO_GRADIENTS = "element 0 of tensors does not require grad"
"""The beginning of torch's error for the backward pass of what depends on no parameter that requires gradients."""
_NO_SCALAR = "grad can be implicitly created only for scalar outputs"
_IGNORED = -100
_OF_LABELS = re.compile(r"out of bounds|dtype|[Tt]arget|scalar type|result type|type .*(Float|Long|Int)")
_POSITIONS = ("max_position_embeddings", "n_positions")


def explain_backward(source: str, model: nn.Module, loss: Tensor, error: RuntimeError) -> None:
    """Raise torch's ``error`` of a backward pass with its reason, if that is the loss or a frozen model.

    Args:
        source: What returned the loss, for the message.
        model: The model that is trained.
        loss: What was returned.
        error: What torch raised.

    Raises:
        LossError: If the loss is no scalar, or was computed without gradients.
        UntrainableModelError: If no parameter of ``model`` requires gradients.
    """
    told = str(error)
    if told.startswith(_NO_SCALAR):
        raise LossError(
            f"{source} returned a loss of shape {tuple(loss.shape)}: {told}. Return its mean, `loss.mean()`."
        ) from error
    if not told.startswith(_NO_GRADIENTS):
        return
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UntrainableModelError(
            f"`model`: no parameter of {type(model).__name__} requires gradients: {told}. Call `requires_grad_(True)` "
            "of what to train."
        ) from error
    raise LossError(f"{source} returned a loss without gradients, {_why_without(loss)}: {told}.") from error


def _why_without(loss: Tensor) -> str:
    """Return why ``loss`` has no gradients, as far as that is seen, and what to do."""
    if loss.is_inference():
        return "computed under `torch.inference_mode()`. Compute it outside of that"
    if not torch.is_grad_enabled():
        return "since `torch.set_grad_enabled(False)` is in effect. Set it to True"
    if not loss.is_floating_point():
        return f"of {loss.dtype}. Compute it in floating point"
    return (
        "computed under `torch.no_grad()`, or cut off from the parameters by `detach()`, `item()`, `numpy()` or "
        "`torch.tensor(...)`. Compute it from the model's outputs without these"
    )


def note_inputs(error: Exception, model: nn.Module, inputs: object) -> None:
    """Add to ``error``, of a forward pass, what ``inputs`` have that ``model`` cannot take.

    Token ids beyond its vocabulary, more tokens than it has positions, and, if the error is about labels, which there
    are and which the model takes.
    """
    if not isinstance(inputs, Mapping):
        return
    config: Any = getattr(model, "config", None)
    with contextlib.suppress(Exception):  # tensors on a GPU whose kernel has failed cannot be read
        for note in (*_ids(model, inputs), *_positions(config, inputs)):
            error.add_note(note)
        if _OF_LABELS.search(str(error)):
            for note in _labels(model, config, inputs):
                error.add_note(note)


def _ids(model: nn.Module, inputs: Mapping[str, Any]) -> Iterator[str]:
    get: Any = getattr(model, "get_input_embeddings", None)
    size = getattr(get() if callable(get) else None, "num_embeddings", None)
    for name in ("input_ids", "decoder_input_ids"):
        ids = inputs.get(name)
        if size is None or not isinstance(ids, Tensor) or ids.is_floating_point() or not ids.numel():
            continue
        wrong = ids[(ids < 0) | (ids >= size)]
        if wrong.numel():
            yield (
                f"`{name}`: {wrong.numel()} of {ids.numel()} ids are not in the model's vocabulary of {size}, such as "
                f"{wrong[0].item()}. Tokenize with the model's own tokenizer, or, for tokens that were added, call "
                "`model.resize_token_embeddings(len(tokenizer))`."
            )


def _positions(config: Any, inputs: Mapping[str, Any]) -> Iterator[str]:
    ids = inputs.get("input_ids")
    for name in _POSITIONS:
        limit = getattr(config, name, None)
        if isinstance(limit, int) and isinstance(ids, Tensor) and ids.ndim > 1 and ids.shape[-1] > limit > 0:
            yield (
                f"`input_ids`: sequences of {ids.shape[-1]} tokens, but the model has {limit} positions "
                f"(`config.{name}`). Tokenize with `truncation=True, max_length={limit}`."
            )
            return


def _labels(model: nn.Module, config: Any, inputs: Mapping[str, Any]) -> Iterator[str]:
    labels = inputs.get("labels")
    if not isinstance(labels, Tensor) or not labels.numel():
        return
    is_classifier = "Classification" in type(model).__name__
    field = "num_labels" if is_classifier else "vocab_size"
    count = getattr(config, field, None)
    scored = labels[labels != _IGNORED]
    if isinstance(count, int) and not labels.is_floating_point() and scored.numel():
        least, most = int(scored.min()), int(scored.max())
        if least < 0 or most >= count:
            remedy = f"Load it with `num_labels={most + 1}`, or count from 0." if is_classifier else ""
            yield f"`labels`: from {least} to {most}, but the model has {count} (`config.{field}`). {remedy}".rstrip()
            return
    if is_classifier:
        yield (
            f"`labels`: of {labels.dtype} and shape {tuple(labels.shape)}, with "
            f"`config.problem_type={getattr(config, 'problem_type', None)!r}` and `config.num_labels={count}`. Classes "
            "are integers; for floats set `problem_type='regression'`, or, with a 0 or 1 for each of several classes, "
            "'multi_label_classification'."
        )
