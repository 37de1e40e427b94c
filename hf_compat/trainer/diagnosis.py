"""Explanations of errors of a model or of torch, found after they were raised: a run without errors pays nothing.

Notes are added to errors of the user's own code, which stay as they are, with fewer frames to read; errors of torch
about a loss become ours. A kind of mistake is a function that yields notes, in ``_OF_INPUTS`` or ``_OF_RUNS``, or, if
the text of the error alone says it, a row of ``_ADVICE``.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from hf_compat.engine.internals.exceptions import shorten
from hf_compat.errors import HFCompatError, LossError, UntrainableModelError, described
from hf_compat.model_facts import unwrap_peft
from hf_compat.optim.prepared import unwrap_optimizer

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments
    from hf_compat.callbacks import CallbackHandler


_NO_GRADIENTS = "element 0 of tensors does not require grad"
"""The beginning of torch's error for the backward pass of what depends on no parameter that requires gradients."""
_NO_SCALAR = "grad can be implicitly created only for scalar outputs"
_IGNORED = -100
_OF_LABELS = re.compile(r"out of bounds|dtype|[Tt]arget|scalar type|result type|type .*(Float|Long|Int)")
_OF_TYPES = re.compile(r"dtype|scalar type|type \(.*should be the same|m1 and m2")
_OF_SHAPES = re.compile(r"size|shape|dimension|batch|broadcast|[Ii]ndex", re.I)
_OF_CALL = re.compile(r"forward\(\) (missing .*?|got an unexpected keyword argument )'(\w+)'")
_LANGUAGE_MODEL = re.compile("MaskedLM|CausalLM|LMHead")
"""A part of the names of classes of models with a label for each token."""
_POSITIONS = ("max_position_embeddings", "n_positions")
_SETTINGS = {
    "clip_threshold": "Adafactor",
    "amsgrad": "Adam or AdamW",
    "nesterov": "SGD",
    "centered": "RMSprop",
    "lr_decay": "Adagrad",
    "rho": "Adadelta",
}
"""A setting in a state dict's groups to the optimizer that has it."""
_INTEGERS = ("input_ids", "decoder_input_ids", "attention_mask", "token_type_ids", "position_ids", "labels")


class Diagnosed(Protocol):
    """A Trainer, by the members that say why an error was raised."""

    args: TrainingArguments
    model: Any
    optimizer: Any
    train_dataset: Any
    eval_dataset: Any
    compute_loss_func: Any
    data_collator: Any
    label_smoother: Any
    callback_handler: CallbackHandler
    _signature_columns: Any


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
    raise LossError(f"{source} returned a loss without gradients, {_why_without(loss, model)}: {told}.") from error


def _why_without(loss: Tensor, model: nn.Module) -> str:
    """Return why ``loss`` has no gradients, as far as that is seen, and what to do."""
    if loss.is_inference():
        return "computed under `torch.inference_mode()`. Compute it outside of that, and call `train` outside, too"
    if not torch.is_grad_enabled():
        return (
            "since `torch.set_grad_enabled(False)` is in effect. Set it to True, or call `train` outside of "
            "`torch.no_grad()`"
        )
    if not loss.is_floating_point():
        return f"of {loss.dtype}. Compute it in floating point"
    if getattr(model, "is_gradient_checkpointing", False):
        return (
            "as reentrant checkpointing drops those of layers behind frozen embeddings. Set "
            "`activation_checkpointing_kwargs={'use_reentrant': False}`, or call `model.enable_input_require_grads()`"
        )
    return (
        "computed under `torch.no_grad()`, or cut off from the parameters by `detach()`, `item()`, `numpy()` or "
        "`torch.tensor(...)`. Compute it from the model's outputs without these"
    )


def note_inputs(error: Exception, trainer: Diagnosed, inputs: object) -> None:
    """Add to ``error``, of a forward pass, what ``inputs`` have that the model of ``trainer`` cannot take."""
    if not isinstance(inputs, Mapping) or isinstance(error, HFCompatError):
        return
    with contextlib.suppress(Exception):  # tensors on a GPU whose kernel has failed cannot be read
        notes = (note for kind in _OF_INPUTS for note in kind(error, trainer, inputs))
        for note in itertools.islice(notes, 1):  # the kinds that say most come first
            error.add_note(note)


