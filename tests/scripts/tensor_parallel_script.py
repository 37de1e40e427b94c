"""What one process does under tensor parallelism, and the same without it; started by ``test_tensor_parallel``.

Its first argument is a folder; every scenario writes what this process saw into ``folder/<name>.<rank>``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hf_compat import Trainer, TrainingArguments
from tests.scripts import sharded_common
from tests.scripts.sharded_common import (
    GLOBAL_BATCH,
    SETTINGS,
    Seen,
    held,
    run_scenario,
    second_model,
    set_up_process,
    world,
)
from tests.support import helpers


def llama(**fields: Any) -> Any:
    """Return a Llama with more heads than key-value heads."""
    return sharded_common.llama(num_attention_heads=4, **fields)


def qwen3() -> Any:
    """A model with a norm of each head, between matrices that are split, and tied embeddings."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=helpers.VOCABULARY,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=4,
            max_position_embeddings=32,
            pad_token_id=0,
            tie_word_embeddings=True,
        )
    )
    norms = {f"model.layers.*.self_attn.{name}_norm": "replicated_with_grad_allreduce" for name in "qk"}
    model._tp_plan = {**model._tp_plan, **norms}  # older releases leave them out
    return model


class Plain(nn.Module):
    """A module of the user's own, with its own plan, biases and dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(helpers.WIDTH, 8)
        self.drop = nn.Dropout(0.5)
        self.down = nn.Linear(8, 4)
        self.tp_plan = {"up": "colwise", "down": "rowwise"}

    def forward(self, features: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.down(torch.relu(self.up(self.drop(features))))
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def config(tensor: int = 2) -> Any:
    from accelerate import ParallelismConfig

    return ParallelismConfig(tp_size=tensor, dp_shard_size=world() // tensor)


def accuracy(prediction: Any) -> dict[str, float]:
    """Return the share of right answers, and how many rows there were."""
    best = prediction.predictions.argmax(-1)
    scored = prediction.label_ids != -100
    right = (best == prediction.label_ids)[scored].mean()
    return {"accuracy": float(right), "rows": float(len(best))}


def trainer_for(folder: Path, model: Any, *, keywords: Seen | None = None, **fields: Any) -> Trainer:
    """Return a Trainer whose windows hold the same samples with one process and with several."""
    different = max(world() // 2, 1)
    settings: Seen = {
        **SETTINGS,
        "per_device_train_batch_size": GLOBAL_BATCH // different,
        "per_device_eval_batch_size": GLOBAL_BATCH // different,
        "gradient_accumulation_steps": 2,
        "include_num_input_tokens_seen": "non_padding",
    }
    if world() > 1 and keywords is None:
        settings["parallelism_config"] = config()
    vectors = isinstance(model, Plain)
    rows: Callable[..., Any] = helpers.vector_rows if vectors else helpers.token_rows
    return Trainer(
        model,
        TrainingArguments(str(folder / "output"), **(settings | fields)),
        data_collator=None if vectors else helpers.PadCollator(),
        train_dataset=helpers.ListDataset(rows(28)),  # seven batches: the last window of an epoch is short
        eval_dataset=helpers.ListDataset(rows(7, seed=1)),  # the last batch is not full
        compute_metrics=accuracy,
        lightning=keywords if world() > 1 else None,
    )


def seen_of(trainer: Trainer) -> Seen:
    """Return logs, the whole weights where this process gathers them, and what every process holds whole."""
    names = ("loss", "grad_norm", "eval_loss", "eval_accuracy", "eval_rows", "train_loss", "num_input_tokens_seen")
    logs = [{name: line[name] for name in names if name in line} for line in trainer.state.log_history]
    weights = trainer.accelerator.get_state_dict(trainer.model)  # shards again what the last evaluation has gathered
    held = dict(trainer.model.named_parameters())
    equal = {name: item.detach().clone() for name, item in held.items() if not isinstance(item, DTensor)}
    split = sorted(name for name, item in held.items() if isinstance(item, DTensor))
    seen = {"logs": logs, "weights": {name: item.clone() for name, item in weights.items()}}
    return seen | {"flos": trainer.state.total_flos, "whole": equal, "split": split}


def seen_of_a_run(folder: Path, model: Any, **given: Any) -> Seen:
    trainer = trainer_for(folder, model, **given)
    trainer.train()
    return seen_of(trainer)


def everything(folder: Path) -> Seen:
    """Counts, evaluation before and after, prediction, and a model written at the end."""
    trainer = trainer_for(folder, llama(), eval_on_start=True)
    before = trainer.evaluate()
    trainer.train()
    seen = seen_of(trainer)
    predicted = trainer.predict(trainer.eval_dataset)
    trainer.save_model(str(folder / "model"))
    again = trainer_for(folder, trainer.model).evaluate()  # another Trainer, of the model as it is
    facts = (trainer.is_tp_enabled, trainer.get_tp_size(), trainer.get_total_train_batch_size(trainer.args))
    seen |= {"before": before["eval_loss"], "rows": len(predicted.predictions), "logits": predicted.predictions}
    seen |= {"after": seen["logs"][-2]["eval_loss"], "again": again["eval_loss"]}
    accelerator = trainer.accelerator
    if accelerator.is_last_process:  # a rank with the same batches as the first
        accelerator.set_trigger()
    seen["triggered"] = [accelerator.check_trigger(), accelerator.check_trigger()]
    gathered = accelerator.get_state_dict(trainer.model_wrapped, unwrap=False)
    seen["gathered"] = {name: item.clone() for name, item in gathered.items()}
    return seen | {"facts": facts, "refused": second_model(accelerator)}


def norms_of_heads(folder: Path) -> Seen:
    return seen_of_a_run(folder, qwen3())


def in_bf16(folder: Path) -> Seen:
    return seen_of_a_run(folder, llama(), bf16=True)


def own_plan(folder: Path) -> Seen:
    """Lightning's own strategy asks for it."""
    strategy = ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=2)
    return seen_of_a_run(folder, Plain(), keywords={"strategy": strategy}, include_num_input_tokens_seen="no")


def stopped_and_resumed(folder: Path) -> Seen:
    """A run that stops after a checkpoint and goes on, beside one that does not stop."""
    fields: Seen = {"save_strategy": "steps", "save_steps": 3}
    trainer = trainer_for(folder, llama(attention_dropout=0.1), **fields)
    trainer.train()
    whole = seen_of(trainer)
    trainer = trainer_for(folder / "rest", llama(attention_dropout=0.1, initializer_range=0.5), **fields)
    trainer.train(resume_from_checkpoint=str(folder / "output" / "checkpoint-3"))
    return {"whole": whole, "resumed": seen_of(trainer)}


def in_background(folder: Path) -> Seen:
    """The whole run of ``stopped_and_resumed``, whose saves are written while it trains on."""
    fields: Seen = {"save_strategy": "steps", "save_steps": 3, "save_async": True}
    trainer = held(trainer_for(folder, llama(attention_dropout=0.1), **fields))
    trainer.train()
    return {"whole": seen_of(trainer)}


ONE_PROCESS = {"everything": everything, "norms_of_heads": norms_of_heads, "own_plan": own_plan}
"""Run without tensor parallelism too."""
BF16 = {"in_bf16": in_bf16}
"""So is this, with other numbers."""
SEVERAL = ONE_PROCESS | BF16 | {"resumed": stopped_and_resumed, "in_background": in_background}


if __name__ == "__main__":
    set_up_process()
    for word in sys.argv[2:] or SEVERAL:
        run_scenario(word, Path(sys.argv[1]), SEVERAL[word])
