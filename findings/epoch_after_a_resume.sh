#!/usr/bin/env bash
# A litdata loader that is resumed under Lightning leaves out the beginning of the next epoch, too.
#
# Versions:  lightning 2.6.6, litdata 0.2.76, torch 2.13.0, numpy 2.4.6, torchdata 0.11.0; Python 3.11 on a CPU
# Behaviour: Lightning saves the state of a `StreamingDataLoader` and restores it, so that a run goes on with the batch
#            that is next. The epoch after that one begins at the same place again, and the data before it are not seen;
#            the one after is whole. A `StatefulDataLoader` of torchdata in the same run has all of them.
# Seen:      saved after 5 of 20 samples: the epochs of the resumed run have 15, 15 and 20 samples, each of the first
#            two begins with sample 5; with torchdata 15, 20 and 20.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install lightning==2.6.6 litdata==0.2.76 torch==2.13.0 numpy==2.4.6 torchdata==0.11.0
venv/bin/pip uninstall --quiet --yes torchvision  # comes with litdata, not needed, and may be built for another torch
cat >fit.py <<'PYTHON'
import shutil

import lightning.pytorch as pl
import litdata
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torchdata.stateful_dataloader import StatefulDataLoader


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.epochs = {}

    def training_step(self, batch, index):
        if self.current_epoch not in self.epochs:
            self.epochs[self.current_epoch] = []
        self.epochs[self.current_epoch].append(int(batch.item()))
        return self.layer(batch.reshape(1, 1)).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def sample(number):
    return torch.tensor([float(number)])


def of_litdata():
    return litdata.StreamingDataLoader(litdata.StreamingDataset("data"), num_workers=0)


def of_torchdata():
    return StatefulDataLoader(torch.arange(20.0))


def fit(loader, ckpt_path=None):
    model = Model()
    callbacks = [ModelCheckpoint("saved", filename="{step}", every_n_train_steps=5, save_top_k=-1)]
    trainer = pl.Trainer(accelerator="cpu", max_epochs=3, logger=False, callbacks=None if ckpt_path else callbacks,
                         enable_checkpointing=not ckpt_path, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, loader, ckpt_path=ckpt_path)
    return [(len(epoch), epoch[0]) for epoch in model.epochs.values()]


if __name__ == "__main__":
    litdata.optimize(sample, list(range(20)), "data", chunk_size=4, num_workers=1, verbose=False)
    seen = {}
    for make in (of_torchdata, of_litdata):
        shutil.rmtree("saved", ignore_errors=True)
        assert fit(make()) == [(20, 0)] * 3
        seen[make.__name__] = fit(make(), ckpt_path="saved/step=5.ckpt")
        print(f"{make.__name__}: samples of each epoch after the resume, and the first: {seen[make.__name__]}")
    assert seen["of_torchdata"] == [(15, 5), (20, 0), (20, 0)], seen
    assert seen["of_litdata"] == [(15, 5), (15, 5), (20, 0)], seen
PYTHON
venv/bin/python fit.py
