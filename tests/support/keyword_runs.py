"""Runs with keywords of ``lightning.Trainer``: a Trainer of a plain model, a minimal module, and what they leave."""

import lightning.pytorch as pl
import torch

from hf_compat import TrainerCallback
from tests.support.helpers import ListDataset, vector_rows
from tests.support.trainers import new_trainer


def trainer_of_12(folder, lightning=None, *, train=None, **fields):
    """Return a Trainer of a plain model on 12 samples, 6 batches an epoch, and 9 for evaluation, 5 batches."""
    torch.manual_seed(0)
    given = {"eval_dataset": ListDataset(vector_rows(9, seed=1)), "lightning": lightning}
    batches = {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2}
    fields = {"num_train_epochs": 2, "logging_steps": 1, "save_strategy": "no", **batches, **fields}
    return new_trainer(folder, rows=12, train_dataset=train, given=given, **fields)


def train_alike(*trainers, **resume):
    """Train each from the same state of the random generator."""
    for trainer in trainers:
        torch.manual_seed(0)
        trainer.train(**resume)


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def evaluated_at(trainer):
    return [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry]


def weights(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def assert_same_weights(first, second):
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


class Batches(TrainerCallback):
    """Counts prediction batches, and those before the first update step."""

    def __init__(self):
        self.predicted = 0

    def on_prediction_step(self, args, state, control, **kwargs):
        self.predicted += 1


class Plain(pl.LightningModule):
    """A minimal module: the model's loss, and SGD at a constant rate."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, _):
        return self.model(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
