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
from hf_compat.trainer.given_data import Evaluated, data_of, evaluated_data, evaluation_stand_ins, standing_in

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.engine.module import HFModule
    from hf_compat.engine.runtime import Runtime
    from hf_compat.evaluation.results import PredictionOutput
    from hf_compat.run.hooks import RunHooks
    from hf_compat.trainer.trainer import Trainer

__all__ = ["evaluating", "given_to"]

_HOOKS = {"validate": "val_dataloader", "test": "test_dataloader", "predict": "predict_dataloader"}
"""The method of a ``lightning.Trainer`` → the hook that loads its batches."""


def given_to(trainer: pl.Trainer) -> Evaluated:
    """Return what the call that ``trainer`` is inside of reads.

    Raises:
        TrainerSetupError: If it was given nothing.
    """
    call = _call_of(trainer)
    given = evaluated_data(trainer, _HOOKS[call])
    if given.dataset is None:
        name = "eval_dataset" if call == "validate" else "test_dataset"
        raise TrainerSetupError(
            f"`{call}` has no data: pass `datamodule=HFDataModule({name}=...)` or `dataloaders=...` to it."
        )
    return given


def _call_of(trainer: pl.Trainer) -> str:
    assert trainer.state.fn is not None, "inside a call"
    return trainer.state.fn.value


@contextmanager
def evaluating(
    trainer: pl.Trainer,
    module: HFModule,
    host: Trainer,
    hooks: RunHooks,
    given: Evaluated,
    *,
    ignore_keys: list[str] | None,
    done: Callable[[dict[str, float] | PredictionOutput], None],
) -> Iterator[None]:
    """Context of a call that a person has made: ``host`` evaluates or predicts in it.

    Args:
        trainer: The Lightning trainer, in the ``setup`` of the call.
        module: Its module.
        host: The Trainer.
        hooks: The hooks of the call.
        given: What it reads.
        ignore_keys: Model outputs excluded from the predictions.
        done: Called with what ``Trainer.evaluate`` or ``Trainer.predict`` returns.
    """
    run, runtime, data, call = current_run(host), host._lightning_runtime, data_of(trainer), _call_of(trainer)
    if runtime.trainer is not trainer:
        runtime.strategy.close()
        runtime.adopt(trainer)
    runtime.module = module.connect(run, hooks)
    if data is not None:
        data.connect(run)

    def evaluate() -> Any:
        if call == "validate":
            own = given.loader is None and given.dataset is host.eval_dataset
            metrics = host.evaluate(None if own else given.dataset, ignore_keys)
            done(metrics)
            return _returned(trainer, metrics)
        output = host.predict(given.dataset, ignore_keys)
        done(output)
        if call == "test":
            return _returned(trainer, output.metrics or {})
        loop = trainer.predict_loop
        return loop.predictions if loop.return_predictions else None

    methods = evaluation_stand_ins(given, module, host)
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
