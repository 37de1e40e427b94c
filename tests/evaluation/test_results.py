"""What an evaluation returns, and what it gives to ``compute_metrics``."""

from __future__ import annotations

import pytest

from hf_compat.trainer import outputs

# Results


@pytest.mark.parametrize("extras", [{}, {"inputs": 3}, {"losses": 4}, {"inputs": 3, "losses": 4}], ids=str)
def test_an_eval_prediction_unpacks_as_upstreams(extras):
    """Elements, their order and the attributes are equal; indices outside of them raise IndexError."""
    from transformers import EvalPrediction

    mine, theirs = outputs.EvalPrediction(1, 2, **extras), EvalPrediction(1, 2, **extras)
    assert list(mine) == list(theirs)
    assert vars(mine) == vars(theirs)
    assert [mine[at] for at in range(len(theirs.elements))] == list(theirs)
    for at in (-1, len(theirs.elements)):
        with pytest.raises(IndexError):
            mine[at]


@pytest.mark.parametrize("name", ["EvalLoopOutput", "PredictionOutput", "TrainOutput"])
def test_outputs_have_upstreams_fields(name):
    """Field names and their order are equal."""
    from transformers import trainer_utils

    assert getattr(outputs, name)._fields == getattr(trainer_utils, name)._fields
