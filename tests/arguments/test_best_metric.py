"""The best evaluation, as arguments define it."""

import math

import pytest
import transformers

from hf_compat.arguments.derived import is_better, notes_best_step, worst_value
from hf_compat.arguments.releases import resolve_semantics
from tests.support.trainers import arguments

NEW, OLD = resolve_semantics("5.24"), resolve_semantics("4.57")


@pytest.mark.parametrize(("greater", "better"), [(True, 2.0), (False, 0.5)])
def test_what_is_better(greater, better):
    """An equal value is not, nor is one that is no number; any number is better than the worst one."""
    args = arguments(metric_for_best_model="score", greater_is_better=greater)
    assert is_better(args, better, 1.0)
    assert not any(is_better(args, value, 1.0) for value in (1.0, 1.0 / better, math.nan))
    assert is_better(args, 1.0, worst_value(args))


@pytest.mark.parametrize("strategy", ["no", "steps", "epoch", "best"])
def test_update_steps_that_are_noted(strategy):
    """Those of runs that save; older releases leave out the runs that save the best evaluation's alone."""
    args = arguments(save_strategy=strategy, metric_for_best_model="loss")
    assert notes_best_step(args, NEW) == (strategy != "no")
    assert notes_best_step(args, OLD) == (strategy in ("steps", "epoch"))


@pytest.mark.parametrize(
    ("name", "fields", "warned"),
    [("eval_perplexity", {}, True), ("wer", {}, True), ("power", {}, False), ("mse_loss", {}, False)]
    + [("wer", {"greater_is_better": greater}, False) for greater in (True, False)],
)
def test_a_metric_that_is_better_if_it_is_smaller(name, fields, warned, caplog):
    """The largest perplexity counts as the best, as with transformers, with a warning unless the script says so."""
    args = arguments(metric_for_best_model=name, **fields)
    assert (
        args.greater_is_better == transformers.TrainingArguments(metric_for_best_model=name, **fields).greater_is_better
    )
    assert [name in text for text in caplog.messages if "counts as the best" in text] == [True] * warned