@contextlib.contextmanager
def noting(trainer: Diagnosed, *, evaluates: bool = False) -> Iterator[None]:
    """Context that adds to an error, which ends a run or, if it ``evaluates``, an evaluation, what is known of it."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, HFCompatError):
            with contextlib.suppress(Exception):
                for kind in _OF_RUNS:
                    for note in kind(error, trainer, evaluates):
                        _add(error, note)
        shorten(error)
        raise


def _add(error: Exception, note: str) -> None:
    if note not in getattr(error, "__notes__", ()):  # an evaluation's, which has ended a run too
        error.add_note(note)


# What the batch tells


def _ids(error: Exception, trainer: Diagnosed, inputs: Mapping[str, Any]) -> Iterator[str]:
    get: Any = getattr(trainer.model, "get_input_embeddings", None)
    size = getattr(get() if callable(get) else None, "num_embeddings", None)
    for name in ("input_ids", "decoder_input_ids"):
        ids = inputs.get(name)
        if size is None or not isinstance(ids, Tensor) or not ids.numel():
            continue
        if ids.is_floating_point():
            yield f"`{name}`: of {ids.dtype}, but ids of tokens are integers. Convert them: `.long()`."
            continue
        wrong = ids[(ids < 0) | (ids >= size)]
        if wrong.numel():
            yield (
                f"`{name}`: {wrong.numel()} of {ids.numel()} ids are not in the model's vocabulary of {size}, such as "
                f"{wrong[0].item()}. Tokenize with the model's own tokenizer, or, for tokens that were added, call "
                "`model.resize_token_embeddings(len(tokenizer))`."
            )


def _dimensions(error: Exception, trainer: Diagnosed, inputs: Mapping[str, Any]) -> Iterator[str]:
    ids = inputs.get("input_ids")
    if not isinstance(ids, Tensor) or ids.ndim == 2:
        return
    if not re.search("values to unpack" if ids.ndim > 2 else r"unpack|[Ii]nd(ex|ices)|dim", str(error)):
        return
    remedy = "Let a sample be a list of ids, and a batch have one for each sample."
    if ids.ndim > 2:
        remedy = "Tokenize without `return_tensors='pt'` in the dataset, or `squeeze(0)` what it returns."
    yield f"`input_ids`: of shape {tuple(ids.shape)}, but a model takes (samples, tokens). {remedy}"


def _positions(error: Exception, trainer: Diagnosed, inputs: Mapping[str, Any]) -> Iterator[str]:
    ids, config = inputs.get("input_ids"), getattr(trainer.model, "config", None)
    for name in _POSITIONS:
        limit = getattr(config, name, None)
        if not isinstance(limit, int) or not isinstance(ids, Tensor) or ids.ndim < 2 or limit <= 0:
            continue
        most = limit - _first_position(trainer.model)
        if ids.shape[-1] > most:
            why = "" if most == limit else f", of which the first {limit - most} are not for tokens"
            yield (
                f"`input_ids`: sequences of {ids.shape[-1]} tokens, but the model has {limit} positions "
                f"(`config.{name}`){why}. Tokenize with `truncation=True, max_length={most}`."
            )
            return


def _first_position(model: nn.Module) -> int:
    """Return the position of the first token, which is behind that of padding in RoBERTa and its kin."""
    for name, module in model.named_modules():
        padding = getattr(module, "padding_idx", None)
        if name.endswith("position_embeddings") and padding is not None:
            return int(padding) + 1
    return 0


def _token_types(error: Exception, trainer: Diagnosed, inputs: Mapping[str, Any]) -> Iterator[str]:
    types, count = (
        inputs.get("token_type_ids"),
        getattr(getattr(trainer.model, "config", None), "type_vocab_size", None),
    )
    if isinstance(types, Tensor) and isinstance(count, int) and types.numel() and int(types.max()) >= count:
        yield (
            f"`token_type_ids`: up to {int(types.max())}, but the model has {count} (`config.type_vocab_size`). "
            "Tokenize with the model's own tokenizer, or with `return_token_type_ids=False`."
        )


def _shapes(error: Exception, trainer: Diagnosed, inputs: Mapping[str, Any]) -> Iterator[str]:
    if not _OF_SHAPES.search(str(error)):
        return
    shapes = {name: tuple(value.shape) for name, value in inputs.items() if isinstance(value, Tensor) and value.ndim}
    if len({shape[0] for shape in shapes.values()}) > 1:
        told = ", ".join(f"{shape[0]} of `{name}`" for name, shape in shapes.items())
        yield f"`data_collator`: one batch has {told}. Return a row of each for each sample."
    kind = type(trainer.model).__name__
    is_language_model = _LANGUAGE_MODEL.search(kind) is not None
    ids, labels = shapes.get("input_ids", ()), shapes.get("labels", ())
    if (is_language_model or "TokenClassification" in kind) and len(ids) == 2 and labels and ids != labels:
        collator = f"DataCollatorFor{'LanguageModeling' if is_language_model else 'TokenClassification'}"
        yield (
            f"`labels`: of shape {labels}, but `input_ids` of {ids}. Each token has a label, which is -100 where it is "
            f"not scored: make and pad both together, as `{collator}` does."
        )


def _labels(error: Exception, trainer: Diagnosed, inputs: Mapping[str, Any]) -> Iterator[str]:
    labels = inputs.get("labels")
    if not isinstance(labels, Tensor) or not labels.numel() or not _OF_LABELS.search(str(error)):
        return
    model, config = trainer.model, getattr(trainer.model, "config", None)
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
        return
    kind, told = f"`labels`: of {labels.dtype} and shape {tuple(labels.shape)}, but this loss takes", str(error)
    if "multi-target" in told or "class probabilities" in told:
        yield f"{kind} one class a row of logits. Pass `labels.argmax(-1)`, or of probabilities `labels.float()`."
    elif labels.is_floating_point() and "Long" in told:
        yield f"{kind} numbers of classes. Make them integers, `labels.long()`."
    elif not labels.is_floating_point() and "Float" in told:
        yield f"{kind} floats. Convert them, `labels.float()`."


def _smoothing(error: Exception, trainer: Diagnosed, inputs: Mapping[str, Any]) -> Iterator[str]:
    factor = trainer.args.label_smoothing_factor
    if trainer.label_smoother is not None and "labels" not in inputs and isinstance(error, TypeError | KeyError):
        yield (
            f"`label_smoothing_factor={factor}`: the Trainer then computes the loss from `logits` and `labels`, which "
            f"{type(trainer.model).__name__}.forward is not given. Let it return `logits` without them, or set 0."
        )


def _types(error: Exception, trainer: Diagnosed, inputs: Mapping[str, Any]) -> Iterator[str]:
    own = next((value.dtype for value in trainer.model.parameters() if value.is_floating_point()), None)
    if own is None or not _OF_TYPES.search(str(error)):
        return
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.dtype != own and name not in _INTEGERS:
            yield (
                f"`{name}`: of {value.dtype}, but the model's parameters are of {own}. Convert it in the dataset or "
                f"the collator: `.to({own})`."
            )


def _lists(error: Exception, trainer: Diagnosed, inputs: Mapping[str, Any]) -> Iterator[str]:
    names = [f"`{name}`" for name, value in inputs.items() if isinstance(value, list)]
    if names and isinstance(error, AttributeError | TypeError) and "list" in str(error):
        yield (
            f"`data_collator`: in its batch {', '.join(names)} are lists, not tensors. Return tensors: "
            "`torch.tensor(...)`, or of a tokenizer `return_tensors='pt'`."
        )


def _arguments(error: Exception, trainer: Diagnosed, inputs: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(error, TypeError):
        return
    if trainer.compute_loss_func is not None and "'num_items_in_batch'" in str(error):
        yield "`compute_loss_func`: it is called with `(outputs, labels, num_items_in_batch=...)`. Take all three."
    if (found := _OF_CALL.search(str(error))) is None:
        return
    kind, there, name = type(trainer.model).__name__, ", ".join(inputs), found.group(2)
    if found.group(1).startswith("missing"):
        yield f"`{name}`: {kind}.forward needs it, but a batch has only {there}. Name a column like it."
        return
    takes = ", ".join(inspect.signature(trainer.model.forward).parameters)
    yield (
        f"`{name}`: a batch has {there}; {kind}.forward takes {takes}. Remove the column, or, in a dataset, leave that "
        "to `remove_unused_columns=True`."
    )


def _missing_labels(error: Exception, trainer: Diagnosed, inputs: Mapping[str, Any]) -> Iterator[str]:
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    if key in ("label", "label_ids") and "labels" in inputs:
        yield f"`{key}`: the collator names it `labels`."
        return
    if key != "labels" and not (isinstance(error, AttributeError) and "'NoneType'" in str(error)):
        return
    names = _columns(trainer)
    if names and not any("label" in name for name in names):
        yield (
            f"`labels`: a batch has none, and the dataset no column of that name, only {', '.join(names)}. Rename the "
            "column of the labels."
        )


def _no_inputs(error: Exception, trainer: Diagnosed, inputs: Mapping[str, Any]) -> Iterator[str]:
    if "input_ids or inputs_embeds" not in str(error) and "decoder_input_ids" not in str(error):
        return
    if "input_ids" not in inputs:
        yield (
            f"`input_ids`: a batch has only {', '.join(inputs)}, and the dataset the columns "
            f"{', '.join(_columns(trainer))}. Tokenize its texts: `dataset.map(lambda rows: tokenizer(rows['text']))`."
        )
    elif "labels" not in inputs:
        yield "`labels`: a batch has none, but the model makes the decoder's inputs of them. Tokenize the target texts."


_OF_INPUTS = (
    *(_ids, _dimensions, _positions, _token_types, _shapes, _no_inputs, _arguments, _lists),
    *(_smoothing, _missing_labels, _types, _labels),
)
"""Kinds of mistakes, as functions of an error, the Trainer and the inputs of the model."""


# What the run tells


def _columns(trainer: Diagnosed) -> list[str]:
    """Return the names of the columns of the Trainer's data sets, before any were removed."""
    names: dict[str, None] = {}
    evaluated = trainer.eval_dataset
    for dataset in (trainer.train_dataset, *(evaluated.values() if isinstance(evaluated, dict) else (evaluated,))):
        with contextlib.suppress(Exception):  # None, a stream without names, or code of the user's
            columns = getattr(dataset, "column_names", None)
            names |= dict.fromkeys(columns if columns is not None else dataset[0])
    return [*names]


