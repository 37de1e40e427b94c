"""Constructing a Trainer: its first model, what the model takes and returns, callbacks and loggers."""

from __future__ import annotations

import difflib
import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import IterableDataset

from hf_compat.accelerator import Accelerator
from hf_compat.accelerator.plugins import fsdp_plugin, parallelism_config
from hf_compat.arguments import Seq2SeqTrainingArguments
from hf_compat.arguments.checks import (
    accelerator_config_problems,
    data_problems,
    doubtful_values,
    setup_notes,
    setup_warnings,
)
from hf_compat.arguments.parallelism import unused_handler_texts
from hf_compat.arguments.problems import LIGHTNING_KEYWORDS, OTHER_NAMES_OF_FIELDS
from hf_compat.arguments.process_facts import full_evaluation_precision, run_state, uses_configured_state
from hf_compat.arguments.releases import SINCE, Semantics, effective_args
from hf_compat.callbacks import CallbackHandler, PrinterCallback, RichProgressCallback, default_callbacks
from hf_compat.callbacks.handler import misspelt_events
from hf_compat.data.collators import can_return_loss, find_labels
from hf_compat.distributed.accelerate_state import share_run
from hf_compat.engine.keywords import is_lightning_callback
from hf_compat.engine.lightning_callbacks import callback_problems, draws_with_rich, monitor_warnings
from hf_compat.engine.loggers import LoggingCallback, build_reporters
from hf_compat.engine.moving import devices_of, is_spread
from hf_compat.engine.precision import forward_precision, precision_problems
from hf_compat.engine.strategies.choice import StrategyRequest
from hf_compat.engine.strategies.sharding import check_plan
from hf_compat.errors import (
    ArgumentsError,
    ArgumentTypesError,
    DataCollatorError,
    MetricsError,
    ModelError,
    TrainerSetupError,
    UnknownArgumentError,
    UntrainableModelError,
    warn_user,
)
from hf_compat.metrics import has_length
from hf_compat.model_facts import (
    accepts_loss_kwargs,
    is_bare_model,
    is_peft_model,
    is_presharded,
    lacks_forward,
    lightning_methods_of,
    shifts_labels,
    unwrap_peft,
)
from hf_compat.optim.losses import LabelSmoother
from hf_compat.optim.optimizers import parse_optim_args
from hf_compat.optim.schedulers import unknown_scheduler_kwargs
from hf_compat.overriding import check_is_module, is_overridden
from hf_compat.state import TrainerState, is_exportable
from hf_compat.trainer.batch_size import batch_size_problems
from hf_compat.trainer.evaluation import is_metric
from hf_compat.trainer.preparing import move_to_device

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments
    from hf_compat.engine.backend import LightningBackend
    from hf_compat.trainer.trainer import Trainer

logger = logging.getLogger(__name__)


# Validating constructor and training arguments; all problems are reported in one error.


_Kind = inspect.Parameter
_SHOWN = (bool, float, int, str, type(None))
"""Types of values that a message repeats."""
_OTHER_NAMES = {
    **dict.fromkeys(("criterion", "loss", "loss_fn", "loss_func"), "`compute_loss_func`"),
    **dict.fromkeys(("train_data", "train_ds", "dataset"), "`train_dataset`"),
    **dict.fromkeys(("val_dataset", "valid_dataset", "validation_dataset", "test_dataset"), "`eval_dataset`"),
    **dict.fromkeys(("train_dataloader", "train_loader"), "`train_dataset`, or override `get_train_dataloader`"),
    **dict.fromkeys(("eval_dataloader", "val_dataloader"), "`eval_dataset`, or override `get_eval_dataloader`"),
    **dict.fromkeys(("optimizer", "scheduler", "lr_scheduler"), "`optimizers=(optimizer, schedule)`"),
    **dict.fromkeys(("feature_extractor", "image_processor", "processor"), "`processing_class`"),
    **dict.fromkeys(("collate_fn", "collator"), "`data_collator`"),
    **dict.fromkeys(("training_args", "training_arguments"), "`args`"),
    "peft_config": "`model=get_peft_model(model, peft_config)`, of peft",
}
"""What other libraries and scripts call arguments of the Trainer, to the arguments."""


