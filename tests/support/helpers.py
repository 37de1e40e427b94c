"""Tiny models, data sets and collators that train in milliseconds and are the same on every run.

transformers, datasets and tokenizers are imported where they are needed: a test that blocks transformers can still use
the plain parts. Token 0 is padding everywhere and never occurs in a row.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, get_worker_info

VOCABULARY = 48
WIDTH = 16
CLASSES = 3
IGNORED = -100
RELEASE_4, RELEASE_5 = "4.57.6", "5.24.0"
"""A release of transformers 4 and one of 5 whose semantics tests ask for."""

Row = dict[str, Any]


# Rows


def token_rows(count: int, *, shortest: int = 3, longest: int = 10, seed: int = 0) -> list[Row]:
    """Return rows for a language model: ragged ``input_ids``, and ``labels`` whose first third is not scored."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        tokens = [draw.randrange(4, VOCABULARY) for _ in range(draw.randint(shortest, longest))]
        hidden = len(tokens) // 3
        rows.append({"input_ids": tokens, "labels": [IGNORED] * hidden + tokens[hidden:]})
    return rows


def labelled_rows(count: int, *, seed: int = 0) -> list[Row]:
    """Return rows for a classifier of token sequences: ragged ``input_ids`` and a class that depends on them."""
    return [
        {"input_ids": row["input_ids"], "labels": sum(row["input_ids"]) % CLASSES}
        for row in token_rows(count, seed=seed)
    ]


def translation_rows(count: int, *, seed: int = 0) -> list[Row]:
    """Return rows for an encoder-decoder model: ragged ``input_ids`` and their reversal as ``labels``."""
    return [{"input_ids": row["input_ids"], "labels": row["input_ids"][::-1]} for row in token_rows(count, seed=seed)]


def vector_rows(count: int, *, seed: int = 0) -> list[Row]:
    """Return rows for a plain module: ``features``, ``WIDTH`` floats, and a class in ``labels``."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        features = [draw.uniform(-1.0, 1.0) for _ in range(WIDTH)]
        rows.append({"features": features, "labels": int(3 * (features[0] + 1) / 2)})
    return rows


# Data sets


class ListDataset(Dataset[Row]):
    """A data set that holds its rows in memory."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return dict(self.rows[index])


class Stream(IterableDataset[Row]):
    """A data set that can only be read in order."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Row]:
        return (dict(row) for row in self.rows)


class SizedStream(Stream):
    """A stream that knows its length."""

    def __len__(self) -> int:
        return len(self.rows)


class ReshuffledStream(Stream):
    """A stream whose order follows from the epoch it is told."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Row]:
        rows = list(self.rows)
        random.Random(self.epoch).shuffle(rows)
        return (dict(row) for row in rows)


class Reading(IterableDataset[Row]):
    """A stream that says where it is and notes in a file what it reads; workers take rows in turn."""

    def __init__(self, rows: list[Row], notes: Path) -> None:
        self.rows, self.notes, self.next, self.epoch = rows, notes, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.resumed = dict(state)

    def __iter__(self) -> Iterator[Row]:
        worker = get_worker_info()
        step, first = (1, 0) if worker is None else (worker.num_workers, worker.id)
        resumed = getattr(self, "resumed", {})
        self.next = resumed["next"] if resumed.get("epoch") == self.epoch else 0
        while self.next * step + first < len(self.rows):
            number = self.next * step + first
            self.next += 1
            with open(self.notes, "a") as notes:
                notes.write(f"{number} ")
            yield dict(self.rows[number])


# Loaders and collators


def shuffled(workers: int = 0, drop_last: bool = False) -> DataLoader[int]:
    """Return a loader of the numbers below 10 in random order, in batches of 3."""
    data: Any = list(range(10))
    return DataLoader(data, batch_size=3, sampler=RandomSampler(data), num_workers=workers, drop_last=drop_last)


class PadCollator:
    """Pad ``input_ids`` with 0 and ragged ``labels`` with -100 to the longest row of the batch.

    Args:
        attention_mask: Whether to add ``attention_mask``, 1 on tokens and 0 on padding.
    """

    def __init__(self, *, attention_mask: bool = True) -> None:
        self.attention_mask = attention_mask

    def __call__(self, rows: list[Row]) -> dict[str, Tensor]:
        """Return the batch; extra keys of the rows are stacked as they are."""
        batch = {key: self._column(key, [row[key] for row in rows]) for key in rows[0]}
        if self.attention_mask:
            ones = [[1] * len(row["input_ids"]) for row in rows]
            batch["attention_mask"] = self._column("attention_mask", ones)
        return batch

    def _column(self, key: str, values: list[Any]) -> Tensor:
        if not isinstance(values[0], list):
            return torch.tensor(values)
        filler = IGNORED if key == "labels" else 0
        longest = max(len(value) for value in values)
        return torch.tensor([value + [filler] * (longest - len(value)) for value in values])


class NoisyCollator(PadCollator):
    """Replace one token in four by a random one, drawn from torch's global generator as the batch is fetched."""

    def __call__(self, rows: list[Row]) -> dict[str, Tensor]:
        batch = super().__call__(rows)
        tokens = batch["input_ids"]
        hit = torch.rand(tokens.shape) < 0.25
        batch["input_ids"] = torch.where(hit, torch.randint(4, VOCABULARY, tokens.shape), tokens)
        return batch


# Models


