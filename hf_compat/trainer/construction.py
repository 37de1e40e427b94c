"""Constructing a Trainer: its first model, what the model takes and returns, callbacks and loggers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hf_compat.accelerator import Accelerator
from hf_compat.accelerator.plugins import fsdp_plugin, parallelism_config
from hf_compat.arguments.process_facts import run_state, uses_configured_state
from hf_compat.arguments.releases.semantics import Semantics
from hf_compat.arguments.releases.versions import SINCE
from hf_compat.arguments.run_precision import full_evaluation_precision
from hf_compat.callbacks import CallbackHandler, PrinterCallback, RichProgressCallback, default_callbacks
from hf_compat.data.columns import can_return_loss, find_labels
from hf_compat.distributed.accelerate_state import share_run
from hf_compat.engine.keywords import is_lightning_callback
from hf_compat.engine.lightning_callbacks import draws_with_rich
from hf_compat.engine.loggers import LoggingCallback, build_reporters
from hf_compat.engine.moving import is_spread
from hf_compat.engine.precision import forward_precision
from hf_compat.engine.strategies.data_parallel import replicated
from hf_compat.engine.strategies.tensor_parallel_splitting import check_plan
from hf_compat.errors import (
    ModelError,
    ModelInitError,
    TrainerSetupError,
    UntrainableModelError,
)
from hf_compat.model_facts import (
    accepts_loss_kwargs,
    is_bare_model,
    is_presharded,
    lacks_forward,
    number_of_arguments,
    shifts_labels,
    unwrap_peft,
)
from hf_compat.optim.losses import LabelSmoother
from hf_compat.overriding import check_is_module, is_ours
from hf_compat.run.preparing import move_to_device
from hf_compat.state import TrainerState, is_exportable
from hf_compat.trainer.validation import check_is_model, check_loaded_model, strategy_problems

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments
    from hf_compat.engine.backend import LightningBackend
    from hf_compat.trainer.trainer import Trainer
    from hf_compat.tuning.spaces import Trial

__all__ = [
    "build_accelerator",
    "call_model_init",
    "first_model",
    "initial_state",
    "inspect_model",
    "processing_class_of",
    "set_up_callbacks",
    "use_presharded",
    "wrap_model",
]


def processing_class_of(processing_class: Any, tokenizer: Any) -> Any:
    """Return the processing class, which may have been passed as ``tokenizer``, its name before transformers 4.46."""
    if tokenizer is None:
        return processing_class
    if processing_class is not None:
        raise TrainerSetupError("`tokenizer` and `processing_class` were both passed: pass only `processing_class`.")
    warnings.warn("`tokenizer` is deprecated: pass `processing_class`.", FutureWarning, stacklevel=3)
    return tokenizer


def use_presharded(trainer: Trainer, model: nn.Module) -> None:
    """Place the runs of ``trainer`` where ``from_pretrained`` has sharded ``model``, if it has.

    Raises:
        ModelError: If arguments or keywords of Lightning request something else.
    """
    backend = trainer.lightning_backend
    if is_presharded(model) and backend.process_layout.strategy != "presharded":
        from hf_compat.engine.strategies.presharded import presharded_layout  # few runs need it

        strategy = backend.keywords.get("strategy", "auto")
        backend.set_layout(presharded_layout(backend.process_layout, model, trainer.args, strategy))


def build_accelerator(args: TrainingArguments, backend: LightningBackend, semantics: Semantics) -> Accelerator:
    """Return the Trainer's ``accelerator``, which reads ``backend``; accelerate's own state becomes the same."""
    layout, precision = backend.process_layout, forward_precision(backend.precision)
    config = parallelism_config(args, layout.sizes)
    state = run_state(
        args,
        precision,
        fsdp_plugin=fsdp_plugin(layout.fsdp, precision, args.device),
        parallelism_config=config,
        device_mesh=None if config is None else layout.mesh,
    )
    share_run(state, configured=uses_configured_state(args))
    return Accelerator(args.launch, state, args.accelerator_config, backend, args.data_seed, semantics=semantics)


def first_model(trainer: Trainer, model: nn.Module | None) -> nn.Module:
    """Return the model that was passed, or a new one from ``model_init``; move it to its device if that is due now.

    Raises:
        ModelError: If it cannot be trained: it has no loss, or several processes would share the devices it is on.
        TrainerSetupError: If both were passed, or the strategy does not support what ``model_init`` returned.
    """
    if trainer.model_init is not None:
        if model is not None and trainer.semantics.refuses_model_and_model_init:
            raise TrainerSetupError(
                "`Trainer` requires either a `model` or `model_init` argument, but not both: choose one."
            )
        if model is not None:
            text = (
                "`Trainer` requires either a `model` or `model_init` argument, but not both: `model_init` replaces "
                "the model. Pass only one."
            )
            warnings.warn(text, FutureWarning, stacklevel=3)
        model = trainer.call_model_init()
        check_is_module(model, "call_model_init")
    assert model is not None, "checked before"
    check_is_model(model, "`model`")
    if is_bare_model(model) and _uses_model_loss(trainer):
        raise ModelError(
            f"`model`: {type(model).__name__} computes hidden states only and cannot be used as is for training. "
            "Use a model with a head for the task, such as an `AutoModelFor...`."
        )
    if lacks_forward(model) and _uses_model_loss(trainer) and is_ours(type(trainer)._wrap_model):
        raise UntrainableModelError(
            f"`model`: {type(model).__name__} is a LightningModule. Pass an nn.Module whose `forward` returns the "
            "loss; see docs/from_lightning.md."
        )
    backend, layout = trainer.lightning_backend, trainer.lightning_backend.process_layout
    check_loaded_model(model, is_alone=layout.launch.world_size == 1 and layout.start is None)
    if trainer.model_init is not None:
        _check_made_model(trainer, model)
    if not is_presharded(model):
        check_plan(model, backend.process_layout.plan_size)
    trainer.is_model_parallel = is_spread(model, trainer.args.device)
    if trainer.is_model_parallel:
        _use_as_spread(trainer)
    trainer.place_model_on_device = backend.traits.places_model and _places_model(trainer)
    if trainer.place_model_on_device and backend.process_layout.start is None:  # started processes move it themselves
        move_to_device(trainer, model)
    return model


def _check_made_model(trainer: Trainer, model: nn.Module) -> None:
    """Check what ``model_init`` returned as a model that is passed was checked before."""
    backend = trainer.lightning_backend
    decided = backend.process_layout.sizes.tp
    use_presharded(trainer, model)
    sizes = backend.process_layout.sizes
    if is_presharded(model) and sizes.tp != decided:
        raise ModelError(
            f"`model_init` returned a model with `tp_size={sizes.tp}` in its `distributed_config`, but which ranks get "
            f"which batches is decided before there is a model. Set `parallelism_config={sizes.keywords}`, or pass the "
            "model as `model`."
        )
    if problems := strategy_problems(trainer, model):
        raise TrainerSetupError("\n  ".join(problems))


def _use_as_spread(trainer: Trainer) -> None:
    """Leave the model on the GPUs over which it is spread, rather than replicate it on all."""
    backend = trainer.lightning_backend
    trainer.args.use_one_gpu()
    if backend.process_layout.strategy == "data parallel":
        backend.set_layout(replace(backend.process_layout, strategy="one device"))


def wrap_model(trainer: Trainer, model: nn.Module) -> nn.Module:
    """Return ``model`` in the wrapper of several GPUs in one process; see the Trainer's ``_wrap_model``."""
    is_wrapped = trainer.accelerator.unwrap_model(model) is not model
    return model if is_wrapped or trainer.args.n_gpu < 2 else replicated(model)


