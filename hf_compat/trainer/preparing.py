"""Preparing the model for a run: ``model_init``, device, activation checkpointing, loss scaling, wrapper."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hf_compat.arguments.derived import compile_keywords
from hf_compat.arguments.fields import checkpointing_keywords, checkpoints_activations
from hf_compat.arguments.process_facts import full_evaluation_precision
from hf_compat.arguments.releases import SINCE
from hf_compat.engine.moving import check_offloading
from hf_compat.engine.precision import ForwardMixedPrecision, autocast_forward, is_under_autocast, without_autocast
from hf_compat.errors import warn_user
from hf_compat.model_facts import ignores_item_count, is_instance_of, unwrap_model
from hf_compat.optim import model_patches
from hf_compat.overriding import call_override, check_is_module
from hf_compat.seeding import seed_run

if TYPE_CHECKING:
    from hf_compat.trainer.searching import Trial
    from hf_compat.trainer.trainer import Trainer

_HAVE_SPECIAL_TOKENS = (
    "transformers.tokenization_utils_base.PreTrainedTokenizerBase",
    "transformers.processing_utils.ProcessorMixin",
)
_REMEDY = "Set `TrainingArguments(semantics='corrected')` to correct that."
_OWN_CHECKPOINTING_SETTINGS = {"every_n_layers": 1, "offload": False}
"""Arguments of ``activation_checkpointing_enable`` since 5.23; others are passed to ``torch.utils.checkpoint``."""


def prepare_model(trainer: Trainer, trial: Trial | None) -> None:
    """Create a new model of ``trainer`` if there is a ``model_init``, and prepare it for training.

    Args:
        trainer: The Trainer.
        trial: The trial of a hyperparameter search, None outside one.
    """
    args, semantics = trainer.args, trainer.semantics
    if not semantics.aligns_tokens_after_model_init:
        _align_special_tokens(trainer)
    if not semantics.applies_trial_after_model_init:
        trainer._hp_search_setup(trial)
    if trainer.model_init is not None:
        _make_model(trainer, trial)
    if semantics.applies_liger_in_train:
        model_patches.apply_if_set(trainer.model, args)
    if trainer.model_init is None and full_evaluation_precision(args) is not None and not trainer.is_model_parallel:
        move_to_device(trainer, trainer.model)
    if semantics.applies_trial_after_model_init:
        trainer._hp_search_setup(trial)
    check_offloading(trainer.model)
    place_model(trainer)
    if checkpoints_activations(args):
        is_renamed = semantics.release >= SINCE["renames_gradient_checkpointing"]
        _enable_checkpointing(trainer.model, checkpointing_keywords(args), is_renamed=is_renamed)
    if semantics.aligns_tokens_after_model_init:
        _align_special_tokens(trainer)
    _set_loss_scaling(trainer)


def _make_model(trainer: Trainer, trial: Trial | None) -> None:
    """Replace the model of ``trainer`` by a new one of its ``model_init``."""
    seed_run(trainer.args)
    model = trainer.call_model_init(trial)
    check_is_module(model, "call_model_init")
    trainer.model = trainer.model_wrapped = model
    trainer.optimizer = trainer.lr_scheduler = None
    trainer.run_counters.signature_columns = None
    if trainer.place_model_on_device:
        move_to_device(trainer, trainer.model)


def move_to_device(trainer: Trainer, model: nn.Module) -> None:
    """Move ``model`` to the device of this process, by the Trainer's ``_move_model_to_device``."""
    trainer._move_model_to_device(model, trainer.args.device)


def _align_special_tokens(trainer: Trainer) -> None:
    if is_instance_of(trainer.processing_class, *_HAVE_SPECIAL_TOKENS) and hasattr(trainer.model, "config"):
        trainer._align_special_tokens()


def place_model(trainer: Trainer) -> None:
    """Move the model to its device; one that the user has set is not in the former one's wrapper."""
    has_moved = trainer.lightning_backend.place(trainer.model, trainer.args.device)
    if has_moved and unwrap_model(trainer.model_wrapped) is not trainer.model:
        trainer.model_wrapped = trainer.model


def wrap(trainer: Trainer, model: nn.Module, **options: Any) -> nn.Module:
    """Return ``model`` in what the Trainer's ``_wrap_model`` puts around it; an OverrideError if that is no model."""
    wrapped: nn.Module = call_override(trainer._wrap_model, "model", model, **options)
    check_is_module(wrapped, "_wrap_model")
    return wrapped


def wrap_to_train(trainer: Trainer) -> nn.Module:
    """Return the module to train, from the Trainer's ``_wrap_model``.

    A model that ``_wrap_model`` has wrapped, such as in ``DataParallel``, trains without autocast and uncompiled, as in
    transformers.
    """
    wrapped = wrap(trainer, trainer.model_wrapped)
    if trainer.args.n_gpu > 1:
        _warn_of_replicas(trainer, wrapped)
    is_plain = trainer.lightning_backend.model_is_prepared = wrapped is trainer.model
    return prepare_forward(trainer) if is_plain else wrapped


def prepare_forward(trainer: Trainer) -> nn.Module:
    """Return the model with its forward pass under autocast and compiled, each if the arguments say so."""
    backend = trainer.lightning_backend
    if backend.cast_model is not trainer.model:
        backend.cast_model = trainer.model
        _cast_forward(trainer)
    return _compiled(trainer, trainer.model)


