"""The fields of ``TrainingArguments``: how they are declared, and their old names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from packaging.version import Version

from hf_compat.arguments.accelerator_config import AcceleratorConfig
from hf_compat.arguments.enums import ExplicitEnum, FSDPOption
from hf_compat.arguments.parser import LibraryField
from hf_compat.arguments.problems import OneOf, ValidValues
from hf_compat.arguments.releases import SINCE, Semantics, effective_args
from hf_compat.errors import warn_user

if TYPE_CHECKING:
    from hf_compat.arguments.training_arguments import TrainingArguments

# How a field is declared: default, help, valid values, releases, and what becomes of it.


@dataclass(frozen=True, slots=True)
class Effect:
    """The use that is made of a field's value."""

    handling: Literal["trainer", "plan", "script", "alias", "unsupported"]
    """A keyword of ``lightning.Trainer``; used by hf_compat; only read by scripts; an old name; or not supported."""
    target: str
    """The keyword; the file that does the main work; who reads it; the new name; or the reason and the remedy."""
    sentence: str
    """The effect, or why it is not supported and what to do."""
    harmless: tuple[Any, ...] = ()
    """Values besides the default that have no effect, so are accepted."""


class DeclaredField(LibraryField):
    """A field of the library's arguments, which says all there is to say of it."""

    __slots__ = ("effect", "enum", "valid")

    effect: Effect
    """What becomes of its value; set by the method that follows ``option``."""
    enum: type[ExplicitEnum] | None
    """The enum to which its value is converted."""
    valid: ValidValues | None
    """The values that are valid, whatever the other fields are; None for any."""

    @property
    def default_value(self) -> object:
        """Its default, a new one if that is a list; a subclass may have another one."""
        return self.default if self.default_factory is MISSING else self.default_factory()

    def passed_on(self, keyword: str, effect: str) -> Self:
        """Declare that ``lightning.Trainer`` gets it as ``keyword``, and its effect in a sentence."""
        self.effect = Effect("trainer", keyword, effect)
        return self

    def done_in(self, file: str, effect: str) -> Self:
        """Declare that ``file``, by its path in the package, does the main work, and its effect in a sentence."""
        self.effect = Effect("plan", file, effect)
        return self

    def left_to_scripts(self, effect: str = "Only read by scripts; the Trainer does not use it.") -> Self:
        """Declare that the Trainer does not use it, and who does."""
        self.effect = Effect("script", "scripts", effect)
        return self

    def renamed(self, new: str, effect: str | None = None) -> Self:
        """Declare it the old name of the field ``new``, or what it sets there."""
        self.effect = Effect("alias", new, effect or f"Old name of `{new}`.")
        return self

    def refused(self, reason: str, harmless: tuple[Any, ...] = ()) -> Self:
        """Declare that it is not supported, off its default and ``harmless`` values; with reason and remedy."""
        self.effect = Effect("unsupported", reason, f"{reason[0].upper()}{reason[1:]}.", harmless)
        return self


_PARAMETERS = tuple(inspect.signature(Field).parameters)
"""What a field is made of, each also the name of its attribute; the installed Python decides."""


def option(
    default: object,
    text: str = "",
    valid: ValidValues | None = None,
    *,
    enum: type[ExplicitEnum] | None = None,
    since: str | None = None,
    until: str | None = None,
    ours: bool = False,
    shown: bool = True,
    internal: bool = False,
    **parser: object,
) -> Any:
    """Return a dataclass field with help for the command line; a method of it, called at once, declares its effect.

    Args:
        default: Its default; a list stands for a new empty one.
        text: Its help text.
        valid: The values that are valid, whatever the other fields are; a parser gets those of ``OneOf``.
        enum: The enum to which its value is converted.
        since: The first release of transformers with it, if 4.57 has none.
        until: The first release of transformers without it, 4.57 or newer.
        ours: Whether no release has it.
        shown: Whether its value appears in ``repr``.
        internal: Whether it is no argument, but an attribute that counts in no text and no comparison.
        **parser: Additional keywords for argparse.
    """
    made: Any = {"default_factory": list} if isinstance(default, list) else {"default": default}
    if internal:
        found = _of_the_library(**made, init=False, repr=False, compare=False)
    else:
        choices = {"choices": list(valid.values)} if isinstance(valid, OneOf) and valid.on_command_line else {}
        found = _of_the_library(**made, repr=shown, metadata={"help": text, **choices, **parser})
    found.valid, found.enum, found.is_ours = valid, enum, ours
    found.since, found.until = (None if release is None else Version(release) for release in (since, until))
    return found


def _of_the_library(**settings: Any) -> DeclaredField:
    """Return the field that ``dataclasses.field`` makes of ``settings``, of the library's own class."""
    plain: Any = field(**settings)
    return DeclaredField(**{name: getattr(plain, name) for name in _PARAMETERS})


