"""What an evaluation returns, and what it gives to ``compute_metrics``."""

from __future__ import annotations

import warnings

import pytest
import torch
import transformers

import hf_compat
from hf_compat import HFCompatWarning, Trainer, TrainingArguments
from hf_compat.trainer import outputs

# Results


@pytest.mark.parametrize("extras", [{}, {"inputs": 3}, {"losses": 4}, {"inputs": 3, "losses": 4}], ids=str)
def test_an_eval_prediction_unpacks_as_upstreams(extras):
    """Elements, their order and the attributes are equal; indices outside of them raise IndexError."""
    from transformers import EvalPrediction

    mine, theirs = outputs.EvalPrediction(1, 2, **extras), EvalPrediction(1, 2, **extras)
    assert list(mine) == list(theirs)
    assert vars(mine) == vars(theirs)
    assert [mine[at] for at in range(len(theirs.elements))] == list(theirs)
    for at in (-1, len(theirs.elements)):
        with pytest.raises(IndexError):
            mine[at]


@pytest.mark.parametrize("name", ["EvalLoopOutput", "PredictionOutput", "TrainOutput"])
def test_outputs_have_upstreams_fields(name):
    """Field names and their order are equal."""
    from transformers import trainer_utils

    assert getattr(outputs, name)._fields == getattr(trainer_utils, name)._fields


# Rows of the last batch


@pytest.mark.parametrize(("samples", "kept"), [(5, 13), (8, 24)])
def test_rows_that_are_dropped_are_named(tmp_path, samples, kept):
    """Of tokens instead of samples the last batch keeps as many as it has samples, as upstream's; a warning says so."""
    arguments = {"output_dir": str(tmp_path), "per_device_eval_batch_size": 4, "use_cpu": True, "report_to": "none"}
    rows = [{"values": torch.arange(3.0) + 3 * index, "labels": torch.zeros(3)} for index in range(samples)]
    found = []
    for classes in ((transformers.Trainer, transformers.TrainingArguments), (Trainer, TrainingArguments)):
        trainer = classes[0](
            Echo(),
            classes[1](**arguments, disable_tqdm=True),
            eval_dataset=rows,
            preprocess_logits_for_metrics=lambda logits, labels: logits.flatten(),
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found.append(trainer.predict(rows).predictions.tolist())
    assert found == [[float(value) for value in range(kept)]] * 2
    said = [str(warning.message) for warning in caught if "drops the rest" in str(warning.message)]
    assert len(said) == (kept < 3 * samples)
    assert all("predictions of the last batch, of 1 samples, have 3 rows" in message for message in said)


def test_rows_that_drop_last_leaves_out_are_counted(tmp_path):
    """`dataloader_drop_last` is for evaluations too, as upstream's; none is left out where batches divide the rows."""
    rows = [{"values": torch.arange(3.0), "labels": torch.zeros(3)} for _ in range(10)]

    def predicted(library, size):
        fields = {"per_device_eval_batch_size": size, "dataloader_drop_last": True, "disable_tqdm": True}
        args = library.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **fields)
        return len(library.Trainer(Echo(), args).predict(rows).predictions)

    with pytest.warns(HFCompatWarning, match="test leaves out the last 2 of 10 samples"):
        assert predicted(hf_compat, 4) == predicted(transformers, 4) == 8
    with warnings.catch_warnings():
        warnings.simplefilter("error", HFCompatWarning)
        assert predicted(hf_compat, 5) == 10


class Echo(torch.nn.Module):
    """A model whose logits are its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, values, labels=None):
        return {"loss": self.layer.bias.sum(), "logits": values}