def _places_model(trainer: Trainer) -> bool:
    """Return whether the constructor moves the model to its device; otherwise the first run or evaluation does."""
    args, spread = trainer.args, trainer.is_model_parallel
    wanted, full_eval = args.place_model_on_device, full_evaluation_precision(args) is not None
    if trainer.semantics.release < SINCE["leaves_model_placement_open"]:
        return bool(wanted) and not (spread or (full_eval and not args.do_train))
    return not (spread or full_eval) if wanted is None else bool(wanted)


def _uses_model_loss(trainer: Trainer) -> bool:
    """Return whether training uses the loss that the model returns."""
    own = is_ours(trainer.compute_loss) and is_ours(trainer.training_step)
    return trainer.train_dataset is not None and trainer.compute_loss_func is None and own


def call_model_init(trainer: Trainer, trial: Trial | None) -> nn.Module:
    """Return a new model; see the Trainer's ``call_model_init``."""
    if trainer.model_init is None:
        raise ModelInitError("`model_init=None`: pass a function that returns a model to the Trainer.")
    if isinstance(trainer.model_init, nn.Module):
        name = type(trainer.model_init).__name__
        raise ModelInitError(f"`model_init`: {name} is a model, not a function that returns one. Pass it as `model`.")
    if not callable(trainer.model_init):
        raise ModelInitError(
            f"`model_init={trainer.model_init!r}` cannot be called. Pass a function that returns a model."
        )
    arguments = number_of_arguments(trainer.model_init)
    if arguments > 1:
        raise ModelInitError(f"model_init should have 0 or 1 argument, the trial, but it has {arguments}.")
    model = trainer.model_init(trial) if arguments else trainer.model_init()
    if model is None:
        raise ModelInitError("model_init should not return None: return the model.")
    try:
        check_is_model(model, "`model_init` returned what is not a model")
    except ModelError as error:
        raise ModelInitError(str(error)) from None
    return model