# A field accepts more types than it has after ``__post_init__``: a JSON string becomes a dict, a name a list, and a
# missing folder its default. Command-line parsers read the accepted types from the annotations at run time.
if TYPE_CHECKING:
    Config = Any
    Folder = str
    Fsdp = bool | str | list[FSDPOption] | None
    Listed = Any
    Settings = Any
else:
    Config = dict | str | None
    Folder = str | None
    Fsdp = str | None
    Listed = None | str | list[str]
    Settings = dict[str, Any] | str | None


def declared(kind: type[Any]) -> Mapping[str, DeclaredField]:
    """Return the library's fields by name, in the order of declaration.

    Args:
        kind: A class of the library's arguments, or a script's that derives from one and may declare some anew.
    """
    return _declared(next(base for base in inspect.getmro(kind) if _is_of_the_library(base)))


@cache
def _declared(kind: type[Any]) -> Mapping[str, DeclaredField]:
    found = cast(tuple[DeclaredField, ...], fields(kind))
    return MappingProxyType({item.name: item for item in found})


def _is_of_the_library(kind: type[Any]) -> bool:
    return kind.__module__.startswith("hf_compat.")


def fields_of_the_script(kind: type[Any], release: Version) -> Mapping[str, object]:
    """Return the fields of ours that ``release`` lacks and a class of the script, ``kind`` or a base, declares.

    With our default of each.
    """
    bases = (base for base in inspect.getmro(kind) if not _is_of_the_library(base))
    names = {name for base in bases for name in inspect.get_annotations(base)}
    ours = {name: item for name, item in declared(kind).items() if name in names and not item.is_ours}
    return {name: item.default_value for name, item in ours.items() if not item.is_of(release)}


# Old names of fields, which set the new ones. They work with the semantics of every release.


Convert = Callable[["TrainingArguments", object], object]


def _is_not_none(value: object) -> bool:
    return value is not None


def _same(args: TrainingArguments, value: object) -> object:
    return value


def _always(newer: object) -> Convert:
    """Return a conversion of any value to ``newer``."""

    def convert(args: TrainingArguments, value: object) -> object:
        return newer

    return convert


def _add_inputs(args: TrainingArguments, value: object) -> list[str]:
    listed = list(args.include_for_metrics)
    return listed if "inputs" in listed else [*listed, "inputs"]


def _with_organization(args: TrainingArguments, value: object) -> str:
    organization = args.push_to_hub_organization
    return str(value) if organization is None or "/" in str(value) else f"{organization}/{value}"


def _in_organization(args: TrainingArguments, value: object) -> str | None:
    if args.push_to_hub_model_id is not None:
        return args.hub_model_id
    return f"{value}/{Path(args.output_dir or '').name}"


def _accelerator(key: str) -> Convert:
    """Return a conversion for a field that moved into ``accelerator_config``."""

    def convert(args: TrainingArguments, value: object) -> object:
        config = args.accelerator_config
        if config is None:
            return {key: value}
        if isinstance(config, AcceleratorConfig):
            setattr(config, key, value)
            return config
        if isinstance(config, dict):
            return {**config, key: value}
        return {**AcceleratorConfig.from_json_file(config).to_dict(), key: value}

    return convert


@dataclass(frozen=True, slots=True)
class Alias:
    """An old name of a field, and the value of the new one when the old one is given."""

    old: str
    new: str
    convert: Convert = _same
    """From the arguments and the old field's value to the new field's value."""
    is_given: Callable[[object], bool] = bool
    """Whether a value of the old field has an effect."""
    warns: bool = True
    """Whether transformers deprecated the old name with a warning."""
    may_differ: bool = False
    """Whether the new field may have another value beside the old one's: it is added to, or masked in a dict."""


ALIASES: tuple[Alias, ...] = (
    Alias("evaluation_strategy", "eval_strategy", is_given=_is_not_none),
    Alias("per_gpu_train_batch_size", "per_device_train_batch_size"),
    Alias("per_gpu_eval_batch_size", "per_device_eval_batch_size"),
    Alias("no_cuda", "use_cpu"),
    Alias("adafactor", "optim", _always("adafactor")),
    Alias("group_by_length", "train_sampling_strategy", _always("group_by_length"), warns=False),
    Alias("include_inputs_for_metrics", "include_for_metrics", _add_inputs, may_differ=True),
    Alias("fp16_backend", "half_precision_backend", is_given=lambda value: value not in (None, "", "auto")),
    Alias("torchdynamo", "torch_compile_backend", is_given=_is_not_none),
    Alias("push_to_hub_token", "hub_token", is_given=_is_not_none, may_differ=True),
    Alias("push_to_hub_model_id", "hub_model_id", _with_organization, is_given=_is_not_none),
    Alias("push_to_hub_organization", "hub_model_id", _in_organization, is_given=_is_not_none),
    Alias(
        "dispatch_batches",
        "accelerator_config",
        _accelerator("dispatch_batches"),
        is_given=_is_not_none,
        may_differ=True,
    ),
    Alias("split_batches", "accelerator_config", _accelerator("split_batches"), is_given=_is_not_none, may_differ=True),
)
"""The aliases of all releases; the functions below depend on the release."""


