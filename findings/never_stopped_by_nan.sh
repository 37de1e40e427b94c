#!/usr/bin/env bash
# `EarlyStopping` of ignite takes NaN for an improvement: a run that has diverged goes on to its end.
#
# Versions:  pytorch-ignite 0.5.5, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: a score counts against the patience if it is not above the best. NaN is neither above nor below: it becomes the
#            best, and so does each score after it. So a loss that is NaN from an epoch on never stops the run, and one NaN
#            makes the run forget how good it was. No message says so.
# Seen:      a patience of two, and 20 epochs at most: with scores of 0 from the second epoch on the run stops after the third,
#            with NaN after the 20th; after 0.5 and one NaN the best is 0.1.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install pytorch-ignite==0.5.5 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import itertools
import math

from ignite.engine import Engine, Events
from ignite.handlers import EarlyStopping


def train(scores):
    trainer, evaluator = Engine(lambda engine, batch: None), Engine(lambda engine, batch: None)
    scores = iter(scores)
    stopping = EarlyStopping(patience=2, score_function=lambda engine: next(scores), trainer=trainer)
    evaluator.add_event_handler(Events.COMPLETED, stopping)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run([0]))
    trainer.run([0], max_epochs=20)
    return trainer.state.epoch, stopping.best_score


stopped, _ = train(itertools.chain([0.5], itertools.repeat(0.0)))
diverged, _ = train(itertools.chain([0.5], itertools.repeat(math.nan)))
_, best = train(itertools.chain([0.5, math.nan, 0.1], itertools.repeat(0.0)))
print("epochs with a score of 0:", stopped, "with NaN:", diverged, "best after 0.5 and NaN:", best)
assert stopped == 3 and diverged == 20 and best == 0.1
PYTHON
