"""Validating constructor and training arguments; all problems are reported in one error."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hf_compat.arguments.checking.with_data import accelerator_config_problems, data_problems
from hf_compat.arguments.fields.redeclared import for_run
from hf_compat.engine.lightning_callbacks import callback_problems
from hf_compat.engine.moving import devices_of
from hf_compat.engine.precision import precision_problems
from hf_compat.engine.strategies.traits import StrategyRequest
from hf_compat.errors import (
    ArgumentsError,
    ArgumentTypesError,
    DataCollatorError,
    DataError,
    MetricsError,
    ModelError,
    TrainerSetupError,
    UntrainableModelError,
)
from hf_compat.evaluation.stream import is_metric
from hf_compat.metrics import has_length
from hf_compat.model_facts import is_peft_model
from hf_compat.optim.optimizer_request import parse_optim_args
from hf_compat.optim.schedulers import unknown_scheduler_kwargs
from hf_compat.overriding import is_ours
from hf_compat.run.batch_size import batch_size_problems

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

__all__ = ["check_is_model", "check_loaded_model", "strategy_problems", "validate"]


def validate(trainer: Trainer) -> None:
    """Check that constructor and training arguments are supported together.

    Raises:
        TrainerSetupError: If constructor arguments are not; it lists all other problems too.
        ArgumentsError: If training arguments are not.
        DataError: If the training dataset is empty.
        DataCollatorError: If the collator cannot be called.
        MetricsError: If ``compute_metrics`` cannot.
    """
    setup, empty, collator = _setup_problems(trainer), _empty_data(trainer), _collator_problems(trainer)
    metrics, unknown = _metrics_problems(trainer), _schedule_problems(trainer)
    problems = [
        *_data_problems(trainer),
        *accelerator_config_problems(trainer.args, trainer.accelerator.data_parallel_size),
        *_optimization_problems(trainer),
        *unknown,
    ]
    named = _named_optimizer_problems(trainer)
    if setup or named:
        kind = TrainerSetupError.also(TypeError) if named else TrainerSetupError
        raise kind("\n  ".join([*setup, *named, *problems, *collator, *metrics, *empty]))
    if problems:
        has_wrong_types = unknown or collator or metrics
        raise (ArgumentTypesError if has_wrong_types else ArgumentsError)([*problems, *collator, *metrics, *empty])
    if collator:
        raise DataCollatorError("\n  ".join([*collator, *metrics, *empty]))
    if metrics:
        raise MetricsError("\n  ".join([*metrics, *empty]))
    if empty:
        raise DataError(*empty)


def _setup_problems(trainer: Trainer) -> list[str]:
    args, backend = trainer.args, trainer.lightning_backend
    problems = [*backend.problems, *strategy_problems(trainer, trainer.model)]
    problems += precision_problems(args.mixed_precision, backend.plugins)
    problems += callback_problems(
        backend.callbacks, for_run(args), shards_model=backend.traits.shards_model, keywords=backend.keywords
    )
    for name in ("dispatch_batches", "split_batches"):
        if not backend.loop.shards_batches and getattr(args.accelerator_config, name):
            problems.append(
                f"`lightning={{'use_distributed_sampler': False}}` contradicts `accelerator_config={{{name!r}: True}}` "
                "of the training arguments. Set one of them only."
            )
    if trainer.compute_loss_func is not None and trainer.get_sp_size() > 1:
        problems.append(
            f"`compute_loss_func` is not supported with `sp_size={trainer.get_sp_size()}`, where each rank has a chunk "
            "of every sequence; transformers never calls it in training. Remove it, or override `compute_loss`."
        )
    if trainer.model is None and trainer.model_init is None:
        problems.append("`model=None`: `Trainer` requires either a `model` or `model_init` argument. Pass one of them.")
    return problems + _given_optimizer_problems(trainer)


def strategy_problems(trainer: Trainer, model: nn.Module | None) -> list[str]:
    """Return what the strategy of ``trainer`` does not support, one message each.

    Args:
        trainer: The Trainer.
        model: Its model; None if ``model_init`` has not been called yet.
    """
    args, backend = trainer.args, trainer.lightning_backend
    layout = backend.process_layout
    problems = backend.traits.limits(
        StrategyRequest(args, model, _has_optimizers(trainer), backend.precision, layout.fsdp, layout.sizes)
    )
    if args.auto_find_batch_size and (layout.launch.world_size > 1 or layout.start is not None):
        problems += batch_size_problems(layout, model, syncs_norms=bool(backend.keywords.get("sync_batchnorm")))
    return problems


def _has_optimizers(trainer: Trainer) -> bool:
    return trainer.optimizer is not None or trainer.lr_scheduler is not None


def _empty_data(trainer: Trainer) -> list[str]:
    dataset = trainer.train_dataset
    if isinstance(dataset, torch.utils.data.IterableDataset) or not has_length(dataset) or len(dataset):
        return []
    return ["`train_dataset` is empty. Pass at least one sample."]


def _collator_problems(trainer: Trainer) -> list[str]:
    collator = trainer.data_collator
    if callable(collator):
        return []
    has_old_name = callable(getattr(collator, "collate_batch", None))
    remedy = "Rename its `collate_batch` to `__call__`." if has_old_name else "Pass a function of a list of samples."
    return [
        f"`data_collator`: {type(collator).__name__} cannot be called, but it should be a simple callable. {remedy}"
    ]


def _metrics_problems(trainer: Trainer) -> list[str]:
    """Return why ``compute_metrics`` cannot be used, unless an override may make something else of it."""
    metrics = trainer.compute_metrics
    evaluates = (trainer.evaluate, trainer.predict, trainer.evaluation_loop, trainer.prediction_loop)
    if metrics is None or callable(metrics) or not all(map(is_ours, evaluates)):
        return []
    shown = repr(metrics) if isinstance(metrics, str) else f"an object of type {type(metrics).__name__}"
    return [
        f"`compute_metrics`: {shown} cannot be called. Pass a function of an `EvalPrediction` that returns a dict of "
        "metrics, or a torchmetrics metric."
    ]


def _data_problems(trainer: Trainer) -> list[str]:
    train, metrics = trainer.train_dataset, trainer.compute_metrics
    return data_problems(
        trainer.args,
        trainer.semantics,
        has_eval_data=trainer.eval_dataset is not None,
        lacks_length=train is not None and not has_length(train),
        is_stream=isinstance(train, torch.utils.data.IterableDataset),
        has_metric=is_metric(metrics),
        takes_result=not callable(metrics) or is_metric(metrics) or _takes_result(metrics),
    )


def _takes_result(compute_metrics: Callable[..., object]) -> bool:
    return "compute_result" in inspect.signature(compute_metrics).parameters


def _optimization_problems(trainer: Trainer) -> Sequence[str]:
    """Return the problems of ``optim_args``, unless an overridden method reads them."""
    named = trainer.optimizer is None and trainer.optimizer_cls_and_kwargs is None
    own_both = is_ours(trainer.create_optimizer_and_scheduler)
    if named and own_both and is_ours(trainer.create_optimizer) and is_ours(trainer.get_optimizer_cls_and_kwargs):
        try:
            parse_optim_args(trainer.args.optim_args)
        except ArgumentsError as error:
            return error.problems
    return ()


def _schedule_problems(trainer: Trainer) -> list[str]:
    """Return the keywords that the schedule does not take, unless an overridden method makes it."""
    makes_own = is_ours(trainer.create_optimizer_and_scheduler) and is_ours(trainer.create_scheduler)
    if trainer.lr_scheduler is not None or not makes_own:
        return []
    args = trainer.args
    return unknown_scheduler_kwargs(args.lr_scheduler_type, args.lr_scheduler_kwargs, trainer.semantics)


def _given_optimizer_problems(trainer: Trainer) -> list[str]:
    """Return why an optimizer or a schedule that was passed to the Trainer cannot be used."""
    problems: list[str] = []
    if trainer.model_init is not None and _has_optimizers(trainer):
        problems.append(
            "Passing a `model_init` is incompatible with providing the `optimizers` argument: each `train` "
            "creates a new model, whose parameters are not in the optimizer. Override `create_optimizer`, or pass "
            "`optimizer_cls_and_kwargs`."
        )
    if trainer.optimizer is not None and trainer.optimizer_cls_and_kwargs is not None:
        problems.append(
            "Passing both `optimizers` and `optimizer_cls_and_kwargs` arguments is incompatible: choose one."
        )
    return problems


def _named_optimizer_problems(trainer: Trainer) -> list[str]:
    """Return why ``optimizer_cls_and_kwargs`` cannot be used."""
    named = trainer.optimizer_cls_and_kwargs
    is_pair = isinstance(named, tuple | list) and len(named) == 2
    if named is None or (is_pair and callable(named[0]) and isinstance(named[1], Mapping)):
        return []
    return [f"`optimizer_cls_and_kwargs={named!r}`: pass a pair of a class and a dict of its arguments."]


def check_is_model(model: object, source: str) -> None:
    """Raise if ``model`` is no ``torch.nn.Module``, but a class, a name or something else.

    Args:
        model: The value passed as a model.
        source: What it is, for the message.

    Raises:
        UntrainableModelError: If so; it says what to pass.
    """
    if isinstance(model, nn.Module):
        return
    if isinstance(model, type):
        name = model.__name__
        loaded = f" or `{name}.from_pretrained(...)`" if hasattr(model, "from_pretrained") else ""
        raise UntrainableModelError(f"{source}: {name} is a class. Pass an instance of it: `{name}(...)`{loaded}.")
    if isinstance(model, str):
        raise UntrainableModelError(
            f"{source}: {model!r} is a string. Load the model of that name first, for instance with "
            f"`AutoModelFor....from_pretrained({model!r})`, and pass it."
        )
    raise UntrainableModelError(f"{source}: an object of type {type(model).__name__}. Pass a `torch.nn.Module`.")


def check_loaded_model(model: nn.Module, *, is_alone: bool) -> None:
    """Raise if ``model`` is quantized and cannot be trained, or is spread over devices that several processes use.

    Args:
        model: The model.
        is_alone: Whether there is a single process, whose model may be on several devices.

    Raises:
        ModelError: If so; it says what to do.
    """
    devices = devices_of(model)
    if len(devices) > 1 and not is_alone:
        raise ModelError(
            f"`model`: its `device_map` places it on {sorted(map(str, devices))}, but each rank trains on one device. "
            "Load it with `device_map={'': LOCAL_RANK}` or without `device_map`, or start one process, which trains it "
            "where it is."
        )
    if getattr(model, "is_quantized", False) and not getattr(model, "_hf_peft_config_loaded", False):
        _check_quantized(model)


def _check_quantized(model: nn.Module) -> None:
    quantizer: Any = getattr(model, "hf_quantizer", None)
    if hasattr(model, "_orig_mod"):
        raise ModelError(
            "`model`: You cannot fine-tune quantized model with `torch.compile()`. Pass the uncompiled model, and set "
            "`torch_compile=True`."
        )
    if not is_peft_model(model) and not getattr(quantizer, "is_qat_trainable", False):
        raise ModelError(
            "`model`: You cannot perform fine-tuning on purely quantized models, whose weights are not trained. Attach "
            "adapters with peft, or load it without a `quantization_config`."
        )
    if not getattr(quantizer, "is_trainable", False):
        method = getattr(getattr(quantizer, "quantization_config", None), "quant_method", "a method of its own")
        raise ModelError(
            f"`model`: it is quantized with {method}, but that quantization method do not support training. Load it "
            "with another `quantization_config`, or without one."
        )
