"""``validate``, ``test`` and ``predict`` of a ``lightning.Trainer`` with the pieces are the Trainer's evaluations."""

from __future__ import annotations

import importlib

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import BasePredictionWriter, ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from torch.utils.data import DataLoader

from hf_compat import Trainer, default_data_collator, to_lightning
from hf_compat.errors import TrainerSetupError
from hf_compat.lightning import HFDataModule, HFModule, callbacks
from tests.lightning.test_pieces import (
    HELD_OUT,
    TRAIN,
    Halved,
    HalvingTrainer,
    ended,
    model,
    plain_trainer,
    two_epochs,
)
from tests.support.helpers import ListDataset, vector_rows

TIMES = ("runtime", "per_second", "model_preparation_time")
SETS = {"near": HELD_OUT, "far": ListDataset(vector_rows(5, seed=2))}


def thirds(prediction):
    """Metrics that no float32 can hold."""
    hits = (prediction.predictions.argmax(-1) == prediction.label_ids).sum()
    return {"thirds": float(hits) / 3, "samples": len(prediction.label_ids)}


def timeless(metrics):
    """Metrics without times."""
    return {name: value for name, value in metrics.items() if not name.endswith(TIMES)}


def expected(folder, library="hf_compat", kind=None, *, held_out=HELD_OUT, **fields):
    """What a Trainer's ``evaluate`` and ``predict`` return."""
    parts = importlib.import_module(library)
    args = two_epochs(folder, **fields) if library == "hf_compat" else upstream_arguments(parts, folder)
    given = {"train_dataset": TRAIN, "eval_dataset": held_out, "compute_metrics": thirds}
    trainer = (kind or parts.Trainer)(model(), args, **given)
    return timeless(trainer.evaluate()), trainer.predict(SETS["far"])


def upstream_arguments(parts, folder):
    """The same arguments of transformers."""
    quiet = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "per_device_eval_batch_size": 4}
    return parts.TrainingArguments(str(folder), **quiet)


def by_hand(folder, *others, kind=HFModule, data=HFDataModule, held_out=HELD_OUT, named=None, **fields):
    """Callbacks, ``lightning.Trainer``, module and data."""
    args = two_epochs(folder, **fields)
    ours = callbacks(args)
    pieces = kind(model(), compute_metrics=thirds), data(None, TRAIN, held_out, SETS["far"])
    return ours, plain_trainer(*ours, *others, **(named or {})), *pieces


@pytest.mark.parametrize("library", ["hf_compat", "transformers"])
def test_pieces_by_hand_evaluate(tmp_path, library):
    """The metrics are those of the Trainer, ours and transformers', to the last bit; so are the predictions."""
    metrics, output = expected(tmp_path, library, per_device_eval_batch_size=4)
    ours, trainer, module, data = by_hand(tmp_path, per_device_eval_batch_size=4)
    assert timeless(trainer.validate(module, datamodule=data, verbose=False)[0]) == metrics
    assert timeless(ours[-1].output) == metrics
    assert timeless(trainer.test(module, datamodule=data, verbose=False)[0]) == timeless(output.metrics)
    batches = trainer.predict(module, datamodule=data)
    assert [len(batch) for batch in batches] == [4, 1]
    assert np.array_equal(torch.cat(batches).numpy(), output.predictions)
    assert np.array_equal(ours[-1].output.label_ids, output.label_ids)
    assert not module.model.training
    assert not list(tmp_path.iterdir())


def test_several_evaluation_datasets(tmp_path):
    """Each of a dict is evaluated, with its name in the metrics."""
    metrics, _ = expected(tmp_path, held_out=SETS)
    _, trainer, module, data = by_hand(tmp_path, held_out=SETS)
    assert timeless(trainer.validate(module, datamodule=data, verbose=False)[0]) == metrics
    assert {"eval_near_loss", "eval_far_loss", "eval_far_thirds"} <= metrics.keys()


class Noting(lightning.Callback):
    """Notes the hooks of evaluations."""

    def __init__(self):
        self.seen = []

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append("validation")

    def on_test_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append("test")

    def on_predict_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append(f"predict {len(outputs)}")


