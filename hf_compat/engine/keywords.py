"""The user's keywords of ``lightning.Trainer`` and Lightning callbacks: which are allowed."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

__all__ = ["OWNED_KEYWORDS", "is_lightning_callback", "keyword_problems", "lightning_callbacks", "user_plugins"]

OWNED_KEYWORDS: dict[str, str] = {
    "accumulate_grad_batches": "TrainingArguments(gradient_accumulation_steps=...)",
    "barebones": "nothing: it would disable evaluation and checkpoints",
    "callbacks": "Trainer(callbacks=[...]), which takes Lightning callbacks too",
    "check_val_every_n_epoch": "TrainingArguments(eval_strategy=...)",
    "enable_checkpointing": "TrainingArguments(save_strategy=...)",
    "fast_dev_run": "TrainingArguments(max_steps=...)",
    "gradient_clip_algorithm": "TrainingArguments(max_grad_norm=...)",
    "gradient_clip_val": "TrainingArguments(max_grad_norm=...)",
    "inference_mode": "nothing: evaluation runs under torch.no_grad",
    "limit_test_batches": "a smaller dataset",
    "limit_train_batches": "TrainingArguments(max_steps=...)",
    "limit_val_batches": "a smaller `eval_dataset`",
    "max_epochs": "TrainingArguments(num_train_epochs=...)",
    "max_steps": "TrainingArguments(max_steps=...)",
    "min_epochs": "nothing: callbacks may stop a run at any time",
    "min_steps": "nothing: callbacks may stop a run at any time",
    "num_sanity_val_steps": "TrainingArguments(eval_on_start=True)",
    "overfit_batches": "a smaller `train_dataset`",
    "precision": "TrainingArguments(bf16=True) or (fp16=True)",
    "reload_dataloaders_every_n_epochs": "a dataset with `set_epoch`",
    "use_distributed_sampler": "nothing: batches are sharded over the ranks as in transformers",
    "val_check_interval": "TrainingArguments(eval_steps=...)",
}
"""Keywords of ``lightning.Trainer`` that are set from ``TrainingArguments`` → what to use instead."""


def is_lightning_callback(callback: object) -> bool:
    """Return whether ``callback``, a class or an instance, is one of Lightning."""
    return isinstance(callback, Callback) or (isinstance(callback, type) and issubclass(callback, Callback))


def lightning_callbacks(callbacks: Sequence[Any] | None) -> list[Callback]:
    """Return the Lightning callbacks of ``callbacks``; of a class an instance."""
    found = [callback for callback in callbacks or () if is_lightning_callback(callback)]
    return [callback() if isinstance(callback, type) else callback for callback in found]


def keyword_problems(keywords: Mapping[str, Any]) -> list[str]:
    """Return why keywords of ``lightning.Trainer`` are refused: unknown, or set from the training arguments."""
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
        problems.append(f"`lightning` contains keywords that are set from TrainingArguments: {advice}.")
    if isinstance(keywords.get("logger"), bool):
        value = keywords["logger"]
        problems.append(
            f"`lightning={{'logger': {value}}}`: pass loggers, or use `report_to`; a bool is not supported."
        )
    return problems


def user_plugins(keywords: Mapping[str, Any]) -> list[Any]:
    """Return the user's ``plugins`` as a list; ``lightning.Trainer`` also takes a single one."""
    plugins = keywords.get("plugins") or ()
    return list(plugins) if isinstance(plugins, list | tuple) else [plugins]
