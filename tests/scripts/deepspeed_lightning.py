"""Run by tests on two ranks, for each stage of ZeRO.

``deepspeed_lightning.py lightning FOLDER STAGE ...``: Lightning trains two epochs with DeepSpeed.
``deepspeed_lightning.py setting FOLDER SETTING ...``: Lightning trains one; a setting is such as ``3-bf16-optimizer``.
``deepspeed_lightning.py trainer FOLDER STAGE ...``: our Trainer goes on after the first, from what was converted.
``deepspeed_lightning.py saving FOLDER STAGE ...``: our Trainer trains an epoch with DeepSpeed.
``deepspeed_lightning.py reading FOLDER``: Lightning begins with the weights of ``FOLDER/0.ckpt`` under ZeRO-3.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DeepSpeedStrategy
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from hf_compat.optim.prepared import parameter_groups
from hf_compat.optim.schedulers import get_scheduler
from tests.support import helpers
from tests.support.deepspeed_tools import allow_fp16, without_extension
from tests.tools.test_convert import ROWS, STEPS, Module, by_name, trainer_run

DEALT = [ROWS[first + place] for first in range(0, len(ROWS), 4) for place in (0, 2, 1, 3)]
"""The rows in an order in which every other one is a rank's, as a Trainer deals it batches of two."""


AVERAGES = ("exp_avg", "exp_avg_sq")


class OnTheCPU(DeepSpeedStrategy):
    """Lightning's strategy without its check that there is a GPU: all else of it, files included, is as it is."""

    def setup_environment(self) -> None:
        super(DeepSpeedStrategy, self).setup_environment()

    def setup_distributed(self) -> None:
        self.set_world_ranks()
        self._init_deepspeed_distributed()

    @property
    def root_device(self) -> torch.device:
        return torch.device("cpu", 0)


class Recorded(Module):
    """Keeps what ``recorded`` returns after each epoch."""

    def __init__(self) -> None:
        super().__init__("decay")
        self.records: list[dict[str, Any]] = []

    def on_train_epoch_end(self) -> None:
        self.records.append(recorded(self.model, self.trainer.strategy.optimizers[0]))


def recorded(model: nn.Module, optimizer: Any) -> dict[str, dict[str, torch.Tensor]]:
    """Return each parameter as DeepSpeed itself puts it together, and without ZeRO Adam's averages of it."""
    from deepspeed.utils import safe_get_full_fp32_param

    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in model.named_parameters():
        if value in optimizer.state:  # without ZeRO each rank has all of it
            averages = {key: optimizer.state[value][key].clone() for key in AVERAGES}
            found[name] = {"weight": value.detach().clone(), **averages}
        else:
            found[name] = {"weight": safe_get_full_fp32_param(value).detach().clone()}
    return found


class Offloaded(Module):
    """Uses DeepSpeed's Adam, as offloading the optimizer demands."""

    def __init__(self) -> None:
        super().__init__("decay")

    def configure_optimizers(self) -> Any:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        optimizer = DeepSpeedCPUAdam(parameter_groups(self.model, 0.1), lr=1e-2, weight_decay=0.1)
        schedule = get_scheduler("linear", optimizer, num_warmup_steps=1, num_training_steps=STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def train(folder: Path, stage: int) -> None:
    """Train two epochs, with a checkpoint after each; keep on rank 0 what there was after each."""
    module = Recorded()
    trainer = fit(folder, module, epochs=2, stage=stage)
    if trainer.is_global_zero:
        torch.save(module.records, folder / "expected")


def train_with(folder: Path, setting: str) -> None:
    """Train an epoch with a stage, a precision and what is offloaded: ``2-fp16``, ``3-bf16-optimizer-parameters``."""
    allow_fp16()
    stage, *words = setting.split("-")
    offloads = "optimizer" in words
    precision = {"fp16": "16-mixed", "bf16": "bf16-mixed"}.get(next(iter(words)), "32-true")
    offloading = {"offload_optimizer": offloads, "offload_parameters": "parameters" in words}
    fit(folder, Offloaded() if offloads else Module("decay"), 1, precision, stage=int(stage), **offloading)


class Begins(Module):
    """Keeps the weights with which training begins."""

    def __init__(self) -> None:
        super().__init__("decay")
        self.first: dict[str, torch.Tensor] = {}

    def on_train_start(self) -> None:
        from deepspeed.utils import safe_get_full_fp32_param

        for name, value in self.model.named_parameters():
            self.first[name] = safe_get_full_fp32_param(value).detach().clone()


def read(folder: Path) -> None:
    """Train with the weights of a file; keep on rank 0 those that there were at first."""
    module = Begins()
    module.load_state_dict(torch.load(folder / "0.ckpt", weights_only=True)["state_dict"])
    trainer = fit(folder / "read", module, 1, stage=3)
    if trainer.is_global_zero:
        torch.save(module.first, folder / "first")


def fit(folder: Path, module: Module, epochs: int, precision: Any = "32-true", **settings: Any) -> pl.Trainer:
    """Train ``module`` with Lightning's strategy of these ``settings``, with a checkpoint after each epoch."""
    # several groups in ZeRO-3
    strategy = OnTheCPU(sub_group_size=1500, process_group_backend="gloo", **settings)
    saves = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, auto_insert_metric_name=False)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        callbacks=[saves],
        max_epochs=epochs,
        precision=precision,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,  # it would shuffle
    )
    dealt = helpers.ListDataset(DEALT)
    sampler = DistributedSampler(dealt, 2, int(os.environ["RANK"]), shuffle=False)
    trainer.fit(module, DataLoader(dealt, 2, sampler=sampler, collate_fn=helpers.PadCollator()))
    return trainer


def go_on(folder: Path) -> None:
    """Train the second epoch with our Trainer, from what was converted; keep on rank 0 what there is in the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = trainer_run(
            folder / "ours",
            resume=folder / "checkpoint-3",
            per_device_train_batch_size=2,
            average_tokens_across_devices=False,
        )
    if trainer.is_world_process_zero():
        named = by_name(trainer.optimizer, trainer.model)
        found: dict[str, Any] = {"global_step": trainer.state.global_step}
        for name, value in trainer.model.named_parameters():
            state = named[name]
            found[name] = {"weight": value.detach(), **{key: state[key] for key in AVERAGES}}
        torch.save(found, folder / "found")
        of = {id(value): name for name, value in trainer.model.named_parameters()}
        order = [of[id(value)] for group in trainer.optimizer.param_groups for value in group["params"]]
        torch.save(order, folder.parent / "order")


def save(folder: Path, stage: int) -> None:
    """Train an epoch under DeepSpeed, without full weights at its end; keep on rank 0 what there is then."""
    zero = {"stage": stage, "stage3_gather_16bit_weights_on_model_save": False}
    config = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": zero}
    trainer = trainer_run(folder, epochs=1, per_device_train_batch_size=2, deepspeed=config)
    expected = recorded(trainer.model, trainer.deepspeed.optimizer)
    if trainer.is_world_process_zero():
        torch.save(expected, folder / "expected")


def main(task: str, folder: Path, stages: list[str]) -> None:
    """Do ``task``, under each stage of ZeRO."""
    warnings.simplefilter("ignore")
    if task != "trainer":
        os.environ["DS_ACCELERATOR"] = "cpu"
        without_extension()
    if task == "reading":
        read(folder)
    for stage in stages:
        if task == "lightning":
            train(folder / stage, int(stage))
        elif task == "setting":
            train_with(folder / stage, stage)
        elif task == "trainer":
            go_on(folder / stage)
        else:
            save(folder / stage, int(stage))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