def _cast_forward(trainer: Trainer) -> None:
    """Put the model's forward pass under autocast if the precision wants that.

    One that nothing wraps keeps the precision of the first Trainer that has prepared it, or of accelerate.
    """
    model, backend = trainer.model, trainer.lightning_backend
    precision = backend.precision
    mixed = precision if isinstance(precision, ForwardMixedPrecision) and precision.casts_forward else None
    if backend.process_layout.strategy in ("one device", "data parallel"):
        if trainer.semantics.corrected:
            without_autocast(model)
        elif getattr(model, "_is_accelerate_prepared", False):
            if is_under_autocast(model) == (mixed is None):
                has = "stays" if mixed is None else "is not"
                trainer.warn_once(
                    f"{type(model).__name__} has been prepared before, in another precision: as in transformers "
                    f"{trainer.semantics.release}, its forward pass {has} under autocast in this run. Pass another "
                    "model, or set `TrainingArguments(semantics='corrected')` to compute as this run's arguments say."
                )
            return
        model._is_accelerate_prepared = True
    if mixed is not None:
        cached = torch.is_autocast_cache_enabled()  # now, as accelerate asks: the loss may have an autocast of its own
        autocast_forward(model, partial(mixed.autocast_context_manager, cached))


def _warn_of_replicas(trainer: Trainer, wrapped: nn.Module) -> None:
    """Warn that several GPUs in one process are slower than one in each, and of what they do without."""
    args, gpus = trainer.args, trainer.args.n_gpu
    text = (
        f"This process trains on {gpus} GPUs by `DataParallel`, as transformers does: a batch has {gpus} "
        f"times `per_device_train_batch_size={args.per_device_train_batch_size}` samples. A process for each GPU is "
        f"faster: start the script with `torchrun --nproc-per-node {gpus}`. Set CUDA_VISIBLE_DEVICES to use one."
    )
    fields = [f"`{name}=True`" for name in ("bf16", "fp16", "torch_compile") if getattr(args, name)]
    if fields and isinstance(wrapped, nn.DataParallel) and wrapped is not trainer.model:
        text += f" Like transformers, it computes as without {' and '.join(fields)}."
    trainer.warn_once(text)


def take_wrapper(trainer: Trainer, wrapped: nn.Module) -> None:
    """Set ``trainer.model_wrapped`` to ``wrapped``, the model in its wrapper, compiled if the arguments say so."""
    trainer.model_wrapped = _compiled(trainer, wrapped)


def _compiled(trainer: Trainer, wrapped: nn.Module) -> nn.Module:
    keywords = compile_keywords(trainer.args)
    return wrapped if keywords is None else trainer.lightning_backend.strategy.compiled(wrapped, **keywords)


def _enable_checkpointing(model: Any, settings: dict[str, Any] | None, *, is_renamed: bool) -> None:
    """Enable activation checkpointing of ``model``, by the method that it has.

    Args:
        model: The model.
        settings: The keyword arguments of the field.
        is_renamed: Whether the emulated release knows ``activation_checkpointing_enable``.
    """
    if not is_renamed and not hasattr(model, "activation_checkpointing_enable"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)
        return
    given = {**_OWN_CHECKPOINTING_SETTINGS, **(settings or {})}
    own = {name: given.pop(name) for name in _OWN_CHECKPOINTING_SETTINGS}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=given or None, **own)
        return
    text = (
        f"`{type(model).__name__}` only defines `gradient_checkpointing_enable`, which is deprecated: define "
        "`activation_checkpointing_enable`."
    )
    warn_user(text, FutureWarning)
    enable = model.gradient_checkpointing_enable
    known = inspect.signature(enable).parameters
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values()):
        own = {
            name: value for name, value in own.items() if name in known or value != _OWN_CHECKPOINTING_SETTINGS[name]
        }
    enable(gradient_checkpointing_kwargs=given or None, **own)


def _set_loss_scaling(trainer: Trainer) -> None:
    """Set whether the model averages the loss over the window; warn about known errors of the emulated release."""
    steps, semantics = trainer.args.gradient_accumulation_steps, trainer.semantics
    if semantics.divides_gradients_twice and steps > 1:
        trainer.warn_once(
            f"transformers {semantics.release} divides accumulated gradients by `gradient_accumulation_steps={steps}` "
            f"twice, and so does this run: they are {steps} times too small. {_REMEDY}"
        )
    if trainer.loss_is_scaled_for_ga is None:
        note_item_count(trainer, steps)


def note_item_count(trainer: Trainer, steps: int = 1) -> None:
    """Give a model no number of items that it would ignore, or, unless ``semantics`` is corrected, warn of that.

    Its loss is the mean over a batch, but would be summed over the ``steps`` batches of a window, and multiplied by the
    ranks whose gradients are averaged.
    """
    ranks = 1
    if trainer.args.average_tokens_across_devices:
        ranks = max(trainer.lightning_backend.process_layout.loss_group_size, trainer.args.n_gpu)
    if steps * ranks < 2 or trainer.compute_loss_func is not None or not ignores_item_count(trainer.model):
        return
    if trainer.semantics.corrected:
        trainer.model_accepts_loss_kwargs = False
    elif trainer.model_accepts_loss_kwargs:
        causes = [f"`gradient_accumulation_steps={steps}`"] if steps > 1 else []
        causes += [f"{ranks} {'ranks' if ranks > trainer.args.n_gpu else 'GPUs'}"] if ranks > 1 else []
        trainer.warn_once(
            f"{type(trainer.model).__name__} takes `num_items_in_batch` but averages its loss over each batch, so "
            f"transformers {trainer.semantics.release} makes losses and gradients up to {steps * ranks} times too "
            f"large ({', '.join(causes)}), and so does this run. {_REMEDY}"
        )
