"""Metrics of torchmetrics: right numbers, under the right names, and nothing stored."""

from __future__ import annotations

import json
import weakref

import numpy as np
import pytest
import torch
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
    MulticlassPrecision,
)

from hf_compat.errors import ArgumentsError
from hf_compat.trainer.evaluation import MetricStream, is_metric, real_samples
from tests.support import helpers
from tests.support.processes import forked_ranks
from tests.support.trainers import new_trainer

LOGITS = torch.tensor([[5.0, 1, 0], [0, 4, 1], [3, 2, 0], [0, 1, 9], [7, 0, 1]])
LABELS = torch.tensor([0, 1, 1, 2, 2])  # predicted: 0, 1, 0, 2, 0


def stream(metric, batches):
    """Return the result of ``metric`` on ``batches`` of predictions and labels."""
    kept = MetricStream(metric, torch.device("cpu"), process_index=0)
    for predictions, labels in batches:
        kept.update(predictions, labels, remainder=-1)
    return kept.compute()


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        pytest.param(MulticlassAccuracy(3, average="micro"), {"MulticlassAccuracy": 3 / 5}, id="one number"),
        pytest.param(
            MulticlassPrecision(3, average=None),
            {"MulticlassPrecision_0": 1 / 3, "MulticlassPrecision_1": 1.0, "MulticlassPrecision_2": 1.0},
            id="one number per class",
        ),
        pytest.param(
            MulticlassConfusionMatrix(3),
            {"MulticlassConfusionMatrix": [[1, 0, 0], [1, 1, 0], [1, 0, 1]]},
            id="a matrix",
        ),
        pytest.param(
            MetricCollection({"hits": MulticlassAccuracy(3, average="micro"), "f1": MulticlassF1Score(3)}),
            {"hits": 3 / 5, "f1": (1 / 2 + 2 / 3 + 2 / 3) / 3},
            id="a collection names its own",
        ),
        pytest.param(
            MetricCollection(MulticlassAccuracy(3, average="micro"), prefix="eval_"),
            {"eval_MulticlassAccuracy": 3 / 5},
            id="a collection with a prefix",
        ),
    ],
)
def test_results_become_plain_values(metric, expected):
    """Numbers, vectors and matrices become what a log and a JSON file can hold; the same if computed anew."""
    assert is_metric(metric)
    for _ in range(2):  # emptied in between
        found = stream(metric, [(LOGITS[:2], LABELS[:2]), (LOGITS[2:], LABELS[2:])])
        assert found.keys() == expected.keys()
        for name, value in json.loads(json.dumps(found)).items():
            assert np.array(value) == pytest.approx(np.array(expected[name]))


def test_a_metric_without_data_gives_nothing():
    """Where no batch had labels there is nothing to compute."""
    assert stream(MulticlassAccuracy(3), []) == {}


@pytest.mark.parametrize(
    ("size", "remainder", "expected"),
    [
        pytest.param(3, -1, (3, 3), id="not the last batch"),
        pytest.param(3, 0, (3, 3), id="a full last batch"),
        pytest.param(3, 5, (3, 2), id="one repeated sample"),
        pytest.param(3, 3, (3, 0), id="a share of repetitions alone"),
        pytest.param(3, 1, (1, 0), id="a single sample"),
    ],
)
def test_repeated_samples_are_left_out(size, remainder, expected):
    """Of the last batch the first samples are real; process 0 holds the head of it, process 1 the rest."""
    assert tuple(real_samples(size, remainder, index) for index in range(2)) == expected


def evaluating_trainer(tmp_path, *, given=None, **fields):
    """Return a Trainer of a small classifier of vectors, and its 7 evaluation rows, in batches of 3."""
    torch.manual_seed(0)
    given = {"eval_dataset": helpers.ListDataset(helpers.vector_rows(7, seed=1)), **(given or {})}
    fields = {"save_strategy": "no", "per_device_eval_batch_size": 3} | fields
    return new_trainer(tmp_path, model=helpers.PlainModel(dropout=0.0), rows=12, given=given, **fields)


def metrics_of_arrays(prediction):
    """Return accuracy and macro F1, written out in numpy."""
    best, labels = prediction.predictions.argmax(-1), prediction.label_ids
    scores = []
    for each in range(helpers.CLASSES):
        hits = ((best == each) & (labels == each)).sum()
        scores.append(2 * hits / max(1, (best == each).sum() + (labels == each).sum()))
    present = [each for each in range(helpers.CLASSES) if ((best == each) | (labels == each)).any()]
    return {"hits": (best == labels).mean(), "f1": np.mean([scores[each] for each in present])}


def collection():
    classes = helpers.CLASSES
    return MetricCollection({"hits": MulticlassAccuracy(classes, average="micro"), "f1": MulticlassF1Score(classes)})


