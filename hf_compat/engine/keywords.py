"""The user's keywords of ``lightning.Trainer`` and Lightning callbacks: their effect on a run, and for all Trainers."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import Strategy

from hf_compat.arguments.enums import IntervalStrategy, SaveStrategy
from hf_compat.callbacks.handler import new_instance
from hf_compat.errors import ArgumentsError, CallbackError, TrainerSetupError, described
from hf_compat.plan.plan import EvaluationTimes, Share

Fields = Mapping[str, Any]

FIELD_KEYWORDS: dict[str, Callable[[Any], Fields]] = {
    "accumulate_grad_batches": lambda batches: {"gradient_accumulation_steps": batches},
    "enable_checkpointing": lambda enables: {"save_strategy": SaveStrategy.NO} if enables is False else {},
    "enable_progress_bar": lambda enables: {"disable_tqdm": True} if enables is False else {},
    "logger": lambda logger: {"report_to": []} if logger is False else {},
    "max_epochs": lambda epochs: {} if epochs in (None, -1) else {"num_train_epochs": float(epochs)},
    "max_steps": lambda steps: {} if steps == -1 else {"max_steps": steps},
    "overfit_batches": lambda share: {"train_sampling_strategy": "sequential"} if share else {},
    "barebones": lambda bare: {"logging_strategy": IntervalStrategy.NO} if bare else {},
}
"""Keywords that say what fields of ``TrainingArguments`` say → the value of each of these fields."""

_KEYWORDS_OF: dict[type, str] = {Logger: "logger", Profiler: "profiler", Strategy: "strategy"}
"""What is no callback, though it is called in a run → the keyword that it belongs to."""

SHARES = ("limit_train_batches", "limit_val_batches", "limit_test_batches", "limit_predict_batches", "overfit_batches")
"""Keywords that say how much of its data a run reads: a number, or as a float a fraction."""

EVALUATION_KEYWORDS = ("val_check_interval", "check_val_every_n_epoch")
"""Keywords that say when a run evaluates."""
_PARTS_OF_A_TIME = ("days", "hours", "minutes", "seconds")

_for_all: ContextVar[Mapping[str, Any]] = ContextVar("keywords for every Trainer", default=MappingProxyType({}))

_PROFILERS = ("simple", "advanced", "pytorch", "xla")
"""Lightning's names of profilers."""
_OFF = ("fast_dev_run", "num_sanity_val_steps")
"""Keywords that are the same as not given if they are None, False or 0."""
_SET_BY_DEVELOPMENT = (
    *("max_epochs", "max_steps", "limit_train_batches", "limit_val_batches", "limit_test_batches"),
    *("limit_predict_batches", "val_check_interval", "check_val_every_n_epoch", "num_sanity_val_steps"),
    *("enable_checkpointing", "logger"),
)
"""Keywords that ``fast_dev_run`` decides, whatever else they say; ``overfit_batches`` is the stronger of the two."""

_BARE: dict[str, Any] = {
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "enable_progress_bar": False,
    "log_every_n_steps": 0,
    "logger": False,
    "num_sanity_val_steps": 0,
}
"""What ``barebones`` switches off → its value then."""
_NOT_BARE = (*_BARE, "detect_anomaly", "fast_dev_run", "profiler")
"""Keywords that ``barebones`` excludes, unless they are off."""


