"""What two processes do under FSDP version 2 with checkpoints and weights on the disk; started by ``fsdp2_script``."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from hf_compat import HFCompatError, TrainingArguments
from hf_compat.checkpoint import distributed_files
from hf_compat.checkpoint.background import Snapshot
from hf_compat.distributed import collectives
from hf_compat.trainer import model_files
from tests.scripts.fsdp2_script import FULL, LAYERS, SHARDED, seen_of, trainer_for
from tests.scripts.sharded_common import Seen, adapted, held, llama, world
from tests.support import helpers

SAVES = {
    "save_strategy": "steps",
    "save_steps": 3,
    "eval_strategy": "steps",
    "eval_steps": 3,
    "metric_for_best_model": "loss",
    "greater_is_better": False,
    "load_best_model_at_end": True,
}
"""Saves after update steps 3, in the middle of an epoch of 4, 6 and 8, the end."""


def dropping(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return helpers.gpt2(dropout=0.1)


def stopped_and_resumed(folder: Path, fsdp: Seen) -> Seen:
    """A run, and one of a model with other weights that goes on from its first checkpoint."""
    trainer = trainer_for(folder / "whole", dropping(), fsdp, **SAVES)
    trainer.train()
    whole = seen_of(trainer)
    first = folder / "whole" / "output" / "checkpoint-3"
    by_accelerate = loaded_by_accelerate(trainer, first, fsdp)
    trainer = trainer_for(folder / "rest", dropping(1), fsdp, **SAVES)
    trainer.train(resume_from_checkpoint=str(first))
    best = Path(trainer.state.best_model_checkpoint).name
    return {"whole": whole, "rest": seen_of(trainer), "best": best, **by_accelerate}


def loaded_by_accelerate(trainer: Any, folder: Path, fsdp: Seen) -> Seen:
    """Return the whole weights and optimizer's state that accelerate loads for transformers, and that we do."""
    from accelerate import PartialState
    from accelerate.utils import fsdp_utils
    from torch.distributed.fsdp import StateDictType

    strategy = trainer.accelerator.strategy
    model, optimizer = trainer.model, trainer.optimizer
    plugin = SimpleNamespace(
        fsdp_version=2, state_dict_type=StateDictType[fsdp["state_dict_type"]], state_dict_config=SimpleNamespace()
    )
    plugin.optim_state_dict_config = plugin.state_dict_config
    accelerator = PartialState(cpu=True)
    accelerator.is_fsdp2 = True

    def state() -> Any:
        return distributed_files.full_tensors([model.state_dict(), optimizer.state_dict()], keeps=True)

    trainer._load_from_checkpoint(str(folder))
    strategy.load_optimizer(optimizer, str(folder))
    ours = state()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    for entry in optimizer.state.values():
        entry["exp_avg"].zero_()
    fsdp_utils.load_fsdp_model(plugin, accelerator, model, str(folder))
    fsdp_utils.load_fsdp_optimizer(plugin, accelerator, optimizer, model, str(folder))
    return {"ours": ours, "accelerate's": state()}


def resumed_full(folder: Path) -> Seen:
    return stopped_and_resumed(folder, FULL)


def resumed_sharded(folder: Path) -> Seen:
    return stopped_and_resumed(folder, SHARDED)


def in_background(folder: Path, fsdp: Seen) -> Seen:
    """The run of ``stopped_and_resumed``, saved while it trains on, and one that goes on from the first save."""
    trainer = held(trainer_for(folder / "whole", dropping(), fsdp, **SAVES, save_async=True))
    gather, gathered = model_files.state_dict_to_save, list[Seen]()
    publish, is_shared = trainer.checkpoint_writer._publish, list[bool]()

    def gathering(*given: Any, **settings: Any) -> Seen:
        gathered.append(gather(*given, **settings))
        return gathered[-1]

    def publishing(publication: Any, snapshot: Snapshot, *given: Any) -> None:
        weights = [file.content[1] for file in snapshot.files if isinstance(file.content, tuple)]
        is_shared.extend(state is gathered[-1] for state in weights)
        publish(publication, snapshot, *given)

    model_files.state_dict_to_save = gathering  # type: ignore[assignment]
    trainer.checkpoint_writer._publish = publishing  # type: ignore[method-assign]
    try:
        trainer.train()
    finally:
        model_files.state_dict_to_save = gather
    whole = seen_of(trainer)
    trainer = trainer_for(folder / "rest", dropping(1), fsdp, **SAVES, save_async=True)
    trainer.train(resume_from_checkpoint=str(folder / "whole" / "output" / "checkpoint-3"))
    return {"whole": whole, "rest": seen_of(trainer), "is_shared": is_shared}


