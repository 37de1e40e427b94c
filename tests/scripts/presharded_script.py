"""What one process does with a model that ``from_pretrained`` shards; started by ``test_presharded``.

Its first argument is a folder; every scenario writes what this process saw into ``folder/<name>.<rank>``.
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor

from hf_compat import Trainer, TrainingArguments
from tests.scripts.sharded_common import GLOBAL_BATCH, SETTINGS, Seen, held, run_scenario, set_up_process, world
from tests.support import helpers
from tests.support.presharded import heads, loaded, mixtral


def trainer_for(folder: Path, model: Any, *, sizes: Seen, kind: Any = Trainer, **fields: Any) -> Trainer:
    """Return a Trainer whose windows hold the same samples with one process and with several.

    ``model`` is the model, or a function for ``model_init``.
    """
    batch = GLOBAL_BATCH // (world() // sizes.get("tp_size", 1) or 1)
    settings: Seen = {
        **SETTINGS,
        "per_device_train_batch_size": batch,
        "per_device_eval_batch_size": batch,
        "gradient_accumulation_steps": 2,
    }
    given = {"model": model} if isinstance(model, nn.Module) else {"model_init": model}
    return kind(
        **given,
        args=TrainingArguments(str(folder / "output"), **(settings | fields)),
        data_collator=helpers.PadCollator(),
        train_dataset=helpers.ListDataset(helpers.token_rows(28)),
        eval_dataset=helpers.ListDataset(helpers.token_rows(8, seed=1)),
    )


def model_of(folder: Path, sizes: Seen, build: Any = heads) -> Any:
    """Return the model in shards; in a single process whole."""
    return loaded(folder, build, **sizes) if world() > 1 else build()


def seen_of(trainer: Trainer) -> Seen:
    """Return logs, the full weights where this process gathers them, and which parameters it has whole."""
    names = ("loss", "grad_norm", "eval_loss", "train_loss")
    logs = [{name: line[name] for name in names if name in line} for line in trainer.state.log_history]
    weights = {name: item.clone() for name, item in trainer.accelerator.get_state_dict(trainer.model).items()}
    named = trainer.model.named_parameters()
    whole = {name: item.detach().clone() for name, item in named if not isinstance(item, DTensor)}
    return {"logs": logs, "weights": weights, "whole": whole, "flos": trainer.state.total_flos}


def every_use(folder: Path, sizes: Seen, build: Any = heads) -> Seen:
    """Saved before, evaluated before, trained, predicted, saved."""
    trainer = trainer_for(folder, model_of(folder, sizes, build), sizes=sizes)
    trainer.save_model(str(folder / "before"))
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    seen = seen_of(trainer)
    trainer.save_model(str(folder / "after"))
    rows = len(trainer.predict(trainer.eval_dataset).predictions)
    facts = (trainer.get_tp_size(), trainer.is_fsdp_enabled, trainer.get_total_train_batch_size(trainer.args))
    return seen | {"before": before, "rows": rows, "facts": facts}


class SavesItself(Trainer):
    """Saves as upstream's users do, by the model's own method, on every rank that is called."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        self.model.save_pretrained(output_dir, state_dict=state_dict, is_main_process=self.args.should_save)


def stopped_and_resumed(folder: Path, sizes: Seen, build: Any = heads, **fields: Any) -> Seen:
    """A run that stops after a checkpoint and goes on, beside one that does not stop."""
    every: Seen = {"save_strategy": "steps", "save_steps": 3, "weight_decay": 0.1, **fields}
    trainer = trainer_for(folder, model_of(folder, sizes, build), sizes=sizes, **every)
    trainer.train()
    whole = seen_of(trainer)
    (folder / "rest").mkdir(exist_ok=True)
    trainer = trainer_for(folder / "rest", model_of(folder / "rest", sizes, build), sizes=sizes, **every)
    trainer.train(resume_from_checkpoint=str(folder / "output" / "checkpoint-3"))
    return {"whole": whole, "resumed": seen_of(trainer)}


