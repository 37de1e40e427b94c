"""``validate``, ``test`` and ``predict`` called by the user, run as ``Trainer.evaluate`` and ``Trainer.predict``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hf_compat.engine.internals.evaluating import run_instead
from hf_compat.errors import TrainerSetupError
from hf_compat.trainer.current_run import current_run
from hf_compat.trainer.evaluation import prepare
from hf_compat.trainer.user_data import Evaluated, data_of, evaluated_data, evaluation_overrides, standing_in

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.engine.backend import LightningBackend
    from hf_compat.engine.module import HFModule
    from hf_compat.evaluation.results import PredictionOutput
    from hf_compat.trainer.trainer import Trainer

__all__ = ["evaluating", "user_evaluation_data"]

_HOOKS = {"validate": "val_dataloader", "test": "test_dataloader", "predict": "predict_dataloader"}
"""The method of a ``lightning.Trainer`` → the hook that loads its batches."""


def user_evaluation_data(pl_trainer: pl.Trainer) -> Evaluated:
    """Return what the call that ``pl_trainer`` is inside of reads.

    Raises:
        TrainerSetupError: If it was given nothing.
    """
    call = _call_of(pl_trainer)
    evaluated = evaluated_data(pl_trainer, _HOOKS[call])
    if evaluated.dataset is None:
        name = "eval_dataset" if call == "validate" else "test_dataset"
        raise TrainerSetupError(
            f"`{call}` has no data: pass `datamodule=HFDataModule({name}=...)` or `dataloaders=...` to it."
        )
    return evaluated


def _call_of(pl_trainer: pl.Trainer) -> str:
    assert pl_trainer.state.fn is not None, "inside a call"
    return pl_trainer.state.fn.value


@contextmanager
def evaluating(
    pl_trainer: pl.Trainer,
    module: HFModule,
    trainer: Trainer,
    evaluated: Evaluated,
    *,
    ignore_keys: list[str] | None,
    done: Callable[[dict[str, float] | PredictionOutput], None],
) -> Iterator[None]:
    """Context of a call that a person has made: ``trainer`` evaluates or predicts in it.

    Args:
        pl_trainer: The Lightning trainer, in the ``setup`` of the call.
        module: Its module.
        trainer: The Trainer.
        evaluated: What it reads.
        ignore_keys: Model outputs excluded from the predictions.
        done: Called with what ``Trainer.evaluate`` or ``Trainer.predict`` returns.
    """
    run, backend, data, call = (
        current_run(trainer),
        trainer.lightning_backend,
        data_of(pl_trainer),
        _call_of(pl_trainer),
    )
    if backend.pl_trainer is not pl_trainer:
        backend.strategy.close()
        backend.adopt(pl_trainer)
    backend.module = module.connect(run)
    if data is not None:
        data.connect(run)

    def evaluate() -> Any:
        if call == "validate":
            own = evaluated.loader is None and evaluated.dataset is trainer.eval_dataset
            metrics = trainer.evaluate(None if own else evaluated.dataset, ignore_keys)
            done(metrics)
            return _returned(pl_trainer, metrics)
        output = trainer.predict(evaluated.dataset, ignore_keys)
        done(output)
        if call == "test":
            return _returned(pl_trainer, output.metrics or {})
        loop = pl_trainer.predict_loop
        return loop.predictions if loop.return_predictions else None

    methods = evaluation_overrides(evaluated, module, trainer)
    with standing_in(trainer, run, methods), _limits(backend, call), run_instead(pl_trainer, evaluate):
        prepare(trainer)
        yield


def _returned(pl_trainer: pl.Trainer, metrics: dict[str, float]) -> list[dict[str, Any]]:
    """Return ``metrics`` with what else was logged, as Lightning returns the metrics of one loader."""
    logged = {name: value.item() for name, value in pl_trainer.callback_metrics.items()}
    return [{**logged, **metrics}]


@contextmanager
def _limits(backend: LightningBackend, call: str) -> Iterator[None]:
    """Context in which ``Trainer.predict`` reads what ``call`` does."""
    before = backend.limits
    if call == "test":
        backend.limits = replace(before, prediction=before.test)
    try:
        yield
    finally:
        backend.limits = before
