"""Preparing the model for a run: ``model_init``, device, wrapper, activation checkpointing, loss scaling."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from hf_compat.arguments.fields.redeclared import for_run
from hf_compat.arguments.releases.versions import SINCE
from hf_compat.engine.moving import check_offloading
from hf_compat.engine.precision import ForwardMixedPrecision, autocast_forward
from hf_compat.model_facts import ignores_item_count, unwrap_model
from hf_compat.optim.liger import apply_liger_kernels
from hf_compat.overriding import WarnOnce
from hf_compat.seeding import enable_full_determinism, set_seed

if TYPE_CHECKING:
    from hf_compat.engine.runtime import Runtime
    from hf_compat.run.host import RunHost
    from hf_compat.tuning.spaces import Trial

__all__ = ["place_model", "prepare_model", "take_wrapper"]

_REMEDY = "Set `TrainingArguments(semantics='corrected')` to correct that."
_OWN_CHECKPOINTING_SETTINGS = {"every_n_layers": 1, "offload": False}
"""Arguments of ``activation_checkpointing_enable`` since 5.23; others are passed to ``torch.utils.checkpoint``."""


def prepare_model(host: RunHost, runtime: Runtime, trial: Trial | None, warn_once: WarnOnce) -> None:
    """Create a new model of ``host`` if there is a ``model_init``, and prepare it for training.

    Args:
        host: The Trainer.
        runtime: Device, precision and strategy.
        trial: The trial of a hyperparameter search, None outside one.
        warn_once: Warns about known errors of the emulated release.
    """
    args, semantics = host.args, host.semantics
    if not semantics.aligns_tokens_after_model_init:
        _align_special_tokens(host)
    if not semantics.applies_trial_after_model_init:
        host._hp_search_setup(trial)
    if host.model_init is not None:
        _make_model(host, trial)
    if args.use_liger_kernel and semantics.applies_liger_in_train:
        apply_liger_kernels(host.model, args.liger_kernel_config)
    if host.model_init is None and (args.fp16_full_eval or args.bf16_full_eval) and not host.is_model_parallel:
        host._move_model_to_device(host.model, args.device)
    if semantics.applies_trial_after_model_init:
        host._hp_search_setup(trial)
    check_offloading(host.model)
    host.model_wrapped = place_model(host, runtime, lambda: host._wrap_model(host.model_wrapped))
    if args.n_gpu > 1:
        _warn_of_replicas(host, warn_once)
    args = for_run(args)
    if args.activation_checkpointing or args.gradient_checkpointing:
        settings = args.activation_checkpointing_kwargs or args.gradient_checkpointing_kwargs
        _enable_checkpointing(
            host.model, settings, is_renamed=semantics.release >= SINCE["renames_gradient_checkpointing"]
        )
    if semantics.aligns_tokens_after_model_init:
        _align_special_tokens(host)
    _set_loss_scaling(host, warn_once)


def _make_model(host: RunHost, trial: Trial | None) -> None:
    """Replace the model of ``host`` by a new one of its ``model_init``."""
    args = host.args
    (enable_full_determinism if args.full_determinism else set_seed)(args.seed)
    host.model = host.model_wrapped = host.call_model_init(trial)
    host.optimizer = host.lr_scheduler = None
    host._signature_columns = None
    if host.place_model_on_device:
        host._move_model_to_device(host.model, args.device)


def _align_special_tokens(host: RunHost) -> None:
    if host.processing_class is not None and hasattr(host.model, "config"):
        host._align_special_tokens()


def place_model(host: RunHost, runtime: Runtime, wrap: Callable[[], nn.Module]) -> nn.Module:
    """Move the model to its device; enable autocast for it and compile it, as the arguments say, unless it is wrapped.

    Args:
        host: The Trainer.
        runtime: Device and precision.
        wrap: Calls the Trainer's ``_wrap_model``. A model that it has wrapped, such as in ``DataParallel``, trains and
            evaluates without autocast and uncompiled, as in transformers.

    Returns:
        What ``wrap`` has returned, compiled if that was the model itself.
    """
    is_new = runtime.place(host.model, host.args.device)
    if is_new and unwrap_model(host.model_wrapped) is not host.model:  # the user has replaced the model
        host.model_wrapped = host.model
    wrapped = wrap()
    if is_new and wrapped is host.model:
        if isinstance(runtime.precision, ForwardMixedPrecision) and runtime.precision.casts_forward:
            autocast_forward(host.model, runtime.precision.autocast_context_manager)
        take_wrapper(host, runtime, host.model)
        return host.model_wrapped  # type: ignore[no-any-return]
    return wrapped


def _warn_of_replicas(host: RunHost, warn_once: WarnOnce) -> None:
    """Warn that several GPUs in one process are slower than one in each, and of what they do without."""
    args = host.args
    text = (
        f"This process trains on {args.n_gpu} GPUs by `DataParallel`, as transformers does: a batch has {args.n_gpu} "
        f"times `per_device_train_batch_size={args.per_device_train_batch_size}` samples. A process for each GPU is "
        f"faster: start the script with `torchrun --nproc-per-node {args.n_gpu}`. Set CUDA_VISIBLE_DEVICES to use one."
    )
    fields = [f"`{name}=True`" for name in ("bf16", "fp16", "torch_compile") if getattr(args, name)]
    if fields and isinstance(host.model_wrapped, nn.DataParallel) and host.model_wrapped is not host.model:
        text += f" Like transformers, it computes as without {' and '.join(fields)}."
    warn_once(text)


def take_wrapper(host: RunHost, runtime: Runtime, wrapped: nn.Module) -> None:
    """Set ``host.model_wrapped`` to ``wrapped``, the model in its wrapper, compiled if the arguments say so."""
    args = host.args
    if args.torch_compile:
        wrapped = runtime.strategy.compiled(
            wrapped, backend=args.torch_compile_backend or "inductor", mode=args.torch_compile_mode
        )
    host.model_wrapped = wrapped


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
    warnings.warn(text, FutureWarning, stacklevel=2)
    enable = model.gradient_checkpointing_enable
    known = inspect.signature(enable).parameters
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values()):
        own = {
            name: value for name, value in own.items() if name in known or value != _OWN_CHECKPOINTING_SETTINGS[name]
        }
    enable(gradient_checkpointing_kwargs=given or None, **own)


def _set_loss_scaling(host: RunHost, warn_once: WarnOnce) -> None:
    """Set whether the model averages the loss over the window; warn about known errors of the emulated release."""
    steps, semantics = host.args.gradient_accumulation_steps, host.semantics
    if semantics.divides_gradients_twice and steps > 1:
        warn_once(
            f"transformers {semantics.release} divides accumulated gradients by `gradient_accumulation_steps={steps}` "
            f"twice, and so does this run: they are {steps} times too small. {_REMEDY}"
        )
    if steps < 2 or host.compute_loss_func is not None:
        return
    if host.loss_is_scaled_for_ga is not None or not ignores_item_count(host.model):
        return
    if semantics.corrected:
        host.model_accepts_loss_kwargs = False
    elif host.model_accepts_loss_kwargs:
        warn_once(
            f"{type(host.model).__name__} takes `num_items_in_batch` but averages its loss over each batch, so "
            f"transformers {semantics.release} trains it on losses and gradients up to {steps} times too large "
            f"(`gradient_accumulation_steps={steps}`), and so does this run. {_REMEDY}"
        )
