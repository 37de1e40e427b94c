"""Building the ``lightning.Trainer`` of a run, fitting with it, and evaluating inside or outside a fit."""

from __future__ import annotations

import difflib
import inspect
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch.callbacks import Callback, ProgressBar
from lightning.pytorch.plugins.precision import Precision
from torch import nn

from hf_compat.engine.bridge import BridgeCallback, BridgeHost
from hf_compat.engine.environments import Placement
from hf_compat.engine.host import EvaluationPass
from hf_compat.engine.internals.loops import (
    fast_forward,
    is_fitting,
    leave_signals_alone,
    validate_in_fit,
    without_notices,
    without_signal_broadcast,
)
from hf_compat.engine.module import HFModule
from hf_compat.engine.strategies.kinds import device_keywords

__all__ = [
    "OWNED_KEYWORDS",
    "build_lightning_trainer",
    "evaluate",
    "fit",
    "given_plugins",
    "keyword_problems",
    "split_callbacks",
]

OWNED_KEYWORDS: dict[str, str] = {
    "accumulate_grad_batches": "TrainingArguments(gradient_accumulation_steps=...)",
    "barebones": "nothing: it would switch off what evaluates and saves",
    "callbacks": "Trainer(callbacks=[...]), which takes Lightning callbacks too",
    "check_val_every_n_epoch": "TrainingArguments(eval_strategy=...)",
    "enable_checkpointing": "TrainingArguments(save_strategy=...)",
    "fast_dev_run": "TrainingArguments(max_steps=...)",
    "gradient_clip_algorithm": "TrainingArguments(max_grad_norm=...)",
    "gradient_clip_val": "TrainingArguments(max_grad_norm=...)",
    "inference_mode": "nothing: evaluation runs under torch.no_grad",
    "limit_test_batches": "a smaller data set",
    "limit_train_batches": "TrainingArguments(max_steps=...)",
    "limit_val_batches": "a smaller `eval_dataset`",
    "max_epochs": "TrainingArguments(num_train_epochs=...)",
    "max_steps": "TrainingArguments(max_steps=...)",
    "min_epochs": "nothing: callbacks may stop a run at any time",
    "min_steps": "nothing: callbacks may stop a run at any time",
    "num_sanity_val_steps": "TrainingArguments(eval_on_start=True)",
    "overfit_batches": "a smaller `train_dataset`",
    "precision": "TrainingArguments(bf16=True) or (fp16=True)",
    "reload_dataloaders_every_n_epochs": "a data set with `set_epoch`",
    "use_distributed_sampler": "nothing: batches are shared out as upstream does",
    "val_check_interval": "TrainingArguments(eval_steps=...)",
}
"""Keywords of ``lightning.Trainer`` that follow from ``TrainingArguments``, and what to use in their place."""


def split_callbacks(callbacks: Sequence[Any] | None) -> tuple[list[Any], list[Callback]]:
    """Return the user callbacks, classes or instances, and the Lightning callbacks in ``callbacks``."""
    user: list[Any] = []
    lightning: list[Callback] = []
    for callback in callbacks or ():
        (lightning if isinstance(callback, Callback) else user).append(callback)
    return user, lightning


