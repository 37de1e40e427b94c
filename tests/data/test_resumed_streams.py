"""Streams of datasets that a resumed run goes on with exactly, or not: the table of ``docs/checkpoints.md``."""

import random

import datasets
import numpy as np
import pytest
import torch
import transformers

import hf_compat
from tests.support.helpers import WIDTH
from tests.support.trainers import new_trainer

pytestmark = pytest.mark.skipif(int(datasets.__version__.partition(".")[0]) < 5, reason="the page is about datasets 5")

COUNT = 24
FEATURES = datasets.Features(
    {"features": datasets.Sequence(datasets.Value("float32")), "labels": datasets.Value("int64")}
)


def sample(number):
    return {"features": [float(number)] * WIDTH, "labels": 0}


def rows(first):
    yield from (sample(first + number) for number in range(COUNT))


def rows_with_own_numbers(first):
    own = random.Random(first)
    yield from (sample(first + number + own.random()) for number in range(COUNT))


def table(first=0):
    return datasets.Dataset.from_list([*rows(first)], features=FEATURES).to_iterable_dataset(num_shards=2)


def generated(function, first=0, features=FEATURES):
    return datasets.IterableDataset.from_generator(function, features=features, gen_kwargs={"first": first})


def interleaved(function, features=FEATURES, **given):
    return datasets.interleave_datasets([generated(function, first, features) for first in (0, 100)], **given)


def changed(draw):
    """Return a table whose values have a number of ``draw`` added to them."""
    return table().map(lambda row: {"features": [value + draw() for value in row["features"]]})


BY_CHANCE = {"probabilities": [0.25, 0.75], "seed": 0}
EXACT = {
    "table": table,
    "tables interleaved": lambda: datasets.interleave_datasets([table(), table(100)]),
    "numbers of their own": lambda: interleaved(rows_with_own_numbers),
    "by probabilities": lambda: interleaved(rows, **BY_CHANCE),
    "until all end": lambda: interleaved(rows, **BY_CHANCE, stopping_strategy="all_exhausted"),
    "without features": lambda: interleaved(rows, features=None),
    "concatenated": lambda: datasets.concatenate_datasets([table().take(6), table(100)]),
    "batches and filter": lambda: (
        table().map(dict, batched=True, batch_size=5).filter(lambda row: row["features"][0] > 2)
    ),
    "shuffle buffer": lambda: generated(rows).shuffle(seed=0, buffer_size=8),
    "shuffled sources": lambda: datasets.interleave_datasets(
        [generated(rows).shuffle(seed=0, buffer_size=8), generated(rows, 100)]
    ),
}
"""Streams that both libraries resume with the samples of the unbroken run."""


def resumed_and_whole(library, stream, folder, step=7, steps=9):
    """Return the samples of a run that is resumed after update step ``step``, and those of the whole run from there."""

    class Noting(library.Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            self.seen.append(inputs["features"][:, 0].tolist())
            return super().training_step(model, inputs, num_items_in_batch)

    def train(name, resumed, **fields):
        torch.manual_seed(0)
        settings = {"per_device_train_batch_size": 2, "max_steps": steps, "logging_strategy": "no"}
        data = stream().with_format("torch")
        trainer = new_trainer(folder / name, Noting, library=library, train_dataset=data, **settings | fields)
        trainer.seen = []
        trainer.train(resume_from_checkpoint=resumed)
        return trainer.seen

    whole = train("whole", None, save_strategy="steps", save_steps=step)
    rest = train("rest", str(folder / "whole" / f"checkpoint-{step}"), save_strategy="no")
    return rest, whole[step:]


def seen_by_both(stream, folder, **numbers):
    """Return whether hf_compat, and whether transformers, goes on with the samples of its unbroken run."""
    found = []
    for library in (hf_compat, transformers):
        rest, expected = resumed_and_whole(library, stream, folder / library.__name__, **numbers)
        assert len(rest) <= len(expected)
        found.append(rest == expected)
    return tuple(found)


LONG = ("by probabilities", "until all end", "batches and filter", "concatenated")


@pytest.mark.parametrize(
    "stream", [pytest.param(EXACT[name], id=name, marks=pytest.mark.slow if name in LONG else ()) for name in EXACT]
)
def test_streams_that_are_resumed_exactly(stream, tmp_path):
    """The samples are those of the unbroken run, in both libraries."""
    assert seen_by_both(stream, tmp_path) == (True, True)


def test_a_second_pass_is_resumed_in_it(tmp_path):
    """After the first pass, of 12 batches, transformers goes on elsewhere."""
    assert seen_by_both(table, tmp_path, step=14, steps=16) == (True, False)


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        pytest.param(lambda: changed(random.random), True, id="Python's, in map"),
        pytest.param(lambda: changed(np.random.rand), True, id="NumPy's, in map", marks=pytest.mark.slow),
        pytest.param(lambda: changed(lambda: torch.rand(()).item()), False, id="torch's, in map"),
    ],
)
def test_random_numbers_are_not_in_the_state_of_a_stream(stream, expected, tmp_path):
    """The state counts rows alone; transformers, which reads all rows again, may draw the same numbers again."""
    assert seen_by_both(stream, tmp_path) == (False, expected)


def test_random_numbers_by_row_are_repeated(tmp_path):
    """Numbers that are made from the row's index are those of the unbroken run."""

    def change(row, index):
        return {"features": [value + random.Random(index).random() for value in row["features"]]}

    assert seen_by_both(lambda: table().map(change, with_indices=True), tmp_path) == (True, True)


def test_sources_without_features_are_read_five_rows_far():
    """They are read when they are mixed, and again from their beginning; a row of each is read ahead."""
    made = []

    def counted(first):
        for row in rows(first):
            made.append(row["features"][0])
            yield row

    mixed = interleaved(counted, features=None)
    assert made == [0, 1, 2, 3, 4, 100, 101, 102, 103, 104]
    made.clear()
    with_features = interleaved(counted)
    assert made == []
    for stream in (mixed, with_features):
        made.clear()
        next(iter(stream))
        assert sorted(made)[:2] == [0, 1]
        assert 100 in made


def test_a_shuffle_buffer_reads_in_halves():
    """Of 8 rows it gives 4 once they are read, then reads 4 more."""
    made = []

    def counted(first):
        for row in rows(first):
            made.append(row)
            yield row

    read = []
    for _ in generated(counted).shuffle(seed=0, buffer_size=8).take(12):
        read.append(len(made))
    assert 8 <= read[0] <= 12 <= read[4] <= 16 <= read[8] <= 20  # how far it reads ahead varies
