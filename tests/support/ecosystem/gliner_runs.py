"""Runs of GLiNER, which finds what is named in a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.support.ecosystem.pieces import EVALUATED, encoder, library_run, output, sentence, tokenizer_of


def tagged(rows: int) -> list[dict[str, Any]]:
    """Return sentences of six words, two of which stand for something."""
    return [
        {"tokenized_text": sentence(number, 6).split(), "ner": [[0, number % 2, "thing"], [3, 4, "place"]]}
        for number in range(rows)
    ]


@library_run
def gliner(folder: Path) -> Any:
    """The library makes its optimizer and its loader, and loads checkpoints of its own form."""
    from gliner import GLiNER, GLiNERConfig
    from gliner.data_processing.collator import SpanDataCollator
    from gliner.training import Trainer, TrainingArguments

    config = GLiNERConfig(model_name=encoder(folder), hidden_size=16, max_width=3, max_len=32, num_rnn_layers=1)
    torch.manual_seed(0)
    model = GLiNER.from_config(config)
    args = TrainingArguments(output(folder), others_lr=5e-3, masking="none", **EVALUATED)
    # The library asks whether there is such a field, which transformers 5 has no more and hf_compat always has.
    args.save_safetensors = True
    return Trainer(
        model=model,
        args=args,
        train_dataset=tagged(12),
        eval_dataset=tagged(4),
        processing_class=tokenizer_of(encoder(folder)),
        data_collator=SpanDataCollator(model.config, data_processor=model.data_processor, prepare_labels=True),
    )
