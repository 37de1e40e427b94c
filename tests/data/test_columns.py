"""Which columns a model takes, and how the others are left out."""

from __future__ import annotations

import logging
import pickle
from collections import UserDict

import datasets
import pytest
import transformers
from torch import nn
from torch.utils.data import DataLoader
from transformers.utils.generic import can_return_loss as upstream_can_return_loss, find_labels as upstream_find_labels

from hf_compat.data.collators import (
    RemoveColumnsCollator,
    can_return_loss,
    find_labels,
    is_arrow_dataset,
    remove_unused_columns,
    signature_columns,
)
from hf_compat.errors import DataError
from tests.support import helpers


class ClipLike(nn.Module):
    def forward(self, pixels, return_loss=True): ...


class AsksForLoss(nn.Module):
    def forward(self, pixels, return_loss=None): ...


class MyQuestionAnswering(nn.Module):
    def forward(self, input_ids, start_positions=None, end_positions=None, label_mask=None): ...


class Spans(nn.Module):
    def forward(self, input_ids, start_positions=None, my_labels=None, labelled=None): ...


MODELS = [ClipLike, AsksForLoss, MyQuestionAnswering, Spans, helpers.PlainModel, helpers.gpt2, helpers.bert_classifier]


@pytest.mark.parametrize("build", MODELS)
def test_labels_are_upstreams(build):
    """Label names and whether there is a loss without them are what transformers finds for the class."""
    model = build()
    assert find_labels(model) == upstream_find_labels(type(model))
    assert can_return_loss(model) == upstream_can_return_loss(type(model))


def test_labels_by_hand():
    """Names with ``label`` count, answer positions only for question answering."""
    assert find_labels(Spans()) == ["my_labels", "labelled"]
    assert find_labels(MyQuestionAnswering()) == ["start_positions", "end_positions", "label_mask"]
    assert [can_return_loss(cls()) for cls in (ClipLike, AsksForLoss, Spans)] == [True, False, False]


def test_class_decides_about_labels():
    """A forward put on the instance does not hide the labels of its class."""
    model = Spans()
    model.forward = lambda *args, **kwargs: None
    assert find_labels(model) == ["my_labels", "labelled"]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks transformers
@pytest.mark.parametrize("mixed", [False, True])
def test_looks_through_peft(mixed):
    """Of an adapter around a model, the model's own signature counts."""
    peft = pytest.importorskip("peft")
    model = helpers.gpt2()
    wanted = signature_columns(model, ["labels"])
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True), mixed=mixed)
    assert find_labels(wrapped) == ["labels"]
    assert signature_columns(wrapped, ["labels"]) == wanted


@pytest.mark.parametrize("names", [["labels"], ["start", "end"], []], ids=str)
@pytest.mark.parametrize("build", MODELS)
def test_signature_columns_are_upstreams(build, names, tmp_path):
    """The same columns are kept as by transformers' Trainer."""
    model = build()
    args = transformers.TrainingArguments(output_dir=str(tmp_path), report_to=[], label_names=names, use_cpu=True)
    trainer = transformers.Trainer(model, args)
    trainer._set_signature_columns_if_needed()
    mine = signature_columns(model, names)
    assert set(mine) == set(trainer._signature_columns)
    assert len(mine) == len(set(mine))


def arrow():
    return datasets.Dataset.from_dict({"text": ["a", "b"], "input_ids": [[1], [2]], "labels": [0, 1], "id": [5, 6]})


def test_removes_columns_of_a_copy():
    """Unused columns are gone, in the data set's order; the one passed in keeps them, format included."""
    data = arrow().with_format("torch")
    kept = remove_unused_columns(data, ["labels", "input_ids", "attention_mask"], "Training")
    assert kept.column_names == ["input_ids", "labels"]
    assert kept.format["type"] == "torch"
    assert data.column_names == ["text", "input_ids", "labels", "id"]


def test_removal_is_logged(caplog):
    """Which columns are left out is in the log, by name and data set."""
    with caplog.at_level("INFO", logger="hf_compat"):
        remove_unused_columns(arrow(), ["labels"], "Training")
    assert caplog.messages == [
        "Columns of the Training set don't have a corresponding argument in `model.forward` and have been ignored: "
        "text, input_ids, id."
    ]


def test_nothing_left():
    """A data set of which no column would be left is an error that names both sides."""
    with pytest.raises(DataError, match=r"No columns in the dataset match.*pixels"):
        remove_unused_columns(arrow(), ["pixels"])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(arrow(), True, id="Dataset"),
        pytest.param(arrow().to_iterable_dataset(), False, id="IterableDataset"),
        pytest.param(datasets.DatasetDict(train=arrow()), False, id="DatasetDict"),
        pytest.param(helpers.ListDataset([]), False, id="torch data set"),
        pytest.param([{}], False, id="list"),
    ],
)
def test_arrow_datasets_are_recognised(data, expected):
    """Columns are removed from ``datasets.Dataset`` alone, as by transformers; others go through the collator."""
    assert is_arrow_dataset(data) is expected


def collate(features):
    return features


def test_collator_drops_keys():
    """Dicts lose the keys that the model does not take; anything else passes as it is."""
    collator = RemoveColumnsCollator(collate, ["a", "b"])
    other = UserDict(a=1, c=2)
    assert collator([{"b": 1, "c": 2, "a": 3}, other, (1, 2)]) == [{"b": 1, "a": 3}, other, (1, 2)]


def test_collator_logs_once(caplog):
    """The keys left out are logged with the first sample that has any, once."""
    logger = logging.getLogger("hf_compat.data.collators")
    collator = RemoveColumnsCollator(collate, ["a"], logger, "Spans", "Evaluation")
    with caplog.at_level("INFO", logger="hf_compat"):
        collator([{"a": 1}])
        collator([{"a": 1, "b": 2}, {"a": 1, "c": 2}])
        collator([{"a": 1, "b": 2}])
    assert caplog.messages == [
        "Columns of the Evaluation set don't have a corresponding argument in `Spans.forward` and have been ignored: b."
    ]


class Lines(list):
    """A logger that takes one string a line."""

    def info(self, line):
        self.append(line)

    def __bool__(self):
        return True


@pytest.mark.parametrize("kind", [transformers.trainer_utils.RemoveColumnsCollator, RemoveColumnsCollator])
def test_collator_logs_for_a_named_model(kind):
    """A logger gets one string that names the model and the keys; without a logger or a name nothing is logged."""
    logger, unnamed = Lines(), Lines()
    for given in ({"logger": logger, "model_name": "Spans"}, {"logger": unnamed}, {"model_name": "Spans"}):
        collator = kind(collate, ["a"], **given)
        assert collator([{"a": 1, "b": 2}]) == [{"a": 1}]
        assert collator.logger is given.get("logger")
        assert collator.message_logged == (len(given) == 2)
    assert unnamed == []
    assert len(logger) == 1
    assert "`Spans.forward` and have been ignored: b." in logger[0]


def test_collator_works_in_workers():
    """The collator can be pickled, and does its work in worker processes."""
    collator = pickle.loads(pickle.dumps(RemoveColumnsCollator(collate, ["a"], description="Training")))
    rows = [{"a": index, "b": 0} for index in range(4)]
    assert list(DataLoader(rows, batch_size=2, collate_fn=collator, num_workers=1)) == [
        [{"a": 0}, {"a": 1}],
        [{"a": 2}, {"a": 3}],
    ]
