"""Trains with checkpoints, at once and in the background, while a callback changes weights and states; on two ranks.

Its arguments are a folder and the name of one of ``SHARDINGS``; the folder then has the output of each run.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import torch

from hf_compat import Trainer, TrainerCallback, TrainingArguments
from tests.scripts.sharded_common import SETTINGS, held, llama, set_up_process
from tests.support import helpers
from tests.support.scale import SHARDINGS

RUNS = {"unchanged": False, "at once": False, "later": True}
"""The runs, by whether they save in the background."""


class Changes(TrainerCallback):
    """Changes this rank's part of everything in a checkpoint, several times in each update step from the second on."""

    def __init__(self) -> None:
        self.averages: dict[str, torch.Tensor] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any, optimizer: Any, **_: Any) -> None:
        """Clamp weights, swap an average in, change what is frozen and what the optimizer knows."""
        if state.global_step < 1:
            return
        for name, parameter in model.named_parameters():
            own = _part(parameter.data)
            if not parameter.requires_grad:
                own.add_(1)
            elif "self_attn" in name:
                average, self.averages[name] = self.averages.get(name, own * 0.5), own.clone()
                own.copy_(average)
            else:
                own.clamp_(-0.02, 0.02)
        while getattr(optimizer, "optimizer", optimizer) is not optimizer:  # of the engine
            optimizer = optimizer.optimizer
        for entry in optimizer.state.values():
            _part(entry["exp_avg"]).mul_(0.5)

    def on_substep_end(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        """Change weights past torch's counters."""
        for parameter in model.parameters():
            _part(parameter.data).numpy()[...] *= 0.9

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        """Apply a mask."""
        for parameter in model.parameters():
            own = _part(parameter.data)
            own.mul_(own > -0.01)

    on_step_end = on_substep_end


def _part(tensor: Any) -> torch.Tensor:
    own: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return own.detach()


def main(folder: Path, name: str) -> None:
    """Make each of the runs."""
    (sharding,) = (one for one in SHARDINGS if one.name == name)
    fields: dict[str, Any] = dict(sharding.fields)
    if "fsdp_config" in fields:
        fields["fsdp_config"] = {**fields["fsdp_config"], "state_dict_type": "SHARDED_STATE_DICT"}
    for run, save_async in RUNS.items():
        model = llama()
        model.model.norm.requires_grad_(False)
        settings = SETTINGS | copy.deepcopy(fields)
        settings |= {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "no", "num_train_epochs": 1}
        args = TrainingArguments(
            str(folder / run),
            per_device_train_batch_size=1,
            gradient_accumulation_steps=2,
            max_steps=4,
            save_async=save_async,
            **settings,
        )
        trainer = Trainer(
            model,
            args,
            data_collator=helpers.PadCollator(),
            train_dataset=helpers.ListDataset(helpers.token_rows(16)),
            callbacks=[] if run == "unchanged" else [Changes()],
        )
        held(trainer).train()


if __name__ == "__main__":
    set_up_process()
    main(Path(sys.argv[1]), sys.argv[2])