def resumed_by_model_init(folder: Path) -> Seen:
    """Both runs of ``stopped_and_resumed``, of models that ``model_init`` loads."""
    every: Seen = {"save_strategy": "steps", "save_steps": 3, "weight_decay": 0.1, "parallelism_config": TENSOR}
    trainer = trainer_for(folder, lambda: model_of(folder, TENSOR), sizes=TENSOR, **every)
    trainer.train()
    whole = seen_of(trainer)
    trainer = trainer_for(folder / "rest", lambda: model_of(folder, TENSOR), sizes=TENSOR, **every)
    trainer.train(resume_from_checkpoint=str(folder / "output" / "checkpoint-3"))
    return {"whole": whole, "resumed": seen_of(trainer)}


def saved_by_an_override(folder: Path) -> Seen:
    trainer = trainer_for(folder, model_of(folder, FSDP), sizes=FSDP, kind=SavesItself, save_strategy="epoch")
    trainer.train()
    return seen_of(trainer)


def in_background(folder: Path) -> Seen:
    """The whole run of ``stopped_and_resumed``, whose saves are written while it trains on."""
    fields: Seen = {"save_strategy": "steps", "save_steps": 3, "weight_decay": 0.1, "save_async": True}
    trainer = held(trainer_for(folder, model_of(folder, TENSOR), sizes=TENSOR, **fields))
    trainer.train()
    return {"whole": seen_of(trainer)}


def adapters(folder: Path) -> Seen:
    """Adapters, of which each rank has a copy of its own before training."""
    import torch
    from peft import LoraConfig, get_peft_model

    model = model_of(folder, FSDP)
    torch.manual_seed(torch.distributed.get_rank() if world() > 1 else 0)
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # peft reads a name that is deprecated
        model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], lora_dropout=0.0))
    trainer = trainer_for(folder, model, sizes=FSDP)
    trainer.train()
    return seen_of(trainer)


def experts_that_cannot_be_shared(folder: Path) -> Seen:
    """Three experts for two ranks: what their user reads, as the model is loaded."""
    try:
        loaded(folder, partial(mixtral, experts=3), **EXPERTS)
    except ValueError as error:
        return {"error": str(error)}
    return {}


FSDP: Seen = {"fsdp_size": 2}
EXPERTS: Seen = {"fsdp_size": 2, "ep_size": 2}
TENSOR: Seen = {"tp_size": 2}
BOTH: Seen = {"tp_size": 2, "fsdp_size": 2}
ONE_PROCESS = {
    "tensor": lambda folder: every_use(folder, TENSOR),
    "shards": lambda folder: every_use(folder, FSDP),
    "experts": lambda folder: every_use(folder, EXPERTS, mixtral),
    "adapters": adapters,
}
"""Run by a single process too."""
SEVERAL = ONE_PROCESS | {
    "resumed": lambda folder: stopped_and_resumed(folder, TENSOR),
    "resumed_shards": lambda folder: stopped_and_resumed(
        folder, FSDP, load_best_model_at_end=True, eval_strategy="steps", eval_steps=3
    ),
    "resumed_experts": lambda folder: stopped_and_resumed(folder, EXPERTS, mixtral),
    "resumed_by_model_init": resumed_by_model_init,
    "experts_that_cannot_be_shared": experts_that_cannot_be_shared,
    "in_background": in_background,
    "saved_by_an_override": saved_by_an_override,
}
FOUR = {
    "resumed_both": lambda folder: stopped_and_resumed(folder, BOTH),
    "resumed_replicas": lambda folder: stopped_and_resumed(folder, {"dp_replicate_size": 2, "fsdp_size": 2}),
}


if __name__ == "__main__":
    set_up_process()
    for word in sys.argv[2:] or SEVERAL:
        run_scenario(word, Path(sys.argv[1]), (SEVERAL | FOUR)[word])
