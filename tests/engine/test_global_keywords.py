"""Keywords of ``lightning.Trainer`` for Trainers that others construct."""

import csv
import threading

import pytest
from lightning.pytorch.loggers import CSVLogger

from hf_compat import lightning_keywords
from hf_compat.errors import TrainerSetupError
from tests.support.keyword_runs import losses, run, trainer_of

WHOLE = 2 * 6
"""Update steps of a run: two epochs of six batches."""


def steps(trainer):
    """Return how many update steps ``trainer`` makes."""
    trainer.train()
    return trainer.state.global_step


def test_a_logger_of_lightnings_writes_what_the_trainer_logs(tmp_path):
    """A Trainer that was made in the block has the logger, also when it trains after the block."""
    with lightning_keywords(logger=CSVLogger(tmp_path, name="", version="")):
        trainer = trainer_of(tmp_path)
    run(trainer)
    with (tmp_path / "metrics.csv").open() as file:
        written = [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]
    assert written == pytest.approx(losses(trainer))
    assert len(written) == WHOLE


def made_in_another_thread(folder):
    """Return a Trainer that a thread makes while this one is in a block, which an error ends."""
    found = []
    with lightning_keywords(limit_train_batches=1):
        other = threading.Thread(target=lambda: found.append(trainer_of(folder)))
        other.start()
        other.join()
        raise KeyError(*found)


def test_outside_of_the_block_there_are_none(tmp_path):
    """A Trainer that is made before, after or in another thread is as ever, and so it is after an error."""
    before = trainer_of(tmp_path)
    with pytest.raises(KeyError) as stopped:
        made_in_another_thread(tmp_path)
    assert [steps(trainer) for trainer in (before, *stopped.value.args, trainer_of(tmp_path))] == [WHOLE] * 3


def test_the_nearest_is_taken(tmp_path):
    """An inner block's keyword stands before an outer one's, a Trainer's own before both; others stay."""
    with lightning_keywords(limit_train_batches=3, profiler="simple"):
        with lightning_keywords(limit_train_batches=2):
            inner, own = trainer_of(tmp_path), trainer_of(tmp_path, {"limit_train_batches": 1})
        outer = trainer_of(tmp_path)
    assert [steps(trainer) for trainer in (outer, inner, own)] == [2 * 3, 2 * 2, 2 * 1]
    assert type(own.lightning_trainer.profiler).__name__ == "SimpleProfiler"


def test_a_keyword_that_there_is_not_is_refused(tmp_path):
    """A Trainer that is made in the block says which keyword, as for one of its own."""
    with lightning_keywords(loger=False), pytest.raises(TrainerSetupError, match="logger"):
        trainer_of(tmp_path)
