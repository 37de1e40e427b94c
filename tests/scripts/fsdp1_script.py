"""What one process does under FSDP version 1, and the same without it; started by ``test_fsdp1``.

Its arguments are a folder and names of scenarios; each writes what this process saw into ``folder/<name>.<rank>``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hf_compat import Trainer, TrainingArguments
from tests.scripts import sharded_common
from tests.scripts.sharded_common import (
    GLOBAL_BATCH,
    SETTINGS,
    CountsReductions,
    Seen,
    held,
    run_scenario,
    second_model,
    set_up_process,
    world,
)
from tests.support import helpers

BATCHES = 7


def llama() -> Any:
    """Return a Llama with tied embeddings."""
    return sharded_common.llama(tie_word_embeddings=True)


class Watching(Trainer):
    """Notes what the loss is computed with."""

    seen: str = ""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self.seen = type(model).__name__
        return super().compute_loss(model, inputs, *args, **kwargs)


def trainer_for(
    folder: Path,
    words: str = "full_shard",
    config: Any = None,
    callbacks: Any = (),
    lightning: Any = None,
    build: Callable[[], Any] = llama,
    **fields: Any,
) -> Any:
    """Return a Trainer whose windows hold the same samples with one process and with several."""
    settings: dict[str, Any] = {
        **SETTINGS,
        "per_device_train_batch_size": 2,  # a resumed run takes the checkpoint's in some releases
        "per_device_eval_batch_size": GLOBAL_BATCH // world(),
        "gradient_accumulation_steps": GLOBAL_BATCH // world(),
    }
    if world() > 1 and words:
        layers = {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "version": 1}
        settings |= {"fsdp": words, "fsdp_config": layers | (config or {})}
    args = TrainingArguments(str(folder / "output"), **(settings | fields))
    return Watching(
        build(),
        args,
        data_collator=helpers.PadCollator(),
        train_dataset=helpers.ListDataset(helpers.token_rows(GLOBAL_BATCH * BATCHES)),  # the last window is short
        eval_dataset=helpers.ListDataset(helpers.token_rows(8, seed=1)),
        callbacks=list(callbacks),
        lightning=lightning,
    )


def seen_of(trainer: Any) -> Seen:
    """Return logs, and the whole weights where this process gathers them."""
    names = ("loss", "grad_norm", "eval_loss", "train_loss")
    logs = [{name: line[name] for name in names if name in line} for line in trainer.state.log_history]
    weights = {name: weight.clone() for name, weight in trainer.accelerator.get_state_dict(trainer.model).items()}
    return {"logs": logs, "weights": weights, "called": trainer.seen, "flos": trainer.state.total_flos}


def seen_of_a_run(folder: Path, *given: Any, **fields: Any) -> Seen:
    trainer = trainer_for(folder, *given, **fields)
    trainer.train()
    return seen_of(trainer)


def everything(folder: Path) -> Seen:
    """Evaluation before, inside and after the training, prediction, a model written at the end."""
    counts = CountsReductions()
    trainer = trainer_for(folder, callbacks=[counts], eval_on_start=True)
    before = trainer.evaluate()
    trainer.train()
    seen = seen_of(trainer)
    predicted = trainer.predict(trainer.eval_dataset)
    trainer.save_model(str(folder / "model"))
    seen |= {"before": before["eval_loss"], "after": trainer.evaluate()["eval_loss"]}
    seen["gathered"] = trainer.accelerator.get_state_dict(trainer.model_wrapped, unwrap=False)
    seen["refused"] = second_model(trainer.accelerator) if world() > 1 else []
    return seen | {"predictions": predicted.predictions, "reductions": counts.counted}


def best_and_twice(folder: Path) -> Seen:
    """The best checkpoint's weights at the end of a run, and a second run of the same Trainer."""
    cadence = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    best = {"load_best_model_at_end": True, "learning_rate": 0.05}
    trainer = trainer_for(folder, **cadence, **best, num_train_epochs=1)
    trainer.train()
    seen = seen_of(trainer)
    best_step = trainer.state.best_global_step
    trainer.train()
    return seen | {"best": best_step, "second": seen_of(trainer)}


def grad_op(folder: Path) -> Seen:
    return seen_of_a_run(folder, "shard_grad_op", {"backward_prefetch": "backward_pre", "forward_prefetch": True})


def no_shard(folder: Path) -> Seen:
    return seen_of_a_run(folder, "no_shard")


def hybrid(folder: Path) -> Seen:
    return seen_of_a_run(folder, "hybrid_shard")


def flat(folder: Path) -> Seen:
    return seen_of_a_run(folder, "full_shard", {"use_orig_params": False}, weight_decay=0.0)


def steady(folder: Path) -> Seen:
    return seen_of_a_run(folder, save_strategy="steps", save_steps=3)


def no_decay(folder: Path) -> Seen:
    return seen_of_a_run(folder, weight_decay=0.0)


def recomputed(folder: Path) -> Seen:
    return seen_of_a_run(folder, "full_shard", {"activation_checkpointing": True})


def bf16(folder: Path) -> Seen:
    return seen_of_a_run(folder, bf16=True)


def _resumed(folder: Path, **config: Any) -> Seen:
    """An uninterrupted run, then one that goes on from its checkpoint in the middle of an epoch."""
    fields: Seen = {"save_strategy": "steps", "save_steps": 3}
    whole = seen_of_a_run(folder, "full_shard", config, **fields)
    trainer = trainer_for(folder / "again", "full_shard", config, **fields)
    trainer.train(resume_from_checkpoint=str(folder / "output" / "checkpoint-3"))
    return {"whole": whole, "resumed": seen_of(trainer)}