def refuse_keywords(kind: type[Any], positional: Sequence[object], keywords: Mapping[str, object]) -> None:
    """Raise if the constructor of the Trainer class ``kind`` does not take all ``keywords``.

    One that takes any keyword is not asked: it hands them on, or renames them.

    Raises:
        UnknownArgumentError: If it does not take them; it says of each where it belongs.
    """
    function = kind.__init__
    parameters = list(inspect.signature(function, follow_wrapped=False).parameters.values())[1:]
    if keywords and all(item.kind is not inspect.Parameter.VAR_KEYWORD for item in parameters):
        own = [item.name for item in parameters if item.kind not in (_Kind.POSITIONAL_ONLY, _Kind.VAR_POSITIONAL)]
        if unknown := {name: value for name, value in keywords.items() if name not in own}:
            named = {**dict(zip(own, positional, strict=False)), **keywords}
            _raise_unknown(kind, function.__qualname__, unknown, own, named.get("args"))


def refuse_unknown(kind: type, keywords: Mapping[str, object], args: object) -> None:
    """Raise if the Trainer's own constructor, which makes a ``kind`` with ``args``, is passed unknown ``keywords``.

    Raises:
        UnknownArgumentError: If there are; it says of each where it belongs.
    """
    if keywords:
        _raise_unknown(kind, "Trainer.__init__", keywords, _parameters_of_all(kind), args)


def _raise_unknown(
    kind: type, function: str, unknown: Mapping[str, object], parameters: Sequence[str], args: object
) -> None:
    """Raise for the ``unknown`` keywords of ``function``, which takes ``parameters``; the first in Python's words."""
    fields = dict.fromkeys(inspect.signature(Seq2SeqTrainingArguments).parameters, "TrainingArguments")
    if is_dataclass(args):
        fields = dict.fromkeys(inspect.signature(type(args)).parameters, type(args).__name__) | fields
    inherited = [name for name in _parameters_of_all(kind) if name not in parameters]
    places = {name: _place(name, value, parameters, inherited, fields) for name, value in unknown.items()}
    (first, place), *others = places.items()
    lines = [f"{function}() got an unexpected keyword argument {first!r}: {place}"]
    lines += [f"{name!r} is not an argument of {kind.__name__}: {place}" for name, place in others]
    raise UnknownArgumentError("\n  ".join(lines))


def _parameters_of_all(kind: type) -> list[str]:
    """Return the names that the constructors of ``kind`` and its bases take."""
    own = [vars(each)["__init__"] for each in kind.__mro__ if "__init__" in vars(each) and each is not object]
    found = [item for function in own for item in list(inspect.signature(function).parameters.values())[1:]]
    variable = (_Kind.VAR_POSITIONAL, _Kind.VAR_KEYWORD)
    return [*dict.fromkeys(item.name for item in found if item.kind not in variable)]


