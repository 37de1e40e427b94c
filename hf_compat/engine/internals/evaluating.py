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
    "given_data",
    "is_evaluating",
    "renew_loops",
    "run_evaluation",
    "run_instead",
]


def is_evaluating(trainer: pl.Trainer) -> bool:
    """Return whether ``trainer`` is inside ``validate``, ``test`` or ``predict``."""
    return trainer.state.fn not in (None, TrainerFn.FITTING) and trainer.state.stage is not None


def run_evaluation(trainer: pl.Trainer, module: pl.LightningModule, loader: object, *, test: bool) -> None:
    """Run one loop of ``trainer`` over ``loader``: that of the call that it is inside of, if it is inside of one.

    Args:
        trainer: The Lightning trainer.
        module: The module.
        loader: The batches.
        test: Outside of any call: whether to call ``test``, or ``validate``.
    """
    if is_fitting(trainer):
        validate_in_fit(trainer, loader)
    elif is_evaluating(trainer):
        _run_own(trainer, loader)
    elif test:
        trainer.test(module, dataloaders=loader, verbose=False)
    else:
        trainer.validate(module, dataloaders=loader, verbose=False)


# ---- of a call that a person has made ----


@contextmanager
def run_instead(trainer: pl.Trainer, run: Callable[[], Any]) -> Iterator[None]:
    """Context in which the call that ``trainer`` is inside of returns what ``run`` does, instead of running its loop.

    ``run`` may run the loop, by :func:`run_evaluation`. Contract: ``_run_stage`` returns what ``run`` of
    ``_active_loop`` returns, which the class has decorated to disable gradients; what comes before it does not read
    the loaders.

    Args:
        trainer: The Lightning trainer, in the ``setup`` of the call.
        run: What to do instead.
    """
    loop: Any = trainer._active_loop
    loop.run = run
    try:
        yield
    finally:
        vars(loop).pop("run", None)


def _run_own(trainer: pl.Trainer, loader: object) -> None:
    """Run the loop of the call that ``trainer`` is inside of over ``loader``; see :func:`run_instead`."""
    loop: Any = trainer._active_loop
    vars(loop).pop("run", None)
    loop._data_source.instance = loader
    loop.run()


def given_data(trainer: pl.Trainer) -> object:
    """Return what the call that ``trainer`` is inside of was given as data: a data module, loaders, or the module.

    Contract: ``_data_source.instance``; the trainer's ``datamodule`` may be that of an earlier call.
    """
    loop: Any = trainer._active_loop
    return loop._data_source.instance


def renew_loops(trainer: pl.Trainer) -> None:
    """Prepare the loops of ``trainer`` that evaluate for another strategy, under ``torch.no_grad``.

    What a model caches there can then be trained on. Contract: each loop has ``inference_mode``; ``_results`` has what
    was logged before, with the strategy's method to reduce it, which has to be that of what is logged next.
    """
    for loop in (trainer.validate_loop, trainer.test_loop):
        loop._results.clear()
    for one in (trainer.validate_loop, trainer.test_loop, trainer.predict_loop):
        one.inference_mode = False


def evaluation_loader(trainer: pl.Trainer) -> Callable[[], Any] | None:
    """Return what loads the batches that the call was given, from a module or as they are; None without any."""
    loop: Any = trainer._active_loop
    source = copy.copy(loop._data_source)  # the loop's is about to have another instance
    return source.dataloader if source.is_defined() else None
