"""The memory of a model (``past_index``)."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch
import transformers
from packaging.version import Version
from torch import nn

from hf_compat.errors import HFCompatWarning, ModelError
from tests.support import helpers, trainers

FIELDS = {
    "save_strategy": "no",
    "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 4,
    "num_train_epochs": 2,
}
trainer_of = partial(trainers.new_trainer, **FIELDS)


class Remembers(nn.Module):
    """Counts the batches since it began, in what it is given back as ``mems``; -1 marks a batch of an evaluation."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(helpers.WIDTH, helpers.CLASSES)
        self.seen = []

    def forward(self, features, labels=None, mems=None):
        count = torch.tensor(1) if mems is None else mems + 1
        self.seen.append(int(count) if self.training else -int(count))
        logits = self.layer(features)
        return nn.functional.cross_entropy(logits, labels), logits, count


def test_memory_survives_an_evaluation(tmp_path):
    """Memory goes from batch to batch, begins anew with an epoch, and an evaluation in between has its own.

    transformers forgets it there, and fails at the next batch.
    """
    trainer = trainer_of(tmp_path, model=Remembers(), past_index=2, eval_strategy="steps", eval_steps=3)
    trainer.train()
    assert trainer.model.seen[:8] == [1, 2, 3, -1, -2, 4, 1, 2]
    assert not hasattr(trainer, "_past")  # which copies of transformers' loops look for and delete


def test_a_wrong_place_of_the_memory(tmp_path):
    """The error names the field, its value and how many values the model returns."""
    with pytest.raises(ModelError, match=r"`past_index=3`: Remembers returned 3 values in a tuple"):
        trainer_of(tmp_path, model=Remembers(), past_index=3).train()


class RemembersItsLoss(Remembers):
    """Has the count as its loss, by which it is also the output of index 0."""

    def forward(self, features, labels=None, mems=None):
        _, logits, count = super().forward(features, labels, None if mems is None else mems.detach())
        return logits.sum() * 0 + count, logits


@pytest.mark.parametrize(
    ("semantics", "expected"),
    [
        pytest.param(None, [1, 2, 3, -1, -2, 3, 1, 2], id="as transformers"),
        pytest.param("corrected", [1, 2, 3, -1, -2, 4, 1, 2], id="corrected"),
    ],
)
def test_memory_of_index_0_is_that_of_the_last_batch(semantics, expected, tmp_path):
    """An evaluation leaves its own behind, which transformers takes for one without memory, with a warning."""
    fields = {"past_index": 0, "eval_strategy": "steps", "eval_steps": 3}
    trainer = trainer_of(tmp_path, model=RemembersItsLoss(), semantics=semantics, **fields)
    warns = pytest.warns(HFCompatWarning, match="`past_index=0`: like transformers")
    with nullcontext() if semantics else warns:
        trainer.train()
    assert trainer.model.seen[:8] == expected
    if semantics is None and Version(transformers.__version__) < Version("5"):
        args = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], **FIELDS, **fields)
        model = RemembersItsLoss()
        data = {"train_dataset": trainer.train_dataset, "eval_dataset": trainer.eval_dataset}
        transformers.Trainer(model, args, **data).train()
        assert model.seen == trainer.model.seen
