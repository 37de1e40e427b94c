"""Trains a tiny model with a library that subclasses transformers' Trainer, on that Trainer or on ours.

``python ecosystem_script.py RUN... --with upstream|ours --output FOLDER`` does runs of ``RUNS``, each of which leaves
``FOLDER/RUN/outcome_<rank>.json``: the log history without times, and a checksum of each weight. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.support.ecosystem import replace_trainers

WORDS = [f"w{number}" for number in range(40)]
CHAT = "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"
ARGUMENTS: dict[str, Any] = {
    "use_cpu": True,
    "report_to": "none",
    "disable_tqdm": True,
    "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 2,
    "learning_rate": 1e-2,
    "max_steps": 4,
    "logging_steps": 1,
    "save_strategy": "no",
    "dataloader_pin_memory": False,
    "seed": 3,
}
PRECISE = {**ARGUMENTS, "bf16": False, "gradient_checkpointing": False}
"""TRL's own defaults are bfloat16 and activation checkpointing."""
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
RUNS: dict[str, Callable[[Path], Any]] = {}
"""Each run by its name: a function of an empty folder that returns the Trainer after training."""


def run(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    RUNS[function.__name__] = function
    return function


# What the runs are made of


def output(folder: Path) -> str:
    """Return the output folder, which all ranks share; ``folder`` is a rank's own."""
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


def saved_model(folder: Path, name: str, build: Callable[[Any], Any]) -> str:
    """Save the model that ``build`` makes for a tokenizer, and that, beside the run's folder; return where.

    ``main`` does that before the processes know each other: then each saves its own.
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


def encoder(folder: Path, **config: Any) -> str:
    """Save a tiny BERT with dropout and its tokenizer; return the folder."""
    from transformers import BertConfig, BertForSequenceClassification, BertModel

    kind = BertForSequenceClassification if config else BertModel
    return saved_model(
        folder,
        kind.__name__,
        lambda tokenizer: kind(BertConfig(vocab_size=len(tokenizer), **SIZES, **config)),
    )


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


def sentence_transformer(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(encoder(folder), device="cpu")  # of its tokens' mean


# TRL


@run
def sft(folder: Path) -> Any:
    from trl import SFTConfig, SFTTrainer

    args = SFTConfig(output(folder), max_length=32, eval_strategy="steps", eval_steps=2, **PRECISE)
    rows = texts(10, "text")
    trainer = SFTTrainer(language_model(folder), args, train_dataset=rows, eval_dataset=texts(3, "text"))
    trainer.train()
    return trainer


@run
def dpo(folder: Path) -> Any:
    from trl import DPOConfig, DPOTrainer

    args = DPOConfig(output(folder), gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=2, **PRECISE)
    trainer = DPOTrainer(language_model(folder), args=args, train_dataset=preferences(12), eval_dataset=preferences(3))
    trainer.train()
    return trainer


@run
def dpo_in_bfloat16(folder: Path) -> Any:
    """The reference model runs under autocast too."""
    from trl import DPOConfig, DPOTrainer

    args = DPOConfig(output(folder), **{**PRECISE, "bf16": True})
    trainer = DPOTrainer(language_model(folder), args=args, train_dataset=preferences(12))
    trainer.train()
    return trainer


@run
def grpo(folder: Path) -> Any:
    from trl import GRPOConfig, GRPOTrainer

    def many_words(completions: list[str], **_: Any) -> list[float]:
        return [len(set(text.split())) / 8 for text in completions]

    settings = {"num_generations": 2, "max_completion_length": 8, "beta": 0.04, "temperature": 1.0}
    args = GRPOConfig(output(folder), **settings, **PRECISE)
    trainer = GRPOTrainer(language_model(folder), reward_funcs=many_words, args=args, train_dataset=texts(8, "prompt"))
    trainer.train()
    return trainer


@run
def reward(folder: Path) -> Any:
    from transformers import AutoModelForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    path = language_model(folder)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1, dtype=torch.float32)
    args = RewardConfig(output(folder), eval_strategy="steps", eval_steps=2, **PRECISE)
    rows, others = preferences(8, prompts=False), preferences(3, prompts=False)
    trainer = RewardTrainer(model, args, train_dataset=rows, eval_dataset=others)
    trainer.train()
    return trainer


# sentence-transformers and SetFit


@run
def sentences_with_an_evaluator(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator
    from sentence_transformers.losses import CosineSimilarityLoss

    model = sentence_transformer(folder)
    rows = texts(12, "sentence1", "sentence2", score=lambda number: (number % 4) / 4)
    judged = EmbeddingSimilarityEvaluator(*(rows[name] for name in ("sentence1", "sentence2", "score")))
    given = {**ARGUMENTS, "eval_strategy": "steps", "eval_steps": 2}
    args = SentenceTransformerTrainingArguments(output(folder), **given)
    trainer = SentenceTransformerTrainer(model, args, rows, loss=CosineSimilarityLoss(model), evaluator=judged)
    trainer.train()
    return trainer


@run
def sentences_without_duplicates(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from sentence_transformers.training_args import BatchSamplers

    model = sentence_transformer(folder)
    rows = texts(12, "positive", anchor=lambda number: sentence(number % 5, 4)).select_columns(["anchor", "positive"])
    given = {**ARGUMENTS, "batch_sampler": BatchSamplers.NO_DUPLICATES, "eval_strategy": "epoch", "max_steps": -1}
    args = SentenceTransformerTrainingArguments(output(folder), num_train_epochs=2, **given)
    trainer = SentenceTransformerTrainer(model, args, rows, rows.select(range(4)), MultipleNegativesRankingLoss(model))
    trainer.train()
    return trainer


@run
def cross_encoder(folder: Path) -> Any:
    from sentence_transformers.cross_encoder import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    model = CrossEncoder(encoder(folder, num_labels=1), max_length=32, device="cpu")
    rows = texts(12, "query", "answer", label=lambda number: float(number % 2))
    # By default True, with which torch's DDP refuses this model.
    given = {**ARGUMENTS, "eval_strategy": "steps", "eval_steps": 2, "ddp_find_unused_parameters": False}
    args = CrossEncoderTrainingArguments(output(folder), **given)
    trainer = CrossEncoderTrainer(model, args, rows, rows.select(range(3)), BinaryCrossEntropyLoss(model))
    trainer.train()
    return trainer


@run
def setfit(folder: Path) -> Any:
    from setfit import SetFitModel, Trainer, TrainingArguments

    model = SetFitModel(sentence_transformer(folder), _head())
    rows = texts(8, "text", label=lambda number: number % 2)
    args = TrainingArguments(
        output(folder), batch_size=2, max_steps=4, report_to="none", logging_steps=1, seed=3, use_amp=False
    )
    trainer = Trainer(model, args, rows, rows.select(range(4)), metric=_right)
    trainer.train()
    trainer.st_trainer.state.log_history.append(trainer.evaluate())
    return trainer.st_trainer


def _right(guesses: Any, labels: list[int]) -> dict[str, int]:
    return {"right": sum(int(guess) == label for guess, label in zip(guesses, labels, strict=True))}


def _head() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression()


# What is left


def outcome(trainer: Any) -> dict[str, Any]:
    """Return the log history without times, and a checksum of each weight."""
    timed = ("runtime", "per_second", "time")
    logs = trainer.state.log_history
    history = [{name: value for name, value in log.items() if not name.endswith(timed)} for log in logs]
    model = trainer.accelerator.unwrap_model(trainer.model)
    weights = {
        name: hashlib.sha256(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
        for name, value in model.state_dict().items()
    }
    bases = (kind.__module__.split(".")[0] for kind in type(trainer).__mro__)
    package = next(name for name in bases if name in ("transformers", "hf_compat"))
    return {"package": package, "log_history": history, "weights": weights}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="+", choices=RUNS)
    parser.add_argument("--with", dest="which", choices=["upstream", "ours"], required=True)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.which == "ours":
        replace_trainers()
    rank = os.environ.get("RANK", "0")
    # SetFit's arguments have no `use_cpu`, without which upstream's processes train each alone where there is no GPU.
    os.environ["ACCELERATE_USE_CPU"] = "true"
    first = given.output / given.runs[0] / rank
    language_model(first), encoder(first), encoder(first, num_labels=1)
    for name in given.runs:
        trainer = RUNS[name](given.output / name / rank)
        (given.output / name / f"outcome_{rank}.json").write_text(json.dumps(outcome(trainer)))


if __name__ == "__main__":
    main()
