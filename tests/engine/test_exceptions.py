"""A ``StopIteration`` of a user's code leaves the call, as in transformers; only that of a loader ends an epoch."""

from __future__ import annotations

import pytest
import torch

from hf_compat.engine.internals.exceptions import unwraps_stop_iteration, wraps_stop_iteration
from tests.support import helpers
from tests.support.parity import Kit, clean_process, fit_pieces

EVENTS = [event for event in helpers.EVENTS if event not in ("on_init_end", "on_train_begin", "on_predict")]
METHODS = ("compute_loss", "training_step", "prediction_step", "log", "evaluate", "_save_checkpoint")
FUNCTIONS = ("compute_metrics", "preprocess_logits_for_metrics")
OURS = pytest.mark.parametrize("profiler", [None, "simple"], ids=["lean loops", "profiled"])


def ending(state):
    """Raise what ``next`` of an empty iterator does, from the second update step on."""
    if state.global_step >= 2:
        raise StopIteration("ended")


def subclass(kit, name):
    """Return a Trainer whose method ``name`` raises."""

    def method(self, *given, **named):
        ending(self.state)
        return getattr(super(kind, self), name)(*given, **named)

    kind = type("Raising", (kit.Trainer,), {name: method})
    return kind


def callback(kit, event):
    """Return a callback that raises at ``event``."""

    def hook(self, args, state, control, **given):
        ending(state)

    return type("Raising", (kit.TrainerCallback,), {event: hook})()


def build(kit, place, profiler=None, **given):
    """Return a trainer of six update steps, with all that can be raised in; ``place`` raises from the second on."""
    fields = {
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_strategy": "steps",
        "save_steps": 2,
        "logging_steps": 1,
    }
    trainer = kit.trainer(
        subclass(kit, place) if place in METHODS else None,
        model=helpers.PlainModel(),
        args=kit.args(**fields),
        train_dataset=helpers.ListDataset(helpers.vector_rows(10)),
        eval_dataset=helpers.ListDataset(helpers.vector_rows(4, seed=1)),
        callbacks=[callback(kit, place)] if place in EVENTS else (),
        **given,
        **({"lightning": {"profiler": profiler}} if profiler else {}),
    )
    if place in FUNCTIONS:
        trainer.compute_metrics = lambda _: {}  # without it no predictions are gathered
        setattr(trainer, place, lambda given, *_: ending(trainer.state) or (given if "logits" in place else {}))
    return trainer


def outcome(folder, which, place, call=lambda trainer: trainer.train(), **given):
    """Return what was raised, how far the run came and which events it fired."""
    with clean_process():
        kit = Kit(which, folder / which)
        trainer = build(kit, place, **given)
        raised = None, ()
        try:
            call(trainer)
        except Exception as error:
            raised = type(error), error.args
    return *raised, [(entry["event"], entry["global_step"]) for entry in kit.outcome.trace]


@OURS
@pytest.mark.parametrize("place", [*EVENTS, *METHODS, *FUNCTIONS])
def test_it_leaves_the_training(tmp_path, place, profiler):
    """Whether a callback, an override or a function raises it, at the update step at which it does in transformers."""
    expected = outcome(tmp_path, "upstream", place)
    assert expected[:2] == (StopIteration, ("ended",))
    assert outcome(tmp_path, "ours", place, profiler=profiler) == expected


@OURS
@pytest.mark.parametrize("name", ["evaluate", "predict"])
@pytest.mark.parametrize("place", ["compute_loss", "prediction_step", "on_prediction_step", *FUNCTIONS])
def test_it_leaves_an_evaluation(tmp_path, place, name, profiler):
    """Outside a training an evaluation does not end as if it had no more batches."""

    def call(trainer):
        trainer.state.global_step = 2
        getattr(trainer, name)(*([trainer.eval_dataset] if name == "predict" else []))

    expected = outcome(tmp_path, "upstream", place, call)
    assert expected[:2] == (StopIteration, ("ended",))
    assert outcome(tmp_path, "ours", place, call, profiler=profiler) == expected


@OURS
def test_it_is_caught_in_a_training(tmp_path, profiler):
    """An override that catches what its own evaluation raises goes on training."""

    def call(trainer):
        evaluate = trainer.evaluate

        def catching(*given, **named):
            try:
                return evaluate(*given, **named)
            except StopIteration:
                return {}

        trainer.evaluate = catching
        trainer.train()

    expected = outcome(tmp_path, "upstream", "prediction_step", call)
    assert (expected[0], expected[-1][-1]) == (None, ("on_train_end", 6))
    assert outcome(tmp_path, "ours", "prediction_step", call, profiler=profiler) == expected


@OURS
def test_that_of_a_loader_ends_the_epoch(tmp_path, profiler):
    """A collator that raises it ends the epoch with the batches before."""

    def collator(calls):
        def collate(rows):
            calls.append(len(rows))
            if len(calls) == 4:
                raise StopIteration
            return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}

        return collate

    def call(trainer):
        trainer.eval_dataset, trainer.args.eval_strategy = None, "no"
        trainer.train()

    expected = outcome(tmp_path, "upstream", None, call, data_collator=collator([]))
    assert (expected[0], expected[-1][-1]) == (None, ("on_train_end", 4))
    assert outcome(tmp_path, "ours", None, call, data_collator=collator([]), profiler=profiler) == expected


def test_a_fit_of_pieces_fails(tmp_path):
    """``lightning.Trainer.fit`` raises an error that says so, and has what was raised as its cause."""
    with clean_process():
        trainer = build(Kit("pieces", tmp_path), "compute_loss")
        with pytest.raises(RuntimeError, match="raised StopIteration") as caught:
            fit_pieces(trainer)
    assert isinstance(caught.value.__cause__, StopIteration)


def test_it_is_the_one_that_was_raised():
    """With its cause and its context, and nothing of the way that it took."""
    error = StopIteration("ended")

    @wraps_stop_iteration
    def step():
        try:
            {}["key"]
        except KeyError as cause:
            raise error from cause

    with pytest.raises(StopIteration) as caught:
        unwraps_stop_iteration(step)()
    assert caught.value is error
    assert isinstance(error.__cause__, KeyError)
    assert error.__context__ is error.__cause__