@pytest.mark.parametrize("way", ["by hand", "to_lightning"])
def test_around_a_fit(tmp_path, way):
    """A fit between evaluations is that of the Trainer, and what it has trained is evaluated after it."""
    given = {"train_dataset": TRAIN, "eval_dataset": HELD_OUT, "compute_metrics": thirds}
    alone = Trainer(model(), two_epochs(tmp_path / "alone"), **given)
    before = timeless(alone.evaluate())
    if way == "by hand":  # where a fit sets the seed
        alone = Trainer(model(), two_epochs(tmp_path / "alone"), **given)
    alone.train()
    fitted = ended(alone)
    after, output = timeless(alone.evaluate()), alone.predict(SETS["far"])
    if way == "by hand":
        noting = Noting()
        ours, trainer, module, data = by_hand(tmp_path / "by hand", noting)
    else:
        host = Trainer(model(), two_epochs(tmp_path / "apart"), callbacks=[noting := Noting()], **given)
        trainer, module, data = to_lightning(host)
        data.test_dataset, ours = SETS["far"], [trainer.callbacks[-1]]
    assert timeless(trainer.validate(module, datamodule=data, verbose=False)[0]) == before
    assert set(noting.seen) == {"validation"}
    trainer.fit(module, datamodule=data)
    assert ended(ours[-1].hf_trainer)[1:] == fitted[1:]
    assert ours[-1].output.global_step == fitted[1]
    logs = ours[-1].hf_trainer.state.log_history
    noting.seen.clear()
    assert timeless(trainer.validate(module, datamodule=data, verbose=False)[0]) == after
    assert logs[-1]["step"] == fitted[1]
    assert torch.cat(trainer.predict(module, datamodule=data)).tolist() == output.predictions.tolist()
    assert noting.seen == ["validation"] * 2 + ["predict 5"]
    assert timeless(ours[-1].hf_trainer.evaluate()) == after


class Rows(BasePredictionWriter):
    """Keeps what it is to write."""

    def __init__(self):
        super().__init__("batch")
        self.kept = []

    def write_on_batch_end(self, trainer, pl_module, prediction, *given):
        self.kept.append(prediction)


@pytest.mark.filterwarnings("ignore:Couldn't infer the batch indices")
def test_predictions_are_written_by_batch(tmp_path):
    """A ``BasePredictionWriter`` gets the predictions of each batch, and ``return_predictions=False`` keeps none."""
    rows = Rows()
    ours, trainer, module, data = by_hand(tmp_path, rows, per_device_eval_batch_size=4)
    assert trainer.predict(module, datamodule=data, return_predictions=False) is None
    assert torch.cat(rows.kept).tolist() == ours[-1].output.predictions.tolist()


class FirstFour(HFDataModule):
    """Gives its own batches, of a new dataset each time."""

    def val_dataloader(self):
        return DataLoader(ListDataset(HELD_OUT.rows[:4]), batch_size=2, collate_fn=default_data_collator)

    test_dataloader = predict_dataloader = val_dataloader


class FirstFourTrainer(Trainer):
    """The same on the Trainer."""

    def get_eval_dataloader(self, eval_dataset=None):
        rows = ListDataset(HELD_OUT.rows[:4])
        return self.accelerator.prepare(DataLoader(rows, batch_size=2, collate_fn=self.data_collator))

    def get_test_dataloader(self, test_dataset):
        return self.get_eval_dataloader()


@pytest.mark.parametrize(
    ("kind", "data", "trainer_kind"),
    [
        pytest.param(Halved, HFDataModule, HalvingTrainer, id="compute_loss"),
        pytest.param(HFModule, FirstFour, FirstFourTrainer, id="loaders"),
    ],
)
def test_pieces_are_changed_by_subclasses(tmp_path, kind, data, trainer_kind):
    """A method of a module or data module of one's own does what the Trainer's override does."""
    metrics, output = expected(tmp_path, kind=trainer_kind)
    _, trainer, module, own = by_hand(tmp_path, kind=kind, data=data)
    assert timeless(trainer.validate(module, datamodule=own, verbose=False)[0]) == metrics
    assert timeless(trainer.test(module, datamodule=own, verbose=False)[0]) == timeless(output.metrics)
    assert torch.cat(trainer.predict(module, datamodule=own)).tolist() == output.predictions.tolist()