def missing_labels(trainer: Diagnosed, inputs: Mapping[str, Any]) -> str:
    """Return the beginning of a sentence: how ``inputs`` of a model that returned no loss get their labels."""
    usual = "Name the labels as its forward does, "
    takes = inspect.signature(unwrap_peft(trainer.model).forward).parameters
    if "labels" in inputs or "labels" not in takes:
        return usual
    columns = _columns(trainer)
    if "labels" in columns:
        return "The dataset has `labels` that the collator leaves out, as it does texts: make them numbers, "
    if kind := _LANGUAGE_MODEL.search(type(trainer.model).__name__):
        collator = f"DataCollatorForLanguageModeling(tokenizer, mlm={kind.group() == 'MaskedLM'})"
        return f"Make labels by `data_collator={collator}`, "
    removed = [name for name in columns if name not in (trainer._signature_columns or columns)]
    return f"The dataset also has {', '.join(removed)}: rename the labels to `labels`, " if removed else usual


def _removed(error: Exception, trainer: Diagnosed, evaluates: bool) -> Iterator[str]:
    if not isinstance(error, KeyError) or not trainer.args.remove_unused_columns:
        return
    kept = trainer._signature_columns or ()
    removed = [name for name in _columns(trainer) if name not in kept]
    key = error.args[0] if error.args else None
    if key in removed or any(f"KeyError: {name!r}" in str(error) for name in removed):  # the latter of a worker
        yield (
            f"`remove_unused_columns=True`: the Trainer removed the columns {', '.join(removed)}, which "
            f"{type(trainer.model).__name__}.forward does not take. Set it to False to keep them; `data_collator` then "
            "returns only what the model takes."
        )


