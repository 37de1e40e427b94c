"""Early stopping, side by side with that of the installed transformers."""

from __future__ import annotations

import pytest
from transformers import trainer_callback as upstream

import hf_compat.callbacks as ours
from hf_compat.errors import ArgumentsError
from hf_compat.state import TrainerControl, TrainerState
from tests.support.helpers import callback_args


@pytest.mark.parametrize("greater", [True, False], ids=["greater", "smaller"])
@pytest.mark.parametrize(("patience", "threshold"), [(1, 0.0), (2, 0.0), (2, 0.25)])
@pytest.mark.parametrize("metric", ["loss", "eval_loss", "missing"])
def test_early_stopping_counts_as_upstreams(greater, patience, threshold, metric):
    """Count and stop after every evaluation are equal; the best is that of the evaluations before."""
    args = callback_args(metric_for_best_model=metric, greater_is_better=greater)
    found = []
    for library in (ours, upstream):
        callback, best, course = library.EarlyStoppingCallback(patience, threshold), None, []
        for value in (1.0, 1.0, 0.875, 0.5, float("nan"), 0.75, 2.0, 2.125):
            control = TrainerControl()
            callback.on_evaluate(args, TrainerState(best_metric=best), control, {"eval_loss": value})
            course.append((callback.early_stopping_patience_counter, control.should_training_stop))
            if best is None or (value > best if greater else value < best):
                best = value
        found.append((course, callback.state()))
    assert found[0] == found[1]


def test_early_stopping_says_what_the_arguments_lack(caplog):
    """Both problems come in one error that names the fields and what to set; weights of the end are warned of."""
    callback, state = ours.EarlyStoppingCallback(), TrainerState()
    with pytest.raises(ArgumentsError) as error:
        callback.on_train_begin(callback_args(metric_for_best_model=None, eval_strategy="no"), state, TrainerControl())
    first, second = error.value.problems
    assert "metric_for_best_model=None" in first
    assert "'eval_loss'" in first
    assert "eval_strategy='no'" in second
    assert not caplog.records
    callback.on_train_begin(callback_args(load_best_model_at_end=False), state, TrainerControl())
    assert "without load_best_model_at_end=True" in caplog.text