def _is_count(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _is_logging(value: object) -> bool:
    named = isinstance(value, str) or (isinstance(value, list | tuple) and any(isinstance(one, str) for one in value))
    return value is None or (isinstance(value, bool | Logger | Iterable) and not named)


def _is_profiler(value: object) -> bool:
    return value is None or isinstance(value, Profiler) or (isinstance(value, str) and value.lower() in _PROFILERS)


def _is_switch(value: object) -> bool:
    return value is None or isinstance(value, bool)


VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "accumulate_grad_batches": (lambda value: _is_count(value, 1), "a number of batches, 1 or more"),
    "barebones": (lambda value: isinstance(value, bool), "True or False"),
    "fast_dev_run": (lambda value: isinstance(value, bool) or _is_count(value), "a bool, or a number of update steps"),
    "enable_checkpointing": (_is_switch, "True, False or None"),
    "enable_progress_bar": (_is_switch, "True, False or None"),
    "gradient_clip_algorithm": (
        lambda value: value is None or str(value).lower() in ("norm", "value"),
        "'norm' or 'value'",
    ),
    "gradient_clip_val": (lambda value: value is None or _is_number(value), "a number, 0 for no clipping"),
    "inference_mode": (lambda value: isinstance(value, bool), "True or False"),
    "logger": (
        _is_logging,
        "a Lightning logger, a list of them, or True, False or None; names such as 'wandb' go to `report_to`",
    ),
    "max_epochs": (
        lambda value: value is None or _is_count(value, -1) or (isinstance(value, float) and 0 <= value < float("inf")),
        "a number of epochs, or -1 for no limit",
    ),
    "max_steps": (lambda value: _is_count(value, -1), "a number of update steps, or -1 for no limit"),
    "min_epochs": (lambda value: value is None or _is_count(value), "a number of epochs"),
    "min_steps": (lambda value: value is None or _is_count(value), "a number of update steps"),
    "num_sanity_val_steps": (
        lambda value: value is None or _is_count(value, -1),
        "a number of batches, or -1 for all",
    ),
    "profiler": (_is_profiler, f"a Lightning profiler, or one of {', '.join(map(repr, _PROFILERS))}"),
    "reload_dataloaders_every_n_epochs": (_is_count, "a number of epochs, 0 for never"),
    "use_distributed_sampler": (lambda value: isinstance(value, bool), "True or False"),
}
"""Keywords that set fields, or decide how a run goes about its work → whether a value is one, and what it may be."""

_PRECISIONS: dict[Any, str] = {
    **dict.fromkeys((32, "32", "32-true"), "no"),
    **dict.fromkeys(("bf16", "bf16-mixed"), "bf16"),
    **dict.fromkeys((16, "16", "16-mixed"), "fp16"),
    **dict.fromkeys((64, "64", "64-true"), "64-true"),
    **{name: name for name in ("bf16-true", "16-true", "transformer-engine", "transformer-engine-float16")},
}
"""``precision`` → mixed precision of the training arguments, or the name of the plugin that Lightning has for it."""


