"""What the page for those who come from Lightning says of numbers."""

import copy

import lightning
import pytest
import torch
from torch.utils.data import DataLoader

from hf_compat import Trainer
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.trainers import arguments


class Module(lightning.LightningModule):
    """A model that returns its loss, as a person trains it with Lightning."""

    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def training_step(self, batch, batch_idx):
        return self.loss(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01, weight_decay=0.0)


@pytest.mark.filterwarnings(r"ignore:`?isinstance\(treespec, LeafSpec\):FutureWarning")  # Lightning's
@pytest.mark.filterwarnings("ignore:.*does not have many workers")  # which it advises
def test_a_run_of_plain_lightning_ends_with_the_same_weights(tmp_path):
    """With the defaults undone that differ, and one order of samples, weights are equal to the last bit."""
    torch.manual_seed(0)
    rows = [{name: torch.tensor(value) for name, value in row.items()} for row in vector_rows(20)]
    theirs = PlainModel(dropout=0.0)
    ours = copy.deepcopy(theirs)
    plain = lightning.Trainer(
        accelerator="cpu",
        max_epochs=3,
        gradient_clip_val=0.5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    plain.fit(Module(theirs), DataLoader(rows, 8, shuffle=False))
    args = arguments(
        tmp_path,
        num_train_epochs=3,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        max_grad_norm=0.5,
        optim="adamw_torch",
        train_sampling_strategy="sequential",
        save_strategy="no",
    )
    Trainer(ours, args, train_dataset=ListDataset(rows)).train()
    for name, weight in theirs.state_dict().items():
        assert torch.equal(weight, ours.state_dict()[name])
