"""Assembling a fit: Lightning trainer, module and windows."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from hf_compat.arguments.fields.defaults import defaults
from hf_compat.arguments.fields.redeclared import for_run
from hf_compat.data.windows import ResumePosition, WindowLoader
from hf_compat.engine.internals.loops import train_on
from hf_compat.engine.lightning_callbacks import logging_by_steps
from hf_compat.engine.loggers import open_loggers
from hf_compat.engine.module import HFModule
from hf_compat.model_facts import unwrap_model
from hf_compat.overriding import is_ours
from hf_compat.plan import RunPlan
from hf_compat.run.loop import UpdateLoop
from hf_compat.run.train_loaders import is_carried_on

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.run.hooks import RunHooks
    from hf_compat.run.run import TrainingRun
    from hf_compat.trainer.trainer import Trainer

__all__ = ["FitObjects", "UserPieces", "assemble", "assemble_user_pieces"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FitObjects:
    """The objects of one fit."""

    plan: RunPlan
    pl_trainer: pl.Trainer
    module: HFModule
    windows: WindowLoader
    hooks: RunHooks


class UserPieces(NamedTuple):
    """Arguments of the user's call of ``fit``."""

    pl_trainer: pl.Trainer
    module: HFModule
    hooks: RunHooks


def assemble(run: TrainingRun, plan: RunPlan, loader: Iterable[Any], start: ResumePosition | None) -> FitObjects:
    """Return the objects of one fit.

    Args:
        run: The run, with its hooks.
        plan: Epochs, update steps and batches of the fit.
        loader: The train loader.
        start: Where a resumed run starts; None for the beginning.
    """
    trainer, backend = run.trainer, run.backend
    loggers = open_loggers(trainer.callback_handler.callbacks, trainer.args, trainer.state)
    pl_trainer = backend.build(
        trainer.args, unwrap_model(trainer.model), limits=limits_of(trainer, plan), hooks=run.hooks, loggers=loggers
    )
    _log_as_the_trainer(run, plan, pl_trainer)
    module = HFModule(trainer.model, trainer.args).connect(run)
    return FitObjects(plan, pl_trainer, module, windows_of(run, plan, loader, start, pl_trainer), run.hooks)


def assemble_user_pieces(
    run: TrainingRun, plan: RunPlan, loader: Iterable[Any], start: ResumePosition | None, user_pieces: UserPieces
) -> FitObjects:
    """Return the objects of one fit that a person has begun with their own; see :func:`assemble`.

    Args:
        run: The run.
        plan: Epochs, update steps and batches of the fit.
        loader: The train loader.
        start: Where a resumed run starts; None for the beginning.
        user_pieces: The Lightning trainer, which is inside its ``fit``, the module and the hooks.
    """
    pl_trainer, module, hooks = user_pieces
    module.model = run.trainer.model
    module.connect(run)
    _log_as_the_trainer(run, plan, pl_trainer)
    windows = windows_of(run, plan, loader, start, pl_trainer)
    train_on(pl_trainer, windows, **limits_of(run.trainer, plan))
    return FitObjects(plan, pl_trainer, module, windows, hooks)


def limits_of(trainer: Trainer, plan: RunPlan) -> dict[str, int]:
    """Return ``max_steps`` and ``max_epochs`` of the Lightning trainer of a fit."""
    return {
        # A resumed run that has made all its update steps makes one more, as in transformers.
        "max_steps": max(plan.max_steps, trainer.state.global_step + 1),
        "max_epochs": max(plan.num_train_epochs, 0) if plan.num_train_epochs < 2**31 else -1,  # -1: without end
    }


def _log_as_the_trainer(run: TrainingRun, plan: RunPlan, pl_trainer: pl.Trainer) -> None:
    """Let Lightning callbacks log at the update steps of the Trainer's logs, unless the user has set an interval.

    With ``logging_strategy="no"``, and the default of ``logging_steps``, Lightning's interval stays.
    """
    trainer, strategy = run.trainer, for_run(run.trainer.args).logging_strategy
    every = plan.update_steps_per_epoch if strategy == "epoch" else trainer.state.logging_steps
    is_set = strategy == "epoch" or (strategy == "steps" and every != defaults()["logging_steps"])
    if is_set and "log_every_n_steps" not in run.backend.keywords:
        pl_trainer.log_every_n_steps = int(every)  # type: ignore[attr-defined]
    interval, names = pl_trainer.log_every_n_steps, logging_by_steps(run.backend.callbacks)  # type: ignore[attr-defined]
    if not (names and interval) or "fast_dev_run" in run.backend.keywords:
        return
    if plan.max_steps // interval == trainer.state.global_step // interval:
        logger.warning(
            "%s: Lightning callbacks log every %s update steps, and this run ends after %s, so nothing will be logged. "
            "Set `logging_steps`, or `lightning={'log_every_n_steps': ...}`.",
            *(", ".join(names), interval, plan.max_steps),
        )


def windows_of(
    run: TrainingRun, plan: RunPlan, loader: Iterable[Any], start: ResumePosition | None, pl_trainer: pl.Trainer
) -> WindowLoader:
    """Return the windows of a fit of ``pl_trainer``, in whose loop they are trained on; see :func:`assemble`."""
    semantics, loop, epochs = run.trainer.semantics, UpdateLoop(pl_trainer, run), weakref.proxy(pl_trainer)
    loop.windows = WindowLoader(
        loader,
        plan,
        weakref.proxy(loop),  # type: ignore[arg-type]  # which has the windows itself, as the Lightning trainer has
        lambda: epochs.current_epoch,
        start,
        restores_without_batches=semantics.restores_rng_without_batches,
        asks_empty_loader=semantics.asks_empty_loader,
        skips_before_telling_epoch=semantics.skips_before_telling_epoch,
        asks_to_the_end=not is_ours(run.trainer.get_batch_samples) or is_carried_on(loader),
    )
    return loop.windows
