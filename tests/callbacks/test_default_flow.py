"""When a run logs, evaluates, saves and stops: the default flow beside that of the installed transformers."""

from __future__ import annotations

import pytest
from transformers import trainer_callback as upstream

import hf_compat.callbacks as ours
from hf_compat.state import TrainerControl, TrainerState
from tests.support.helpers import CONTROL_FLAGS, callback_args


def _decisions(callback, args, **state):
    """Return the switches that ``callback`` sets on each of 7 update steps and at the end of 3 epochs."""
    decided = []
    for step in range(1, 8):
        control = TrainerControl()
        callback.on_step_end(args, TrainerState(global_step=step, max_steps=7, **state), control)
        decided.append([flag for flag in CONTROL_FLAGS if getattr(control, flag)])
    for epoch in (0.5, 1.0, 2.0):
        control = TrainerControl()
        callback.on_epoch_end(args, TrainerState(epoch=epoch, **state), control)
        decided.append([flag for flag in CONTROL_FLAGS if getattr(control, flag)])
    return decided


@pytest.mark.parametrize("strategy", ["no", "steps", "epoch"])
@pytest.mark.parametrize("first", [False, True], ids=["", "first step too"])
@pytest.mark.parametrize("delay", [0, 1, 4, 7, 9], ids=lambda delay: f"delay {delay}")
def test_the_flow_decides_as_upstreams(strategy, first, delay):
    """Log, evaluate, save and stop on the steps and epochs that the installed release chooses."""
    args = callback_args(
        logging_strategy=strategy,
        eval_strategy=strategy,
        save_strategy=strategy,
        logging_first_step=first,
        eval_delay=delay,
    )
    for intervals in ((2, 3, 4), (7, 7, 7), (1, 1, 0)):
        state = dict(zip(("logging_steps", "eval_steps", "save_steps"), intervals, strict=True))
        mine = _decisions(ours.DefaultFlowCallback(), args, **state)
        assert mine == _decisions(upstream.DefaultFlowCallback(), args, **state)


@pytest.mark.parametrize(
    ("release", "evaluated"), [("4.57", [3, 6]), ("5.3", [3, 6]), ("5.4", [3, 6, 7]), ("5.24", [3, 6, 7])]
)
def test_the_last_step_is_evaluated_since_5_4(release, evaluated):
    """Of 7 steps with an interval of 3 the last is evaluated by later releases only."""
    args = callback_args(semantics=release)
    decided = _decisions(ours.DefaultFlowCallback(), args, logging_steps=9, eval_steps=3, save_steps=9)
    assert [step for step in range(1, 8) if "should_evaluate" in decided[step - 1]] == evaluated
