"""Problems of one ``TrainingArguments``, raised in one error: values that are not valid, and names that are unknown."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field
from enum import Enum
from numbers import Integral, Real
from typing import Any, Protocol

from packaging.version import Version

from hf_compat.errors import ArgumentsError, ArgumentTypesError, UnknownArgumentError, UnsupportedArgumentsError
from hf_compat.masking import masked_text

# Problems of one `TrainingArguments`, collected first and raised in one error.


@dataclass(frozen=True, slots=True)
class Problem:
    """One field, its value, the reason and the remedy."""

    field: str
    value: object
    text: str
    """The reason and the remedy, printed after the value."""
    unsupported: bool = False
    """Whether the value is valid but not supported."""
    wrong_type: bool = False
    """Whether the value is of a type that cannot be used."""
    also: tuple[type[Exception], ...] = ()
    """What transformers raises for it, if that is none of the classes of :mod:`hf_compat.errors`."""
    written: str | None = None
    """What the user wrote, if that is not the field."""

    def __str__(self) -> str:
        if self.written is not None:
            return f"`{self.written}`: {self.text}"
        value = self.value.value if isinstance(self.value, Enum) else self.value
        # Tokens do not belong in logs; a dict, an address or JSON may contain some.
        shown = f"<{self.field.upper()}>" if self.field.endswith("_token") else repr(value)
        return masked_text(f"`{self.field}={shown}`: {self.text}")


def raise_all(problems: Iterable[Problem]) -> None:
    """Raise one error that lists all ``problems``; return if there are none.

    Raises:
        UnsupportedArgumentsError: If every problem is a value that is not supported.
        ArgumentTypesError: If a value is of a wrong type.
        ArgumentsError: If there is any other.
    """
    found = tuple(problems)
    if found:
        texts, fields = [str(problem) for problem in found], [problem.field for problem in found]
        others = (kind for problem in found for kind in problem.also)
        raise _kind_of(found).also(*others)(texts, fields=fields)


def _kind_of(problems: Sequence[Problem]) -> type[ArgumentsError]:
    if all(problem.unsupported for problem in problems):
        return UnsupportedArgumentsError
    return ArgumentTypesError if any(problem.wrong_type for problem in problems) else ArgumentsError


# Unknown names: errors suggest the nearest field, the class that has the field, or the nearest value.


_MIN_SIMILARITY = 0.6
"""Similarity, 0 to 1, from which a wrong value is taken for a misspelt one."""
_SHORTEST_BEGINNING = 3
"""Characters of a wrong value from which it is compared with the beginnings of others."""
_OF_TRAINER = [
    *("args", "callbacks", "compute_loss_func", "compute_metrics", "data_collator", "eval_dataset", "lightning"),
    *("model", "model_init", "optimizer_cls_and_kwargs", "optimizers", "preprocess_logits_for_metrics"),
    *("processing_class", "tokenizer", "train_dataset"),
]
_ELSEWHERE = {
    **dict.fromkeys(_OF_TRAINER, "pass it to the Trainer"),
    **dict.fromkeys(("dataset_text_field", "max_seq_length", "packing"), "trl's `SFTConfig` has it"),
    **dict.fromkeys(("padding", "truncation"), "pass it to the tokenizer"),
}
"""Names that often are given here, to where they belong."""
OTHER_NAMES_OF_FIELDS = {
    **dict.fromkeys(("batch_size", "train_batch_size"), "`per_device_train_batch_size`"),
    "clip_grad_norm": "`max_grad_norm`",
    **dict.fromkeys(("cpu", "device"), "`use_cpu`, since a GPU is used where there is one"),
    **dict.fromkeys(("early_stopping", "early_stopping_patience"), "`EarlyStoppingCallback`, passed to the Trainer"),
    **dict.fromkeys(("epoch", "epochs", "n_epochs", "num_epochs"), "`num_train_epochs`"),
    **dict.fromkeys(("eval_batch_size", "val_batch_size"), "`per_device_eval_batch_size`"),
    **dict.fromkeys(("grad_accum_steps", "gradient_accumulation"), "`gradient_accumulation_steps`"),
    **dict.fromkeys(("lr", "base_lr"), "`learning_rate`"),
    **dict.fromkeys(("lr_scheduler", "scheduler"), "`lr_scheduler_type`"),
    "optimizer": "`optim`",
    **dict.fromkeys(("mixed_precision", "dtype", "torch_dtype"), "`bf16` or `fp16`"),
    **dict.fromkeys(("num_workers", "workers"), "`dataloader_num_workers`"),
    **dict.fromkeys(("steps", "num_steps", "num_train_steps", "total_steps"), "`max_steps`"),
}
"""What other libraries and scripts call fields, to the fields."""
_WITHOUT_FIELD = (
    *("barebones", "benchmark", "detect_anomaly", "devices", "enable_autolog_hparams", "enable_model_summary"),
    *("fast_dev_run", "gradient_clip_algorithm", "inference_mode", "limit_predict_batches"),
    *("limit_test_batches", "limit_train_batches", "limit_val_batches", "max_time", "min_epochs", "min_steps"),
    *("model_registry", "num_nodes", "overfit_batches", "plugins", "profiler"),
    *("reload_dataloaders_every_n_epochs", "strategy", "sync_batchnorm", "use_distributed_sampler"),
)
"""Keywords of ``lightning.Trainer`` that no field stands for."""
LIGHTNING_KEYWORDS = {
    "accelerator": "`use_cpu`",
    "accumulate_grad_batches": "`gradient_accumulation_steps`",
    "check_val_every_n_epoch": "`eval_strategy`",
    "default_root_dir": "`output_dir`",
    "deterministic": "`full_determinism`",
    "enable_checkpointing": "`save_strategy`",
    "enable_progress_bar": "`disable_tqdm`",
    "gradient_clip_val": "`max_grad_norm`",
    "log_every_n_steps": "`logging_steps`",
    "logger": "`report_to`",
    "max_epochs": "`num_train_epochs`",
    "max_steps": "`max_steps`",
    "num_sanity_val_steps": "`eval_on_start`",
    "precision": "`bf16` or `fp16`",
    "val_check_interval": "`eval_strategy` and `eval_steps`",
    **dict.fromkeys(_WITHOUT_FIELD),
}
"""Keywords of ``lightning.Trainer``, to the fields that say the same; None without one."""


def nearest_names(unknown: Iterable[str], known: Iterable[str]) -> str:
    """Return a suggestion of ``known`` names close to the ``unknown`` ones; empty if there are none."""
    names = list(known)
    near = {name: difflib.get_close_matches(name, names, n=1, cutoff=0.75) for name in unknown}
    hints = [f"`{found[0]}` for `{name}`" for name, found in near.items() if found]
    return f" Did you mean {', '.join(hints)}?" if hints else ""


def nearest_value(wrong: object, allowed: Iterable[str | None]) -> str:
    """Return a question that suggests the value among ``allowed`` close to ``wrong``, and a space; empty without one.

    Close is also what only begins alike, as ``"adam"`` and ``"adamw_torch"``; of several the first is taken.
    """
    if not isinstance(wrong, str):
        return ""
    shown = wrong.lower()
    near = {name: _similarity(shown, name) for name in allowed if name is not None}
    best = max(near, key=lambda name: near[name], default=None)
    return "" if best is None or near[best] < _MIN_SIMILARITY else f"did you mean {best!r}? "


def _similarity(wrong: str, name: str) -> float:
    """Return how alike the two are, from 0 to 1, or the beginning of ``name`` if that is more and not too short."""
    parts = (name, name[: len(wrong)]) if len(wrong) >= _SHORTEST_BEGINNING else (name,)
    return max(difflib.SequenceMatcher(None, wrong, part).ratio() for part in parts)


def _sentence(kind: type[Any], name: str, known: Iterable[str]) -> str:
    problem = f"`{name}` is not an argument of {kind.__name__}: "
    owners = [child.__name__ for child in kind.__subclasses__() if name in inspect.signature(child).parameters]
    if owners:
        return f"{problem}use `{owners[0]}`, which has it."
    if name in _ELSEWHERE:
        return f"{problem}{_ELSEWHERE[name]}."
    if name in OTHER_NAMES_OF_FIELDS:
        return f"{problem}use {OTHER_NAMES_OF_FIELDS[name]}."
    if name in LIGHTNING_KEYWORDS:
        field = LIGHTNING_KEYWORDS[name]
        return f"{problem}{f'use {field}, or ' if field else ''}pass `lightning={{{name!r}: ...}}` to the Trainer."
    return f"{problem}did you mean `{difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)[0]}`?"


def _further_problems(kind: type, args: tuple[Any, ...], known: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the problems of the other arguments."""
    try:
        kind(*args, **known)
    except ArgumentsError as error:
        return error.problems
    return ()


