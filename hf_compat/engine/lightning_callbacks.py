"""Lightning's callbacks in a run: which are refused before training, and what to say of the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    Callback,
    Checkpoint,
    DeviceStatsMonitor,
    EarlyStopping,
    EMAWeightAveraging,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelPruning,
    ProgressBar,
    RichProgressBar,
    ThroughputMonitor,
    WeightAveraging,
)

from hf_compat.arguments.derived import evaluates_in_training, saves_checkpoints
from hf_compat.callbacks.handler import misspelt_events
from hf_compat.engine.internals.callbacks import keeps_masks, saves_by_steps, saves_by_time
from hf_compat.engine.strategy_table import Refusal

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments


REFUSED_CALLBACKS: dict[str, Refusal] = {
    "BasePredictionWriter": Refusal(
        "`Trainer.predict` runs Lightning's test loop, in which predictions are gathered over all ranks and batches",
        "the result of `Trainer.predict`, or a callback with `on_test_batch_end`",
    ),
    "BatchSizeFinder": Refusal(
        "it trains trial runs inside the fit with the module's own loader, but the loader is the Trainer's, and logs, "
        "events and schedule would count the trials",
        "TrainingArguments(auto_find_batch_size=True)",
    ),
    "GradientAccumulationScheduler": Refusal(
        "the update steps of a run are planned before it, with one number of batches for each",
        "TrainingArguments(gradient_accumulation_steps=...), and a resumed run with a different number from that "
        "epoch on",
    ),
    "LearningRateFinder": Refusal(
        "it makes update steps inside the fit and then undoes them, but logs, events and schedule would count them",
        "Trainer.hyperparameter_search over `learning_rate`",
    ),
    "StochasticWeightAveraging": Refusal(
        "it replaces Lightning's schedule and skips backward passes, which have no effect under manual optimization",
        "WeightAveraging with your own `should_update`, and `lr_scheduler_type`",
    ),
}
"""Each callback that ``lightning.pytorch.callbacks`` exports and that is refused → why."""

_THAWING = "FinetuningScheduler"
"""The callback of the package finetuning-scheduler."""
NEVER_CALLED = (
    "on_before_zero_grad",
    "on_predict_batch_end",
    "on_predict_batch_start",
    "on_predict_end",
    "on_predict_epoch_end",
    "on_predict_epoch_start",
    "on_predict_start",
)
"""Hooks that no run calls: ``Trainer.predict`` calls those of tests."""
_OF_MODULES = re.compile(
    r"(?P<part>val|valid|validation|train|training|eval(?=/))[_/](?P<name>.+?)(_step|_epoch)?|loss_(step|epoch)"
)
"""Names that a ``LightningModule`` gives what it logs, and a Trainer does not."""
OF_SANITY_CHECK = ("on_sanity_check_end", "on_sanity_check_start")
"""Hooks that a run calls with ``num_sanity_val_steps``."""

IdleHooks = Checkpoint
"""Hooks that do nothing: a callback that Lightning calls after all others, and beside which it adds none that saves."""


def defines_hook(callback: Callback, hook: str) -> bool:
    """Return whether ``callback`` defines ``hook``, in its class or, as ``LambdaCallback``, by itself."""
    method = getattr(callback, hook)
    return getattr(method, "__func__", method) is not getattr(Callback, hook)


def callback_problems(
    callbacks: Sequence[Callback],
    args: TrainingArguments,
    *,
    shards_model: bool = False,
    keywords: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return why Lightning callbacks are refused, one message each.

    Args:
        callbacks: The user's Lightning callbacks.
        args: The training arguments.
        shards_model: Whether the strategy shards the model.
        keywords: The keywords that ``lightning.Trainer`` is given.
    """
    problems: list[str] = []
    for callback in callbacks:
        if refused := _refusal(callback):
            name = _name(callback)
            problems.append(f"`callbacks`: {name} is not supported: {refused.reason}. Use {refused.instead}.")
        else:
            problems += _setting_problems(callback, args, shards_model=shards_model)
            problems += _keyword_problems(callback, keywords or {})
    return [*problems, *_thawing_problems(callbacks)]


def thaws_by_phases(callback: Callback) -> bool:
    """Return whether ``callback`` is the ``FinetuningScheduler`` of the package finetuning-scheduler."""
    return _is_of_its_package(callback, _THAWING)


def _is_of_its_package(callback: Callback, name: str) -> bool:
    kinds = type(callback).__mro__
    return any(kind.__name__ == name and kind.__module__.startswith("finetuning_scheduler.") for kind in kinds)


