"""``ModelCheckpoint`` in a run of ours keeps the files that it keeps in a plain Lightning run."""

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader

from hf_compat import Trainer, TrainerCallback
from tests.support.trainers import arguments

BATCH, EPOCHS, STEPS = 2, 4, 3
ROWS = [{"x": torch.ones(1), "labels": torch.ones(1)} for _ in range(BATCH * STEPS)]


class Scripted(nn.Module):
    """A model whose evaluation loss after ``n`` update steps is the ``n``-th of ``losses``."""

    def __init__(self, losses):
        super().__init__()
        self.layer, self.losses = nn.Linear(1, 1), losses
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x, labels=None):
        self.steps += self.training
        predicted = self.layer(x)
        loss = nn.functional.mse_loss(predicted, labels)
        return {"loss": loss if self.training else loss * 0 + self.losses[int(self.steps)], "predicted": predicted}


class Plain(pl.LightningModule):
    """The same as a LightningModule."""

    def __init__(self, losses):
        super().__init__()
        self.model = Scripted(losses)

    def training_step(self, batch, _):
        return self.model(**batch)["loss"]

    def validation_step(self, batch, _):
        self.log("eval_loss", self.model(**batch)["loss"])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class KilledError(Exception):
    """The end of a run that is resumed."""


class DieAfter(Checkpoint):
    """Saves a Lightning checkpoint after the evaluation of an update step, after which the run dies.

    A ``Checkpoint``, as those are called last, in their order: after the ``ModelCheckpoint`` before it.
    """

    def __init__(self, path, step):
        self.path, self.step = path, step

    def on_validation_end(self, trainer, pl_module):
        if trainer.val_check_interval != 1.0:
            self.save(trainer)

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.val_check_interval == 1.0:
            self.save(trainer)

    def save(self, trainer):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            raise KilledError


class DieAfterSaving(TrainerCallback):
    """Ends a run of ours after its checkpoint of an update step."""

    def __init__(self, step):
        self.step = step

    def on_save(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KilledError


def saver(folder, saving):
    return ModelCheckpoint(folder, "{epoch}-{step}", **saving)


def fit_plain(folder, losses, saving, every, *, die=None, resume=None):
    """Train with plain Lightning, and return its ``ModelCheckpoint``."""
    saves = saver(folder / "kept", saving)
    ending = [] if die is None else [DieAfter(folder / "it", die)]
    keywords = {} if every is None else {"val_check_interval": every, "check_val_every_n_epoch": None}
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=EPOCHS, callbacks=[saves, *ending], logger=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, **keywords,
    )  # fmt: skip
    loader = DataLoader(ROWS, BATCH)
    trainer.fit(Plain(losses), loader, loader, ckpt_path=folder / "it" if resume else None, weights_only=False)
    return saves


def fit_ours(folder, losses, saving, every, *, die=None, resume=None):
    """Train with our Trainer, and return its ``ModelCheckpoint``."""
    saves = saver(folder / "kept", saving)
    strategy = "epoch" if every is None else "steps"
    args = arguments(
        folder,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        eval_strategy=strategy,
        save_strategy=strategy,
        eval_steps=every,
        save_steps=every or 500,
        logging_steps=1,
    )
    callbacks = [saves] if die is None else [saves, DieAfterSaving(die)]
    trainer = Trainer(Scripted(losses), args, train_dataset=ROWS, eval_dataset=ROWS, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-{resume}" if resume else None)
    return saves


def kept(folder, saves):
    """Return update step and epoch of each file, and what ``saves`` remembers."""
    files = {path.name: torch.load(path, weights_only=False) for path in (folder / "kept").iterdir()}
    remembered = (saves.best_model_path, saves.last_model_path, saves.kth_best_model_path)
    return (
        {name: (content["global_step"], content["epoch"]) for name, content in files.items()},
        [path.rpartition("/")[2] for path in remembered],
        saves.best_model_score,
        {path.rpartition("/")[2]: float(score) for path, score in saves.best_k_models.items()},
    )


BETTER_AFTER = [9, 9, 8, 7, 7, 7, 8, 6, 5, 5, 4, 6, 6]
WORSE_AFTER = [9, 9, 3, 2, 4, 4, 3, 9, 8, 7, 6, 5, 5]
BEST = {"monitor": "eval_loss", "save_last": True}
LINK = {"monitor": "eval_loss", "save_last": "link", "save_top_k": 2}


@pytest.mark.parametrize(
    ("saving", "every", "losses", "last"),
    [
        pytest.param(BEST, None, BETTER_AFTER, (9, 2), id="best, and last, of epochs"),
        pytest.param(BEST, None, WORSE_AFTER, (12, 4), id="as Lightning does at the end of a run that saved nothing"),
        pytest.param(BEST, 2, BETTER_AFTER, (10, 3), id="best, and last, of update steps"),
        pytest.param(LINK, None, WORSE_AFTER, (12, 4), id="best two, and a link, of epochs"),
        pytest.param(LINK, 2, BETTER_AFTER, (10, 3), id="best two, and a link, of update steps"),
        pytest.param({"save_last": True}, None, BETTER_AFTER, (12, 3), id="newest, and last"),
        pytest.param({"save_last": True, "save_top_k": 0}, 2, WORSE_AFTER, (12, 4), id="last alone"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning:lightning")  # of plain Lightning: no workers, few batches
@pytest.mark.filterwarnings("ignore:.*isinstance\\(treespec, LeafSpec\\):FutureWarning")
def test_a_resumed_run_keeps_the_files_of_plain_lightning(tmp_path, saving, every, losses, last):
    """Files, with their ``{epoch}``, and what the callback remembers are equal after a run killed in the middle."""
    seen = []
    for fit in (fit_plain, fit_ours):
        with pytest.raises(KilledError):
            fit(tmp_path / fit.__name__, losses, saving, every, die=6)
        seen.append(kept(tmp_path / fit.__name__, fit(tmp_path / fit.__name__, losses, saving, every, resume=6)))
    assert seen[0] == seen[1]
    files, (_, last_path, _), *_ = seen[1]
    assert files[last_path] == last


def test_epochs_in_names_follow_no_log(tmp_path):
    """``{epoch}`` is that of the save, counted from 0, though the last log was in the first epoch."""
    args = arguments(
        tmp_path,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        logging_steps=500,
        logging_first_step=True,
        save_strategy="no",
    )
    saves = saver(tmp_path / "kept", {"save_top_k": -1})
    Trainer(Scripted([1.0] * 20), args, train_dataset=ROWS, callbacks=[saves]).train()
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert names == ["epoch=0-step=3.ckpt", "epoch=1-step=6.ckpt", "epoch=2-step=9.ckpt", "epoch=3-step=12.ckpt"]
