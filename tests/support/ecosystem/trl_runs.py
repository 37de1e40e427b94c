"""Runs of TRL's trainers; its own defaults of bfloat16 and activation checkpointing are on with GPUs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.support.ecosystem.pieces import (
    ARGUMENTS,
    EVALUATED,
    ON_GPUS,
    dataset,
    language_model,
    library_run,
    output,
    preferences,
    sentence,
    texts,
    tokenizer_of,
)

IN_FLOAT32 = {} if ON_GPUS else {"bf16": False, "gradient_checkpointing": False}
PLAIN = {**ARGUMENTS, **IN_FLOAT32}
WITH_EVALUATION = {**EVALUATED, **IN_FLOAT32}
SHORT_ANSWERS: dict[str, Any] = {"max_completion_length": 8, "temperature": 1.0}


def many_words(completions: list[str], **_: Any) -> list[float]:
    return [len(set(text.split())) / 8 for text in completions]


def conversations(rows: int) -> Any:
    def row(number: int) -> dict[str, Any]:
        said = [("user", sentence(2 * number, 4)), ("assistant", sentence(2 * number + 1, 5))]
        return {"messages": [{"role": role, "content": content} for role, content in said]}

    return dataset(rows, row)


def loaded(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(language_model(folder), dtype=torch.float32)


@library_run
def sft(folder: Path) -> Any:
    from trl import SFTConfig, SFTTrainer

    args = SFTConfig(output(folder), max_length=32, **WITH_EVALUATION)
    rows = texts(10, "text")
    return SFTTrainer(language_model(folder), args, train_dataset=rows, eval_dataset=texts(3, "text"))


@library_run
def sft_with_lora(folder: Path) -> Any:
    """Of the adapter's weights alone is there a checkpoint."""
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    args = SFTConfig(output(folder), max_length=32, packing=True, **WITH_EVALUATION)
    lora = LoraConfig(r=4, lora_dropout=0.1, task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])
    rows, others = texts(60, "text"), texts(20, "text")
    return SFTTrainer(language_model(folder), args, train_dataset=rows, eval_dataset=others, peft_config=lora)


@library_run
def dpo(folder: Path) -> Any:
    from trl import DPOConfig, DPOTrainer

    args = DPOConfig(output(folder), gradient_accumulation_steps=2, **WITH_EVALUATION)
    return DPOTrainer(language_model(folder), args=args, train_dataset=preferences(12), eval_dataset=preferences(3))


@library_run
def dpo_in_bfloat16(folder: Path) -> Any:
    """The reference model runs under autocast too."""
    from trl import DPOConfig, DPOTrainer

    args = DPOConfig(output(folder), **{**PLAIN, "bf16": True})
    return DPOTrainer(language_model(folder), args=args, train_dataset=preferences(12))


@library_run
def kto(folder: Path) -> Any:
    from trl import KTOConfig, KTOTrainer

    def columns(number: int) -> dict[str, Any]:
        prompt, answer = (sentence(2 * number + part, 4 + number % 3) for part in range(2))
        return {"prompt": prompt, "completion": " " + answer, "label": number % 3 != 0}

    args = KTOConfig(output(folder), **WITH_EVALUATION)
    return KTOTrainer(
        language_model(folder), args=args, train_dataset=dataset(12, columns), eval_dataset=dataset(4, columns)
    )


@library_run
def reward(folder: Path) -> Any:
    from transformers import AutoModelForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    path = language_model(folder)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1, dtype=torch.float32)
    args = RewardConfig(output(folder), **WITH_EVALUATION)
    rows, others = preferences(8, prompts=False), preferences(3, prompts=False)
    return RewardTrainer(model, args, train_dataset=rows, eval_dataset=others)


@library_run
def grpo(folder: Path) -> Any:
    from trl import GRPOConfig, GRPOTrainer

    args = GRPOConfig(output(folder), num_generations=2, beta=0.04, **SHORT_ANSWERS, **PLAIN)
    return GRPOTrainer(language_model(folder), reward_funcs=many_words, args=args, train_dataset=texts(8, "prompt"))


@library_run
def rloo(folder: Path) -> Any:
    from trl import RLOOConfig, RLOOTrainer

    args = RLOOConfig(output(folder), num_generations=2, num_iterations=2, **SHORT_ANSWERS, **WITH_EVALUATION)
    rows, others = texts(8, "prompt"), texts(2, "prompt")
    return RLOOTrainer(
        language_model(folder), reward_funcs=many_words, args=args, train_dataset=rows, eval_dataset=others
    )


@library_run
def distillation(folder: Path) -> Any:
    from trl import DistillationConfig, DistillationTrainer

    args = DistillationConfig(output(folder), **SHORT_ANSWERS, **PLAIN)
    path = language_model(folder)
    rows = dataset(8, lambda number: {"prompt": [{"role": "user", "content": sentence(number, 4)}]})
    return DistillationTrainer(path, path, args=args, train_dataset=rows)


# Those in `trl.experimental`


@library_run
def orpo(folder: Path) -> Any:
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    args = ORPOConfig(output(folder), max_length=32, **WITH_EVALUATION)
    words = tokenizer_of(language_model(folder))
    rows, others = preferences(12), preferences(3)
    return ORPOTrainer(loaded(folder), args, train_dataset=rows, eval_dataset=others, processing_class=words)


@library_run
def cpo(folder: Path) -> Any:
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    args = CPOConfig(output(folder), max_length=32, gradient_accumulation_steps=2, **WITH_EVALUATION)
    words = tokenizer_of(language_model(folder))
    rows, others = preferences(12), preferences(3)
    return CPOTrainer(loaded(folder), args, train_dataset=rows, eval_dataset=others, processing_class=words)


@library_run
def gkd(folder: Path) -> Any:
    """Before some update steps the student generates what it learns from."""
    from trl.experimental.gkd import GKDConfig, GKDTrainer

    args = GKDConfig(output(folder), max_length=32, max_new_tokens=6, lmbda=0.5, **WITH_EVALUATION)
    student, teacher = loaded(folder), loaded(folder)
    torch.manual_seed(1)
    torch.nn.init.normal_(teacher.lm_head.weight)
    words = tokenizer_of(language_model(folder))
    rows, others = conversations(12), conversations(3)
    return GKDTrainer(student, teacher, args, train_dataset=rows, eval_dataset=others, processing_class=words)


@library_run
def online_dpo(folder: Path) -> Any:
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

    args = OnlineDPOConfig(output(folder), max_new_tokens=8, **PLAIN)
    words = tokenizer_of(language_model(folder))
    return OnlineDPOTrainer(
        loaded(folder),
        reward_funcs=many_words,
        args=args,
        train_dataset=texts(8, "prompt"),
        processing_class=words,
    )
