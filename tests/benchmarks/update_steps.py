"""What an update step costs: of a tiny model, where the cost around it shows, and of a language model."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader

import hf_compat
from tests.benchmarks.measuring import BY_HAND, HF_COMPAT, LIGHTNING, TRANSFORMERS, Benchmark, Cost, Marks

__all__ = ["benchmarks"]

BATCH, TOKENS = 4, 128


class Tiny(nn.Module):
    """A classifier of vectors with two small layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, features, labels=None):
        """Return logits and loss."""
        logits = self.body(features)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def _tiny_rows() -> list[dict[str, Any]]:
    draw = torch.Generator().manual_seed(0)
    return [{"features": torch.randn(8, generator=draw), "labels": torch.tensor(n % 2)} for n in range(64)] * 100


def _language_model() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=4096, n_positions=TOKENS, n_embd=256, n_layer=5, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    return transformers.GPT2LMHeadModel(config)


def _token_rows() -> list[dict[str, Any]]:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 4096, (400, TOKENS), generator=draw)
    return [{"input_ids": row, "labels": row} for row in rows]


def _collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


@dataclass(frozen=True)
class _Work:
    """Update steps of a model."""

    model: Callable[[], nn.Module]
    rows: list[Any]
    steps: int
    accumulate: int
    """Batches of an update step."""
    warm_up: int
    """Update steps at the start that do not count."""
    units: int
    """What of a step is counted."""

    def loader(self) -> DataLoader[Any]:
        """Return the batches."""
        return DataLoader(self.rows, batch_size=BATCH, shuffle=True, collate_fn=_collate)

    def optimizer(self, model: nn.Module) -> Any:
        """Return the optimizer and the schedule that the Trainers use by default."""
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.0, fused=True)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / self.steps)

    def with_trainer(self, package: Any) -> Cost:
        """Run ``package``'s Trainer."""
        marks = Marks(self.warm_up)

        class Clock(package.TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                marks.set()

        with tempfile.TemporaryDirectory() as folder:
            args = package.TrainingArguments(
                output_dir=folder,
                max_steps=self.steps,
                per_device_train_batch_size=BATCH,
                gradient_accumulation_steps=self.accumulate,
                use_cpu=True,
                report_to="none",
                save_strategy="no",
                logging_steps=500,
                disable_tqdm=True,
                dataloader_pin_memory=False,
            )
            trainer = package.Trainer(
                self.model(), args, train_dataset=self.rows, data_collator=_collate, callbacks=[Clock()]
            )
            trainer.remove_callback(package.PrinterCallback)
            trainer.train()
        return marks.cost(self.units)

    def with_lightning(self) -> Cost:
        """Run a ``lightning.Trainer`` with a module that does only what it has to."""
        work, marks = self, Marks(self.warm_up)

        class Module(pl.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.model = work.model()

            def training_step(self, batch):
                return self.model(**batch)["loss"]

            def configure_optimizers(self):
                optimizer, schedule = work.optimizer(self.model)
                return [optimizer], [{"scheduler": schedule, "interval": "step"}]

            def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
                super().optimizer_step(*args, **kwargs)
                marks.set()

        trainer = pl.Trainer(
            max_steps=self.steps,
            accumulate_grad_batches=self.accumulate,
            gradient_clip_val=1.0,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(), self.loader())
        return marks.cost(self.units)

    def by_hand(self) -> Cost:
        """Run a loop of torch."""
        model, marks = self.model(), Marks(self.warm_up)
        optimizer, schedule = self.optimizer(model)
        batches = itertools.chain.from_iterable(itertools.repeat(self.loader()))
        model.train()
        for _ in range(self.steps):
            for batch in itertools.islice(batches, self.accumulate):
                (model(**batch)["loss"] / self.accumulate).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            marks.set()
        return marks.cost(self.units)


def _benchmark(name: str, unit: str, work: _Work, *, above: bool) -> Benchmark:
    subjects = {
        HF_COMPAT: partial(work.with_trainer, hf_compat),
        TRANSFORMERS: partial(work.with_trainer, transformers),
        LIGHTNING: work.with_lightning,
        BY_HAND: work.by_hand,
    }
    return Benchmark(name, unit, subjects, above)


def benchmarks() -> list[Benchmark]:
    """Return the benchmarks of this file."""
    rows = _tiny_rows()
    one = _Work(Tiny, rows, steps=600, accumulate=1, warm_up=50, units=1)
    eight = _Work(Tiny, rows, steps=150, accumulate=8, warm_up=20, units=8)
    language = _Work(_language_model, _token_rows(), steps=40, accumulate=1, warm_up=5, units=BATCH * TOKENS)
    return [
        _benchmark("update step, tiny model", "µs", one, above=True),
        _benchmark("batch, tiny model, accumulation 8", "µs", eight, above=True),
        _benchmark("token, GPT-2 of 5M parameters", "µs", language, above=False),
    ]