def _control(error: Exception, trainer: Diagnosed, evaluates: bool) -> Iterator[str]:
    returned = trainer.callback_handler.returned
    if returned is None:
        return
    callback, event, value = returned
    if str(error).startswith(f"{type(value).__name__!r} object has no attribute 'should_"):
        yield (
            f"`callbacks`: `{callback}.{event}` returned {described(value)}, which is no `TrainerControl`. Return the "
            "`control` that it was given, or nothing."
        )


def _optimizer(error: Exception, trainer: Diagnosed, evaluates: bool) -> Iterator[str]:
    """Yield whose state the optimizer has loaded, if it lacks a setting of its own, which a step needs."""
    optimizer = unwrap_optimizer(trainer.optimizer)
    if not isinstance(error, KeyError) or optimizer is None:
        return
    key, group = error.args[0] if error.args else None, optimizer.param_groups[0]
    if key not in optimizer.defaults or key in group:
        return
    foreign = group.keys() - optimizer.defaults.keys()
    was = next((kind for setting, kind in _SETTINGS.items() if setting in foreign), "another optimizer")
    yield (
        f"`optim`: the checkpoint has the state of {was}, but this run has {type(optimizer).__name__}, which needs "
        f"{key!r}. Resume with the optimizer that it was written with, or start a new run from its weights."
    )