def as_given(keywords: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return those of ``names`` that are in ``keywords``, with their values, as a message shows them."""
    return ", ".join(f"{name!r}: {keywords[name]!r}" for name in names if name in keywords)


def precision_meant(value: object) -> str | None:
    """Return what ``precision`` means: ``"no"``, ``"bf16"``, ``"fp16"`` or the name of a plugin; None for no value.

    Raises:
        TrainerSetupError: If Lightning does not know it.
    """
    if value is None:
        return None
    try:
        return _PRECISIONS[value]
    except (KeyError, TypeError):
        known = ", ".join(map(repr, _PRECISIONS))
        raise TrainerSetupError(f"`lightning={{'precision': {value!r}}}` is not one of {known}.") from None


def clipping_meant(keywords: Mapping[str, Any]) -> tuple[Fields, float | None]:
    """Return the fields that say how gradients are clipped, and the value to clip each element to; None for none."""
    value, algorithm = keywords.get("gradient_clip_val"), keywords.get("gradient_clip_algorithm")
    if value is None:
        return {}, None
    if algorithm is None or algorithm.lower() == "norm":
        return {"max_grad_norm": float(value)}, None
    return {"max_grad_norm": 0.0}, float(value) if value > 0 else None


def evaluation_meant(keywords: Mapping[str, Any], delay: float) -> tuple[Fields, EvaluationTimes | None]:
    """Return what ``val_check_interval`` and ``check_val_every_n_epoch`` say: fields, and what no field says.

    Args:
        keywords: The user's keywords.
        delay: ``eval_delay``.

    Raises:
        TrainerSetupError: If they say nothing that can be.
    """
    if not any(name in keywords for name in EVALUATION_KEYWORDS):
        return {}, None
    given = keywords.get("val_check_interval")
    every = _interval(1.0 if given is None else given)
    epochs = keywords.get("check_val_every_n_epoch", 1)
    counts = epochs is None or _is_count(epochs, 1)
    if every is None or not counts or (epochs is None and isinstance(every, float)):
        raise TrainerSetupError(
            f"`lightning={{{as_given(keywords, EVALUATION_KEYWORDS)}}}`: evaluate after a fraction of an epoch above "
            "0.0 and up to 1.0, a number of update steps, or a time such as '00:01:30:00' or a `timedelta`; of each "
            "n-th epoch, or of all with `'check_val_every_n_epoch': None`, which takes no fraction."
        )
    if epochs is None and isinstance(every, int):
        return {"eval_strategy": IntervalStrategy.STEPS, "eval_steps": every}, None
    times = EvaluationTimes(every, epochs or 1, delay)
    if not times.at_epoch_end:
        return {"eval_strategy": IntervalStrategy.STEPS, "eval_steps": 1}, times
    return {"eval_strategy": IntervalStrategy.EPOCH}, None if epochs == 1 else times


def _interval(value: Any) -> Share | timedelta | None:
    """Return ``val_check_interval`` as a number or a time; None if it is neither."""
    if isinstance(value, str):
        parts = value.split(":")
        if len(parts) != len(_PARTS_OF_A_TIME) or not all(part.isdigit() for part in parts):
            return None
        value = dict(zip(_PARTS_OF_A_TIME, map(int, parts), strict=True))
    if isinstance(value, Mapping):
        value = timedelta(**value)
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return None
    if isinstance(value, int) or value <= 1.0:
        return value
    return int(value) if value.is_integer() else None


def is_lightning_callback(callback: object) -> bool:
    """Return whether ``callback``, a class or an instance, is one of Lightning."""
    return isinstance(callback, Callback) or (isinstance(callback, type) and issubclass(callback, Callback))


def lightning_callbacks(callbacks: Sequence[Any] | None) -> list[Callback]:
    """Return the Lightning callbacks of ``callbacks``; of a class an instance.

    Raises:
        CallbackError: If ``callbacks`` is no list, or has what is a keyword of ``lightning.Trainer``.
    """
    if callbacks is not None and not isinstance(callbacks, Iterable):
        raise CallbackError(f"`callbacks`: {described(callbacks)} is no list. Pass a list of callbacks.")
    for callback in callbacks or ():
        if keyword := next((name for kind, name in _KEYWORDS_OF.items() if isinstance(callback, kind)), None):
            raise CallbackError(
                f"`callbacks`: {described(callback)} is no callback. Pass it as `lightning={{{keyword!r}: ...}}`."
            )
    found = [callback for callback in callbacks or () if is_lightning_callback(callback)]
    return [new_instance(callback) if isinstance(callback, type) else callback for callback in found]


def keyword_problems(keywords: Mapping[str, Any]) -> list[str]:
    """Return why keywords of ``lightning.Trainer`` are refused: unknown, not supported, or impossible."""
    known = inspect.signature(pl.Trainer.__init__).parameters
    problems = []
    unknown = sorted(map(str, set(keywords) - set(known)))
    if unknown:
        names = ", ".join(f"`{name}`" for name in unknown)
        nearest = [f"`{near}`" for name in unknown for near in difflib.get_close_matches(name, known, n=1)]
        hint = f" Did you mean {' and '.join(nearest)}?" if nearest else ""
        problems.append(f"`lightning` contains keywords that `lightning.Trainer` does not have: {names}.{hint}")
    if "callbacks" in keywords:
        problems.append(
            "`lightning={'callbacks': ...}` is not supported: use Trainer(callbacks=[...]), which takes Lightning "
            "callbacks too."
        )
    problems += [
        f"`lightning={{{name!r}: {keywords[name]!r}}}`: pass {VALUES[name][1]}."
        for name in VALUES
        if name in keywords and not VALUES[name][0](keywords[name])
    ]
    if str(keywords.get("gradient_clip_algorithm")).lower() == "value" and keywords.get("gradient_clip_val") is None:
        problems.append(
            f"`lightning={{'gradient_clip_algorithm': {keywords['gradient_clip_algorithm']!r}}}` needs a value to "
            "clip to: set `gradient_clip_val` too."
        )
    problems += [
        f"`lightning={{{name!r}: {keywords[name]!r}}}`: pass a number of batches, or a fraction from 0.0 to 1.0."
        for name in SHARES
        if not _is_share(keywords.get(name))
    ]
    return problems


def _is_share(value: object) -> bool:
    return value is None or _is_count(value) or (isinstance(value, float) and 0.0 <= value <= 1.0)


def user_plugins(keywords: Mapping[str, Any]) -> list[Any]:
    """Return the user's ``plugins`` as a list; ``lightning.Trainer`` also takes a single one."""
    plugins = keywords.get("plugins") or ()
    return list(plugins) if isinstance(plugins, list | tuple) else [plugins]


@contextmanager
def lightning_keywords(**keywords: Any) -> Iterator[None]:
    """Return a context in which every Trainer that is made gets ``keywords`` of ``lightning.Trainer``.

    For classes of libraries, whose constructors have no argument ``lightning``, and for Trainers that a library makes
    itself. A Trainer keeps its keywords after the block. Of a keyword that is given twice, the inner block's is taken,
    and that of a Trainer's own ``lightning`` before both.

    Args:
        **keywords: As in ``Trainer(lightning={...})``: ``logger=CSVLogger("logs")``, ``profiler="simple"``.
    """
    token = _for_all.set(with_keywords_for_all(keywords))
    try:
        yield
    finally:
        _for_all.reset(token)


def with_keywords_for_all(keywords: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a Trainer's ``keywords`` with those of the blocks of ``lightning_keywords`` around it.

    Raises:
        TrainerSetupError: If they are no dict.
    """
    if keywords is not None and not isinstance(keywords, Mapping):
        shown = repr(keywords) if isinstance(keywords, str) else described(keywords)
        raise TrainerSetupError.also(TypeError)(
            f"`lightning`: {shown} is no dict. Pass keywords of `lightning.Trainer` by their names, such as "
            "`lightning={'strategy': 'ddp', 'devices': 2}`."
        )
    return {**_for_all.get(), **(keywords or {})}


def spelled_out(user_keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``user_keywords`` with the keywords that ``fast_dev_run`` and ``barebones`` stand for."""
    count = int(user_keywords.get("fast_dev_run") or 0)
    keywords = {name: value for name, value in user_keywords.items() if name not in _OFF or value not in (None, 0)}
    if count:
        keywords = {name: value for name, value in keywords.items() if name not in _SET_BY_DEVELOPMENT}
        keywords |= {"fast_dev_run": count, "limit_test_batches": count, "limit_predict_batches": count}
        keywords |= {"max_epochs": 1, "max_steps": count}
        if not user_keywords.get("overfit_batches"):
            keywords |= {"limit_train_batches": count, "limit_val_batches": count}
    return {**keywords, **_BARE} if keywords.get("barebones") else keywords


def development_fields(keywords: Mapping[str, Any], *, has_eval_data: bool) -> dict[str, Any]:
    """Return the fields that ``fast_dev_run`` sets, whatever the user set them to; none without it.

    Args:
        keywords: The user's keywords.
        has_eval_data: Whether there is something to evaluate on.
    """
    count = int(keywords.get("fast_dev_run") or 0)
    if not count:
        return {}
    return {
        "max_steps": count,
        "num_train_epochs": 1.0,
        "eval_strategy": IntervalStrategy.EPOCH if has_eval_data else IntervalStrategy.NO,
        "eval_delay": 0,
        "eval_on_start": False,
        "save_strategy": SaveStrategy.NO,
        "load_best_model_at_end": False,
        "report_to": [],
    }


def barebones_problems(keywords: Mapping[str, Any]) -> list[str]:
    """Return why ``barebones`` is refused beside what it would switch off."""
    if not keywords.get("barebones"):
        return []
    return [
        f"`lightning={{'barebones': True, {name!r}: {keywords[name]!r}}}` contradict each other: `barebones` switches "
        "it off. Remove one of them."
        for name in _NOT_BARE
        if keywords.get(name)
    ]


# The variables of `fabric run`, which say what keywords of `lightning.Trainer` say.
#
# `lightning.Trainer` itself does not read them, Fabric does; a script that `fabric run` has started means them.


FABRIC_VARIABLES: dict[str, str] = {
    "LT_ACCELERATOR": "accelerator",
    "LT_STRATEGY": "strategy",
    "LT_DEVICES": "devices",
    "LT_NUM_NODES": "num_nodes",
    "LT_PRECISION": "precision",
}
"""Variable → the keyword that it stands for."""


def _given() -> dict[str, str]:
    """Return the variables that are set."""
    return {name: os.environ[name] for name in FABRIC_VARIABLES if os.environ.get(name)}


def with_fabric_variables(keywords: Mapping[str, Any] | None) -> tuple[dict[str, Any], list[str]]:
    """Return the user's ``keywords`` with those that variables say, and what contradicts one.

    Args:
        keywords: The user's keywords of ``lightning.Trainer``.
    """
    meant, problems = dict(keywords or {}), list[str]()
    for variable, value in _given().items():
        keyword = FABRIC_VARIABLES[variable]
        if keyword == "num_nodes" and not value.isdigit():
            problems.append(f"`{variable}={value}` is not a valid number of nodes. Set it to an integer, or unset it.")
        elif meant.get(keyword) in (None, "auto"):
            meant[keyword] = int(value) if keyword == "num_nodes" else value
        elif not _is_same(keyword, meant[keyword], value):
            problems.append(
                f"`lightning={{{keyword!r}: {meant[keyword]!r}}}` contradicts `{variable}={value}`, which `fabric run` "
                f"sets for `--{keyword}`. Remove one of them."
            )
    return meant, problems


def _is_same(keyword: str, argument: object, value: str) -> bool:
    if keyword != "precision":
        return str(argument) == value
    try:
        return precision_meant(argument) == precision_meant(value)
    except TrainerSetupError:
        return str(argument) == value


def named(problem: str) -> str:
    """Return ``problem``, an error message, with the variables that say what it says of keywords."""
    told = []
    for variable, value in _given().items():
        keyword = FABRIC_VARIABLES[variable]
        if any(word in problem for word in (f"'{keyword}'", f"`{keyword}`", f"`{value}`")) and variable not in problem:
            told.append(f"{keyword!r} is `{variable}={value}`")
    return f"{problem} (`fabric run`: {', '.join(told)}.)" if told else problem


@contextmanager
def naming_variables() -> Iterator[None]:
    """Context, or decorator, in which errors about keywords name the variables that stand for them."""
    try:
        yield
    except TrainerSetupError as error:
        if named(str(error)) == str(error):
            raise
        raise type(error)(named(str(error))) from error.__cause__
    except ArgumentsError as error:
        precision = _given().get("LT_PRECISION")
        if precision is None or not {"bf16", "fp16"} & {*error.fields}:
            raise
        note = f"`fabric run` has set `LT_PRECISION={precision}`: start the script without `--precision`."
        raise type(error)([*error.problems, note], fields=error.fields) from error.__cause__
