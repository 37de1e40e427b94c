"""``hf-compat convert`` and models that transformers does not know, whose files do not have the order of parameters."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import transformers
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler

from hf_compat import Trainer, TrainingArguments
from hf_compat.checkpoint import names
from hf_compat.errors import CheckpointError
from hf_compat.tools.convert.conversion import convert
from hf_compat.tools.convert.options import Options
from tests.support import helpers
from tests.tools.test_convert import assert_equal, by_name, told

ROWS = helpers.vector_rows(12)
STEPS = 6

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Backwards(nn.Module):
    """A model whose parameters are not in the order of their names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.z = nn.Linear(helpers.WIDTH, helpers.WIDTH)
        self.a = nn.Linear(helpers.WIDTH, helpers.WIDTH)

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.cross_entropy(self.a(self.z(features)), labels)}


class Module(pl.LightningModule):
    """The same for Lightning, with one group of parameters and no schedule."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Backwards()

    def training_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
        return self.model(**batch)["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.0)


def lightning_run(folder: Path, module: Module, *, resume: Path | None = None) -> pl.Trainer:
    """Train with ``lightning.Trainer``, rows in order, with a checkpoint for each epoch."""
    saves = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, auto_insert_metric_name=False)
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(accelerator="cpu", callbacks=[saves], max_epochs=2, **quiet)
        loader = DataLoader(helpers.ListDataset(ROWS), 4, collate_fn=transformers.default_data_collator)
        trainer.fit(module, loader, ckpt_path=resume)
    return trainer


def trainer_run(folder: Path, *, library: Any = None, resume: Path | None = None) -> Any:
    """Train with a Trainer, with the same updates."""
    trainer_class, arguments_class = (
        (Trainer, TrainingArguments) if library is None else (library.Trainer, library.TrainingArguments)
    )

    class InOrder(trainer_class):
        def _get_train_sampler(self, *args: Any) -> SequentialSampler:
            return SequentialSampler(self.train_dataset)

    args = arguments_class(
        str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        optim="adamw_torch",
        max_grad_norm=0.0,
        save_strategy="epoch",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = InOrder(Backwards(), args, train_dataset=helpers.ListDataset(ROWS))
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return trainer


def test_one_group_for_lightning(tmp_path):
    """A Trainer's checkpoint has the order of the parameters, so that each gets its own state in one group."""
    whole = trainer_run(tmp_path / "ours")
    made = convert(tmp_path / "ours" / "checkpoint-3", tmp_path / "one.ckpt", Options(groups="one"))
    assert told(made, "they begin with `model.`")
    module = Module()
    resumed = lightning_run(tmp_path / "run", module, resume=tmp_path / "one.ckpt")
    assert resumed.global_step == STEPS
    assert_equal(module.model.state_dict(), whole.model.state_dict())
    assert_equal(by_name(resumed.optimizers[0], module.model), by_name(whole.optimizer, whole.model))


def test_an_unknown_order_is_refused(tmp_path):
    """A checkpoint of transformers lacks the order; in the Trainer's own groups nothing depends on it."""
    trainer_run(tmp_path / "theirs", library=transformers)
    folder = tmp_path / "theirs" / "checkpoint-3"
    with pytest.raises(CheckpointError, match="`--groups one`: the order of the model's parameters is not known"):
        convert(folder, tmp_path / "one.ckpt", Options(groups="one"))
    assert not (tmp_path / "one.ckpt").exists()
    convert(folder, tmp_path / "kept.ckpt")
    kept = torch.load(tmp_path / "kept.ckpt", weights_only=True)["optimizer_states"][0]
    assert_equal(kept, torch.load(folder / names.OPTIMIZER_NAME))


def test_a_trainer_goes_on_without_a_schedule(tmp_path):
    """Learning rates without a schedule go on, with the optimizer's state; what becomes of names and groups is said."""
    module = Module()
    whole = lightning_run(tmp_path / "run", module)
    made = convert(tmp_path / "run" / "3.ckpt", tmp_path / "checkpoint-3", Options(batch_size=4))
    for word in ("`model.`, with which they begin", "the optimizer's groups", "the schedule: the checkpoint has none"):
        assert told(made, word), word

    class OneGroup(Trainer):
        def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, weight_decay=0.0)
            return self.optimizer

        def _get_train_sampler(self, *args: Any) -> SequentialSampler:
            return SequentialSampler(self.train_dataset)

    args = TrainingArguments(
        str(tmp_path / "ours"), num_train_epochs=2, per_device_train_batch_size=4, lr_scheduler_type="constant",
        max_grad_norm=0.0, save_strategy="no", use_cpu=True, report_to=[], disable_tqdm=True,
    )  # fmt: skip
    resumed = OneGroup(Backwards(), args, train_dataset=helpers.ListDataset(ROWS))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.state.global_step == STEPS
    assert_equal(resumed.model.state_dict(), module.model.state_dict())
    assert_equal(by_name(resumed.optimizer, resumed.model), by_name(whole.optimizers[0], module.model))


def test_an_optimizer_that_finds_its_own_learning_rates(tmp_path):
    """Of these there is no schedule to write; what a Trainer does not load without one is said."""

    class Finds(Module):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return transformers.Adafactor(self.parameters())

    lightning_run(tmp_path / "run", Finds())
    made = convert(tmp_path / "run" / "3.ckpt", tmp_path / "checkpoint-3", Options(batch_size=4))
    assert told(made, "without one a Trainer does not load the optimizer's state")
    assert not (tmp_path / "checkpoint-3" / names.SCHEDULER_NAME).exists()


def test_a_state_that_is_not_loaded_is_named(tmp_path, caplog):
    """Like transformers, a Trainer loads no optimizer's state without the schedule's; it says so."""
    trainer_run(tmp_path / "ours")
    folder = tmp_path / "ours" / "checkpoint-3"
    (folder / names.SCHEDULER_NAME).unlink()
    with caplog.at_level(logging.WARNING):
        resumed = trainer_run(tmp_path / "again", resume=folder)
    assert "no `scheduler.pt`, without which the optimizer's state is not loaded either" in caplog.text
    assert {int(state["step"]) for state in resumed.optimizer.state.values()} == {3}