def _data(error: Exception, trainer: Diagnosed, evaluates: bool) -> Iterator[str]:
    field = "eval_dataset" if evaluates else "train_dataset"
    if str(error) == f"object of type {type(getattr(trainer, field)).__name__!r} has no len()":
        yield f"`{field}`: a dataset has `__len__` and `__getitem__`, or derives from torch's `IterableDataset`."
    if hasattr(trainer.data_collator, "convert_tokens_to_ids"):
        yield (
            f"`data_collator`: {type(trainer.data_collator).__name__} is a tokenizer. Pass it as `processing_class`, "
            "by which batches are padded."
        )
    name = getattr(trainer.model, "main_input_name", "input_ids")
    if evaluates and isinstance(error, KeyError) and error.args == (name,) and name not in _columns(trainer):
        yield (
            f"`include_for_metrics={trainer.args.include_for_metrics}`: a batch has no {name!r}. Set "
            "`model.main_input_name` to the name of the inputs."
        )


def _samples(error: Exception, trainer: Diagnosed, evaluates: bool) -> Iterator[str]:
    field = "eval_dataset" if evaluates else "train_dataset"
    if "'list' object has no attribute 'keys'" in str(error):
        given = getattr(trainer, field)
        sample = next(iter(given.values()))[0] if isinstance(given, dict) else given[0]
        if not isinstance(sample, Mapping):
            yield (
                f"`{field}`: a sample is {described(sample)}, but the tokenizer pads dicts. Return a dict of its "
                "`input_ids` and `labels`, or pass a `data_collator` that makes a batch of such samples."
            )


def _memory(error: Exception, trainer: Diagnosed, evaluates: bool) -> Iterator[str]:
    if not isinstance(error, torch.OutOfMemoryError) and "out of memory" not in str(error):
        return
    if evaluates:
        yield (
            f"`per_device_eval_batch_size={trainer.args.per_device_eval_batch_size}`: lower it. Predictions stay on "
            "the device until the end: `eval_accumulation_steps=1` moves them to the CPU, and a "
            "`preprocess_logits_for_metrics` that returns `logits.argmax(-1)` makes them small."
        )
        return
    yield (
        f"`per_device_train_batch_size={trainer.args.per_device_train_batch_size}`: lower it, and raise "
        "`gradient_accumulation_steps` by the same factor, which keeps the samples per update step; "
        "`auto_find_batch_size=True` does both. `activation_checkpointing=True` needs less memory, too."
    )


def _predictions(error: Exception, trainer: Diagnosed, evaluates: bool) -> Iterator[str]:
    if evaluates and "Sizes of tensors must match except in dimension 0" in str(error):
        yield (
            "`preprocess_logits_for_metrics`: the predictions of batches differ in their third dimension or one behind "
            "it, and only the second is padded. Return what is alike, such as `logits.argmax(-1)`, or pad all inputs "
            "to one length."
        )