class InitSignature:
    """``__signature__`` of a class whose ``__new__`` takes any argument: that of its ``__init__``."""

    def __get__(self, instance: object, owner: type[Any]) -> inspect.Signature:
        signature = inspect.signature(owner.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])


def refuse_unknown(kind: type[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Check the keywords of a dataclass; called by its ``__new__``.

    Not by its ``__init__``, which the dataclass decorator of a user's subclass replaces.

    Args:
        kind: The class that is called, perhaps a user's subclass.
        args: Its positional arguments.
        kwargs: Its keywords.

    Raises:
        UnknownArgumentError: If it has no such keyword; the error suggests the nearest one and lists all other
            problems too.
    """
    if not kwargs:
        return
    parameters = inspect.signature(kind).parameters
    called = inspect.signature(kind.__init__, follow_wrapped=False).parameters  # a wrapper may rename keywords
    takes_any = any(item.kind is inspect.Parameter.VAR_KEYWORD for item in called.values())
    unknown = [name for name in kwargs if name not in parameters]
    if unknown and not takes_any:
        known = {name: value for name, value in kwargs.items() if name in parameters}
        sentences = [_sentence(kind, name, parameters) for name in unknown]
        raise UnknownArgumentError("\n  ".join([*sentences, *_further_problems(kind, args, known)]))


# The values of a field that are valid, whatever the other fields are. None is valid where it is the default.


class ValidValues(Protocol):
    """Says which values of a field are valid."""

    def problems(self, item: Field[Any], value: Any, release: Version) -> Iterator[Problem]:
        """Yield the problem of the field ``item``, if ``value`` is not valid in ``release``."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number; of one with a bound, NaN is not valid."""

    least: float | None = None
    most: float | None = None
    text: str | None = None
    """What is said of a number out of bounds, instead of the bounds."""
    takes_none: bool = False
    """Whether None is valid off the default too."""

    def type_problems(self, item: Field[Any], value: object) -> Iterator[Problem]:
        """Yield the problem of a ``value`` that no other check can compare with a number."""
        is_none = value is None and (self.takes_none or item.default is None)
        if not (isinstance(value, Real) or is_none):
            quoted = "; write it without quotes (in YAML, 1.0e-4 rather than 1e-4)" if isinstance(value, str) else ""
            yield Problem(item.name, value, f"must be a number{quoted}.", wrong_type=True)

    def problems(self, item: Field[Any], value: Any, release: Version) -> Iterator[Problem]:
        """Yield the problem of a number out of bounds."""
        smallest, largest = _limits(self.least, self.most)
        has_bounds = self.least is not None or self.most is not None
        if has_bounds and value is not None and not smallest <= value <= largest:
            yield Problem(item.name, value, self.text or f"must be {_within(smallest, largest)}.")


@dataclass(frozen=True, slots=True)
class Integer(Number):
    """A whole number."""

    def problems(self, item: Field[Any], value: Any, release: Version) -> Iterator[Problem]:
        """Yield the problem of a number that is not whole, or out of bounds."""
        smallest, largest = _limits(self.least, self.most)
        is_whole = isinstance(value, Integral)
        if value is None or (is_whole and smallest <= value <= largest):
            return
        also = (ZeroDivisionError,) if value == 0 else ()  # transformers divides by it
        bound = f", {self.least} or more" if self.least is not None and self.most is None else ""
        is_outside = is_whole and self.most is not None
        text = f"must be {_within(smallest, largest)}." if is_outside else f"`{item.name}` must be an integer{bound}."
        yield Problem(item.name, value, text, wrong_type=not is_whole, also=also)


def _limits(least: float | None, most: float | None) -> tuple[float, float]:
    return -math.inf if least is None else least, math.inf if most is None else most


def _within(smallest: float, largest: float) -> str:
    if math.isfinite(smallest) and math.isfinite(largest):
        return f"between {smallest} and {largest}"
    return f"{smallest} or more" if math.isfinite(smallest) else f"a number, {largest} or less"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few values."""

    values: tuple[str, ...]
    since: Mapping[str, str] = field(default_factory=dict)
    """Value to the first release of transformers with it, of those that 4.57 does not have."""
    also: tuple[type[Exception], ...] = ()
    """What transformers raises for another value."""
    on_command_line: bool = True
    """Whether parsers refuse another value."""

    def problems(self, item: Field[Any], value: Any, release: Version) -> Iterator[Problem]:
        """Yield the problem of any other value, with the nearest one."""
        older = {each for each, first in self.since.items() if release < Version(first)}
        allowed = [*([None] if item.default is None else []), *(each for each in self.values if each not in older)]
        if value not in allowed:
            question = nearest_value(value, allowed)
            choose = "Choose" if question else "choose"
            text = f"{question}{choose} one of {', '.join(map(repr, allowed))}."
            yield Problem(item.name, value, text, also=self.also)


@dataclass(frozen=True, slots=True)
class Word:
    """A string, or None."""

    meaning: str
    may_be_empty: bool = False

    def problems(self, item: Field[Any], value: Any, release: Version) -> Iterator[Problem]:
        """Yield the problem of what is no string, or an empty one."""
        if not isinstance(value, str | None):
            yield Problem(item.name, value, f"must be a string, {self.meaning}.", wrong_type=True)
        elif value == "" and not self.may_be_empty:
            yield Problem(item.name, value, f"must be {self.meaning}; set it, or None.")


@dataclass(frozen=True, slots=True)
class Names:
    """A list of names."""

    excluded: tuple[type, ...]
    """Types of collections that are no such list."""

    def problems(self, item: Field[Any], value: Any, release: Version) -> Iterator[Problem]:
        """Yield the problem of what is no list of names."""
        if not isinstance(value, Collection | None) or isinstance(value, self.excluded):
            yield Problem(item.name, value, "must be a list of names.", wrong_type=True)
