"""What one process does under FSDP version 2, and the same without it; started by ``test_fsdp2``.

Its argument is a folder; every scenario writes what this process saw into ``folder/<name>.<rank>``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from hf_compat import Trainer, TrainingArguments
from tests.scripts.sharded_common import (
    GLOBAL_BATCH,
    SETTINGS,
    CountsReductions,
    Seen,
    llama,
    run_scenario,
    second_model,
    set_up_process,
    world,
)
from tests.support import helpers

SGD = {"optim": "sgd", "learning_rate": 0.1}
"""A key's bias in GPT-2 has no gradient but rounding errors, which Adam would make as large as any."""
FULL = {"state_dict_type": "FULL_STATE_DICT"}
LAYERS = {"version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", **FULL}
CORRECTED = {"semantics": "corrected"}
SHARDED = {"state_dict_type": "SHARDED_STATE_DICT"}


def gpt2() -> Any:
    torch.manual_seed(0)
    return helpers.gpt2(dropout=0.0)


def plain() -> Any:
    torch.manual_seed(0)
    return helpers.PlainModel(dropout=0.0)


def trainer_for(
    folder: Path,
    model: Any,
    fsdp: Seen | None = None,
    *,
    words: Any = True,
    callbacks: Any = (),
    optimizers: Any = (None, None),
    count: int = 28,
    **fields: Any,
) -> Trainer:
    """Return a Trainer whose windows hold the same samples with one process and with several."""
    settings = {
        **SETTINGS,
        "per_device_train_batch_size": GLOBAL_BATCH // world(),
        "per_device_eval_batch_size": GLOBAL_BATCH // world(),
        "gradient_accumulation_steps": 2,
    }
    if world() > 1:
        settings |= {"fsdp": words, "fsdp_config": {**LAYERS, **(fsdp or {})}}
    if world() > 2:
        settings["parallelism_config"] = {"dp_replicate_size": world() // 2, "dp_shard_size": 2}
    vectors = isinstance(model, helpers.PlainModel)
    rows: Callable[..., Any] = helpers.vector_rows if vectors else helpers.token_rows
    return Trainer(
        model,
        TrainingArguments(str(folder / "output"), **(settings | fields)),
        data_collator=None if vectors else helpers.PadCollator(),
        train_dataset=helpers.ListDataset(rows(count)),  # seven batches: the last window of an epoch is short
        eval_dataset=helpers.ListDataset(rows(8, seed=1)),
        callbacks=list(callbacks),
        optimizers=optimizers,
    )


def seen_of(trainer: Trainer) -> Seen:
    """Return logs, and the whole weights where this process gathers them."""
    names = ("loss", "grad_norm", "eval_loss", "train_loss", "num_input_tokens_seen")
    logs = [{name: line[name] for name in names if name in line} for line in trainer.state.log_history]
    return {"logs": logs, "weights": trainer.accelerator.get_state_dict(trainer.model)}


def seen_of_a_run(folder: Path, build: Callable[[], Any], **given: Any) -> Seen:
    trainer = trainer_for(folder, build(), **given)
    trainer.train()
    return seen_of(trainer)


def llama_by_layers(folder: Path) -> Seen:
    """Everything at once: counts, evaluation before and after, prediction, a model written at the end.

    Before training a forward pass of the user's gathers parameters, and no backward pass frees them.
    """
    counts = CountsReductions()
    fields = {"include_num_input_tokens_seen": "non_padding", "eval_on_start": True}
    trainer = trainer_for(folder, llama(), callbacks=[counts], **fields)
    before = trainer.evaluate()
    with torch.no_grad():
        trainer.model(**helpers.PadCollator()(helpers.token_rows(2)))
    trainer.train()
    seen = seen_of(trainer)
    predicted = trainer.predict(trainer.eval_dataset)
    trainer.save_model(str(folder / "model"))
    seen["gathered"] = trainer.accelerator.get_state_dict(trainer.model_wrapped, unwrap=False)
    seen["refused"] = second_model(trainer.accelerator) if world() > 1 else []
    seen |= {"before": before["eval_loss"], "predictions": predicted.predictions, "reductions": counts.counted}
    return seen | {"kinds": sorted({type(item).__name__ for item in trainer.model.parameters()})}


def gpt2_trained_twice(folder: Path) -> Seen:
    """A model whose embeddings are tied, in a unit that is not resharded, sharded once for two runs."""
    trainer = trainer_for(folder, gpt2(), words="shard_grad_op", **SGD)
    trainer.train()
    first = list(trainer.state.log_history)
    trainer.train()
    return seen_of(trainer) | {"first": [line["loss"] for line in first if "loss" in line]}


def plain_whole(folder: Path) -> Seen:
    return seen_of_a_run(folder, plain, fsdp={"auto_wrap_policy": "NO_WRAP"}, max_grad_norm=0.0)


def plain_by_size(folder: Path) -> Seen:
    return seen_of_a_run(
        folder, plain, fsdp={"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 60}, max_grad_norm=0.0
    )


def llama_offloaded(folder: Path) -> Seen:
    fields = {"include_num_input_tokens_seen": "non_padding", "eval_on_start": True}
    return seen_of_a_run(folder, llama, fsdp={"cpu_offload": True}, **fields)


def batches_left_uneven(folder: Path) -> Seen:
    """As many batches on each process; the last of one process is a sample short, which is not filled up."""
    return seen_of_a_run(folder, llama, accelerator_config={"even_batches": False}, count=27)


def gpt2_computed_again(folder: Path) -> Seen:
    calls: list[bool] = []
    model = gpt2()
    model.transformer.h[0].ln_1.register_forward_hook(lambda *_: calls.append(model.training))
    seen = seen_of_a_run(
        folder, lambda: model, fsdp={"activation_checkpointing": True}, **SGD | {"num_train_epochs": 1}
    )
    return seen | {"passes": sum(calls)}


def gpt2_one_epoch(folder: Path) -> Seen:
    return seen_of_a_run(folder, gpt2, **SGD | {"num_train_epochs": 1})


def gpt2_with_dropout(folder: Path) -> Seen:
    """The norm of the first gradient with dropout, kept, computed again, and so by ``corrected``, with all warnings."""
    seen: Seen = {}
    for name, again, semantics in [("kept", False, None), ("again", True, None), ("corrected", True, "corrected")]:
        torch.manual_seed(0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            keys = {"activation_checkpointing": again}
            fields = {**SGD, "max_steps": 1, "eval_strategy": "no", "semantics": semantics}
            trainer = trainer_for(folder / name, helpers.gpt2(dropout=0.3), keys, **fields)
            trainer.train()
        warned = sum("to keep the masks of the loss" in str(warning.message) for warning in caught)
        seen[name] = {"norm": trainer.state.log_history[0]["grad_norm"], "warnings": warned}
    return seen


def schedule_free(folder: Path) -> Seen:
    """Losses and warnings of runs with other weights in evaluations: as transformers, with saves, and corrected."""
    seen: Seen = {}
    if find_spec("schedulefree") is None:
        return seen
    optimizer = {"optim": "schedule_free_adamw", "lr_scheduler_type": "constant"}
    for name, fields in {"plain": {}, "saved": {"save_strategy": "epoch"}, "corrected": CORRECTED}.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer = trainer_for(folder / name, llama(), **optimizer, **fields)
            trainer.train()
        warned = sum("AdamWScheduleFree has other weights" in str(warning.message) for warning in caught)
        losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
        seen[name] = {"losses": losses, "warnings": warned}
    return seen


def llama_in_bf16(folder: Path) -> Seen:
    return seen_of_a_run(folder, llama, bf16=True)


ONE_PROCESS = {
    "llama_by_layers": llama_by_layers,
    "gpt2_trained_twice": gpt2_trained_twice,
    "plain_whole": plain_whole,
    "gpt2_one_epoch": gpt2_one_epoch,
    "llama_in_bf16": llama_in_bf16,
    "batches_left_uneven": batches_left_uneven,
}
"""Run without FSDP too."""
SEVERAL = {name: body for name, body in ONE_PROCESS.items() if name != "gpt2_one_epoch"} | {
    "plain_by_size": plain_by_size,
    "llama_offloaded": llama_offloaded,
    "gpt2_computed_again": gpt2_computed_again,
    "gpt2_with_dropout": gpt2_with_dropout,
    "schedule_free": schedule_free,
}


if __name__ == "__main__":
    set_up_process()
    from tests.scripts.fsdp2_saving import SAVING  # which imports this module

    scenarios = SEVERAL | SAVING
    for word in sys.argv[2:] or scenarios:
        run_scenario(word, Path(sys.argv[1]), scenarios[word])