def _thawing_problems(callbacks: Sequence[Callback]) -> Iterable[str]:
    """Yield why a ``FinetuningScheduler`` among ``callbacks`` is refused."""
    for callback in filter(thaws_by_phases, callbacks):
        thawing: Any = callback
        name = f"`callbacks`: {_name(callback)}"
        if thawing.restore_best:
            yield (
                f"{name} has `restore_best=True`, which loads a Lightning checkpoint, optimizer and all, in the middle "
                "of the run. Pass `restore_best=False`."
            )
        for other in ("FTSCheckpoint", *(() if thawing.epoch_transitions_only else ("FTSEarlyStopping",))):
            if not any(_is_of_its_package(one, other) for one in callbacks):
                yield (
                    f"{name} would add an {other} that monitors `val_loss`, which no run computes. Pass "
                    f"`{other}(monitor='eval_loss')` too."
                )


def monitor_warnings(callbacks: Sequence[Callback]) -> Iterable[str]:
    """Yield what to say of names that ``callbacks`` monitor, or have in names of files, and that no Trainer logs.

    Of their hooks, too, that are misspelt, or of Lightning 1, of files that are judged by an older evaluation, and of
    averages.

    A script may log them itself, so that they are not refused.
    """
    yield from _average_warnings(callbacks)
    for callback in callbacks:
        yield from misspelt_events(callback, Callback)
        monitor = getattr(callback, "monitor", None)
        if saves_by_steps(callback) and str(monitor).startswith("eval_"):
            yield (
                f"`callbacks`: {_name(callback)} saves with `every_n_train_steps` before the evaluation of its step, "
                f"and has {monitor!r} of the one before, of other weights, by which it finds the best. Leave "
                "`every_n_train_steps` out: then it saves after each evaluation."
            )
        for setting, name in _names_watched(callback):
            if match := _OF_MODULES.fullmatch(name):
                own = match["name"] or "loss"
                instead = f"eval_{own}" if (match["part"] or "").startswith(("eval", "val")) else own
                yield (
                    f"`callbacks`: {_name(callback)} has `{setting}={getattr(callback, setting)!r}`, but a Trainer "
                    f"logs no {name!r}. Use {instead!r}, unless your code logs the other: evaluations log `eval_loss` "
                    "and, with `eval_` before their names, what `compute_metrics` returns, and training logs `loss`, "
                    "`grad_norm` and `learning_rate`."
                )


def _average_warnings(callbacks: Sequence[Callback]) -> Iterable[str]:
    """Yield what to say of averages of ``callbacks`` that are not in a file, or do not begin where they seem to."""
    average = averages_weights(callbacks)
    for callback in callbacks:
        name = f"`callbacks`: {_name(callback)}"
        if average and isinstance(callback, ModelCheckpoint) and callback.save_weights_only:
            yield (
                f"{name} has `save_weights_only=True`: its files have the weights of the last update step, as in "
                f"Lightning, and not the average of {average}, which is evaluated. Leave it out, or load the run's own "
                "checkpoints, which have the average."
            )
        if getattr(type(callback), "should_update", None) is not EMAWeightAveraging.should_update:
            continue
        ema: Any = callback
        if ema.update_starting_at_step:
            yield (
                f"{name} has `update_starting_at_step={ema.update_starting_at_step}`: until then evaluations and "
                "checkpoints have the weights with which the run begins, as in Lightning. Set `eval_delay` as well."
            )
        elif ema.update_starting_at_epoch and ema.update_every_n_steps > 0:
            yield (
                f"{name} has `update_starting_at_epoch={ema.update_starting_at_epoch}`, which delays nothing, as in "
                "Lightning: update steps are averaged from the first on, and from that epoch on its end once more. Set "
                "`update_starting_at_step`, or `update_every_n_steps=0` to average at the ends of epochs alone."
            )


def _names_watched(callback: Callback) -> Iterable[tuple[str, str]]:
    """Yield the settings of ``callback`` that name what is logged, with the names."""
    monitor, filename = getattr(callback, "monitor", None), getattr(callback, "filename", None)
    if isinstance(monitor, str):
        yield "monitor", monitor
    if isinstance(callback, ModelCheckpoint) and isinstance(filename, str):
        yield from (("filename", name) for name in re.findall(r"\{([^:}]+)", filename) if name != monitor)


def without_logger(callbacks: Sequence[Callback]) -> list[str]:
    """Return the names of the callbacks that cannot work without a Lightning logger."""
    return [_name(one) for one in callbacks if isinstance(one, DeviceStatsMonitor | LearningRateMonitor)]


def logging_by_steps(callbacks: Sequence[Callback]) -> list[str]:
    """Return the names of the callbacks that log every ``log_every_n_steps`` update steps, and at no other time."""
    kinds = (DeviceStatsMonitor, LearningRateMonitor, ThroughputMonitor)
    found = [one for one in callbacks if isinstance(one, kinds) and getattr(one, "logging_interval", "") != "epoch"]
    return [_name(one) for one in found]


