"""What an update step costs: of a tiny model, where the cost around it shows, and of a language model."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import lightning.pytorch as pl
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader

import hf_compat
from tests.benchmarks.measuring import (
    BY_HAND,
    HF_COMPAT,
    LIGHTNING,
    TRANSFORMERS,
    WITHOUT_SEARCH,
    Benchmark,
    Clock,
    Cost,
    Marks,
    Span,
)

__all__ = ["Tiny", "Work", "benchmark", "benchmarks", "tiny_rows", "token_rows", "transformers_without_search"]

BATCH, TOKENS, VOCABULARY = 4, 128, 4096


class Tiny(nn.Module):
    """A classifier of vectors with two small layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, features, labels=None):
        """Return logits and loss."""
        logits = self.body(features)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def tiny_rows() -> list[dict[str, Any]]:
    """Return rows for :class:`Tiny`."""
    draw = torch.Generator().manual_seed(0)
    return [{"features": torch.randn(8, generator=draw), "labels": torch.tensor(n % 2)} for n in range(64)] * 100


def _language_model() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=TOKENS,
        n_embd=256,
        n_layer=5,
        n_head=4,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    return transformers.GPT2LMHeadModel(config)


def token_rows(vocabulary: int, tokens: int) -> list[dict[str, Any]]:
    """Return 400 rows of ``tokens`` random tokens."""
    draw = torch.Generator().manual_seed(0)
    return [{"input_ids": row, "labels": row} for row in torch.randint(0, vocabulary, (400, tokens), generator=draw)]


def _collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


@dataclass(frozen=True)
class Work:
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
    batch: int = BATCH
    device: str = "cpu"
    bf16: bool = False
    """Whether it runs under autocast to bfloat16."""
    compiler: str | None = None
    """The backend of ``torch.compile``; None: the model is not compiled."""

    def clock(self) -> Clock:
        """Return what takes the time: of the thread that trains, where it does the work."""
        return Marks(self.warm_up) if self.device == "cpu" else Span(self.warm_up, self.steps)

    def loader(self) -> DataLoader[Any]:
        """Return the batches."""
        pins = self.device != "cpu"
        return DataLoader(self.rows, batch_size=self.batch, shuffle=True, collate_fn=_collate, pin_memory=pins)

    def optimizer(self, model: nn.Module) -> Any:
        """Return the optimizer and the schedule that the Trainers use by default."""
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.0, fused=True)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / self.steps)

    def with_trainer(self, package: Any, *callbacks: Any) -> Cost:
        """Run ``package``'s Trainer, with more ``callbacks``."""
        marks = self.clock()

        class Steps(package.TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                marks.set()

        with tempfile.TemporaryDirectory() as folder:
            args = package.TrainingArguments(
                output_dir=folder,
                max_steps=self.steps,
                per_device_train_batch_size=self.batch,
                gradient_accumulation_steps=self.accumulate,
                use_cpu=self.device == "cpu",
                bf16=self.bf16,
                torch_compile_backend=self.compiler,
                report_to="none",
                save_strategy="no",
                logging_steps=500,
                disable_tqdm=True,
                dataloader_pin_memory=self.device != "cpu",
            )
            trainer = package.Trainer(
                self.model(), args, train_dataset=self.rows, data_collator=_collate, callbacks=[Steps(), *callbacks]
            )
            trainer.remove_callback(package.PrinterCallback)
            trainer.train()
        return marks.cost(self.units)

    def with_lightning(self) -> Cost:
        """Run a ``lightning.Trainer`` with a module that does only what it has to."""
        work, marks = self, self.clock()

        class Module(pl.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.model = work.made()

            def training_step(self, batch):
                return self.model(**batch)["loss"]

            def configure_optimizers(self):
                optimizer, schedule = work.optimizer(self.model)
                return [optimizer], [{"scheduler": schedule, "interval": "step"}]

            def configure_gradient_clipping(self, *_: Any, **__: Any) -> None:
                nn.utils.clip_grad_norm_(self.parameters(), 1.0)  # under autocast Lightning refuses a fused optimizer

            def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
                super().optimizer_step(*args, **kwargs)
                marks.set()

        trainer = pl.Trainer(
            max_steps=self.steps,
            accumulate_grad_batches=self.accumulate,
            accelerator=self.device,
            devices=1,
            precision="bf16-mixed" if self.bf16 else "32-true",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(), self.loader())
        return marks.cost(self.units)

    def by_hand(self) -> Cost:
        """Run a loop of torch."""
        model, marks = self.made().to(self.device), self.clock()
        optimizer, schedule = self.optimizer(model)
        batches: Iterator[Any] = itertools.chain.from_iterable(itertools.repeat(self.loader()))
        if self.device != "cpu":
            batches = map(self._moved, batches)
        forward = torch.autocast(self.device, torch.bfloat16)(model.__call__) if self.bf16 else model
        model.train()
        for _ in range(self.steps):
            for batch in itertools.islice(batches, self.accumulate):
                (forward(**batch)["loss"] / self.accumulate).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            marks.set()
        return marks.cost(self.units)

    def made(self) -> nn.Module:
        """Return the model, perhaps compiled."""
        model = self.model()
        if self.compiler is not None:
            model.compile(backend=self.compiler)
        return model

    def _moved(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {name: value.to(self.device, non_blocking=True) for name, value in batch.items()}


def transformers_without_search(work: Work) -> Cost:
    """Run transformers' Trainer on ``work``, told once that ``lomo_optim`` is not installed."""
    with mock.patch("accelerate.optimizer.is_lomo_available", return_value=False):
        return work.with_trainer(transformers)


def benchmark(name: str, unit: str, work: Work, *, above: bool = False, turns: int = 1) -> Benchmark:
    """Return the benchmark of ``work``, done by all subjects; ``above`` and ``turns`` as of ``Benchmark``."""
    subjects = {
        HF_COMPAT: partial(work.with_trainer, hf_compat),
        TRANSFORMERS: partial(work.with_trainer, transformers),
        WITHOUT_SEARCH: partial(transformers_without_search, work),
        LIGHTNING: work.with_lightning,
        BY_HAND: work.by_hand,
    }
    return Benchmark(name, unit, subjects, above, turns=turns)


def benchmarks() -> list[Benchmark]:
    """Return the benchmarks of this file."""
    rows = tiny_rows()
    one = Work(Tiny, rows, steps=600, accumulate=1, warm_up=50, units=1)
    eight = Work(Tiny, rows, steps=150, accumulate=8, warm_up=20, units=8)
    language = Work(
        _language_model, token_rows(VOCABULARY, TOKENS), steps=40, accumulate=1, warm_up=5, units=BATCH * TOKENS
    )
    return [
        benchmark("update step, tiny model", "µs", one, above=True, turns=3),
        benchmark("batch, tiny model, accumulation 8", "µs", eight, above=True, turns=3),
        benchmark("token, GPT-2 of 5M parameters", "µs", language),
    ]
