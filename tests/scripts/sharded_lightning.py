"""Run by tests on two ranks: ``sharded_lightning.py FOLDER``, where Lightning saves each rank's shards."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

from tests.support import helpers
from tests.tools.test_convert import ROWS, Module


class Sharded(Module):
    """The module of the tests, each of whose ranks has a part of every parameter."""

    def configure_model(self) -> None:
        """Shard the blocks, then the rest."""
        mesh = self.device_mesh["data_parallel"]
        for block in self.model.transformer.h:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)


def main(folder: Path) -> None:
    """Train an epoch; save the shards, and from rank 0 the full weights and optimizer state beside them."""
    warnings.simplefilter("ignore")
    strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo")
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Sharded()
    trainer.fit(module, DataLoader(helpers.ListDataset(ROWS), 2, collate_fn=helpers.PadCollator()))
    trainer.save_checkpoint(folder)
    full = {name: value.full_tensor() for name, value in module.model.named_parameters()}
    states = trainer.optimizers[0].state
    averages = {name: states[value]["exp_avg"].full_tensor() for name, value in module.model.named_parameters()}
    if trainer.is_global_zero:
        torch.save({"weights": full, "exp_avg": averages}, folder.with_suffix(".expected"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