def adapter(folder: Path) -> Seen:
    """An adapter's training, and that of another one, which goes on from the first one's checkpoint in an epoch."""
    fields: Seen = {"save_strategy": "steps", "save_steps": 3}
    whole = seen_of_a_run(folder, build=sharded_common.adapted, **fields)
    trainer = trainer_for(folder / "again", build=partial(sharded_common.adapted, 1), **fields)
    trainer.train(resume_from_checkpoint=str(folder / "output" / "checkpoint-3"))
    return {"whole": whole, "resumed": seen_of(trainer)}


def launched(folder: Path) -> Seen:
    """What the launcher's variables alone ask for."""
    trainer = trainer_for(folder, "")
    trainer.train()
    return seen_of(trainer) | {"placed": trainer.lightning_backend.process_layout.fsdp}


def by_lightning(folder: Path) -> Seen:
    """What Lightning's strategy asks for."""
    from lightning.pytorch.strategies import FSDPStrategy
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    strategy = FSDPStrategy(auto_wrap_policy={LlamaDecoderLayer}, sharding_strategy="SHARD_GRAD_OP")
    trainer = trainer_for(folder, "", lightning={"strategy": strategy} if world() > 1 else None)
    trainer.train()
    return seen_of(trainer)


def resume_elsewhere(folder: Path) -> Seen:
    """Under FSDP, a checkpoint of one process without it; without, the one of FSDP, whole or in parts."""
    fields = {"save_strategy": "steps", "save_steps": 3}
    trainer = trainer_for(folder, "full_shard", {"state_dict_type": "SHARDED_STATE_DICT"}, **fields)
    trainer.train(resume_from_checkpoint=os.environ["CHECKPOINT"])
    return seen_of(trainer)


def loaded_once(folder: Path) -> Seen:
    """A pretrained model whose weights process 0 alone read."""
    from transformers import LlamaForCausalLM

    read = {}

    def load() -> Any:
        if os.environ["RANK"] == "0":
            llama().save_pretrained(folder / "start")
        torch.distributed.barrier()
        model = LlamaForCausalLM.from_pretrained(folder / "start")
        weight = model.model.layers[0].mlp.up_proj.weight
        read["up"] = not weight.is_meta and torch.equal(weight, llama().model.layers[0].mlp.up_proj.weight)
        return model

    trainer = trainer_for(folder, "full_shard", {"cpu_ram_efficient_loading": True}, build=load)
    trainer.train()
    return seen_of(trainer) | {"read": read["up"]}


def generated(folder: Path) -> Seen:
    """An encoder-decoder model that generates while it is evaluated."""
    from hf_compat import Seq2SeqTrainer, Seq2SeqTrainingArguments

    torch.manual_seed(0)
    trainer = Seq2SeqTrainer(
        helpers.t5(),
        Seq2SeqTrainingArguments(
            str(folder / "output"),
            use_cpu=True,
            disable_tqdm=True,
            report_to="none",
            per_device_eval_batch_size=GLOBAL_BATCH // world(),
            predict_with_generate=True,
            generation_max_length=6,
            fsdp="full_shard" if world() > 1 else "",
            fsdp_config={"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "version": 1} if world() > 1 else None,
        ),
        data_collator=helpers.PadCollator(),
        eval_dataset=helpers.ListDataset(helpers.token_rows(8, seed=1)),
    )
    first, second = (trainer.predict(trainer.eval_dataset) for _ in range(2))
    losses = [found.metrics["test_loss"] for found in (first, second)]
    return {"predictions": first.predictions, "again": second.predictions, "losses": losses}


def _in_background(folder: Path, **config: Any) -> Seen:
    """The uninterrupted run of ``_resumed``, whose saves are written while it trains on."""
    fields: Seen = {"save_strategy": "steps", "save_steps": 3, "save_async": True}
    trainer = held(trainer_for(folder, "full_shard", config, **fields))
    trainer.train()
    return {"whole": seen_of(trainer)}


def in_background_whole(folder: Path) -> Seen:
    return _in_background(folder)


def in_background_sharded(folder: Path) -> Seen:
    return _in_background(folder, state_dict_type="SHARDED_STATE_DICT")


def resume_whole(folder: Path) -> Seen:
    return _resumed(folder)


def resume_flat(folder: Path) -> Seen:
    return _resumed(folder, use_orig_params=False)


def resume_sharded(folder: Path) -> Seen:
    return _resumed(folder, state_dict_type="SHARDED_STATE_DICT")


ALONE = {body.__name__: body for body in (everything, best_and_twice, steady, no_decay, bf16, generated)}
"""Run without FSDP too."""
SEVERAL = {
    body.__name__: body
    for body in (
        everything,
        best_and_twice,
        bf16,
        grad_op,
        no_shard,
        hybrid,
        flat,
        recomputed,
        resume_whole,
        resume_flat,
        adapter,
        by_lightning,
        generated,
        loaded_once,
        resume_sharded,
        in_background_whole,
        in_background_sharded,
    )
}


OTHERS = {body.__name__: body for body in (launched, resume_elsewhere)}
"""Started by themselves."""


def write_scenario(name: str, folder: Path) -> None:
    """Run scenario ``name`` and write what was seen."""
    run_scenario(name, folder, (ALONE | SEVERAL | OTHERS)[name])


if __name__ == "__main__":
    set_up_process()
    for word in sys.argv[2:]:
        write_scenario(word, Path(sys.argv[1]))
    torch.distributed.destroy_process_group()  # with its threads running, a process may not end well
