"""``validate``, ``test`` and ``predict`` that a person has called, as ``Trainer.evaluate`` and ``Trainer.predict``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hf_compat.engine.callbacks import CallbackGroup
from hf_compat.engine.internals.evaluating import run_instead
from hf_compat.errors import TrainerSetupError
from hf_compat.trainer.current_run import current_run
from hf_compat.trainer.evaluation import prepare
from hf_compat.trainer.given_data import data_of, dataset_behind, stand_ins, standing_in

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.engine.module import HFModule
    from hf_compat.engine.runtime import Runtime
    from hf_compat.evaluation.results import PredictionOutput
    from hf_compat.trainer.trainer import Trainer

__all__ = ["check_data", "evaluating", "hook_of"]

_HOOKS = {"validate": "val_dataloader", "test": "test_dataloader", "predict": "predict_dataloader"}
"""The method of a ``lightning.Trainer`` → the hook that loads its batches."""


def hook_of(trainer: pl.Trainer) -> str:
    """Return the hook that loads the batches of the call that ``trainer`` is inside of."""
    return _HOOKS[_call_of(trainer)]


def _call_of(trainer: pl.Trainer) -> str:
    assert trainer.state.fn is not None, "inside a call"
    return trainer.state.fn.value


def check_data(trainer: pl.Trainer) -> None:
    """Check that the call that ``trainer`` is inside of was given data.

    Raises:
        TrainerSetupError: If it was not.
    """
    call = _call_of(trainer)
    if dataset_behind(trainer, hook_of(trainer)) is None:
        name = "eval_dataset" if call == "validate" else "test_dataset"
        raise TrainerSetupError(
            f"`{call}` has no data: pass `datamodule=HFDataModule({name}=...)` or `dataloaders=...` to it."
        )


@contextmanager
def evaluating(
    trainer: pl.Trainer,
    module: HFModule,
    host: Trainer,
    group: CallbackGroup,
    *,
    ignore_keys: list[str] | None,
    done: Callable[[dict[str, float] | PredictionOutput], None],
) -> Iterator[None]:
    """Context of a call that a person has made: ``host`` evaluates or predicts in it.

    Args:
        trainer: The Lightning trainer, in the ``setup`` of the call.
        module: Its module.
        host: The Trainer.
        group: The callbacks of the call.
        ignore_keys: Model outputs excluded from the predictions.
        done: Called with what ``Trainer.evaluate`` or ``Trainer.predict`` returns.
    """
    run, runtime, data, call = current_run(host), host._lightning_runtime, data_of(trainer), _call_of(trainer)
    if runtime.trainer is not trainer:
        runtime.strategy.close()
        runtime.use(trainer)
    runtime.module = module.connect(run, group)
    if data is not None:
        data.connect(run)
    dataset = dataset_behind(trainer, hook_of(trainer))

    def evaluate() -> Any:
        if call == "validate":
            metrics = host.evaluate(None if dataset is host.eval_dataset else dataset, ignore_keys)
            done(metrics)
            return _returned(trainer, metrics)
        output = host.predict(dataset, ignore_keys)
        done(output)
        if call == "test":
            return _returned(trainer, output.metrics or {})
        loop = trainer.predict_loop
        return loop.predictions if loop.return_predictions else None

    methods = stand_ins(trainer, module, host, hook_of(trainer))
    with standing_in(host, run, methods), _limits(runtime, call), run_instead(trainer, evaluate):
        prepare(host)
        yield


def _returned(trainer: pl.Trainer, metrics: dict[str, float]) -> list[dict[str, Any]]:
    """Return ``metrics`` with what else was logged, as Lightning returns the metrics of one loader."""
    logged = {name: value.item() for name, value in trainer.callback_metrics.items()}
    return [{**logged, **metrics}]


@contextmanager
def _limits(runtime: Runtime, call: str) -> Iterator[None]:
    """Context in which ``Trainer.predict`` reads what ``call`` does."""
    before = runtime.limits
    if call == "test":
        runtime.limits = replace(before, prediction=before.test)
    try:
        yield
    finally:
        runtime.limits = before
