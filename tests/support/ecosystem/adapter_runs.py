"""Runs of PEFT and of adapters, which train a few weights beside a model's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.support.ecosystem.pieces import EVALUATED, encoder, library_run, output, texts, tokenizer_of


def labelled(rows: int, folder: Path) -> Any:
    """Return sentences of five words as numbers, each with a label of two."""
    words = tokenizer_of(encoder(folder))
    found = texts(rows, "text", labels=lambda number: number % 2)
    return found.map(lambda row: words(row["text"]), remove_columns=["text"])


@library_run
def lora(folder: Path) -> Any:
    """The name that ``install`` replaces, without a subclass."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(encoder(folder), num_labels=2)
    chosen = LoraConfig(r=4, lora_dropout=0.1, task_type="SEQ_CLS", target_modules=["query", "value"], use_dora=True)
    args = TrainingArguments(output(folder), **EVALUATED)
    rows, others = labelled(12, folder), labelled(4, folder)
    return Trainer(get_peft_model(model, chosen), args, train_dataset=rows, eval_dataset=others)


def with_adapters(folder: Path, *names: str) -> Any:
    from adapters import AutoAdapterModel

    torch.manual_seed(0)
    model = AutoAdapterModel.from_pretrained(encoder(folder))
    for name in names:
        model.add_adapter(name, config="seq_bn")
    model.add_classification_head(names[0], num_labels=2)
    return model


def adapter_trainer(folder: Path, model: Any) -> Any:
    from adapters import AdapterTrainer
    from transformers import TrainingArguments

    args = TrainingArguments(output(folder), **EVALUATED)
    rows, others = labelled(12, folder), labelled(4, folder)
    return AdapterTrainer(model=model, args=args, train_dataset=rows, eval_dataset=others)


@library_run
def adapter(folder: Path) -> Any:
    """A checkpoint holds the adapter and the head alone, which the library's Trainer writes and loads itself."""
    model = with_adapters(folder, "one")
    model.train_adapter("one")
    return adapter_trainer(folder, model)


@library_run
def adapter_fusion(folder: Path) -> Any:
    """A callback of the library's adds to gradients after an update step, which the next one uses."""
    from adapters.composition import Fuse

    model = with_adapters(folder, "one", "two")
    fused = Fuse("one", "two")
    model.add_adapter_fusion(fused)
    model.train_adapter_fusion(fused)
    return adapter_trainer(folder, model)