def _place(
    name: str, value: object, parameters: Sequence[str], inherited: Sequence[str], fields: Mapping[str, str]
) -> str:
    """Return where the keyword ``name`` belongs, which is not one of a constructor's ``parameters``.

    Args:
        name: The keyword.
        value: What was given.
        parameters: What the constructor takes.
        inherited: What only those of its bases take.
        fields: The fields of the arguments, to the classes that have them.
    """
    missing = "this constructor does not take. Add it there, and hand it on to `super().__init__`."
    if name == "tokenizer" and "processing_class" in parameters:
        return "use `processing_class`."
    if name in inherited:
        return f"it is an argument of the Trainer, which {missing}"
    if name in _OTHER_NAMES:
        use = _OTHER_NAMES[name]
        is_taken = re.findall(r"\w+", use)[0] in parameters
        return f"use {use}." if is_taken else f"the Trainer calls it {use}, which {missing}"
    if name in LIGHTNING_KEYWORDS:
        field, shown = LIGHTNING_KEYWORDS[name], repr(value) if isinstance(value, _SHOWN) else "..."
        give = "pass" if "lightning" in parameters else "hand on to `super().__init__`"
        return f"{f'set {field} in `args`, or ' if field else ''}{give} `lightning={{{name!r}: {shown}}}`."
    if name in fields:
        return f"it is a field of `{fields[name]}`. Set it there, and pass them as `args`."
    if name in OTHER_NAMES_OF_FIELDS:
        return f"set {OTHER_NAMES_OF_FIELDS[name]} in `args`."
    near = difflib.get_close_matches(name, [*parameters, *fields], n=1)
    if not near:
        return f"it takes {', '.join(parameters)}."
    return f"did you mean `{near[0]}`{'' if near[0] in parameters else f', a field of `{fields[near[0]]}`'}?"


def validate(trainer: Trainer) -> None:
    """Check that constructor and training arguments are supported together.

    Raises:
        TrainerSetupError: If constructor arguments are not; it lists all other problems too.
        ArgumentsError: If training arguments are not.
        DataCollatorError: If the collator cannot be called.
        MetricsError: If ``compute_metrics`` cannot.
    """
    setup, collator = _setup_problems(trainer), _collator_problems(trainer)
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
        raise kind("\n  ".join([*setup, *named, *problems, *collator, *metrics]))
    if problems:
        has_wrong_types = unknown or collator or metrics
        raise (ArgumentTypesError if has_wrong_types else ArgumentsError)([*problems, *collator, *metrics])
    if collator:
        raise DataCollatorError("\n  ".join([*collator, *metrics]))
    if metrics:
        raise MetricsError("\n  ".join(metrics))


def _setup_problems(trainer: Trainer) -> list[str]:
    args, backend = trainer.args, trainer.lightning_backend
    problems = [*backend.problems, *strategy_problems(trainer, trainer.model)]
    problems += precision_problems(args.mixed_precision, backend.plugins)
    problems += callback_problems(
        backend.callbacks, effective_args(args), shards_model=backend.traits.shards_model, keywords=backend.keywords
    )
    for name in ("dispatch_batches", "split_batches"):
        if not backend.loop_settings.shards_batches and getattr(args.accelerator_config, name):
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


def _collator_problems(trainer: Trainer) -> list[str]:
    collator = trainer.data_collator
    if isinstance(collator, type) and any("__call__" in vars(base) for base in collator.__mro__):  # not so `list`
        name = collator.__name__
        return [f"`data_collator`: {name} is a class. Pass an instance of it, `{name}(...)`."]
    if callable(collator):
        return []
    remedy = "Pass a function of a list of samples."
    if callable(getattr(collator, "collate_batch", None)):
        remedy = "Rename its `collate_batch` to `__call__`."
    elif not isinstance(collator, str) and (hasattr(collator, "__getitem__") or hasattr(collator, "__iter__")):
        remedy = "Of a Trainer's arguments it is the third: pass a dataset by name, `train_dataset=...`."
    return [
        f"`data_collator`: {type(collator).__name__} cannot be called, but it should be a simple callable. {remedy}"
    ]


def _metrics_problems(trainer: Trainer) -> list[str]:
    """Return why ``compute_metrics`` cannot be used, unless an override may make something else of it."""
    metrics = trainer.compute_metrics
    evaluates = (trainer.evaluate, trainer.predict, trainer.evaluation_loop, trainer.prediction_loop)
    if metrics is None or callable(metrics) or any(map(is_overridden, evaluates)):
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
    makers = (trainer.create_optimizer_and_scheduler, trainer.create_optimizer, trainer.get_optimizer_cls_and_kwargs)
    if named and not any(map(is_overridden, makers)):
        try:
            parse_optim_args(trainer.args.optim_args)
        except ArgumentsError as error:
            return error.problems
    return ()


