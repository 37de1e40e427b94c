"""Train a transformers model with Lightning alone, and save checkpoints that ``from_pretrained`` loads.

It uses no Trainer of hf_compat: ``HFCheckpointIO`` is a plugin of ``lightning.Trainer``. Nothing is downloaded:

    pip install -e ".[quickstart]"
    python examples/pure_lightning.py [output folder]
"""

import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from hf_compat import HFCheckpointIO


class LanguageModel(pl.LightningModule):
    """Learns to count: each token is the one before it, plus one."""

    def __init__(self):
        super().__init__()
        sizes = {"vocab_size": 20, "n_positions": 8, "n_embd": 32, "n_layer": 1, "n_head": 2}
        self.model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))

    def training_step(self, batch, batch_idx):
        return self.model(input_ids=batch, labels=batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def train(folder, epochs, ckpt_path=None):
    """Train until ``epochs`` epochs are completed, resumed from ``ckpt_path`` if given; return the module."""
    pl.seed_everything(0, verbose=False)
    module = LanguageModel()
    saving = ModelCheckpoint(folder, filename="epoch", save_top_k=-1, save_last=True)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=[saving],
        plugins=[HFCheckpointIO()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    starts = torch.randint(0, 12, (256, 1))
    trainer.fit(module, DataLoader(starts + torch.arange(8), batch_size=16, shuffle=True), ckpt_path=ckpt_path)
    return module


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "counting")
    uninterrupted = train(folder / "uninterrupted", epochs=6)
    train(folder / "resumed", epochs=3)
    resumed = train(folder / "resumed", epochs=6, ckpt_path=folder / "resumed" / "last.ckpt")
    model = GPT2LMHeadModel.from_pretrained(folder / "resumed" / "last.ckpt").eval()
    tokens = model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=5, do_sample=False, pad_token_id=0)
    weights = zip(uninterrupted.parameters(), resumed.parameters(), strict=True)
    equal = all(torch.equal(one, other) for one, other in weights)
    print(f"3 4 5 is continued by {tokens[0, 3:].tolist()}; resumed and uninterrupted, the weights are equal: {equal}")


if __name__ == "__main__":
    main()
