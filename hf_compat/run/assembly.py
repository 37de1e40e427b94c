"""Assembling a fit: Lightning trainer, module and windows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from hf_compat.data.windows import EpochStart, WindowLoader
from hf_compat.engine.internals.loops import train_on
from hf_compat.engine.loggers import open_loggers
from hf_compat.engine.module import HFModule
from hf_compat.model_facts import unwrap_model
from hf_compat.overriding import is_ours
from hf_compat.plan import RunPlan

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.run.hooks import RunHooks
    from hf_compat.run.host import RunHost
    from hf_compat.run.run import TrainingRun

__all__ = ["FitObjects", "UserPieces", "assemble", "assemble_given"]


@dataclass(frozen=True, slots=True)
class FitObjects:
    """The objects of one fit."""

    plan: RunPlan
    trainer: pl.Trainer
    module: HFModule
    windows: WindowLoader
    hooks: RunHooks


class UserPieces(NamedTuple):
    """Arguments of the user's call of ``fit``."""

    trainer: pl.Trainer
    module: HFModule
    hooks: RunHooks


def assemble(run: TrainingRun, plan: RunPlan, loader: Iterable[Any], start: EpochStart | None) -> FitObjects:
    """Return the objects of one fit.

    Args:
        run: The run, with its hooks.
        plan: Epochs, update steps and batches of the fit.
        loader: The train loader.
        start: Where a resumed run starts; None for the beginning.
    """
    host, runtime = run.host, run.runtime
    loggers = open_loggers(host.callback_handler.callbacks, host.args, host.state)
    trainer = runtime.build(
        host.args, unwrap_model(host.model), limits=limits_of(host, plan), hooks=run.hooks, loggers=loggers
    )
    module = HFModule(host.model, host.args).connect(run, run.hooks)
    return FitObjects(plan, trainer, module, windows_of(run, plan, loader, start, trainer), run.hooks)


def assemble_given(
    run: TrainingRun, plan: RunPlan, loader: Iterable[Any], start: EpochStart | None, given: UserPieces
) -> FitObjects:
    """Return the objects of one fit that a person has begun with their own; see :func:`assemble`.

    Args:
        run: The run.
        plan: Epochs, update steps and batches of the fit.
        loader: The train loader.
        start: Where a resumed run starts; None for the beginning.
        given: The Lightning trainer, which is inside its ``fit``, the module and the hooks.
    """
    trainer, module, hooks = given
    module.model = run.host.model
    module.connect(run, hooks)
    windows = windows_of(run, plan, loader, start, trainer)
    train_on(trainer, windows, **limits_of(run.host, plan))
    return FitObjects(plan, trainer, module, windows, hooks)


def limits_of(host: RunHost, plan: RunPlan) -> dict[str, int]:
    """Return ``max_steps`` and ``max_epochs`` of the Lightning trainer of a fit."""
    return {
        # A resumed run that has made all its update steps makes one more, as in transformers.
        "max_steps": max(plan.max_steps, host.state.global_step + 1),
        "max_epochs": max(plan.num_train_epochs, 0) if plan.num_train_epochs < 2**31 else -1,  # -1: without end
    }


def windows_of(
    run: TrainingRun, plan: RunPlan, loader: Iterable[Any], start: EpochStart | None, trainer: pl.Trainer
) -> WindowLoader:
    """Return the windows of a fit of ``trainer``; see :func:`assemble`."""
    semantics = run.host.semantics
    return WindowLoader(
        loader,
        plan,
        run,
        lambda: trainer.current_epoch,
        start,
        restores_without_batches=semantics.restores_rng_without_batches,
        asks_empty_loader=semantics.asks_empty_loader,
        skips_before_telling_epoch=semantics.skips_before_telling_epoch,
        asks_to_the_end=not is_ours(run.host.get_batch_samples),
    )
