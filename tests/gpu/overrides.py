"""Scenarios that keep which model, optimizer and gradient scaler a script finds, whichever of its code is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from tests.support import helpers
from tests.support.parity import Kit
from tests.support.scenarios.common import plain

METHODS = [
    *("_wrap_model", "_hp_search_setup", "get_train_dataloader", "get_eval_dataloader", "num_examples"),
    *("set_initial_training_values", "create_optimizer_and_scheduler", "create_optimizer", "create_scheduler"),
    *("get_decay_parameter_names", "get_batch_samples", "training_step", "compute_loss", "log", "evaluate"),
    *("evaluation_loop", "prediction_step", "_save_checkpoint", "save_model", "_save_optimizer_and_scheduler"),
    *("_save_rng_state", "_load_optimizer_and_scheduler", "_load_rng_state"),
]
EVENTS = [
    *("on_train_begin", "on_epoch_begin", "on_step_begin", "on_pre_optimizer_step", "on_optimizer_step"),
    *("on_step_end", "on_evaluate", "on_save", "on_epoch_end", "on_train_end"),
]
WRAPPERS = {"DataParallel": "module", "DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}
"""The class of a wrapper → its attribute with the model."""


def overrides(**fields: Any) -> Callable[[Kit], None]:
    """Return a scenario that trains twice, and keeps what each method and event found."""

    def body(kit: Kit) -> None:
        seen: list[tuple[str, ...]] = []

        def look(moment: str, trainer: Any, *models: Any) -> None:
            found = [_names(model) for model in (trainer.model, trainer.model_wrapped, *models)]
            there = [name for name in ("optimizer", "lr_scheduler") if getattr(trainer, name) is not None]
            scaler = trainer.accelerator.scaler
            scale = "" if scaler is None else str(scaler.state_dict())
            seen.append((moment, *found, *there, scale, str(trainer.model.training)))

        every = {"max_steps": 2, "eval_strategy": "epoch", "save_strategy": "steps", "save_steps": 2, **fields}
        model = helpers.PlainModel(dropout=0.0)  # not the kit's, whose hook a compiler could not trace
        events = {name: _event(name, look, lambda: trainer) for name in EVENTS}
        trainer = plain(
            kit,
            model=model,
            fields=every,
            subclass=type("Looking", (kit.Trainer,), {name: _method(kit, name, look) for name in _defined(kit)}),
            callbacks=[type("Callback", (kit.TrainerCallback,), events)()],
        )
        for moment in ("first", "second"):
            look(f"before the {moment} training", trainer)
            kit.train(trainer)
            look(f"after the {moment} training", trainer)
        kit.evaluate(trainer)
        kit.keep("seen", seen)

    return body


def _names(model: nn.Module) -> str:
    """Return the names of the classes of a model and of its wrappers."""
    name = type(model).__name__
    return f"{name} of {_names(getattr(model, WRAPPERS[name]))}" if name in WRAPPERS else name


def _defined(kit: Kit) -> list[str]:
    return [name for name in METHODS if hasattr(kit.Trainer, name)]


def _method(kit: Kit, name: str, look: Callable[..., None]) -> Callable[..., Any]:
    method = getattr(kit.Trainer, name)

    def override(trainer: Any, *given: Any, **named: Any) -> Any:
        look(name, trainer, *(value for value in (*given, *named.values()) if isinstance(value, nn.Module)))
        return method(trainer, *given, **named)

    override.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]  # hf_compat reads it
    return override


def _event(name: str, look: Callable[..., None], trainer: Callable[[], Any]) -> Callable[..., None]:
    def event(callback: Any, args: Any, state: Any, control: Any, *, model: Any, **named: Any) -> None:
        look(name, trainer(), model)

    return event