def _schedule_problems(trainer: Trainer) -> list[str]:
    """Return the keywords that the schedule does not take, unless an overridden method makes it."""
    makers = (trainer.create_optimizer_and_scheduler, trainer.create_scheduler)
    if trainer.lr_scheduler is not None or any(map(is_overridden, makers)):
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


def processing_class_of(processing_class: Any, tokenizer: Any) -> Any:
    """Return the processing class, which may have been passed as ``tokenizer``, its name before transformers 4.46."""
    if tokenizer is None:
        return processing_class
    if processing_class is not None:
        raise TrainerSetupError("`tokenizer` and `processing_class` were both passed: pass only `processing_class`.")
    warn_user("`tokenizer` is deprecated: pass `processing_class`.", FutureWarning)
    return tokenizer


def use_presharded(trainer: Trainer, model: nn.Module) -> None:
    """Place the runs of ``trainer`` where ``from_pretrained`` has sharded ``model``, if it has.

    Raises:
        ModelError: If arguments or keywords of Lightning request something else.
    """
    backend = trainer.lightning_backend
    if is_presharded(model) and backend.process_layout.strategy != "presharded":
        from hf_compat.engine.strategies.device_mesh import presharded_layout  # few runs need it

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
    backend.reset_scaler()  # the trials of a search get an accelerator each
    return Accelerator(args.launch, state, args.accelerator_config, backend, args.data_seed, semantics=semantics)


def first_model(trainer: Trainer, model: nn.Module | None) -> nn.Module:
    """Return the model that was passed, or a new one from ``model_init``; move it to its device if that is due now.

    Raises:
        ModelError: If it cannot be trained: it has no loss, or several processes would share the devices it is on.
        TrainerSetupError: If both were passed, or the strategy does not support what ``model_init`` returned.
    """
    is_made = model is None
    if is_made:
        model = trainer.call_model_init()
        check_is_module(model, "call_model_init")
    elif trainer.model_init is not None:
        if trainer.semantics.refuses_model_and_model_init:
            raise TrainerSetupError(
                "`Trainer` requires either a `model` or `model_init` argument, but not both: choose one."
            )
        text = (
            "`Trainer` requires either a `model` or `model_init` argument, but not both: `train` replaces the model by "
            "one from `model_init`. Pass only one."
        )
        warn_user(text, FutureWarning)
    assert model is not None, "checked before"
    check_is_model(model, "`model`")
    if _uses_model_loss(trainer):
        _check_computes_loss(trainer, model)
    backend, layout = trainer.lightning_backend, trainer.lightning_backend.process_layout
    check_loaded_model(model, is_alone=layout.launch.world_size == 1 and layout.start is None)
    if is_made:
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


def _check_computes_loss(trainer: Trainer, model: nn.Module) -> None:
    """Raise if ``model`` has no loss to train on; warn of a LightningModule, of which only ``forward`` is called."""
    name = type(model).__name__
    if is_bare_model(model):
        raise ModelError(
            f"`model`: {name} computes hidden states only and cannot be used as is for training. Use a model with a "
            "head for the task, such as an `AutoModelFor...`."
        )
    if lacks_forward(model) and not is_overridden(type(trainer)._wrap_model):
        raise UntrainableModelError(
            f"`model`: {name} is a LightningModule. Pass an nn.Module whose `forward` returns the loss; the page "
            "'Coming from Lightning' says where its methods go."
        )
    if methods := lightning_methods_of(model):
        trainer.warn_once(
            f"`model`: {name} is a LightningModule. The Trainer calls its `forward`, as of every model, and none of "
            f"{', '.join(f'`{method}`' for method in methods)}. Train it with `lightning.Trainer`, or move them to "
            "where the page 'Coming from Lightning' says."
        )


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


