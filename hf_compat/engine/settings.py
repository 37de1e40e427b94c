"""The settings of a run: its training arguments and the user's keywords of ``lightning.Trainer`` as one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning.pytorch.plugins.precision import Precision

from hf_compat.arguments import TrainingArguments
from hf_compat.arguments.checking.checks import find_problems
from hf_compat.arguments.checking.problems import raise_all
from hf_compat.arguments.fields.defaults import defaults
from hf_compat.arguments.releases.convert import from_transformers
from hf_compat.arguments.releases.semantics import resolve_semantics
from hf_compat.engine.keywords import (
    FIELD_KEYWORDS,
    SHARES,
    evaluation_fields,
    keyword_problems,
    precision_meant,
    user_plugins,
)
from hf_compat.engine.precision import true_precision
from hf_compat.errors import TrainerSetupError
from hf_compat.plan.data_limits import DataLimits

__all__ = ["Settings", "effective_settings"]

_SETTLED = (*FIELD_KEYWORDS, *SHARES, "precision", "val_check_interval", "check_val_every_n_epoch")
"""Keywords that ``lightning.Trainer`` is not given, as they are in the arguments, the limits or the plugins."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What training arguments and keywords of ``lightning.Trainer`` say together."""

    args: TrainingArguments
    """The training arguments; a copy if keywords set fields."""
    keywords: dict[str, Any] = field(default_factory=dict)
    """The other keywords, for ``lightning.Trainer``."""
    limits: DataLimits = field(default_factory=DataLimits)
    """How much of its data a run reads."""
    problems: list[str] = field(default_factory=list)
    """Why keywords are refused."""


def effective_settings(args: Any, lightning: Mapping[str, Any] | None) -> Settings:
    """Return what ``args`` and the keywords ``lightning`` say together.

    A keyword that says what a field says sets that field, in a copy of ``args``; one that contradicts a field which
    differs from its default is a problem.

    Args:
        args: The training arguments, ours or transformers'; None for ``TrainingArguments("tmp_trainer")``.
        lightning: The user's keywords of ``lightning.Trainer``.

    Raises:
        ArgumentsError: If the arguments are not valid, with what the keywords say or without.
        MissingPackageError: If a keyword needs a package that is not installed.
    """
    args = TrainingArguments("tmp_trainer") if args is None else from_transformers(args)
    given = dict(lightning or {})
    problems = keyword_problems(given)
    if problems or not given:
        return Settings(args, given, problems=problems)
    fields, problems = _fields_meant(args, given)
    plugin = None
    try:
        plugin, mixed = _precision_meant(args, given)
        fields |= mixed
    except TrainerSetupError as error:
        problems.append(str(error))
    if fields and args.hf_deepspeed_config is not None:
        names = ", ".join(f"`{name}`" for name in fields)
        problems.append(
            f"`lightning={given}`: with `deepspeed` the training arguments have to say that. Set {names} there."
        )
    if problems:
        return Settings(args, given, problems=problems)
    keywords = {name: value for name, value in given.items() if name not in _SETTLED}
    if plugin is not None:
        keywords["plugins"] = [*user_plugins(given), plugin]
    return Settings(_with_fields(args, fields), keywords, _limits_meant(args, given))


def _fields_meant(args: TrainingArguments, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the fields that keywords set, and the problems of those that contradict ``args``."""
    said: list[tuple[str, Mapping[str, Any]]] = [
        (f"'{name}': {given[name]!r}", FIELD_KEYWORDS[name](given[name])) for name in FIELD_KEYWORDS if name in given
    ]
    problems, fields = [], {}
    try:
        names = [name for name in ("val_check_interval", "check_val_every_n_epoch") if name in given]
        said.append((", ".join(f"'{name}': {given[name]!r}" for name in names), evaluation_fields(given)))
    except TrainerSetupError as error:
        problems.append(str(error))
    if given.get("max_epochs") == -1 and max(args.max_steps, given.get("max_steps", -1)) < 0:
        problems.append(
            "`lightning={'max_epochs': -1}`: without an end there is no learning-rate schedule. Set `max_steps`."
        )
    for keyword, values in said:
        for name, value in values.items():
            current = getattr(args, name)
            if current not in (defaults()[name], value):
                problems.append(_contradiction(keyword, name, current))
            fields[name] = value
    if given.get("limit_val_batches") == 0 and args.eval_strategy != "no":
        keyword = f"'limit_val_batches': {given['limit_val_batches']!r}"
        problems.append(_contradiction(keyword, "eval_strategy", args.eval_strategy))
    return fields, problems


def _contradiction(keyword: str, name: str, current: object) -> str:
    shown = str(current.value) if hasattr(current, "value") else current
    return f"`lightning={{{keyword}}}` contradicts `{name}={shown!r}` of the training arguments. Set one of them only."


def _precision_meant(args: TrainingArguments, given: Mapping[str, Any]) -> tuple[Precision | None, dict[str, Any]]:
    """Return the precision plugin and the fields that ``precision`` means.

    Raises:
        MissingPackageError: If the plugin needs a package that is not installed.
        TrainerSetupError: If it is unknown, or contradicts ``args`` or a plugin.
    """
    meant = precision_meant(given.get("precision"))
    if meant is None:
        return None, {}
    keyword = f"'precision': {given['precision']!r}"
    wanted = meant if meant in ("bf16", "fp16") else "no"
    if args.mixed_precision not in ("no", wanted):
        raise TrainerSetupError(_contradiction(keyword, args.mixed_precision, True))
    others = [plugin for plugin in user_plugins(given) if isinstance(plugin, Precision)]
    if others:
        name = type(others[0]).__name__
        raise TrainerSetupError(
            f"`lightning={{{keyword}, 'plugins': [{name}]}}` both set the precision: choose one of them."
        )
    if meant in ("bf16", "fp16"):
        return None, {meant: True}
    return (None if meant == "no" else true_precision(meant)), {}


def _limits_meant(args: TrainingArguments, given: Mapping[str, Any]) -> DataLimits:
    """Return how much of its data a run reads."""
    shares = {name: 1.0 if given.get(name) is None else given[name] for name in SHARES}
    both = shares["overfit_batches"] if given.get("overfit_batches") else None
    predicts = shares["limit_test_batches" if given.get("limit_predict_batches") is None else "limit_predict_batches"]
    epochs = given.get("max_epochs")
    return DataLimits(
        train=shares["limit_train_batches"] if both is None else both,
        evaluation=shares["limit_val_batches"] if both is None else both,
        prediction=predicts,
        max_epochs=None if epochs in (None, -1) else epochs,
    )


def _with_fields(args: TrainingArguments, fields: Mapping[str, Any]) -> TrainingArguments:
    """Return ``args``, or a copy of them in which ``fields`` are set.

    Raises:
        ArgumentsError: If they are then not valid.
    """
    if all(getattr(args, name) == value for name, value in fields.items()):
        return args
    args = copy.copy(args)
    vars(args).update(fields)
    args.do_eval = args.do_eval or args.eval_strategy != "no"
    for precision in ("bf16", "fp16"):
        if fields.get(precision):
            args.mixed_precision = precision
    raise_all(find_problems(args, resolve_semantics(args.semantics)))
    return args