class PlainModel(nn.Module):
    """A classifier of feature vectors that knows nothing of transformers; its outputs are a dict or a tuple.

    Args:
        outputs: What ``forward`` returns.
        dropout: Share of the hidden layer that is dropped in training.
    """

    def __init__(self, outputs: str = "dict", dropout: float = 0.1) -> None:
        super().__init__()
        self.outputs = outputs
        self.body = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU(), nn.Dropout(dropout), nn.Linear(WIDTH, CLASSES)
        )

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Any:
        """Return logits, with a loss if there are labels."""
        logits = self.body(features)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        if self.outputs == "dict":
            return {"logits": logits} if loss is None else {"loss": loss, "logits": logits}
        return (logits,) if loss is None else (loss, logits)


def gpt2(*, dropout: float = 0.1, **config: Any) -> nn.Module:
    """Return a GPT-2 of two layers; it scores shifted labels and takes ``num_items_in_batch``."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": VOCABULARY, "n_positions": 32, "n_embd": WIDTH, "n_layer": 2, "n_head": 2}
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    return GPT2LMHeadModel(GPT2Config(**{**sizes, **rates, **config}, bos_token_id=1, eos_token_id=2, pad_token_id=0))


def _bert_config(**config: Any) -> Any:
    from transformers import BertConfig

    sizes = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
    return BertConfig(**sizes, intermediate_size=2 * WIDTH, max_position_embeddings=32, **config)


def bert_classifier(**config: Any) -> nn.Module:
    """Return a BERT of two layers with a head for ``CLASSES`` classes; its loss is a plain mean."""
    from transformers import BertForSequenceClassification

    return BertForSequenceClassification(_bert_config(num_labels=CLASSES, **config))


def bert_masked_lm() -> nn.Module:
    """Return a BERT of two layers that predicts masked tokens."""
    from transformers import BertForMaskedLM

    return BertForMaskedLM(_bert_config())


def t5() -> nn.Module:
    """Return a T5 of two layers, an encoder-decoder model with dropout."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 8, "d_ff": 2 * WIDTH, "num_layers": 2, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0))


def tokenizer() -> Any:
    """Return a tokenizer of ``VOCABULARY`` words, ``w4`` to ``w47`` behind four special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "[PAD]", "bos_token": "[BOS]", "eos_token": "[EOS]", "mask_token": "[MASK]"}
    words = [*special.values(), *(f"w{number}" for number in range(len(special), VOCABULARY))]
    vocabulary = {word: number for number, word in enumerate(words)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="[PAD]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, **special)


# Callbacks


CONTROL_FLAGS = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")
"""The flags of ``TrainerControl``, in the order in which they are recorded."""

EVENTS = (
    "on_init_end",
    "on_train_begin",
    "on_epoch_begin",
    "on_step_begin",
    "on_substep_end",
    "on_pre_optimizer_step",
    "on_optimizer_step",
    "on_step_end",
    "on_epoch_end",
    "on_log",
    "on_prediction_step",
    "on_evaluate",
    "on_predict",
    "on_save",
    "on_train_end",
)
"""Every event that a local run can fire."""


def _recorder(event: str) -> Any:
    def record(self: Any, args: Any, state: Any, control: Any, **given: Any) -> None:
        entry = {
            "event": event,
            "global_step": state.global_step,
            "epoch": state.epoch,
            "control": [flag for flag in CONTROL_FLAGS if getattr(control, flag)],
            # A name with nothing behind it is told apart: on_init_end has no optimizer yet.
            "given": sorted(name if value is not None else f"{name}=None" for name, value in given.items()),
        }
        for name in ("logs", "metrics"):
            if name in given:
                entry[name] = dict(given[name])
        self.trace.append(entry)

    return record


def callback_args(**fields: Any) -> SimpleNamespace:
    """Return arguments as callbacks read them."""
    defaults = {
        "logging_strategy": "steps",
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "logging_first_step": False,
        "eval_delay": 0,
        "metric_for_best_model": "loss",
        "greater_is_better": False,
        "load_best_model_at_end": True,
    }
    return SimpleNamespace(**{**defaults, **fields})


def fire(callback: Any, event: str, loader: Any = None, **state: Any) -> None:
    """Fire ``event`` at one callback of ours, in a state of 10 update steps."""
    from hf_compat.state import TrainerControl, TrainerState

    given = {"eval_dataloader": loader, "metrics": {}, "logs": {}}
    getattr(callback, event)(callback_args(), TrainerState(**{"max_steps": 10, **state}), TrainerControl(), **given)


def recording_callback(base: type, trace: list[dict[str, Any]]) -> Any:
    """Return a callback that appends what every event was given to ``trace``.

    Args:
        base: ``TrainerCallback`` of the library under test.
        trace: Where the entries go, in order.
    """
    callback = type("RecordingCallback", (base,), {event: _recorder(event) for event in EVENTS})()
    callback.trace = trace
    return callback


def control_callback(base: type, orders: dict[tuple[str, int], tuple[str, ...]]) -> Any:
    """Return a callback that sets control flags, each once.

    Args:
        base: ``TrainerCallback`` of the library under test.
        orders: Flags to set, by event and by the update steps finished at that event.
    """
    orders = dict(orders)

    def obey(event: str) -> Any:
        def handler(self: Any, args: Any, state: Any, control: Any, **given: Any) -> None:
            for flag in orders.pop((event, state.global_step), ()):
                setattr(control, flag, True)

        return handler

    return type("ControlCallback", (base,), {event: obey(event) for event in {event for event, _ in orders}})()
