"""A small script for transformers' Trainer, with options that make it fail or depend on who trains."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments, set_seed


@dataclass
class Own:
    fail: bool = field(default=False, metadata={"help": "Fail after training."})
    write: str = field(default="", metadata={"help": "A file to write."})
    shift: float = field(default=0.0, metadata={"help": "Added to a weight after two steps of our Trainer."})


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        features = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return {"x": features, "labels": (features[0] > 0).long()}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(16, 2)

    def forward(self, x, labels=None):
        logits = self.head(self.body(x))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Shift(TrainerCallback):
    def __init__(self, by):
        self.by = by

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == 2 and Trainer.__module__.startswith("hf_compat"):
            model.body[0].weight.data[0, 0] += self.by


def main():
    args, own = HfArgumentParser((TrainingArguments, Own)).parse_args_into_dataclasses()
    set_seed(args.seed)
    trainer = Trainer(model=Model(), args=args, train_dataset=Rows(), eval_dataset=Rows(), callbacks=[Shift(own.shift)])
    trainer.train()
    trainer.save_model("final")
    print(trainer.evaluate())
    if own.write:
        Path(own.write).write_text("written by the script")
    if own.fail:
        sys.exit(f"this script fails: {sys.argv}")


if __name__ == "__main__":
    main()
