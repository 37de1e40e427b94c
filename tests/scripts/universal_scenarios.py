"""What processes do with universal checkpoints of DeepSpeed, under either library.

One launch trains; a test turns its checkpoint with DeepSpeed's script; another launch, perhaps of another number of
processes, goes on from it.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hf_compat.errors import CheckpointError
from tests.scripts.deepspeed_scenarios import WARMUP, Leaves, config
from tests.scripts.distributed_scenarios import BODIES, shared
from tests.support import helpers
from tests.support.deepspeed_tools import to_universal, without_extension
from tests.support.parity import Kit
from tests.support.presharded import heads
from tests.support.scenarios.common import language_model, plain

STEP = 3
"""The update step at which a run is interrupted: the first of the second epoch."""
UNIVERSAL = {"load_universal": True}
SETTINGS: dict[str, dict[str, Any]] = {
    "zero_1": config(1),
    "zero_2": config(2),
    "zero_3": config(3),
    "scheduled": config(2, scheduler=WARMUP),
    "split": config(1, tensor_parallel={"autotp_size": 2}),
}


def _trainer(kit: Kit, settings: dict[str, Any]) -> Any:
    """Return a Trainer whose windows hold 8 samples, however many processes there are; without dropout."""
    without_extension()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    is_split = "tensor_parallel" in settings
    chosen = {
        "per_device_train_batch_size": 2,  # as in the checkpoint, whose size 4.57 takes over
        "gradient_accumulation_steps": 4 if is_split else 4 // ranks,
        "num_train_epochs": 3,
        "weight_decay": 0.1,
        "warmup_steps": 2,
        "save_strategy": "steps",
        "save_steps": STEP,
        "deepspeed": settings,
    }
    if not is_split:
        return language_model(kit, rows=24, fields=chosen, model=kit.model(helpers.gpt2, dropout=0.0))
    trainer = language_model(kit, rows=24, fields=chosen, model=kit.model(heads))  # DeepSpeed splits no GPT-2
    trainer.floating_point_ops = lambda inputs: 0  # upstream counts what ranks compute together once a rank
    return trainer


def begun(kit: Kit, name: str) -> None:
    """Train without an interruption, saving on the way."""
    trainer = _trainer(kit, SETTINGS[name])
    kit.train(trainer)
    kit.keep("full weights", trainer.accelerator.get_state_dict(trainer.deepspeed) or {})


def go_on(kit: Kit, name: str) -> None:
    """Go on from what the test has made of the checkpoint."""
    checkpoint = kit.folder.parent.parent / f"begun_{name}" / "checkpoint"
    torch.manual_seed(1)  # other weights, which the checkpoint replaces
    trainer = _trainer(kit, SETTINGS[name] | {"checkpoint": UNIVERSAL})
    kit.train(trainer, resume_from_checkpoint=str(checkpoint))
    kit.keep("full weights", trainer.accelerator.get_state_dict(trainer.deepspeed) or {})


@shared
def refused_universal_checkpoints(kit: Kit) -> None:
    """A checkpoint as it was saved, and one whose files hold code."""
    os.chdir(kit.folder)
    begun = kit.folder.parent.parent / "begun_zero_1"
    code = Path(kit.output_dir, "code")
    if os.environ.get("RANK", "0") == "0":
        shutil.copytree(begun / "checkpoint", code)
        torch.save(Leaves(), next(code.glob("*_universal/zero/*/exp_avg.pt")))
    saved = begun / "ours" / "output" / f"checkpoint-{STEP}"
    for name, checkpoint in (("not converted", saved), ("code", code)):
        trainer = _trainer(kit, SETTINGS["zero_1"] | {"checkpoint": UNIVERSAL})
        trainer.accelerator.wait_for_everyone()
        try:
            trainer.train(resume_from_checkpoint=str(checkpoint))
        except CheckpointError as error:
            kit.keep(name, str(error))
    kit.keep("was run", Path("was-run").exists())


class Counting(helpers.PlainModel):
    """Its buffer counts the batches of its training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, features: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        self.batches += self.training
        return super().forward(features, labels)


@shared
def universal_checkpoint_with_buffers(kit: Kit) -> None:
    """Train a model with a buffer, convert its checkpoint and resume it in the same process."""
    without_extension()
    fields = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    plain(kit, fields={**fields, "deepspeed": config(1)}, model=Counting()).train()
    checkpoint = Path(kit.output_dir, "checkpoint-1")
    convert(checkpoint, stage=1)
    model = Counting()
    settings = config(1, checkpoint=UNIVERSAL)
    plain(kit, fields={**fields, "deepspeed": settings}, model=model).train(resume_from_checkpoint=str(checkpoint))
    kit.keep("batches", model.batches)


def convert(checkpoint: Path, *, stage: int) -> None:
    """Add to ``checkpoint`` what DeepSpeed's script makes of it."""
    (states,) = checkpoint.glob("global_step*")
    to_universal(states, states.with_name(f"{states.name}_universal"), stage=stage)


BODIES.update({f"begun_{name}": partial(begun, name=name) for name in SETTINGS})
BODIES.update({f"resumed_{name}": partial(go_on, name=name) for name in SETTINGS})
