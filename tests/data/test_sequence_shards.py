"""The chunks of a sequence that ranks share."""

import pytest
import torch

from hf_compat.data.sequence_shards import SequenceShards
from hf_compat.distributed import collectives
from hf_compat.errors import DataError


@pytest.fixture
def shards(monkeypatch):
    """Return a function that makes the chunks of rank 0 of two, which have read the same batch each."""
    monkeypatch.setattr(
        collectives, "gather_batches", lambda batch, group: [] if batch is None else [{**batch}, {**batch}]
    )

    def build(batches, *, carries_on=False, warn_once=lambda text: None):
        given = {"rank": 0, "size": 2, "attends_across": True, "warn_once": warn_once, "carries_on": carries_on}
        return SequenceShards(batches, object, **given)

    return build


def batch(*tokens, **others):
    """Return a batch of one row."""
    row = torch.tensor([tokens])
    return {"input_ids": row, "labels": row, "position_ids": torch.arange(len(tokens))[None], **others}


def test_labels_are_shifted_before_they_are_shared(shards):
    """The label of a chunk's last token is the next chunk's first; what is no tensor is on every rank."""
    first, _ = shards([batch(1, 2, 3, 4, name="row")])
    assert first["input_ids"].tolist() == [[1, 2]]
    assert first["shift_labels"].tolist() == [[2, 3]]
    assert first["position_ids"].tolist() == [[0, 1]]
    assert first["name"] == "row"
    assert "labels" not in first


def test_length(shards):
    """There are as many chunks as batches of all ranks, from wherever the first pass begins."""
    loader = shards([batch(1, 2), batch(3, 4)])
    loader.start_at(3, lambda batches, count: batches[count:])
    assert len(loader) == 4
    assert [chunk["input_ids"].item() for chunk in loader] == [3]
    assert [chunk["input_ids"].item() for chunk in loader] == [1, 1, 3, 3]


def test_a_pass_is_carried_on(shards):
    """A pass that has been read to its last batch ends with nothing, and the next one begins after that."""
    loader = shards([batch(1, 2)], carries_on=True)
    chunks = iter(loader)
    assert [next(chunks)["input_ids"].item() for _ in range(2)] == [1, 1]
    assert list(iter(loader)) == []
    assert len(list(iter(loader))) == 2


@pytest.mark.parametrize(
    ("others", "text"),
    [
        pytest.param({"position_ids": torch.tensor([[0, 1, 0, 1]])}, "packed", id="packed"),
        pytest.param({"attention_mask": torch.tensor([[0, 1, 1, 1]])}, "padded on the left", id="padded on the left"),
        pytest.param({"attention_mask": torch.tensor([[1, 1, 1, 0]])}, None, id="padded on the right"),
    ],
)
def test_masks_that_would_be_needed(shards, others, text):
    """A run warns of batches in which tokens attend to what their mask hides."""
    told = []
    list(shards([batch(1, 2, 3, 4, **others)], warn_once=told.append))
    assert [text in each for each in told] == ([] if text is None else [True, True])


def test_batches_without_labels(shards):
    """They are refused by the name of what is missing."""
    with pytest.raises(DataError, match="batches have no labels"):
        list(shards([{name: value for name, value in batch(1, 2).items() if name != "labels"}]))
