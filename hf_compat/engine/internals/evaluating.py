"""The private names of Lightning's loops that evaluate, outside a fit, with their contracts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.trainer.states import TrainerFn

from hf_compat.engine.internals.loops import is_fitting, validate_in_fit

__all__ = [
    "evaluation_loader",
    "is_evaluating",
    "renew_loops",
    "run_evaluation",
    "run_instead",
    "user_data",
]


def is_evaluating(pl_trainer: pl.Trainer) -> bool:
    """Return whether ``pl_trainer`` is inside ``validate``, ``test`` or ``predict``."""
    return pl_trainer.state.fn not in (None, TrainerFn.FITTING) and pl_trainer.state.stage is not None


def run_evaluation(pl_trainer: pl.Trainer, module: pl.LightningModule, loader: object, *, test: bool) -> None:
    """Run one loop of ``pl_trainer`` over ``loader``: that of the call that it is inside of, if it is inside of one.

    Args:
        pl_trainer: The Lightning trainer.
        module: The module.
        loader: The batches.
        test: Outside of any call: whether to call ``test``, or ``validate``.
    """
    if is_fitting(pl_trainer):
        validate_in_fit(pl_trainer, loader)
    elif is_evaluating(pl_trainer):
        _run_own(pl_trainer, loader)
    elif test:
        pl_trainer.test(module, dataloaders=loader, verbose=False)
    else:
        pl_trainer.validate(module, dataloaders=loader, verbose=False)


# ---- of a call that a person has made ----


@contextmanager
def run_instead(pl_trainer: pl.Trainer, run: Callable[[], Any]) -> Iterator[None]:
    """Context in which the call that ``pl_trainer`` is inside of returns what ``run`` does, without its loop.

    ``run`` may run the loop, by :func:`run_evaluation`. Contract: ``_run_stage`` returns what ``run`` of
    ``_active_loop`` returns, which the class has decorated to disable gradients; what comes before it does not read
    the loaders.

    Args:
        pl_trainer: The Lightning trainer, in the ``setup`` of the call.
        run: What to do instead.
    """
    loop: Any = pl_trainer._active_loop
    loop.run = run
    try:
        yield
    finally:
        vars(loop).pop("run", None)


def _run_own(pl_trainer: pl.Trainer, loader: object) -> None:
    """Run the loop of the call that ``pl_trainer`` is inside of over ``loader``; see :func:`run_instead`."""
    loop: Any = pl_trainer._active_loop
    vars(loop).pop("run", None)
    loop._data_source.instance = loader
    loop.run()


def user_data(pl_trainer: pl.Trainer) -> object:
    """Return what the call that ``pl_trainer`` is inside of was given as data: a data module, loaders, or the module.

    Contract: ``_data_source.instance``; the trainer's ``datamodule`` may be that of an earlier call.
    """
    loop: Any = pl_trainer._active_loop
    return loop._data_source.instance


def renew_loops(pl_trainer: pl.Trainer) -> None:
    """Prepare the loops of ``pl_trainer`` that evaluate for another strategy, under ``torch.no_grad``.

    What a model caches there can then be trained on. Contract: each loop has ``inference_mode``; ``_results`` has what
    was logged before, with the strategy's method to reduce it, which has to be that of what is logged next.
    """
    for loop in (pl_trainer.validate_loop, pl_trainer.test_loop):
        loop._results.clear()
    for one in (pl_trainer.validate_loop, pl_trainer.test_loop, pl_trainer.predict_loop):
        one.inference_mode = False


def evaluation_loader(pl_trainer: pl.Trainer) -> Callable[[], Any] | None:
    """Return what loads the batches that the call was given, from a module or as they are; None without any."""
    loop: Any = pl_trainer._active_loop
    source = copy.copy(loop._data_source)  # the loop's is about to have another instance
    return source.dataloader if source.is_defined() else None
