"""Which checkpoints are written, which are kept, and which model is left at the end."""

from __future__ import annotations

import os
from typing import Any

from tests.support.parity import Kit, scenario
from tests.support.scenarios.common import classifier, language_model, plain
from tests.support.scenarios.updates import train

BY_EPOCH = {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 4}
BY_STEPS = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "num_train_epochs": 3}


def seen_by_save(kit: Kit, seen: list[int]) -> Any:
    """Return a Trainer whose ``_save`` adds the number of weights that it gets to ``seen``, on each rank."""

    class Seeing(kit.Trainer):  # type: ignore[misc, name-defined]  # the base is the kit's
        def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
            seen.append(len(state_dict or {}))
            super()._save(output_dir, state_dict=state_dict)

    return Seeing


@scenario()
def best_model_by_epoch_and_one_checkpoint(kit: Kit) -> None:
    fields = {"load_best_model_at_end": True, "metric_for_best_model": "accuracy", "save_total_limit": 1}
    train(kit, classifier(kit, fields={**BY_EPOCH, **fields}))


@scenario()
def best_checkpoint_alone_without_loading_it(kit: Kit) -> None:
    """A high learning rate makes the loss rise again; callbacks see what is left, during training and at its end."""

    class Looks(kit.TrainerCallback):  # type: ignore[misc, name-defined]  # the base is the kit's
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            left = sorted(name for name in os.listdir(args.output_dir) if name.startswith("checkpoint-"))
            kit.keep(f"left at {state.global_step}", left)

        on_train_end = on_save

    fields = {"metric_for_best_model": "loss", "save_total_limit": 1, "learning_rate": 0.1}
    train(kit, classifier(kit, fields={**BY_STEPS, **fields}, callbacks=[Looks()]))


@scenario()
def best_model_by_loss_and_two_checkpoints(kit: Kit) -> None:
    """A high learning rate makes the loss rise again."""
    fields = {"load_best_model_at_end": True, "save_total_limit": 2, "learning_rate": 0.1}
    train(kit, classifier(kit, fields={**BY_STEPS, **fields}))


@scenario()
def smaller_is_better(kit: Kit) -> None:
    fields = {"load_best_model_at_end": True, "metric_for_best_model": "accuracy", "greater_is_better": False}
    train(kit, classifier(kit, fields={**BY_STEPS, **fields}))


@scenario()
def rotation_without_a_best_model(kit: Kit) -> None:
    train(kit, language_model(kit, fields={**BY_STEPS, "save_total_limit": 2}))


@scenario()
def best_is_followed_without_loading_it(kit: Kit) -> None:
    train(kit, classifier(kit, fields={**BY_STEPS, "metric_for_best_model": "loss", "save_steps": 4}))


@scenario()
def only_the_best_is_saved(kit: Kit) -> None:
    fields = {"save_strategy": "best", "metric_for_best_model": "accuracy", "greater_is_better": True}
    train(kit, classifier(kit, fields={**BY_STEPS, **fields}))


@scenario()
def only_the_best_is_saved_and_loaded(kit: Kit) -> None:
    fields = {"save_strategy": "best", "metric_for_best_model": "loss", "load_best_model_at_end": True}
    train(kit, classifier(kit, fields={**BY_STEPS, **fields, "learning_rate": 0.1}))


@scenario()
def early_stopping(kit: Kit) -> None:
    fields = {**BY_EPOCH, "num_train_epochs": 8, "load_best_model_at_end": True, "learning_rate": 0.1}
    stopper = kit.EarlyStoppingCallback(early_stopping_patience=2, early_stopping_threshold=0.01)
    train(kit, classifier(kit, fields=fields, callbacks=[stopper]))


@scenario()
def only_the_model_is_saved(kit: Kit) -> None:
    train(kit, language_model(kit, fields={**BY_EPOCH, "save_only_model": True}))


@scenario()
def checkpoints_of_a_plain_module(kit: Kit) -> None:
    train(kit, plain(kit, fields={**BY_EPOCH, "load_best_model_at_end": True}))


@scenario()
def saving_by_hand(kit: Kit) -> None:
    """``save_model``, ``save_state``, ``log_metrics`` and ``save_metrics`` after training."""
    trainer = language_model(kit, fields={"num_train_epochs": 2})
    output = kit.train(trainer)
    trainer.save_model()
    trainer.save_model(f"{kit.output_dir}/elsewhere")
    trainer.save_state()
    trainer.log_metrics("train", dict(output.metrics))
    trainer.save_metrics("train", dict(output.metrics))
    trainer.save_metrics("eval", {**kit.evaluate(trainer)})


@scenario()
def saving_and_evaluating_out_of_step(kit: Kit) -> None:
    fields: dict[str, Any] = {**BY_STEPS, "eval_steps": 3, "save_steps": 2, "metric_for_best_model": "accuracy"}
    train(kit, classifier(kit, fields={**fields, "logging_steps": 4}))
