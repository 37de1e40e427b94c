"""Batches made without a collator of the user's equal transformers'."""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import BatchEncoding, SequenceFeatureExtractor, Wav2Vec2FeatureExtractor, Wav2Vec2Processor
from transformers.data import data_collator as upstream
from transformers.image_processing_base import ImageProcessingMixin

from hf_compat.data.collators import (
    DataCollatorWithPadding,
    DefaultDataCollator,
    default_collator_for,
    default_data_collator,
    numpy_default_data_collator,
)
from hf_compat.errors import DataError, HFCompatWarning
from tests.support import helpers


@dataclass
class Feature:
    """A sample with attributes in place of keys."""

    input_ids: Any
    label: Any = None
    note: Any = None


def repeated(**values: Any) -> list[dict[str, Any]]:
    return [dict(values) for _ in range(3)]


CASES = {
    "ints": repeated(a=[1, 2], b=3),
    "floats": repeated(a=[1.0, 2.0], b=3.5),
    "bools": repeated(a=True, b=[True, False]),
    "None and str dropped": repeated(a=1, b=None, c="text", d=""),
    "label int": repeated(a=1, label=2),
    "label float": repeated(a=1, label=2.5),
    "label bool": repeated(a=1, label=True),
    "label int tensor": repeated(a=1, label=torch.tensor(2)),
    "label float tensor": repeated(a=1, label=torch.tensor(2.5)),
    "label numpy int": repeated(a=1, label=np.int64(2)),
    "label numpy int32": repeated(a=1, label=np.int32(2)),
    "label numpy float": repeated(a=1, label=np.float64(2.5)),
    "label numpy bool": repeated(a=1, label=np.bool_(True)),
    "label None": repeated(a=1, label=None),
    "label int first, float after": [{"label": 1}, {"label": 2.0}],
    "label_ids ints": repeated(label_ids=[1, 2], a=1),
    "label_ids floats": repeated(label_ids=[1.5, 2.5], a=1),
    "label_ids tensor": repeated(label_ids=torch.tensor([1, 2]), a=1),
    "label_ids numpy": repeated(label_ids=[np.int64(1), np.int64(2)], a=1),
    "label_ids None": repeated(label_ids=None, a=1),
    "label wins over label_ids": repeated(label_ids=[1, 2], label=3, a=1),
    "label None, label_ids there": repeated(label_ids=[1, 2], label=None, a=1),
    "labels": repeated(a=1, labels=[1, 2]),
    "label and labels": repeated(a=1, labels=[1, 2], label=3),
    "tensors": repeated(a=torch.ones(2, 3), b=torch.tensor(1, dtype=torch.int32)),
    "half tensors": repeated(a=torch.ones(2, dtype=torch.bfloat16)),
    "arrays": repeated(a=np.ones((2, 3), dtype=np.float32), b=np.array([1, 2], dtype=np.int16)),
    "float64 arrays": repeated(a=np.ones(2)),
    "numpy numbers": repeated(a=np.float64(1.5), b=np.float32(1.5), c=np.int64(2)),
    "nested lists": repeated(a=[[1, 2], [3, 4]]),
    "batch encodings": [BatchEncoding({"input_ids": [1, 2], "label": 0}) for _ in range(2)],
    "ordered dicts": [OrderedDict(b=1, a=2, label=0) for _ in range(2)],
    "dataclasses": [Feature([1, 2], label=1, note="x"), Feature([3, 4], label=0)],
    "keys of the first alone": [{"a": 1}, {"a": 2, "b": 3}],
}


def same_batch(one, other):
    assert list(one) == list(other)
    for key in one:
        assert one[key].dtype == other[key].dtype, key
        assert one[key].shape == other[key].shape, key
        assert torch.equal(one[key], other[key]), key


@pytest.mark.parametrize("features", CASES.values(), ids=CASES.keys())
def test_default_batches_are_upstreams(features):
    """Keys, their order, dtypes, shapes and values are those of the installed transformers."""
    expected = upstream.default_data_collator(features)
    same_batch(default_data_collator(features), expected)
    same_batch(DefaultDataCollator()(features), expected)


@pytest.mark.parametrize("kind", ["pt", "np"])
@pytest.mark.parametrize(
    "features",
    [
        pytest.param([{"label": 0}, {"label": 0.5}], id="label"),
        pytest.param([{"label_ids": [0, 0.5]}, {"label_ids": [1, 2]}], id="label_ids"),
    ],
)
def test_labels_that_lose_their_fractions(features, kind):
    """Where the first is an integer all are, as in transformers, and a warning says so; not where it is none."""
    with pytest.warns(HFCompatWarning, match="0.5 is 0"):
        ours = default_data_collator(features, kind)
    theirs = upstream.default_data_collator(features, return_tensors=kind)
    assert ours["labels"].tolist() == theirs["labels"].tolist()
    assert 0.5 not in ours["labels"]
    assert default_data_collator([{"label": 0.5}, {"label": 0}])["labels"].tolist() == [0.5, 0]


def test_numpy_labels_follow_the_release(monkeypatch):
    """A label that is one of numpy's integers is a class since 5.22, a number to predict before."""
    for release, dtype in (("5.21", torch.float), ("5.22", torch.long)):
        monkeypatch.setenv("HF_COMPAT_SEMANTICS", release)
        assert default_data_collator([{"label": np.int64(1)}])["labels"].dtype == dtype


