#!/usr/bin/env bash
# A loader that can be resumed loses a batch under Lightning, if its length is not known.
#
# Versions:  lightning 2.6.6, torchdata 0.11.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: Lightning saves the state of a `StatefulDataLoader`. Where it does not know the length it fetches a batch
#            ahead, to see the end coming; the state that it saves is the one after that batch, which a resumed run
#            never trains on. The same with the `Loader` of `torchdata.nodes`.
# Seen:      saved after the batches 0, 1 and 2, the resumed run began with 4 over a stream and with torchdata.nodes,
#            and with 3 over a dataset that has a length.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install lightning==2.6.6 torch==2.13.0 numpy==2.4.6 torchdata==0.11.0
run <<'PYTHON'
import lightning.pytorch as pl
import torch
import torchdata.nodes
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import IterableDataset, SequentialSampler
from torchdata.stateful_dataloader import StatefulDataLoader


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(10.0))


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, batch, index):
        self.seen.append(int(batch.item()))
        return self.layer(batch.reshape(1, 1)).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def stream():
    return StatefulDataLoader(Stream())


def with_length():
    return StatefulDataLoader(torch.arange(10.0))


def nodes():
    values = torch.arange(10.0)
    return torchdata.nodes.Loader(torchdata.nodes.MapStyleWrapper(values, SequentialSampler(values)))


def fit(model, loader, callbacks=None, ckpt_path=None):
    trainer = pl.Trainer(accelerator="cpu", max_epochs=1, logger=False, callbacks=callbacks,
                         enable_checkpointing=callbacks is not None, enable_progress_bar=False,
                         enable_model_summary=False)
    trainer.fit(model, loader, ckpt_path=ckpt_path)
    return model.seen


def after_three(make):
    folder = make.__name__
    fit(Model(), make(), [ModelCheckpoint(folder, filename="{step}", every_n_train_steps=3, save_top_k=-1)])
    return fit(Model(), make(), ckpt_path=f"{folder}/step=3.ckpt")


seen = {make.__name__: after_three(make) for make in (with_length, stream, nodes)}
for name, values in seen.items():
    print(f"{name}: saved after 0, 1, 2; the resumed run trained on {values}")
assert seen["with_length"][0] == 3
assert seen["stream"][0] == seen["nodes"][0] == 4
PYTHON