def test_a_function_gives_the_same_numbers(tmp_path):
    """A metric and a function of all predictions agree, in every evaluation of a run, the last short batch included."""
    logs = []
    for metrics in (collection(), metrics_of_arrays):
        trainer = evaluating_trainer(
            tmp_path, given={"compute_metrics": metrics}, eval_strategy="epoch", num_train_epochs=3
        )
        trainer.train()
        trainer.evaluate()
        logs.append([entry for entry in trainer.state.log_history if "eval_loss" in entry])
    streamed, stored = logs
    assert len(streamed) == 4
    for ours, theirs in zip(streamed, stored, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ("eval_hits", "eval_f1", "eval_loss"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-6)


class Forgetful(torchmetrics.Metric):
    """Counts samples, and asserts that the predictions of earlier batches are gone."""

    full_state_update = False

    def __init__(self):
        super().__init__()
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")
        self.seen = []

    def update(self, predictions, labels):
        assert [earlier for earlier in self.seen if earlier() is not None] == []
        self.seen.append(weakref.ref(predictions))
        self.count += len(labels)

    def compute(self):
        return self.count


def test_nothing_is_stored(tmp_path):
    """Predictions are gone with the next batch; an evaluation has none to return, a prediction has."""
    metric = Forgetful()
    trainer = evaluating_trainer(tmp_path, given={"compute_metrics": metric})
    output = trainer.evaluation_loop(trainer.get_eval_dataloader(), "Evaluation")
    assert (output.predictions, output.label_ids, output.num_samples) == (None, None, 7)
    assert output.metrics["eval_Forgetful"] == 7
    metric.seen.clear()
    assert trainer.evaluate()["eval_Forgetful"] == 7
    trainer.compute_metrics = collection()
    predicted = trainer.predict(trainer.eval_dataset)
    assert predicted.predictions.shape == (7, helpers.CLASSES)
    assert {"test_hits", "test_f1", "test_loss"} <= predicted.metrics.keys()


def test_preprocessing_comes_first_and_ignored_labels_are_the_metrics_own(tmp_path):
    """The metric is given what ``preprocess_logits_for_metrics`` returns; its ``ignore_index`` leaves out -100."""
    calls = []

    def best(logits, labels):
        calls.append(len(labels))
        return logits.argmax(-1)

    rows = [{**row, "labels": -100 if index % 2 else row["labels"]} for index, row in enumerate(helpers.vector_rows(7))]
    given = {
        "compute_metrics": MulticlassAccuracy(helpers.CLASSES, average="micro", ignore_index=-100),
        "preprocess_logits_for_metrics": best,
    }
    trainer = evaluating_trainer(tmp_path, given=given)
    output = trainer.predict(helpers.ListDataset(rows))
    assert calls == [3, 3, 1]
    scored = output.label_ids != -100
    assert scored.sum() == 4
    hits = (output.predictions == output.label_ids)[scored].mean()
    assert output.metrics["test_MulticlassAccuracy"] == pytest.approx(hits)


def test_best_model_monitor_and_several_sets(tmp_path):
    """The names serve ``metric_for_best_model``, a Lightning monitor, and each of several evaluation sets.

    Lightning sees each set as a validation of its own, so a monitor of one of them must not be strict.
    """
    sets = {name: helpers.ListDataset(helpers.vector_rows(5, seed=seed)) for seed, name in enumerate(("near", "far"))}
    stop = EarlyStopping("eval_far_hits", mode="max", patience=1, strict=False)
    trainer = evaluating_trainer(
        tmp_path,
        callbacks=[stop],
        given={"compute_metrics": collection(), "eval_dataset": sets},
        eval_strategy="epoch",
        num_train_epochs=6,
        learning_rate=0.0,
        metric_for_best_model="near_hits",
    )
    trainer.train()
    assert trainer.state.epoch == 2  # nothing learned: the monitor waited once
    first = next(entry for entry in trainer.state.log_history if "eval_near_hits" in entry)
    assert trainer.state.best_metric == first["eval_near_hits"]
    assert any("eval_far_f1" in entry for entry in trainer.state.log_history)


@pytest.mark.parametrize("batch_eval_metrics", [False, True])
def test_losses_alone(tmp_path, batch_eval_metrics):
    """With ``prediction_loss_only`` there is nothing to update with; ``batch_eval_metrics`` asks for no more."""
    fields = {"prediction_loss_only": True, "batch_eval_metrics": batch_eval_metrics}
    metrics = evaluating_trainer(tmp_path, given={"compute_metrics": collection()}, **fields).evaluate()
    assert "eval_hits" not in metrics
    assert "eval_loss" in metrics


def test_what_a_metric_cannot_take_is_refused(tmp_path):
    """Inputs and losses are for functions: the error says so."""
    with pytest.raises(ArgumentsError, match=r"`include_for_metrics=\['loss'\]`.*torchmetrics"):
        evaluating_trainer(tmp_path, given={"compute_metrics": collection()}, include_for_metrics=["loss"])


SCRIPT = """
import json, sys, torch, torch.distributed as dist
from pathlib import Path
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC
from hf_compat.distributed.processes import leave_processes
from hf_compat.trainer.evaluation import MetricStream

dist.init_process_group("gloo")
rank = dist.get_rank()
scores, labels = torch.arange(7) * 0.37 % 1, torch.tensor([0, 1, 1, 0, 1, 0, 1])
stream = MetricStream(MetricCollection({"auc": BinaryAUROC(), "hits": BinaryAccuracy()}), torch.device("cpu"), rank)
# Sample 0 is drawn again, so that both shares of the last batch hold two samples.
for shares, remainder in (([0, 1], [2, 3]), -1), (([4, 5], [6, 0]), 3):
    mine = torch.tensor(shares[rank])
    stream.update(scores[mine], labels[mine], remainder=remainder)
Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(stream.compute()))
leave_processes()
"""


def test_two_processes_count_each_sample_once(tmp_path):
    """Two processes find the numbers of one: states are merged, and the repeated sample counts once."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ended = forked_ranks(script, tmp_path)
    assert ended.code == 0, ended.output
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    # By hand: the scores of the classes 1 are 0.37, 0.74, 0.48, 0.22, those of 0 are 0, 0.11, 0.85.
    assert found == [pytest.approx({"auc": 8 / 12, "hits": 3 / 7})] * 2
