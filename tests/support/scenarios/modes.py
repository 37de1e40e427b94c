"""The model's training mode wherever the code of a user can see it: in another mode it has another loss."""

from __future__ import annotations

from typing import Any

import torch

from tests.support import helpers
from tests.support.parity import Kit, scenario
from tests.support.scenarios.common import classifier, language_model, plain

FIELDS = {"num_train_epochs": 2, "gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
AVERAGES = {"warns": "averages its loss over each batch", "warns_since": "5.0"}


def watching(kit: Kit, seen: list[Any], *, draws: bool = False) -> Any:
    """Return a Trainer class that notes the modes of the model's parts in each method of its own.

    Args:
        kit: The library under test.
        seen: Where the notes go.
        draws: Whether the model is also called there: dropout draws in training mode alone.
    """

    def note(trainer: Any, place: str) -> None:
        model = trainer.model
        seen.append((place, [part.training for part in model.modules()]))
        if draws:
            with torch.no_grad():
                seen.append(
                    model(features=torch.ones(1, helpers.WIDTH), labels=torch.zeros(1, dtype=torch.long))["loss"]
                )

    class Watching(kit.Trainer):
        def get_train_dataloader(self) -> Any:
            note(self, "get_train_dataloader")
            return super().get_train_dataloader()

        def create_optimizer(self, *given: Any) -> Any:
            note(self, "create_optimizer")
            return super().create_optimizer(*given)

        def get_batch_samples(self, *given: Any) -> Any:
            note(self, "get_batch_samples")
            return super().get_batch_samples(*given)

        def training_step(self, *given: Any) -> Any:
            note(self, "training_step begins")
            loss = super().training_step(*given)
            note(self, "training_step ends")
            return loss

        def prediction_step(self, *given: Any, **named: Any) -> Any:
            note(self, "prediction_step")
            return super().prediction_step(*given, **named)

        def evaluate(self, *given: Any, **named: Any) -> Any:
            note(self, "evaluate begins")
            metrics = super().evaluate(*given, **named)
            note(self, "evaluate ends")
            return metrics

        def log(self, *given: Any) -> Any:
            note(self, "log")
            super().log(*given)

    return Watching


def mode_callback(kit: Kit, seen: list[Any]) -> Any:
    """Return a callback that notes the modes of the model's parts at each event."""

    def noting(event: str) -> Any:
        def note(self: Any, args: Any, state: Any, control: Any, **given: Any) -> None:
            if given.get("model") is not None:
                seen.append((event, state.global_step, [part.training for part in given["model"].modules()]))

        return note

    return type("Noting", (kit.TrainerCallback,), {event: noting(event) for event in helpers.EVENTS})()


def run_watched(kit: Kit, prepare: Any, *, draws: bool = False, **fields: Any) -> None:
    seen: list[Any] = []
    trainer = plain(
        kit,
        subclass=watching(kit, seen, draws=draws),
        fields={**FIELDS, **fields},
        callbacks=[mode_callback(kit, seen)],
    )
    prepare(trainer)
    kit.train(trainer)
    kit.keep("modes", seen)


@scenario()
def mode_of_a_model_in_evaluation_mode(kit: Kit) -> None:
    run_watched(kit, lambda trainer: trainer.model.eval())


@scenario()
def mode_of_a_model_in_training_mode(kit: Kit) -> None:
    run_watched(kit, lambda trainer: trainer.model.train())


@scenario()
def mode_of_a_model_with_one_part_in_evaluation_mode(kit: Kit) -> None:
    run_watched(kit, lambda trainer: trainer.model.body[1].eval())


@scenario()
def mode_after_an_evaluation_before_training(kit: Kit) -> None:
    run_watched(kit, lambda trainer: kit.evaluate(trainer))


@scenario()
def mode_with_an_evaluation_on_start(kit: Kit) -> None:
    run_watched(kit, lambda trainer: None, eval_on_start=True)


@scenario()
def mode_that_a_callers_losses_depend_on(kit: Kit) -> None:
    """Dropout draws in training mode alone, so code of the user's beside the steps moves every later number."""
    run_watched(kit, lambda trainer: trainer.model.eval(), draws=True)


@scenario()
def mode_in_a_second_training(kit: Kit) -> None:
    def train_and_predict(trainer: Any) -> None:
        kit.train(trainer)
        kit.predict(trainer, trainer.eval_dataset)

    run_watched(kit, train_and_predict)


@scenario()
def mode_after_the_user_changed_it(kit: Kit) -> None:
    """A callback freezes a part at the start; only a training step changes that."""

    class Freeze(kit.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            given["model"].train()
            given["model"].body[3].eval()

    seen: list[Any] = []
    trainer = plain(kit, subclass=watching(kit, seen), fields=FIELDS, callbacks=[Freeze(), mode_callback(kit, seen)])
    trainer.model.eval()
    kit.train(trainer)
    kit.keep("modes", seen)


@scenario()
def mode_kept_by_a_training_step_of_the_user(kit: Kit) -> None:
    """A step that calls no ``train()`` trains without dropout from the first step on."""

    class Own(kit.Trainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            loss = self.compute_loss(model, self._prepare_inputs(inputs), num_items_in_batch=num_items_in_batch)
            self.accelerator.backward(loss)
            return loss.detach()

    trainer = language_model(kit, subclass=Own, fields={"num_train_epochs": 2, "eval_strategy": "epoch"})
    trainer.model.eval()
    kit.train(trainer)


@scenario()
def mode_is_set_by_the_models_own_method(kit: Kit) -> None:
    """A ``train`` of the user's, here one that keeps a layer from training, is called as often as upstream calls it."""
    calls: list[bool] = []

    class Own(helpers.PlainModel):
        def train(self, mode: bool = True) -> Any:
            calls.append(mode)
            super().train(mode)
            self.body.train(False)
            return self

    trainer = plain(kit, model=kit.model(Own), fields=FIELDS)
    kit.train(trainer)
    kit.keep("calls", calls)


@scenario(**AVERAGES)
def mode_of_another_model_in_evaluation(kit: Kit) -> None:
    """An evaluation of another model leaves the trained one's mode alone."""
    other = helpers.bert_classifier()

    class Averaged(kit.Trainer):
        def _wrap_model(self, model: Any, training: bool = True, dataloader: Any = None) -> Any:
            return model if training else other

    seen: list[Any] = []
    fields = {**FIELDS, "eval_steps": 1}
    trainer = classifier(kit, subclass=Averaged, fields=fields, callbacks=[mode_callback(kit, seen)])
    kit.train(trainer)
    kit.keep("modes", seen)


@scenario()
def mode_after_training_without_a_step(kit: Kit) -> None:
    """A run that resumes where it has ended."""

    def whole(kit: Kit) -> None:
        kit.train(plain(kit, fields={"save_strategy": "epoch"}))

    checkpoint = f"{kit.stage(whole)}/checkpoint-4"
    seen: list[Any] = []
    trainer = plain(kit, subclass=watching(kit, seen), callbacks=[mode_callback(kit, seen)])
    trainer.model.eval()
    kit.train(trainer, resume_from_checkpoint=checkpoint)
    kit.keep("modes", seen)
