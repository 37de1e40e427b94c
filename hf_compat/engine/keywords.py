"""The user's keywords of ``lightning.Trainer`` and Lightning callbacks: what they mean to a run."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from hf_compat.arguments.enums import IntervalStrategy, SaveStrategy
from hf_compat.errors import TrainerSetupError

__all__ = [
    "FIELD_KEYWORDS",
    "OWNED_KEYWORDS",
    "SHARES",
    "evaluation_fields",
    "is_lightning_callback",
    "keyword_problems",
    "lightning_callbacks",
    "precision_meant",
    "user_plugins",
]

Fields = Mapping[str, Any]

OWNED_KEYWORDS: dict[str, str] = {
    "barebones": "nothing: it would disable evaluation and checkpoints",
    "callbacks": "Trainer(callbacks=[...]), which takes Lightning callbacks too",
    "fast_dev_run": "TrainingArguments(max_steps=...)",
    "gradient_clip_algorithm": "TrainingArguments(max_grad_norm=...)",
    "inference_mode": "nothing: evaluation runs under torch.no_grad",
    "min_epochs": "nothing: callbacks may stop a run at any time",
    "min_steps": "nothing: callbacks may stop a run at any time",
    "num_sanity_val_steps": "TrainingArguments(eval_on_start=True)",
    "reload_dataloaders_every_n_epochs": "a dataset with `set_epoch`",
    "use_distributed_sampler": "nothing: batches are sharded over the ranks as in transformers",
}
"""Keywords of ``lightning.Trainer`` that are not supported → what to use instead."""

FIELD_KEYWORDS: dict[str, Callable[[Any], Fields]] = {
    "accumulate_grad_batches": lambda batches: {"gradient_accumulation_steps": batches},
    "enable_checkpointing": lambda enables: {"save_strategy": SaveStrategy.NO} if enables is False else {},
    "gradient_clip_val": lambda value: {} if value is None else {"max_grad_norm": float(value)},
    "max_epochs": lambda epochs: {} if epochs in (None, -1) else {"num_train_epochs": float(epochs)},
    "max_steps": lambda steps: {} if steps == -1 else {"max_steps": steps},
    "overfit_batches": lambda share: {"train_sampling_strategy": "sequential"} if share else {},
}
"""Keywords that say what fields of ``TrainingArguments`` say → the value of each of these fields."""

SHARES = ("limit_train_batches", "limit_val_batches", "limit_test_batches", "limit_predict_batches", "overfit_batches")
"""Keywords that say how much of its data a run reads: a number, or as a float a fraction."""

_PRECISIONS: dict[Any, str] = {
    **dict.fromkeys((32, "32", "32-true"), "no"),
    **dict.fromkeys(("bf16", "bf16-mixed"), "bf16"),
    **dict.fromkeys((16, "16", "16-mixed"), "fp16"),
    **dict.fromkeys((64, "64", "64-true"), "64-true"),
    **{name: name for name in ("bf16-true", "16-true", "transformer-engine", "transformer-engine-float16")},
}
"""``precision`` → mixed precision of the training arguments, or the name of the plugin that Lightning has for it."""


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


def evaluation_fields(keywords: Mapping[str, Any]) -> Fields:
    """Return what ``val_check_interval`` and ``check_val_every_n_epoch`` say of when to evaluate.

    Raises:
        TrainerSetupError: If no fields say that.
    """
    names = [name for name in ("val_check_interval", "check_val_every_n_epoch") if name in keywords]
    if not names:
        return {}
    interval, epochs = keywords.get("val_check_interval"), keywords.get("check_val_every_n_epoch", 1)
    if epochs == 1 and (interval is None or (isinstance(interval, float) and interval == 1.0)):
        return {"eval_strategy": IntervalStrategy.EPOCH}
    if epochs is None and isinstance(interval, int):
        return {"eval_strategy": IntervalStrategy.STEPS, "eval_steps": interval}
    given = ", ".join(f"{name!r}: {keywords[name]!r}" for name in names)
    raise TrainerSetupError(
        f"`lightning={{{given}}}` is not supported: evaluate after each epoch with `'val_check_interval': 1.0`, or "
        "every so many update steps with a number and `'check_val_every_n_epoch': None`."
    )


def is_lightning_callback(callback: object) -> bool:
    """Return whether ``callback``, a class or an instance, is one of Lightning."""
    return isinstance(callback, Callback) or (isinstance(callback, type) and issubclass(callback, Callback))


def lightning_callbacks(callbacks: Sequence[Any] | None) -> list[Callback]:
    """Return the Lightning callbacks of ``callbacks``; of a class an instance."""
    found = [callback for callback in callbacks or () if is_lightning_callback(callback)]
    return [callback() if isinstance(callback, type) else callback for callback in found]


def keyword_problems(keywords: Mapping[str, Any]) -> list[str]:
    """Return why keywords of ``lightning.Trainer`` are refused: unknown, not supported, or impossible."""
    known = inspect.signature(pl.Trainer.__init__).parameters
    problems = []
    unknown = sorted(set(keywords) - set(known))
    if unknown:
        names = ", ".join(f"`{name}`" for name in unknown)
        nearest = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f" Did you mean `{nearest[0]}`?" if nearest else ""
        problems.append(f"`lightning` contains keywords that `lightning.Trainer` does not have: {names}.{hint}")
    owned = sorted(set(keywords) & set(OWNED_KEYWORDS))
    if owned:
        advice = "; ".join(f"`{name}={keywords[name]!r}`: use {OWNED_KEYWORDS[name]}" for name in owned)
        problems.append(f"`lightning` contains keywords that are not supported: {advice}.")
    if isinstance(keywords.get("logger"), bool):
        value = keywords["logger"]
        problems.append(
            f"`lightning={{'logger': {value}}}`: pass loggers, or use `report_to`; a bool is not supported."
        )
    problems += [
        f"`lightning={{{name!r}: {keywords[name]!r}}}`: pass a number of batches, or a fraction from 0.0 to 1.0."
        for name in SHARES
        if not _is_share(keywords.get(name))
    ]
    return problems


def _is_share(value: object) -> bool:
    if value is None:
        return True
    if isinstance(value, int):
        return value >= 0 and not isinstance(value, bool)
    return isinstance(value, float) and 0.0 <= value <= 1.0


def user_plugins(keywords: Mapping[str, Any]) -> list[Any]:
    """Return the user's ``plugins`` as a list; ``lightning.Trainer`` also takes a single one."""
    plugins = keywords.get("plugins") or ()
    return list(plugins) if isinstance(plugins, list | tuple) else [plugins]
