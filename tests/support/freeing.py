"""What of a Trainer is still in memory when its last user has dropped it, without the garbage collector.

Each situation runs under either library: what upstream frees at once, ours frees at once.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from tests.support.helpers import ListDataset, PadCollator, PlainModel, gpt2, token_rows, vector_rows
from tests.support.trainers import QUIET


class KeepsAll(pl.Callback):
    """A Lightning callback that keeps its trainer, and logs; perhaps it fails."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Keep the trainer, as Lightning's progress bars do."""
        self.trainer = trainer

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Log, or fail."""
        pl_module.log("mine", 1.0, batch_size=1)
        if self.fails:
            raise ValueError("asked for")


class _Failing(ListDataset):
    """A data set whose sample 5 cannot be read."""

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise ValueError("cannot be read")
        return super().__getitem__(index)


def _raise(error: type[BaseException], *_: Any, **__: Any) -> Any:
    raise error("asked for")


def _at(event: str, error: type[BaseException]) -> Callable[[Any], Any]:
    """Return what makes a callback of a library that raises ``error`` at ``event``."""
    return lambda library: type("Fails", (library.TrainerCallback,), {event: partial(_raise, error)})()


def failed(call: Callable[[Any], Any], error: type[BaseException] = ValueError) -> Callable[[Any], None]:
    """Return what makes a call that fails, and takes no notice."""

    def act(trainer: Any) -> None:
        with suppress(error):
            call(trainer)
            raise AssertionError("it has not failed")

    return act


def _checkpointed() -> Any:
    """Return a GPT-2 that computes its activations again in the backward pass."""
    model: Any = gpt2()
    enable = getattr(
        model, "activation_checkpointing_enable", model.gradient_checkpointing_enable
    )  # its name before 5.23
    enable()
    return model


def trains(trainer: Any, **given: Any) -> None:
    """Train."""
    trainer.train(**given)


def resume(trainer: Any) -> None:
    """Train for an update step less, and resume."""
    trainer.args.max_steps, most = 1, trainer.args.max_steps
    trainer.train()
    trainer.args.max_steps = most
    trainer.train(resume_from_checkpoint=True)


def search(trainer: Any) -> None:
    """Search for a learning rate."""

    def space(trial: Any) -> dict[str, float]:
        return {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1)}

    trainer.hyperparameter_search(hp_space=space, n_trials=1, direction="minimize", backend="optuna")


def train_by_accelerator(trainer: Any) -> None:
    """Train, and use the accelerator as scripts do."""
    trainer.train()
    accelerator = trainer.accelerator
    accelerator.unwrap_model(trainer.model_wrapped)
    accelerator.gather_for_metrics(torch.ones(2))
    with accelerator.autocast(), accelerator.accumulate(trainer.model):
        pass
    accelerator.wait_for_everyone()


SAVING = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "logging_steps": 1}


@dataclass(frozen=True)
class Situation:
    """What a Trainer has done before it is dropped."""

    act: Callable[[Any], Any]
    fields: dict[str, Any] = field(default_factory=dict)
    callback: Callable[[Any], Any] | None = None
    """Returns a callback of a library."""
    given: dict[str, Callable[..., Any]] = field(default_factory=dict)
    """Further arguments of the constructor."""
    data: type[Any] = ListDataset
    kind: str = "Trainer"
    model: Callable[[], Any] = PlainModel
    rows: Callable[[int], list[Any]] = vector_rows


SITUATIONS: dict[str, Situation] = {
    "made": Situation(lambda trainer: None),
    "evaluated": Situation(lambda trainer: trainer.evaluate()),
    "predicted": Situation(lambda trainer: trainer.predict(trainer.eval_dataset)),
    "trained": Situation(trains),
    "trained, evaluated, saved": Situation(trains, SAVING | {"load_best_model_at_end": True}),
    "trained, then evaluated": Situation(lambda trainer: (trains(trainer), trainer.evaluate())),
    "trained twice": Situation(lambda trainer: (trains(trainer), trains(trainer))),
    "resumed": Situation(resume, {"save_strategy": "steps", "save_steps": 1}),
    "searched": Situation(search, given={"model_init": lambda: PlainModel()}),
    "model_init": Situation(trains, given={"model_init": lambda: PlainModel()}),
    "callback": Situation(trains, SAVING, lambda library: type("Own", (library.TrainerCallback,), {})()),
    "workers": Situation(trains, {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}),
    "auto_find_batch_size": Situation(trains, {"auto_find_batch_size": True}),
    "accelerator": Situation(train_by_accelerator, {"gradient_accumulation_steps": 2}),
    "gradient checkpointing, NEFTune": Situation(
        trains, {"neftune_noise_alpha": 5.0}, model=_checkpointed, rows=token_rows
    ),
    "bf16": Situation(trains, {"bf16": True}),
    "memory metrics": Situation(trains, {"skip_memory_metrics": False}),
    "batch_eval_metrics": Situation(
        lambda trainer: trainer.evaluate(),
        {"batch_eval_metrics": True},
        given={"compute_metrics": lambda found, compute_result: {"count": 1.0}},
    ),
    "Seq2SeqTrainer": Situation(lambda trainer: (trains(trainer), trainer.evaluate()), kind="Seq2SeqTrainer"),
    "failed in a callback": Situation(failed(trains), callback=_at("on_step_end", ValueError)),
    "failed at its end": Situation(failed(trains), callback=_at("on_train_end", ValueError)),
    "failed in the data": Situation(failed(trains), {"max_steps": 4}, data=_Failing),
    "failed in workers": Situation(failed(trains), {"max_steps": 4, "dataloader_num_workers": 1}, data=_Failing),
    "failed in an evaluation": Situation(
        failed(trains), SAVING, given={"compute_metrics": partial(_raise, ValueError)}
    ),
    "failed to evaluate": Situation(
        failed(lambda trainer: trainer.evaluate()), given={"compute_metrics": partial(_raise, ValueError)}
    ),
    "failed to read for an evaluation": Situation(failed(lambda trainer: trainer.evaluate()), data=_Failing),
    "interrupted": Situation(failed(trains, KeyboardInterrupt), callback=_at("on_step_end", KeyboardInterrupt)),
    "interrupted in an evaluation": Situation(
        failed(lambda trainer: trainer.evaluate(), KeyboardInterrupt),
        callback=_at("on_prediction_step", KeyboardInterrupt),
    ),
    "failed, then trained": Situation(
        lambda trainer: (failed(lambda one: one.train(resume_from_checkpoint=True))(trainer), trains(trainer))
    ),
}
"""What both libraries can do."""


@contextmanager
def without_collector() -> Iterator[None]:
    """Context in which nothing is freed but what nobody holds."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def held_after(library: Any, folder: Path, situation: Situation) -> set[str]:
    """Return what is still in memory after ``del trainer``, of what a Trainer of ``library`` held."""
    with without_collector():
        trainer, batches = _made(library, folder, situation)
        watched = {
            name: weakref.ref(getattr(trainer, name)) for name in ("model", "train_dataset", "eval_dataset", "args")
        }
        watched["trainer"] = weakref.ref(trainer)
        situation.act(trainer)
        held = {"a batch, before it goes"} if any(batch() is not None for batch in batches) else set()
        state = None if trainer.optimizer is None else next(iter(trainer.optimizer.state.values()), None)
        watched["model trained"] = weakref.ref(trainer.model) if trainer.model is not None else watched["model"]
        if state is not None:
            watched["moments"] = weakref.ref(state["exp_avg"])
        del trainer, state
        held |= {name for name, reference in watched.items() if reference() is not None}
        return held | ({"a batch"} if any(batch() is not None for batch in batches) else set())


def _made(library: Any, folder: Path, situation: Situation) -> tuple[Any, list[Any]]:
    """Return a Trainer, and what notes its batches."""
    batches: list[Any] = []

    def collate(rows: list[Any]) -> dict[str, Any]:
        if "input_ids" in rows[0]:
            batch = PadCollator()(rows)
        else:
            batch = {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}
        batches.append(weakref.ref(batch["labels"]))
        return batch

    fields: dict[str, Any] = {"max_steps": 2, "save_strategy": "no", "per_device_train_batch_size": 2}
    given: dict[str, Any] = {"eval_dataset": situation.data(situation.rows(8)), "data_collator": collate}
    with_args = library.TrainingArguments if situation.kind == "Trainer" else library.Seq2SeqTrainingArguments
    args = with_args(str(folder), **QUIET | fields | situation.fields)
    model = None if "model_init" in situation.given else situation.model()
    callbacks = [] if situation.callback is None else [situation.callback(library)]
    every = {"args": args, "train_dataset": situation.data(situation.rows(8)), "callbacks": callbacks}
    return getattr(library, situation.kind)(model, **every | given | situation.given), batches