def _places_model(trainer: Trainer) -> bool:
    """Return whether the constructor moves the model to its device; otherwise the first run or evaluation does."""
    args, spread = trainer.args, trainer.is_model_parallel
    wanted, full_eval = args.place_model_on_device, full_evaluation_precision(args) is not None
    if trainer.semantics.release < SINCE["leaves_model_placement_open"]:
        return bool(wanted) and not (spread or (full_eval and not args.do_train))
    return not (spread or full_eval) if wanted is None else bool(wanted)


def _uses_model_loss(trainer: Trainer) -> bool:
    """Return whether training uses the loss that the model returns."""
    own = not is_overridden(trainer.compute_loss) and not is_overridden(trainer.training_step)
    return trainer.train_dataset is not None and trainer.compute_loss_func is None and own


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
    for callback in trainer.callback_handler.callbacks:
        for text in misspelt_events(callback):
            trainer.warn_once(text)
    if not any(isinstance(callback, RichProgressCallback) for callback in trainer.callback_handler.callbacks):
        prints = trainer.args.disable_tqdm or draws_with_rich(backend.callbacks)
        trainer.add_callback(PrinterCallback if prints else default_callbacks.DEFAULT_PROGRESS_CALLBACK)


# Log records and warnings of a Trainer that is made or evaluates: the facts that transformers logs, at level info.


def announce_setup(trainer: Trainer, *, has_args: bool) -> None:
    """Log which arguments have no effect, and what replaces them; warn of what the user would not expect.

    Args:
        trainer: The Trainer.
        has_args: Whether it was given ``args``.
    """
    if not has_args:
        logger.info("No `TrainingArguments` passed, using `output_dir=%s`.", trainer.args.output_dir)
    for text in setup_warnings(trainer.args):
        logger.warning(text)
    given = trainer.optimizer is not None or trainer.lr_scheduler is not None
    if given and trainer.lightning_backend.traits.has_engine:
        trainer.warn_once(
            "`optimizers`: with `deepspeed` transformers trains without the optimizer and the schedule that are passed "
            "to the Trainer, and so does this run, by the config or the training arguments. Override "
            "`create_optimizer` and `create_scheduler`, or pass `optimizer_cls_and_kwargs`."
        )
    backend, args = trainer.lightning_backend, trainer.args
    for text in (*unused_handler_texts(args), *doubtful_values(args), *monitor_warnings(backend.callbacks)):
        trainer.warn_once(text)
    processing = trainer.processing_class
    if isinstance(processing, str) or (isinstance(processing, type) and hasattr(processing, "from_pretrained")):
        trainer.warn_once(_not_loaded(processing))
    else:
        for text in _unknown_tokens(getattr(processing, "tokenizer", processing)):
            trainer.warn_once(text)
    is_stream = isinstance(trainer.train_dataset, IterableDataset)
    for text in setup_notes(trainer.args, trainer.semantics, is_stream=is_stream):
        logger.info(text)


def _unknown_tokens(tokenizer: Any) -> Iterator[str]:
    """Yield what to say of a pad token and an end of ``tokenizer`` that its vocabulary does not have."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    for name, meaning in (("pad_token", "padding, which no loss contains"), ("eos_token", "ends of texts")):
        if unknown is not None and getattr(tokenizer, f"{name}_id", None) == unknown:
            token = str(getattr(tokenizer, name))
            if token != str(tokenizer.unk_token):
                yield (
                    f"`processing_class` has `{name}={token!r}`, which is not in its vocabulary, and therefore the "
                    f"unknown token: unknown words count as {meaning}. Call "
                    f"`add_special_tokens({{{name!r}: {token!r}}})`, and resize the embeddings of the model."
                )


def _not_loaded(processing: str | type) -> str:
    """Return what is said of a name or a class in place of a tokenizer."""
    found, loaded = f"the name {processing!r}", f"AutoTokenizer.from_pretrained({processing!r})"
    if isinstance(processing, type):
        found, loaded = f"the class {processing.__name__}", f"{processing.__name__}.from_pretrained(...)"
    return f"`processing_class` is {found}: batches are not padded by it, and a save will fail. Pass `{loaded}`."
