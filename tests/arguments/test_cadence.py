"""What arguments alone say of logs, evaluations, saves and the end of a run."""

import pytest

from hf_compat import DefaultFlowCallback, TrainerControl, TrainerState
from hf_compat.arguments.derived import epochs_to_train, evaluates_in_training, saves_checkpoints
from tests.support.trainers import arguments


def due_by(unit, args, done):
    """Return whether the default flow logs, evaluates and saves after ``done`` update steps or epochs."""
    state = TrainerState(logging_steps=1, eval_steps=1, save_steps=1, max_steps=9, epoch=done)
    state.global_step = done if unit == "steps" else 0
    flow = DefaultFlowCallback()
    method = flow.on_step_end if unit == "steps" else flow.on_epoch_end
    control = method(args, state, TrainerControl())
    return control.should_log, control.should_evaluate, control.should_save


@pytest.mark.parametrize("unit", ["steps", "epoch"])
def test_each_strategy_is_of_one_unit(unit):
    """What is done after update steps is not done after epochs."""
    other = {"steps": "epoch", "epoch": "steps"}[unit]
    for number, name in enumerate(("logging_strategy", "eval_strategy", "save_strategy")):
        strategies = dict.fromkeys(("logging_strategy", "eval_strategy", "save_strategy"), other) | {name: unit}
        due = due_by(unit, arguments(**strategies), 1)
        assert due == tuple(index == number for index in range(3))


def test_evaluations_wait_for_the_delay():
    """They begin with the update step, or the epoch, that the delay names; logs and saves do not wait."""
    args = arguments(eval_strategy="epoch", eval_delay=1.5, logging_strategy="epoch", save_strategy="epoch")
    assert [due_by("epoch", args, done) for done in (1, 1.5)] == [(True, False, True), (True, True, True)]


def test_strategies_are_read_when_asked():
    """Callbacks change them in the middle of a run."""
    args = arguments(save_strategy="no")
    assert not evaluates_in_training(args)
    assert not saves_checkpoints(args)
    args.eval_strategy, args.save_strategy = "steps", "best"
    assert evaluates_in_training(args)
    assert saves_checkpoints(args)
    assert due_by("steps", args, 0) == (True, True, False)


@pytest.mark.parametrize(("max_steps", "epochs"), [(-1, 2.5), (0, None), (7, None)])
def test_epochs_that_count(max_steps, epochs):
    """``max_steps`` decides unless it is negative."""
    assert epochs_to_train(arguments(num_train_epochs=2.5, max_steps=max_steps)) == epochs