def decay_added_parameters(pl_trainer: pl.Trainer, weight_decay: float) -> None:
    """Give the run's weight decay to groups of parameters that a ``BaseFinetuning`` adds, if other groups have it.

    A Trainer sets it for each group, so that the optimizer's own default would be torch's.
    """
    if not any(isinstance(callback, BaseFinetuning) for callback in pl_trainer.callbacks):  # type: ignore[attr-defined]
        return
    for optimizer in pl_trainer.optimizers:
        decays = [group["weight_decay"] for group in optimizer.param_groups if "weight_decay" in group]
        defaults = getattr(optimizer, "defaults", {})  # an engine's has none
        if "weight_decay" in defaults and max(decays, default=None) == weight_decay:
            defaults["weight_decay"] = weight_decay


def draws_with_rich(callbacks: Sequence[Callback]) -> bool:
    """Return whether one of ``callbacks`` draws bars with Rich, beside which no other bar can be drawn."""
    return any(isinstance(one, RichProgressBar) for one in callbacks)


def _refusal(callback: Callback) -> Refusal | None:
    names = (kind.__name__ for kind in type(callback).__mro__ if kind.__module__.startswith("lightning."))
    return next((REFUSED_CALLBACKS[name] for name in names if name in REFUSED_CALLBACKS), None)


def _keyword_problems(callback: Callback, keywords: Mapping[str, Any]) -> Iterable[str]:
    """Yield why ``callback`` is refused beside keywords of ``lightning.Trainer``."""
    name, hooks = f"`callbacks`: {_name(callback)}", _hooks_of(callback)
    if (
        hooks & set(OF_SANITY_CHECK)
        and hooks <= {*NEVER_CALLED, *OF_SANITY_CHECK}
        and not keywords.get("num_sanity_val_steps")
    ):
        yield f"{name} has no effect: the run has no sanity check. Set `lightning={{'num_sanity_val_steps': 2}}`."
    if isinstance(callback, ProgressBar) and keywords.get("enable_progress_bar") is False:
        yield f"{name} is a progress bar, but `lightning={{'enable_progress_bar': False}}`. Remove one of them."
    if isinstance(callback, ModelCheckpoint | EarlyStopping) and keywords.get("barebones"):
        yield f"{name} does not work with `lightning={{'barebones': True}}`. Remove one of them."


def _hooks_of(callback: Callback) -> set[str]:
    return {hook for hook in dir(Callback) if hook.startswith("on_") and defines_hook(callback, hook)}


def _setting_problems(callback: Callback, args: TrainingArguments, *, shards_model: bool) -> Iterable[str]:
    name = f"`callbacks`: {_name(callback)}"
    hooks = _hooks_of(callback)
    if hooks and hooks <= set(NEVER_CALLED):
        called = ", ".join(sorted(hooks))
        yield f"{name} has no effect: no run calls {called}. `predict` calls the hooks `on_test_*`."
    monitor = getattr(callback, "monitor", None)
    watches = isinstance(callback, EarlyStopping | ModelCheckpoint) and str(monitor).startswith("eval_")
    if watches and not evaluates_in_training(args):
        yield f"{name} has `monitor={monitor!r}`, but no evaluation computes it: set `eval_strategy`."
    if saves_by_time(callback):
        yield (
            f"{name} has `train_time_interval`, which Lightning ignores under manual optimization. Use "
            "`every_n_train_steps`."
        )
    if keeps_masks(callback) and saves_checkpoints(args):
        yield (
            f"{name} has `make_pruning_permanent=False`: checkpoints would contain its masks and could not be loaded. "
            "Remove it, or set `save_strategy='no'`."
        )
    if shards_model and isinstance(callback, WeightAveraging | ModelPruning):
        yield f"{name} needs the whole model on each rank, but the strategy shards it. Use DDP, or remove it."


def averages_weights(callbacks: Iterable[Callback]) -> str | None:
    """Return the name of the first of ``callbacks`` that averages the weights, in their dtype; None without one."""
    return next((_name(callback) for callback in callbacks if isinstance(callback, WeightAveraging)), None)


def prunes(callbacks: Iterable[Callback]) -> bool:
    """Return whether one of ``callbacks`` prunes weights by masks."""
    return any(isinstance(callback, ModelPruning) for callback in callbacks)


def _name(callback: Callback) -> str:
    return type(callback).__name__


class RunStarter(pl.Callback):
    """Begins a run before any callback is set up; the first callback of a ``lightning.Trainer``.

    Args:
        begin: Called with the Lightning trainer and the module when a fit or an evaluation is set up.
    """

    def __init__(self, begin: Callable[[pl.Trainer, pl.LightningModule], None]) -> None:
        self._begin = begin

    def setup(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Begin."""
        self._begin(pl_trainer, pl_module)
