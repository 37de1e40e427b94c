"""The three trainers that most scenarios vary: a language model, a classifier and a plain module."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support import helpers
from tests.support.parity import Kit


def language_model(kit: Kit, *, rows: int = 14, subclass: Any = None, fields: Any = None, **given: Any) -> Any:
    """Return a Trainer of a GPT-2 with dropout on ragged rows whose labels are partly -100.

    Args:
        kit: The library under test.
        rows: Size of the training set; 5 rows are evaluated.
        subclass: The Trainer to use instead of the library's.
        fields: Training arguments.
        **given: Further arguments of the Trainer, over those chosen here.
    """
    chosen = {
        "args": kit.args(**(fields or {})),
        "train_dataset": helpers.ListDataset(helpers.token_rows(rows)),
        "eval_dataset": helpers.ListDataset(helpers.token_rows(5, seed=1)),
        "data_collator": helpers.PadCollator(),
    }
    if "model" not in given and "model_init" not in given:
        chosen["model"] = kit.model(helpers.gpt2)
    return kit.trainer(subclass, **{**chosen, **given})


def classifier(kit: Kit, *, rows: int = 14, subclass: Any = None, fields: Any = None, **given: Any) -> Any:
    """Return a Trainer of a BERT classifier that reports its accuracy; arguments as in ``language_model``."""
    chosen = {
        "args": kit.args(**(fields or {})),
        "train_dataset": helpers.ListDataset(helpers.labelled_rows(rows)),
        "eval_dataset": helpers.ListDataset(helpers.labelled_rows(7, seed=1)),
        "data_collator": helpers.PadCollator(),
        "compute_metrics": accuracy,
    }
    if "model" not in given and "model_init" not in given:
        chosen["model"] = kit.model(helpers.bert_classifier)
    return kit.trainer(subclass, **{**chosen, **given})


def plain(kit: Kit, *, rows: int = 14, subclass: Any = None, fields: Any = None, **given: Any) -> Any:
    """Return a Trainer of a module that is not transformers'; arguments as in ``language_model``."""
    chosen = {
        "args": kit.args(**(fields or {})),
        "train_dataset": helpers.ListDataset(helpers.vector_rows(rows)),
        "eval_dataset": helpers.ListDataset(helpers.vector_rows(7, seed=1)),
    }
    if "model" not in given and "model_init" not in given:
        chosen["model"] = kit.model(helpers.PlainModel)
    return kit.trainer(subclass, **{**chosen, **given})


def accuracy(prediction: Any) -> dict[str, float]:
    """Return the share of classes that were predicted right."""
    logits, labels = prediction
    return {"accuracy": (np.argmax(logits, axis=-1) == labels).mean()}
