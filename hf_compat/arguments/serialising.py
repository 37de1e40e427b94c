"""``TrainingArguments`` as dict, JSON and text, and as the hyperparameters in a model card."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import Field, asdict, fields
from enum import Enum
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.accelerator_config import AcceleratorConfig
from hf_compat.arguments.fields import ALIASES, declared, fields_of_the_script
from hf_compat.arguments.releases import effective_args
from hf_compat.arguments.resolving import semantics_of

if TYPE_CHECKING:
    from hf_compat.arguments.releases import Semantics
    from hf_compat.arguments.training_arguments import TrainingArguments


_PLAIN_TYPES = (bool, int, float, str)
_FOLLOWING = ("_n_gpu", "activation_checkpointing", "activation_checkpointing_kwargs")
"""Fields that hold what the device, or the one of their older name, decides."""
_PER_GPU = ("per_gpu_train_batch_size", "per_gpu_eval_batch_size")
"""Fields that transformers leaves out of the text."""


def _masked(name: str, value: object) -> object:
    """Return ``value``, or a placeholder for a token."""
    return f"<{name.upper()}>" if name.endswith("_token") else value


def _plain(name: str, value: object) -> object:
    """Return ``value`` with enums and config objects replaced by plain values."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list) and value and isinstance(value[0], Enum):
        return [item.value for item in value]
    if isinstance(value, AcceleratorConfig):
        settings = value.to_dict()
        settings.pop("use_configured_state", None)  # upstream has removed it by then
        return settings
    if name == "parallelism_config" and value is not None:
        return value.to_json() if hasattr(value, "to_json") else value
    if name == "model_init_kwargs" and isinstance(value, dict):
        quantization: Any = value.get("quantization_config")
        if hasattr(quantization, "to_dict"):
            return {**value, "quantization_config": quantization.to_dict()}
    return value


def _with_named_dtypes(settings: dict[str, Any]) -> dict[str, Any]:
    """Return ``settings`` with torch dtypes under the key ``dtype`` as strings, at any depth."""
    named = {key: _with_named_dtypes(value) if isinstance(value, dict) else value for key, value in settings.items()}
    dtype = named.get("dtype")
    if dtype is not None and not isinstance(dtype, str):
        named["dtype"] = str(dtype).split(".")[1]
    return named


def _is_set(args: TrainingArguments, name: str) -> bool:
    """Return whether a field that the release lacks is off its default, but not because another field is."""
    if name in _FOLLOWING or getattr(args, name) == declared(type(args))[name].default_value:
        return False
    return not any(alias.new == name and _is_set(args, alias.old) for alias in ALIASES)


def _shown_fields(args: TrainingArguments) -> list[Field[Any]]:
    """Return the fields of the release that is followed, ours, those of a subclass, and others that are set."""
    release = semantics_of(args)[0].release  # of unknown semantics too: an error may show its arguments
    lacking = {name for name, item in declared(type(args)).items() if not (item.is_ours or item.is_of(release))}
    lacking -= fields_of_the_script(type(args), release).keys()
    return [item for item in fields(args) if item.name not in lacking or _is_set(args, item.name)]


def plain_fields(args: TrainingArguments) -> dict[str, Any]:
    """Return the fields as JSON-serializable values; tokens are masked."""
    given = {item.name: getattr(args, item.name) for item in _shown_fields(args) if item.init}
    return _with_named_dtypes({name: _masked(name, _plain(name, value)) for name, value in given.items()})


def sanitized_fields(args: TrainingArguments) -> dict[str, Any]:
    """Return ``args.to_dict()`` with the batch sizes; all but numbers, strings and tensors as strings."""
    torch = sys.modules.get("torch")
    kept = (*_PLAIN_TYPES, torch.Tensor) if torch is not None else _PLAIN_TYPES
    sizes = {"train_batch_size": args.train_batch_size, "eval_batch_size": args.eval_batch_size}
    merged = {**args.to_dict(), **sizes}
    return {name: value if type(value) in kept else str(value) for name, value in merged.items()}


def as_text(args: TrainingArguments) -> str:
    """Return a line for each field, sorted by name; tokens are masked."""
    shown = {item.name for item in _shown_fields(args)} - {name for name in _PER_GPU if not _is_set(args, name)}
    values = sorted((name, value) for name, value in asdict(args).items() if name in shown)
    lines = "".join(f"{name}={_masked(name, value)},\n" for name, value in values)
    return f"{type(args).__name__}(\n{lines})"


def repr_of(kind: type[TrainingArguments]) -> Callable[[TrainingArguments], str]:
    """Return the ``__repr__`` of ``kind``, which defines none: what it inherits or, of a dataclass, one line.

    The line is that of ``dataclass``, without the fields of other releases; tokens are left out.
    """

    def shown(args: TrainingArguments) -> str:
        parameters = vars(kind).get("__dataclass_params__")  # set after the class is made
        if parameters is None or not parameters.repr:
            return super(kind, args).__repr__()
        values = ", ".join(f"{item.name}={getattr(args, item.name)!r}" for item in _shown_fields(args) if item.repr)
        return f"{type(args).__qualname__}({values})"

    return shown


def hyperparameters(args: TrainingArguments, semantics: Semantics, data_parallel_size: int) -> dict[str, Any]:
    """Return the hyperparameters of the run, by their names in model cards, without those that are off.

    Args:
        args: The training arguments.
        semantics: The transformers release to follow.
        data_parallel_size: Data-parallel world size.
    """
    args = effective_args(args)
    devices, accumulated = args.world_size, args.gradient_accumulation_steps
    train, evaluated = args.train_batch_size, args.eval_batch_size
    total = train * data_parallel_size * accumulated
    ratio = 0.0 if semantics.warmup_ratio_replaces_steps else args.warmup_ratio
    rows: tuple[tuple[str, Any, bool], ...] = (
        ("learning_rate", args.learning_rate, True),
        ("train_batch_size", train, True),
        ("eval_batch_size", evaluated, True),
        ("seed", args.seed, True),
        ("distributed_type", "multi-GPU", devices > 1),
        ("num_devices", devices, devices > 1),
        ("gradient_accumulation_steps", accumulated, accumulated > 1),
        ("total_train_batch_size", total, total != train),
        ("total_eval_batch_size", evaluated * data_parallel_size, devices > 1),
        ("optimizer", _optimizer(args), bool(args.optim)),
        ("lr_scheduler_type", getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type), True),
        ("lr_scheduler_warmup_ratio", ratio, bool(ratio)),
        ("lr_scheduler_warmup_steps", args.warmup_steps, bool(args.warmup_steps)),
        ("training_steps", args.max_steps, args.max_steps != -1),
        ("num_epochs", args.num_train_epochs, args.max_steps == -1),
        ("mixed_precision_training", "Native AMP", bool(args.fp16)),
        ("label_smoothing_factor", args.label_smoothing_factor, args.label_smoothing_factor != 0),
    )
    return {name: value for name, value, is_shown in rows if is_shown}


def _optimizer(args: TrainingArguments) -> str:
    name = getattr(args.optim, "value", args.optim)
    extra = args.optim_args or "No additional optimizer arguments"
    if "adam" not in name.lower():
        return f"Use {name} and the args are:\n{extra}"
    betas = f"betas=({args.adam_beta1},{args.adam_beta2})"
    return f"Use {name} with {betas} and epsilon={args.adam_epsilon} and optimizer_args={extra}"