@pytest.mark.parametrize("features", CASES.values(), ids=CASES.keys())
def test_batches_of_arrays_are_upstreams(features):
    """With `return_tensors="np"` too; what numpy has no type for is an error of upstream's type."""
    try:
        expected = upstream.default_data_collator(features, return_tensors="np")
    except (TypeError, ValueError) as error:
        with pytest.raises(type(error)):
            default_data_collator(features, return_tensors="np")
        return
    collators = (DefaultDataCollator("np"), numpy_default_data_collator)
    batches = [default_data_collator(features, "np"), *(collate(features) for collate in collators)]
    for batch in (*batches, DefaultDataCollator()(features, return_tensors="np")):
        assert list(batch) == list(expected)
        for key, value in batch.items():
            assert isinstance(value, np.ndarray), key
            assert value.dtype == expected[key].dtype, key
            np.testing.assert_array_equal(value, expected[key], strict=True)


@pytest.mark.parametrize("collate", [default_data_collator, DefaultDataCollator()], ids=["function", "object"])
def test_other_frameworks_are_refused(collate):
    """Neither torch's nor numpy's."""
    with pytest.raises(DataError, match="return_tensors='tf'"):
        collate([{"a": 1}], return_tensors="tf")


TOKEN_ROWS = [{"input_ids": [5, 6, 7], "attention_mask": [1, 1, 1]}, {"input_ids": [8], "attention_mask": [1]}]

PADDING = [
    pytest.param({}, {"label": [0, 1]}, id="longest"),
    pytest.param({"padding": "max_length", "max_length": 6}, {"label_ids": [0, 1]}, id="max_length"),
    pytest.param({"pad_to_multiple_of": 4}, {"labels": [0.5, 1.5]}, id="multiple"),
    pytest.param({}, {}, id="no labels"),
]


@pytest.mark.parametrize(("settings", "extra"), PADDING)
def test_padded_batches_are_upstreams(settings, extra):
    """Padded batches are equal, with the labels renamed."""
    rows = [{**row, **{key: values[index] for key, values in extra.items()}} for index, row in enumerate(TOKEN_ROWS)]
    tokenizer = helpers.tokenizer()
    mine = DataCollatorWithPadding(tokenizer, **settings)(rows)
    theirs = upstream.DataCollatorWithPadding(tokenizer, **settings)(rows)
    assert type(mine) is type(theirs)
    same_batch(mine, theirs)


def test_feature_extractors_pad():
    """A feature extractor pads as in transformers."""
    extractor = Wav2Vec2FeatureExtractor(return_attention_mask=True)
    rows = [{"input_values": [0.1, 0.2, 0.3], "label": 0}, {"input_values": [0.4], "label": 1}]
    same_batch(DataCollatorWithPadding(extractor)(rows), upstream.DataCollatorWithPadding(extractor)(rows))


def test_no_warning_about_padding(caplog):
    """A fast tokenizer does not warn about padding here, and its own record of warnings is as before."""
    tokenizer = helpers.tokenizer()
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        DataCollatorWithPadding(tokenizer)([dict(row) for row in TOKEN_ROWS])
    finally:
        logger.removeHandler(caplog.handler)
    assert caplog.messages == []
    assert not tokenizer.deprecation_warnings["Asking-to-pad-a-fast-tokenizer"]


def test_warning_state_survives_an_error():
    """A failed padding leaves the tokenizer's warnings as they were."""
    tokenizer = helpers.tokenizer()
    with pytest.raises(ValueError, match="max_length"):
        DataCollatorWithPadding(tokenizer, padding="no such strategy")([dict(row) for row in TOKEN_ROWS])
    assert not tokenizer.deprecation_warnings["Asking-to-pad-a-fast-tokenizer"]


class PadsImages(ImageProcessingMixin):
    """An image processor whose ``pad`` pads images."""

    def pad(self, images):
        return images


def processor():
    return Wav2Vec2Processor(Wav2Vec2FeatureExtractor(), helpers.tokenizer())


@pytest.mark.parametrize(
    ("build", "pads"),
    [
        pytest.param(lambda: None, False, id="nothing"),
        pytest.param(helpers.tokenizer, True, id="tokenizer"),
        pytest.param(Wav2Vec2FeatureExtractor, True, id="feature extractor"),
        pytest.param(lambda: SequenceFeatureExtractor(1, 16000, 0.0), True, id="sequence feature extractor"),
        pytest.param(PadsImages, False, id="image processor"),
        pytest.param(lambda: transformers.FeatureExtractionMixin(), False, id="other feature extractor"),
    ],
)
def test_default_collator_is_upstreams(build, pads, tmp_path):
    """The collator chosen is the one that transformers' Trainer chooses."""
    processing_class = build()
    args = transformers.TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True)
    trainer = transformers.Trainer(helpers.PlainModel(), args, processing_class=processing_class)
    assert isinstance(trainer.data_collator, upstream.DataCollatorWithPadding) is pads
    chosen = default_collator_for(processing_class)
    assert chosen.tokenizer is processing_class if pads else chosen is default_data_collator


def test_processors_of_several_inputs_do_not_pad():
    """A processor that has ``pad`` is no tokenizer: its ``pad`` takes the kinds of input apart."""
    assert default_collator_for(processor()) is default_data_collator