def keyword_problems(keywords: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with keywords for ``lightning.Trainer``: unknown, or contradicting the arguments."""
    known = inspect.signature(pl.Trainer.__init__).parameters
    problems = []
    unknown = sorted(set(keywords) - set(known))
    if unknown:
        names = ", ".join(f"`{name}`" for name in unknown)
        nearest = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f" Did you mean `{nearest[0]}`?" if nearest else ""
        problems.append(f"`lightning` holds keywords that `lightning.Trainer` does not have: {names}.{hint}")
    owned = sorted(set(keywords) & set(OWNED_KEYWORDS))
    if owned:
        advice = "; ".join(f"`{name}={keywords[name]!r}`: use {OWNED_KEYWORDS[name]}" for name in owned)
        problems.append(f"`lightning` holds keywords that follow from TrainingArguments: {advice}.")
    if isinstance(keywords.get("logger"), bool):
        value = keywords["logger"]
        problems.append(
            f"`lightning={{'logger': {value}}}`: pass loggers, or leave it out; `report_to` names simple ones."
        )
    return problems


def given_plugins(keywords: Mapping[str, Any]) -> list[Any]:
    """Return the plugins among the user's keywords for ``lightning.Trainer``, which also takes a single one."""
    plugins = keywords.get("plugins") or ()
    return list(plugins) if isinstance(plugins, list | tuple) else [plugins]


def build_lightning_trainer(
    host: BridgeHost,
    *,
    placement: Placement,
    precision: Precision,
    model: nn.Module,
    callbacks: Sequence[Callback],
    loggers: Sequence[Any],
    keywords: Mapping[str, Any],
    limits: Mapping[str, int],
) -> pl.Trainer:
    """Return the Lightning trainer of one run.

    Args:
        host: The Trainer whose events the bridge fires.
        placement: Where the run takes place.
        precision: How it computes.
        model: The model, unwrapped.
        callbacks: The user's Lightning callbacks; the bridge runs after them.
        loggers: Lightning loggers, opened and closed by Lightning, written to by the Trainer's ``log``.
        keywords: The user's own keywords of ``lightning.Trainer``; they win.
        limits: ``max_epochs`` and ``max_steps``.
    """
    # The precision is there, and the strategy has a cluster environment that says what the user's does.
    plugins = [plugin for plugin in given_plugins(keywords) if not isinstance(plugin, Precision | ClusterEnvironment)]
    settings: dict[str, Any] = {
        "default_root_dir": host.args.output_dir,
        "enable_model_summary": False,
        # The user callbacks bring upstream's.
        "enable_progress_bar": any(isinstance(callback, ProgressBar) for callback in callbacks),
        "logger": list(loggers) or False,
        **keywords,
        **device_keywords(placement, host.args, model),
        **limits,
        "callbacks": [*callbacks, BridgeCallback(host)],
        # Says that evaluations go by update steps: callbacks with a monitor then wait for one, not for the epoch's end.
        "check_val_every_n_epoch": None,
        "val_check_interval": 1,
        "inference_mode": False,  # tensors cached by a model during evaluation must remain usable in training
        "num_sanity_val_steps": 0,
        "plugins": [*plugins, precision],
        "use_distributed_sampler": False,
    }
    with without_notices():
        trainer = pl.Trainer(**settings)
    leave_signals_alone(trainer)
    without_signal_broadcast(trainer)
    return trainer


def fit(trainer: pl.Trainer, module: HFModule, windows: Any, *, start: tuple[int, int, int] | None = None) -> None:
    """Train ``module`` on ``windows``.

    Args:
        trainer: A fresh Lightning trainer.
        module: The model's module.
        windows: An iterable of windows, one pass an epoch.
        start: Where a resumed run goes on: whole epochs, windows and update steps done.

    Raises:
        KeyboardInterrupt: If the user interrupts; Lightning alone would exit the process.
    """
    if start is not None:
        epochs, windows_done, update_steps = start
        fast_forward(trainer, epochs=epochs, windows=windows_done, update_steps=update_steps)
    module.train()
    handler = signal.getsignal(signal.SIGINT)
    with without_notices():
        try:
            trainer.fit(module, train_dataloaders=windows)
        except SystemExit as stop:
            if isinstance(stop.__context__, KeyboardInterrupt):
                signal.signal(signal.SIGINT, handler)
                raise KeyboardInterrupt from None
            raise


def evaluate(trainer: pl.Trainer, module: HFModule, session: EvaluationPass, *, test: bool) -> None:
    """Run ``session`` over its batches in one of ``trainer``'s evaluation loops, so that Lightning callbacks take part.

    Inside a fit that is the validation loop, and the fit goes on undisturbed; outside, ``Trainer.validate`` or, for
    ``test``, ``Trainer.test``. An evaluation called from within another (by ``compute_metrics``, say) runs by itself.
    """
    if module.session is not None:
        for batch in session.batches:
            session.step(batch)
        session.finish()
        return
    module.session = session
    try:
        with without_notices():
            if is_fitting(trainer):
                validate_in_fit(trainer, session.batches)
            elif test:
                trainer.test(module, dataloaders=session.batches, verbose=False)
            else:
                trainer.validate(module, dataloaders=session.batches, verbose=False)
    finally:
        module.session = None