_ADVICE = {
    r"Boolean value of Tensor with more than one value": "A loss is created first and then called: "
    "`nn.CrossEntropyLoss()(logits, labels)`. In a condition take `.any()`, `.all()` or `is None`.",
    r"Expected more than 1 value per channel when training": "`BatchNorm` cannot train on one sample, which the last "
    "batch of an epoch has. Set `dataloader_drop_last=True`, or another `per_device_train_batch_size`.",
    r"Target size \(torch.Size\(\[(\d+)\]\)\) must be the same as input size \(torch.Size\(\[\1, 1\]\)\)": "Logits "
    "have a dimension that `labels` lack. Pass the loss `logits.squeeze(-1)`, or `labels.unsqueeze(-1)`.",
    r"cannot pin 'torch\.(cuda|xpu)": "`dataloader_pin_memory=True`: the dataset or the collator returns tensors of a "
    "GPU. Leave them on the CPU, from where the Trainer moves them, or set it to False.",
    r"Cannot re-initialize CUDA in forked subprocess": "`dataloader_num_workers`: the dataset or the collator uses the "
    "GPU in a worker. Leave its tensors on the CPU, from where the Trainer moves them, or set 0.",
    r"DataLoader worker \(pid.*\) (is killed|exited)": "`dataloader_num_workers`: a worker has ended, most often for "
    "lack of memory, or of space in /dev/shm. With 0 its own error is seen; fewer workers need less.",
    r"Too many open files|received \d+ items of ancdata": "`dataloader_num_workers`: each tensor from a worker is an "
    "open file. Call `torch.multiprocessing.set_sharing_strategy('file_system')`, or raise `ulimit -n`.",
    r"not implemented for 'Half'": "The CPU lacks this operation in float16. Load the model with "
    "`dtype=torch.float32` (`torch_dtype` before transformers 4.56), or in bfloat16.",
    r"api_key not configured": "`report_to`: wandb needs a login. Run `wandb login`, set WANDB_MODE=offline, or set "
    "`report_to='none'`.",
    r"'Window' object (is not subscriptable|has no attribute|is not iterable)": "A batch of Lightning's training hooks "
    "is the window of an update step: `batch.batches` has what the model is given, for each accumulated batch.",
    r"device-side assert|CUBLAS_STATUS_(NOT|ALLOC|EXEC)": "The GPU does not say what failed. Run it once with "
    "`use_cpu=True`, where the same mistake has its own message; most often ids or labels are out of range.",
    r"tensors to be on the same device|is not on the expected device|Input type \(torch\.cuda|on MPS device": "The "
    "Trainer moves the model and its inputs. Move what the script creates itself, such as weights of classes: "
    "`.to(trainer.args.device)`.",
    r"through the graph a second time": "A loss depends on an earlier batch, whose graph is freed. Call `detach()` "
    "on what the model or the script keeps from one batch to the next.",
    r"Attempting to unscale FP16 gradients": "`fp16=True` needs parameters in float32, but the model has some in "
    "float16. Load it with `dtype=torch.float32` (`torch_dtype` before transformers 4.56), or remove `fp16`.",
    r"Expected to have finished reduction in the prior iteration": "Some parameters have no gradient in each update "
    "step. Set `ddp_find_unused_parameters=True`, or freeze them: `requires_grad_(False)`.",
    r"Expected to mark a variable ready only once": "With `activation_checkpointing=True` set "
    "`activation_checkpointing_kwargs={'use_reentrant': False}`, and `ddp_find_unused_parameters=False`.",
    r"list of encodings to this method that includes": "The samples have no tokens. Tokenize the dataset first: "
    "`dataset.map(lambda rows: tokenizer(rows['text'], truncation=True), batched=True)`.",
    r"features \(`labels` in this case\)": "`data_collator`: the default one pads the model's inputs, not labels. "
    "Pass `DataCollatorForTokenClassification(tokenizer)`, for a label of each token, or "
    "`DataCollatorForSeq2Seq(tokenizer, model)`, for texts.",
    r"features \(`(?!labels`)\w+` in this case\)": "That column has texts, None, or lists that are not padded. Number "
    "texts that are classes, `dataset.class_encode_column('label')`, and leave others out, as "
    "`remove_unused_columns=True` does.",
    r"has no attribute 'gradient_checkpointing_enable'": "`activation_checkpointing=True`: only models of transformers "
    "have it. Remove the field, and call `torch.utils.checkpoint.checkpoint` in the model's forward.",
    r"Cannot handle batch sizes > 1 if no padding token": "Set `model.config.pad_token_id = tokenizer.pad_token_id`, "
    "of a tokenizer without one after `tokenizer.pad_token = tokenizer.eos_token`.",
}
"""A part of an error's text to what to do."""


def _advice(error: Exception, trainer: Diagnosed, evaluates: bool) -> Iterator[str]:
    told = str(error)
    yield from (advice for pattern, advice in _ADVICE.items() if re.search(pattern, told))


_OF_RUNS = (_removed, _control, _optimizer, _data, _memory, _predictions, _advice, _samples)
"""Kinds of mistakes, as functions of an error, the Trainer and whether it evaluates."""