def test_loaders_without_a_data_module(tmp_path):
    """Loaders of batches are taken as they are, and the limits of the ``lightning.Trainer`` count."""
    loader = DataLoader(HELD_OUT, batch_size=2, collate_fn=default_data_collator)
    metrics, _ = expected(tmp_path, kind=FirstFourTrainer)
    limits = {"limit_val_batches": 2, "limit_test_batches": 1, "limit_predict_batches": 3}
    _, trainer, module, _ = by_hand(tmp_path, named=limits)
    assert timeless(trainer.validate(module, loader, verbose=False)[0]) == metrics
    assert trainer.test(module, [loader], verbose=False)[0]["test_samples"] == 2
    assert [len(batch) for batch in trainer.predict(module, loader)] == [2, 2, 2]
    host = Trainer(model(), two_epochs(tmp_path), train_dataset=TRAIN, eval_dataset=SETS, compute_metrics=thirds)
    apart, module, _ = to_lightning(host)
    found = apart.validate(module, FirstFour().val_dataloader(), verbose=False)
    assert timeless(found[0]) == metrics
    assert "eval_near_loss" in apart.validate(module, datamodule=HFDataModule(None, None, SETS), verbose=False)[0]


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks")
def test_the_weights_of_a_checkpoint(tmp_path):
    """``ckpt_path`` takes a folder of a run, a file of ``ModelCheckpoint``, and ``"best"`` after a fit."""
    fields = {"load_best_model_at_end": True, "metric_for_best_model": "loss"}
    saving = ModelCheckpoint(tmp_path / "files", filename="{step}", every_n_train_steps=3, save_top_k=-1)
    ours, trainer, module, data = by_hand(tmp_path / "run", saving, **fields)
    trainer.fit(module, datamodule=data)
    logs = [timeless(row) for row in ours[-1].hf_trainer.state.log_history if "eval_loss" in row]
    for path in (tmp_path / "run" / "checkpoint-3", tmp_path / "files" / "step=3.ckpt"):
        _, trainer, module, data = by_hand(tmp_path / "other")
        found = trainer.validate(module, datamodule=data, ckpt_path=path, verbose=False)[0]
        assert {**logs[0], **timeless(found), "epoch": logs[0]["epoch"]} == logs[0]
    module.model.load_state_dict(model().state_dict())
    best = ours[-1].hf_trainer.state.best_metric
    own = lightning.Trainer(callbacks=ours, logger=False, enable_progress_bar=False)
    assert own.validate(module, datamodule=data, ckpt_path="best", verbose=False)[0]["eval_loss"] == best


@pytest.mark.filterwarnings("ignore")  # of loaders, by Lightning, before the errors
def test_what_cannot_be_evaluated_is_refused(tmp_path):
    """Before any work: no data, several loaders, other modules, a module without the callbacks."""
    _, trainer, module, data = by_hand(tmp_path)
    loader = DataLoader(HELD_OUT, batch_size=2, collate_fn=default_data_collator)
    data.test_dataset = None
    with pytest.raises(TrainerSetupError, match=r"`validate` has no data.*HFDataModule\(eval_dataset="):
        trainer.validate(module)
    for call in (trainer.test, trainer.predict):
        with pytest.raises(TrainerSetupError, match=r"has no data.*HFDataModule\(test_dataset="):
            call(module, datamodule=data)
    with pytest.raises(TrainerSetupError, match="Several loaders were given"):
        trainer.validate(module, [loader, loader])
    with pytest.raises(TrainerSetupError, match="BoringModel is not an HFModule"):
        trainer.validate(BoringModel(), loader)
    with pytest.raises(TrainerSetupError, match=r"Pass `hf_compat.lightning.callbacks\(args\)`"):
        plain_trainer(enable_checkpointing=False).validate(module, loader)
    assert "eval_loss" in trainer.validate(module, loader, verbose=False)[0]
