"""What runs are made of: tiny models with dropout, a tokenizer, data sets and arguments; nothing is downloaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

WORDS = [f"w{number}" for number in range(40)]
CHAT = "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"
ON_GPUS = "FAKE_GPUS" in os.environ
"""Whether runs are on the fake GPUs of ``tests/gpu``."""
DEVICE = "cuda" if ON_GPUS else "cpu"
ARGUMENTS: dict[str, Any] = {
    "use_cpu": not ON_GPUS,
    "report_to": "none",
    "disable_tqdm": True,
    "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 2,
    "learning_rate": 1e-2,
    "max_steps": 4,
    "logging_steps": 1,
    "save_steps": 2,
    "dataloader_pin_memory": ON_GPUS,
    "seed": 3,
}
EVALUATED: dict[str, Any] = {**ARGUMENTS, "eval_strategy": "steps", "eval_steps": 2}
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
RUNS: dict[str, Callable[[Path], Any]] = {}
"""Each run by its name: a function of where models and output go that returns the library's Trainer before training."""


def library_run(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Enter ``function`` into ``RUNS``."""
    RUNS[function.__name__] = function
    return function


def output(folder: Path) -> str:
    """Return the output folder of a run, which all ranks share; ``folder`` is a rank's own."""
    return str(folder.parent / "output")


def sentence(start: int, length: int) -> str:
    """Return ``length`` words that depend on ``start``."""
    return " ".join(WORDS[(start * 7 + index * index) % len(WORDS)] for index in range(length))


def save_tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "[PAD]", "bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]"}
    special |= {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    vocabulary = {word: number for number, word in enumerate([*special.values(), "user", "assistant", *WORDS])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=64, **special)
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    return tokenizer


def tokenizer_of(model: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


def saved_model(folder: Path, name: str, build: Callable[[Any], Any]) -> str:
    """Save the model that ``build`` makes for a tokenizer, and that, beside the run's folder; return where.

    :func:`save_models` does that before the processes know each other: then each saves its own.
    """
    path = folder.parent.parent / f"models_{folder.name}" / name
    if not path.exists():
        tokenizer = save_tokenizer(path)
        torch.manual_seed(0)
        build(tokenizer).save_pretrained(path)
    return str(path)


def language_model(folder: Path) -> str:
    """Save a tiny Llama with dropout and its tokenizer; return the folder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def build(tokenizer: Any) -> Any:
        special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
        config = LlamaConfig(
            vocab_size=len(tokenizer), **SIZES, num_key_value_heads=2, attention_dropout=0.1, **special
        )
        return LlamaForCausalLM(config)

    return saved_model(folder, "language_model", build)


def encoder(folder: Path, kind: str = "BertModel", **config: Any) -> str:
    """Save a tiny BERT with dropout and its tokenizer; return the folder.

    Args:
        folder: As of :func:`saved_model`.
        kind: A class of transformers.
        config: What of its configuration is not as ever.
    """
    import transformers

    def build(tokenizer: Any) -> Any:
        return getattr(transformers, kind)(transformers.BertConfig(vocab_size=len(tokenizer), **SIZES, **config))

    return saved_model(folder, kind, build)


def one_score(folder: Path) -> str:
    """Save a tiny BERT that gives a text one number; return the folder."""
    return encoder(folder, "BertForSequenceClassification", num_labels=1)


def masked_words(folder: Path) -> str:
    """Save a tiny BERT that predicts words; return the folder."""
    return encoder(folder, "BertForMaskedLM")


def save_models(folder: Path) -> None:
    """Save every model that runs load by its folder."""
    for save in (language_model, encoder, one_score, masked_words):
        save(folder)


def dataset(rows: int, columns: Callable[[int], dict[str, Any]]) -> Any:
    from datasets import Dataset

    return Dataset.from_list([columns(number) for number in range(rows)])


def preferences(rows: int, *, prompts: bool = True) -> Any:
    def row(number: int) -> dict[str, str]:
        prompt, chosen, rejected = (sentence(3 * number + part, 4 + number % 3) for part in range(3))
        if prompts:
            return {"prompt": prompt, "chosen": " " + chosen, "rejected": " " + rejected}
        return {"chosen": f"{prompt} {chosen}", "rejected": f"{prompt} {rejected}"}

    return dataset(rows, row)


def texts(rows: int, *names: str, **labels: Callable[[int], Any]) -> Any:
    def row(number: int) -> dict[str, Any]:
        columns = {name: sentence(len(names) * number + at, 5) for at, name in enumerate(names)}
        return columns | {name: label(number) for name, label in labels.items()}

    return dataset(rows, row)
