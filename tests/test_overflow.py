"""The first infinity or NaN of a model is found and told of."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hf_compat.errors import ModelError
from hf_compat.overflow import DebugUnderflowOverflow


class Grows(nn.Module):
    """Two layers in fp16's range, the third beyond it."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.act = nn.Identity()
        self.last = nn.Linear(2, 1)
        with torch.no_grad():
            self.first.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, -4.0]]))
            self.last.weight.fill_(0.5)
            self.last.bias.zero_()

    def forward(self, features, mask=None):
        return {"out": self.last(self.act(self.first(features)))}


def test_the_report_names_the_module_and_its_values(capsys):
    """The last frames are printed, each with the least and greatest absolute values; the error names the place."""
    model = Grows()
    with DebugUnderflowOverflow(model) as watched:
        model(torch.tensor([[1.0, 1.0]]))
        assert capsys.readouterr().out == ""
        model.last.weight.data[0, 0] = float("inf")
        with pytest.raises(ModelError, match=r"weight and output of last Linear .*forward pass 1 "):
            model(torch.tensor([[2.0, 1.0]]))
    report = capsys.readouterr().out.splitlines()
    assert report[1] == "Infinite or NaN in weight and output of last Linear, in forward pass 1 of the model."
    assert [line.split() for line in report[-12:]] == [
        ["first", "Linear"],
        ["1.00e+00", "4.00e+00", "weight"],
        ["1.00e+00", "2.00e+00", "input[0]"],
        ["2.00e+00", "4.00e+00", "output"],
        ["act", "Identity"],
        ["2.00e+00", "4.00e+00", "input[0]"],
        ["2.00e+00", "4.00e+00", "output"],
        ["last", "Linear"],
        ["5.00e-01", "inf", "weight"],
        ["0.00e+00", "0.00e+00", "bias"],
        ["2.00e+00", "4.00e+00", "input[0]"],
        ["inf", "inf", "output"],
    ]
    assert len(watched.frames) == 7
    model(torch.tensor([[2.0, 1.0]]))  # watched no longer


def test_the_frames_kept_are_the_last():
    """No more frames than asked for are kept."""
    model = Grows()
    watched = DebugUnderflowOverflow(model, max_frames_to_save=2)
    model(torch.ones(1, 2))
    assert [frame.splitlines()[0].split()[-1] for frame in watched.frames] == ["Linear", "Grows"]


def test_traced_passes_are_printed_and_not_judged(capsys):
    """A pass that is traced is printed whole, infinite or not; after the last one asked for the run stops."""
    model = Grows()
    DebugUnderflowOverflow(model, trace_batch_nums=[0], abort_after_batch_num=0)
    with pytest.raises(ModelError, match="Stopped after 1 forward passes"):
        model(torch.full((1, 2), float("nan")))
    printed = capsys.readouterr().out
    assert [name for name in ("first Linear", "act Identity", "last Linear", "Grows") if name not in printed] == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(None, "None input[0]", id="none"),
        pytest.param("text", "not a tensor input[0]", id="no tensor"),
        pytest.param(torch.tensor([True, False]), "0.00e+00 1.00e+00 input[0]", id="truth values"),
        pytest.param(torch.tensor([-3, 2]), "2.00e+00 3.00e+00 input[0]", id="integers"),
        pytest.param(torch.tensor([]), "empty input[0]", id="nothing"),
    ],
)
def test_what_is_no_float_is_shown(value, text):
    """Inputs of every kind have a line; only infinities and NaNs are errors."""
    model = nn.Identity()
    watched = DebugUnderflowOverflow(model)
    model(value)
    assert text in [" ".join(line.split()) for line in watched.frames[0].splitlines()]
