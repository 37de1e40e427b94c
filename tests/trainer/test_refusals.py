"""What both trainers refuse: an ``except`` of transformers' type also catches ours."""

from importlib import metadata
from typing import Any

import pytest
import transformers
from torch.utils.data import IterableDataset

import hf_compat
from tests.support import helpers
from tests.support.parity import Kit, run
from tests.support.scenarios.common import plain
from tests.support.trainers import new_trainer

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


def evaluating_a_stream_that_was_read(kit: Kit) -> None:
    class Once(IterableDataset):  # type: ignore[type-arg]
        def __init__(self) -> None:
            self.rows = iter(helpers.vector_rows(4))

        def __iter__(self) -> Any:
            return self.rows

    trainer = plain(kit, eval_dataset=Once())
    trainer.evaluate()
    trainer.evaluate()


def predicting_an_empty_stream(kit: Kit) -> None:
    plain(kit).predict(helpers.Stream([]))


def evaluating_nothing_that_rank_0_reads(kit: Kit) -> None:
    plain(
        kit, eval_dataset=helpers.ListDataset([]), fields={"accelerator_config": {"dispatch_batches": True}}
    ).evaluate()


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
        pytest.param(evaluating_a_stream_that_was_read, ValueError),
        pytest.param(predicting_an_empty_stream, ValueError),
        pytest.param(evaluating_nothing_that_rank_0_reads, ValueError),
    ],
)
def test_refused_by_both(body, kind, tmp_path):
    """Upstream's Trainer raises that type, and ours a type derived from it."""
    for which in ("upstream", "ours"):
        with pytest.raises(kind):
            run(body, which, tmp_path / which)


@pytest.mark.parametrize("dispatches", [False, None])
def test_an_evaluation_of_nothing_that_neither_refuses(dispatches, tmp_path):
    """Without a dispatcher, or where a keyword of Lightning's asks for no batch, there are metrics without a loss."""
    config = {"accelerator_config": {"dispatch_batches": dispatches}}
    empty = helpers.Stream([]) if dispatches is False else helpers.ListDataset([])
    for library in (transformers, hf_compat):
        assert "eval_loss" not in new_trainer(tmp_path, library=library, **config).evaluate(empty)
    given = {"lightning": {"limit_val_batches": 0}}
    assert "eval_loss" not in new_trainer(tmp_path, given=given).evaluate(helpers.Stream(helpers.vector_rows(4)))
