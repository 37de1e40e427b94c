"""What both trainers refuse: an ``except`` of transformers' type also catches ours."""

from importlib import metadata

import pytest

from tests.support import helpers
from tests.support.parity import Kit, run
from tests.support.scenarios.common import plain

IS_OLD = metadata.version("transformers").startswith("4.")


def early_stopping_without_a_metric(kit: Kit) -> None:
    fields = {"eval_strategy": "epoch"}
    plain(kit, fields=fields, callbacks=[kit.EarlyStoppingCallback()]).train()


def early_stopping_without_an_evaluation(kit: Kit) -> None:
    fields = {"metric_for_best_model": "loss"}
    plain(kit, fields=fields, callbacks=[kit.EarlyStoppingCallback()]).train()


def memory_in_a_dict(kit: Kit) -> None:
    plain(kit, fields={"past_index": 1}).train()


def memory_beyond_the_outputs(kit: Kit) -> None:
    plain(kit, fields={"past_index": 2}, model=helpers.PlainModel("tuple")).train()


def no_batch_and_no_max_steps(kit: Kit) -> None:
    plain(kit, rows=3, fields={"dataloader_drop_last": True}).train()


def no_length_and_no_max_steps(kit: Kit) -> None:
    plain(kit, train_dataset=helpers.Stream(helpers.vector_rows(8)), fields={"max_steps": 0}).train()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        pytest.param(early_stopping_without_a_metric, AssertionError),
        pytest.param(early_stopping_without_an_evaluation, AssertionError),
        pytest.param(memory_in_a_dict, KeyError, marks=pytest.mark.skipif(not IS_OLD, reason="a field of 4.57")),
        pytest.param(
            memory_beyond_the_outputs, IndexError, marks=pytest.mark.skipif(not IS_OLD, reason="a field of 4.57")
        ),
        pytest.param(no_batch_and_no_max_steps, ValueError),
        pytest.param(no_length_and_no_max_steps, ValueError),
    ],
)
def test_refused_by_both(body, kind, tmp_path):
    """Upstream's Trainer raises that type, and ours a type derived from it."""
    for which in ("upstream", "ours"):
        with pytest.raises(kind):
            run(body, which, tmp_path / which)
