"""Run a YAML file by ``HFLightningCLI``; write what the command returns to ``result.pt``."""

from __future__ import annotations

import torch

from hf_compat.lightning import HFDataModule, HFModule
from hf_compat.lightning.cli import HFLightningCLI
from tests.support.helpers import ListDataset, PlainModel, vector_rows


class Rows(HFDataModule):
    """Random rows, as many as the file says."""

    def __init__(self, train: int, held_out: int = 9) -> None:
        super().__init__()
        self.counts = train, held_out

    def setup(self, stage: str) -> None:
        train, held_out = (ListDataset(vector_rows(count, seed=seed)) for seed, count in enumerate(self.counts))
        self.train_dataset, self.eval_dataset, self.test_dataset = train, held_out, held_out


class Plain(HFModule):
    """The model of tests, with the loss scaled."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__(PlainModel(), compute_metrics=hits)
        self.scale = scale

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        return (self.scale * loss, outputs) if return_outputs else self.scale * loss


def hits(prediction):
    """The share of right predictions."""
    return {"hits": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


if __name__ == "__main__":
    cli = HFLightningCLI()
    torch.save({"output": tuple(cli.output.items() if isinstance(cli.output, dict) else cli.output)}, "result.pt")