def _warn(old: str, new: str) -> None:
    warn_user(f"`{old}` is deprecated: use `{new}`.", FutureWarning)


def _warn_of_loser(args: TrainingArguments, loser: str, winner: str) -> None:
    """Warn that one of two names of a field has no effect, as in a copy of arguments in which one was changed."""
    text = (
        f"`{loser}={getattr(args, loser)!r}` has no effect beside `{winner}={getattr(args, winner)!r}`: they are two "
        f"names of one field, and as in transformers `{winner}` wins. Copies of arguments and dicts by `to_dict` have "
        "both: change both, or remove one of them."
    )
    warn_user(text)


def apply_aliases(args: TrainingArguments) -> None:
    """Apply ``ALIASES``; an old name overrides the new one, as upstream, and a warning says so if that is set too."""
    ours = declared(type(args))
    for alias in ALIASES:
        value = getattr(args, alias.old)
        if alias.is_given(value):
            if alias.warns:
                _warn(alias.old, alias.new)
            newer = alias.convert(args, value)
            if not alias.may_differ and getattr(args, alias.new) not in (ours[alias.new].default_value, newer):
                _warn_of_loser(args, alias.new, alias.old)
            setattr(args, alias.new, newer)


def apply_checkpointing_alias(args: TrainingArguments, semantics: Semantics) -> None:
    """Set ``gradient_checkpointing`` and ``activation_checkpointing``, and their keywords, to the same value.

    Of two values that of the new name wins; in releases that lack it that of the old one, which alone can be changed in
    a copy there. A warning says so.
    """
    is_renamed = semantics.release >= SINCE["renames_gradient_checkpointing"]
    for ending in ("", "_kwargs"):
        old, new = f"gradient_checkpointing{ending}", f"activation_checkpointing{ending}"
        given = [name for name in ((new, old) if is_renamed else (old, new)) if getattr(args, name) is not None]
        if len(given) == 2 and getattr(args, old) != getattr(args, new):
            _warn_of_loser(args, given[1], given[0])
        elif given == [old] and is_renamed:
            _warn(old, new)
        value = getattr(args, given[0]) if given else None
        setattr(args, new, value)
        setattr(args, old, value)
    if args.activation_checkpointing is None:
        args.activation_checkpointing = args.gradient_checkpointing = False


def checkpoints_activations(args: TrainingArguments) -> bool:
    """Return whether a run checkpoints activations, by either name of the field; one may have been set later."""
    args = effective_args(args)
    return bool(args.activation_checkpointing or args.gradient_checkpointing)


def checkpointing_keywords(args: TrainingArguments) -> dict[str, Any] | None:
    """Return the keywords of activation checkpointing, by either name of the field."""
    args = effective_args(args)
    keywords: dict[str, Any] | None = args.activation_checkpointing_kwargs or args.gradient_checkpointing_kwargs
    return keywords


def apply_tokens_alias(args: TrainingArguments, semantics: Semantics) -> None:
    """Count input tokens for ``include_tokens_per_second`` from 5.0 on; before, it stays a field."""
    asked = args.include_tokens_per_second and semantics.counts_tokens_as_seen
    if asked and args.include_num_input_tokens_seen in ("no", False):
        args.include_num_input_tokens_seen = "all"


def apply_warmup_ratio(args: TrainingArguments, semantics: Semantics) -> None:
    """Warn of ``warmup_ratio`` from 5.0 on, and copy it to ``warmup_steps`` in the releases that do."""
    ratio, steps = args.warmup_ratio, args.warmup_steps
    if semantics.release < SINCE["drops_warmup_ratio"]:
        args.warmup_ratio = 0.0 if ratio is None else ratio
    elif ratio is not None:
        _warn("warmup_ratio", "warmup_steps")
    if ratio is None or not semantics.warmup_ratio_replaces_steps:
        return
    args.warmup_steps = ratio
    if ratio == 1 or steps not in (0, ratio):
        text = (
            f"transformers {semantics.release} replaces `warmup_steps={steps}` with `warmup_ratio={ratio}`, where 1.0 "
            "is one update step, and so does this run. Set `warmup_steps` only, or `semantics='corrected'`."
        )
        warn_user(text)