def inspect_model(trainer: Trainer) -> None:
    """Set the attributes that depend on what the model takes and returns."""
    inner, named, smoothing = unwrap_peft(trainer.model), trainer.args.label_names, trainer.args.label_smoothing_factor
    # The loss of shared sequences is a mean over the tokens of one batch.
    trainer.model_accepts_loss_kwargs = accepts_loss_kwargs(trainer.model) and trainer.get_sp_size() == 1
    trainer.label_names = find_labels(inner) if named is None else named
    trainer.can_return_loss = can_return_loss(inner)
    as_decoder = trainer.semantics.counts_shifted_labels_of_encoder_decoders
    trainer.run_counters.loss_shifts_labels = shifts_labels(inner, encoder_decoders_too=as_decoder)
    trainer.label_smoother = None
    if smoothing != 0:
        if getattr(getattr(trainer.model, "config", None), "problem_type", None) == "multi_label_classification":
            trainer.warn_once(
                f"`label_smoothing_factor={smoothing}`: Label smoothing is not compatible with "
                "multi-label classification. It is ignored; set it to 0."
            )
        else:
            trainer.label_smoother = LabelSmoother(epsilon=smoothing)


def optimizer_and_schedule(optimizers: Any) -> tuple[Any, Any]:
    """Return the two parts of the constructor's ``optimizers``, each None without one.

    Raises:
        TrainerSetupError: If they are no pair of an optimizer and a schedule.
    """
    if not isinstance(optimizers, tuple | list) or len(optimizers) != 2:
        raise TrainerSetupError.also(AttributeError, TypeError)(
            f"`optimizers`: {_shown(optimizers)} is no pair. Pass `(optimizer, lr_scheduler)`, with None for the one "
            "that the Trainer is to create."
        )
    optimizer, schedule = optimizers
    for part, member, wanted in (
        (optimizer, "param_groups", "optimizer"),
        (schedule, "step", "learning-rate schedule"),
    ):
        is_swapped = wanted != "optimizer" and isinstance(part, torch.optim.Optimizer)
        if part is not None and (isinstance(part, type) or is_swapped or not hasattr(part, member)):
            raise TrainerSetupError.also(AttributeError, TypeError)(
                f"`optimizers`: {_shown(part)} is no {wanted}. Pass `(optimizer, lr_scheduler)`, an instance of each "
                "or None; classes go into `optimizer_cls_and_kwargs`."
            )
    return optimizer, schedule


def _shown(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"an object of type {type(value).__name__}"


def initial_state(trainer: Trainer) -> TrainerState:
    """Return the state of ``trainer`` before its first run."""
    callbacks = [*trainer.callback_handler.callbacks, trainer.control]
    return TrainerState(
        is_local_process_zero=trainer.is_local_process_zero(),
        is_world_process_zero=trainer.is_world_process_zero(),
        stateful_callbacks=[callback for callback in callbacks if is_exportable(callback)],
    )


def set_up_callbacks(trainer: Trainer, callbacks: Sequence[Any] | None) -> None:
    """Create the trackers' callbacks and the callback handler; the backend has the Lightning callbacks."""
    backend = trainer.lightning_backend
    users = [callback for callback in callbacks or () if not is_lightning_callback(callback)]
    reporting = build_reporters(trainer.args)
    if backend.user_loggers:
        reporting.append(LoggingCallback(backend.user_loggers))
    trainer.callback_handler = CallbackHandler(
        [*default_callbacks.DEFAULT_CALLBACKS, *reporting, *users],
        trainer.model,
        trainer.processing_class,
        trainer.optimizer,
        trainer.lr_scheduler,
    )
    if not any(isinstance(callback, RichProgressCallback) for callback in trainer.callback_handler.callbacks):
        prints = trainer.args.disable_tqdm or draws_with_rich(backend.callbacks)
        trainer.add_callback(PrinterCallback if prints else default_callbacks.DEFAULT_PROGRESS_CALLBACK)
