"""Autocast around a model's forward."""

import copy
import inspect

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn

from hf_compat import Trainer, TrainingArguments
from hf_compat.engine.precision import autocast_forward
from hf_compat.errors import TrainerSetupError
from tests.support.helpers import ListDataset, PlainModel, vector_rows


class Doubles(nn.Module):
    """A linear layer whose forward has a name for its input."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, features):
        return {"logits": self.layer(features)}


def bfloat16():
    return torch.autocast("cpu", dtype=torch.bfloat16)


def test_forward_runs_in_autocast_and_returns_float32():
    """The outputs are those of bfloat16, as float32; the signature is the model's own."""
    model = Doubles()
    features = torch.randn(3, 2)
    with bfloat16():
        expected = model(features)["logits"]
    assert expected.dtype is torch.bfloat16
    autocast_forward(model, bfloat16)
    autocast_forward(model, bfloat16)
    logits = model(features)["logits"]
    assert logits.dtype is torch.float32
    assert torch.equal(logits, expected.float())
    assert list(inspect.signature(model.forward).parameters) == ["features"]


def test_a_deep_copy_runs_its_own_weights():
    """A copy of the model, as for an average of weights, computes with the copy's weights."""
    model = Doubles()
    autocast_forward(model, bfloat16)
    twin = copy.deepcopy(model)
    for parameter in twin.parameters():
        nn.init.zeros_(parameter)
    features = torch.ones(1, 2)
    assert torch.equal(twin(features)["logits"], torch.zeros(1, 2))
    assert not torch.equal(model(features)["logits"], torch.zeros(1, 2))


@pytest.mark.parametrize("orders", [(False, True), (True, False)], ids=["float32, bf16", "bf16, float32"])
def test_a_second_trainer_computes_in_its_own_precision_if_corrected(tmp_path, orders):
    """With corrected numbers a model's forward pass is in bfloat16 where the Trainer that is evaluated says so."""
    model = PlainModel(dropout=0.0)
    found: list[bool] = []
    model.body.register_forward_pre_hook(lambda *_: found.append(torch.is_autocast_enabled("cpu")))
    for bf16 in orders:
        args = TrainingArguments(
            output_dir=tmp_path, use_cpu=True, report_to=[], disable_tqdm=True, bf16=bf16, semantics="corrected"
        )
        Trainer(model=model, args=args, eval_dataset=ListDataset(vector_rows(2))).evaluate()
    assert found == list(orders)


def test_two_answers_to_how_to_compute_are_refused(tmp_path):
    """A precision plugin beside `bf16=True` is an error, before anything runs."""
    args = TrainingArguments(str(tmp_path), bf16=True, use_cpu=True, report_to="none")
    with pytest.raises(TrainerSetupError, match=r"`bf16=True` and .*MixedPrecision.* choose one"):
        Trainer(PlainModel(), args, lightning={"plugins": MixedPrecision("bf16-mixed", "cpu")})