def in_background_full(folder: Path) -> Seen:
    return in_background(folder, FULL)


def in_background_sharded(folder: Path) -> Seen:
    return in_background(folder, SHARDED)


def sharded_for_one(folder: Path) -> Seen:
    """A run without dropout, whose checkpoints other numbers of processes go on from."""
    trainer = trainer_for(folder, llama(), SHARDED, save_strategy="steps", save_steps=3)
    trainer.train()
    trainer.save_model(str(folder / "model"))
    return seen_of(trainer)


def loaded_by_first(folder: Path) -> Seen:
    """Process 0 alone reads the weights of a pretrained model."""
    from transformers import AutoModelForCausalLM

    config = {**LAYERS, "cpu_ram_efficient_loading": True}
    TrainingArguments(str(folder), use_cpu=True, report_to="none", fsdp=True, fsdp_config=config)
    if collectives.get_rank() == 0:
        llama().save_pretrained(folder / "pretrained")
    collectives.barrier()
    model = AutoModelForCausalLM.from_pretrained(folder / "pretrained")
    for name in ("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING"):
        os.environ.pop(name)
    is_read = torch.equal(model.lm_head.weight, llama().lm_head.weight)
    trainer = trainer_for(folder, model)
    trainer.train()
    return seen_of(trainer) | {"is_read": is_read}


def made_by_first(folder: Path) -> Seen:
    """Process 0 alone has a model that is more than its shapes."""
    with torch.device("cpu" if collectives.get_rank() == 0 else "meta"):
        model = llama()
    trainer = trainer_for(folder, model)
    trainer.train()
    return seen_of(trainer)


def adapter(folder: Path) -> Seen:
    """An adapter's training, alone or on two processes; and there one that goes on from its first checkpoint."""
    saves = {"save_strategy": "steps", "save_steps": 3}
    trainer = trainer_for(folder / "whole", adapted(), **saves)
    trainer.train()
    seen = seen_of(trainer)
    if world() > 1:
        trainer = trainer_for(folder / "rest", adapted(1), **saves)
        trainer.train(resume_from_checkpoint=str(folder / "whole" / "output" / "checkpoint-3"))
        seen["rest"] = seen_of(trainer)
    return seen


UNEVEN = {"accelerator_config": {"even_batches": False}}


def refused(folder: Path) -> Seen:
    """What a Trainer says of what it cannot do under FSDP."""
    told = {}
    model = helpers.PlainModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for name, keywords in {
        "optimizers": {"optimizers": (optimizer, None)},
        "training": {**UNEVEN, "per_device_train_batch_size": 4},  # seven batches for two processes
        "evaluation": {**UNEVEN, "per_device_eval_batch_size": 8, "eval_on_start": True},
        "peft": {"model": adapted(), "fsdp": SHARDED},
    }.items():
        try:
            trainer_for(folder, **{"model": model} | keywords).train()
        except HFCompatError as error:
            told[name] = f"{type(error).__name__}: {error}"
    return {"told": told}


SAVING = {
    "resumed_full": resumed_full,
    "resumed_sharded": resumed_sharded,
    "in_background_full": in_background_full,
    "in_background_sharded": in_background_sharded,
    "sharded_for_one": sharded_for_one,
    "loaded_by_first": loaded_by_first,
    "made_by_first": made_by_first,
    "adapter": adapter,
    "refused": refused,
}
