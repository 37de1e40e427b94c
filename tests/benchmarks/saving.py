"""How long training stands still for a checkpoint of some 400 MB, optimizer's state included."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from typing import Any

import torch
import transformers

import hf_compat
from tests.benchmarks.measuring import HF_COMPAT, TRANSFORMERS, Benchmark, Cost

__all__ = ["benchmarks"]

STEPS, SAVE_STEPS = 9, 4


def _model() -> Any:
    config = transformers.GPT2Config(vocab_size=8000, n_positions=64, n_embd=640, n_layer=6, n_head=8)
    return transformers.GPT2LMHeadModel(config)  # 34.6M parameters


def _rows() -> list[dict[str, Any]]:
    tokens = torch.randint(0, 8000, (STEPS, 16), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in tokens]


def _stall(package: Any, **settings: Any) -> Cost:
    """Return the time from the end of an update step that saves to the beginning of the next one."""
    stalls: list[Cost] = []

    class Clock(package.TrainerCallback):
        end = (0.0, 0.0)

        def on_step_end(self, args, state, control, **kwargs):
            self.end = (time.process_time(), time.perf_counter())

        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step and state.global_step % SAVE_STEPS == 0:
                now = (time.process_time(), time.perf_counter())
                stalls.append(Cost(*(1e3 * (after - before) for before, after in zip(self.end, now, strict=True))))

    with tempfile.TemporaryDirectory() as folder:
        args = package.TrainingArguments(
            output_dir=folder,
            max_steps=STEPS,
            save_steps=SAVE_STEPS,
            save_total_limit=1,
            per_device_train_batch_size=1,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            **settings,
        )
        trainer = package.Trainer(_model(), args, train_dataset=_rows(), callbacks=[Clock()])
        trainer.remove_callback(package.PrinterCallback)
        trainer.train()
    return min(stalls, key=lambda cost: cost.wall)


def benchmarks() -> list[Benchmark]:
    """Return the benchmarks of this file; transformers' Trainer does not flush to the disk, ours does."""
    theirs = partial(_stall, transformers)
    return [
        Benchmark("save of 415 MB", "ms", {HF_COMPAT: partial(_stall, hf_compat), TRANSFORMERS: theirs}),
        Benchmark(
            "save of 415 MB, `save_async=True`",
            "ms",
            {HF_COMPAT: partial(_stall, hf_compat, save_async=True), TRANSFORMERS: theirs},
        ),
    ]
