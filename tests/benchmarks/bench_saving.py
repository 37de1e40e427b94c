"""What a checkpoint costs: bytes, the share of flushing, and how long the training stands still, in one run.

    python tests/benchmarks/bench_saving.py [--width 256] [--layers 4] [--rounds 3]

transformers' Trainer, hf_compat saving at once and hf_compat saving in the background train the same GPT-2 on the same
batches, taking turns. The stall is the time from the end of an update step that saves to the begin of the next one.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
import transformers

import hf_compat

STEPS, SAVE_STEPS = 41, 20


def model(options):
    """Return a GPT-2 without dropout."""
    transformers.set_seed(0)
    config = transformers.GPT2Config(
        vocab_size=8000, n_positions=64, n_embd=options.width, n_layer=options.layers, n_head=4
    )
    return transformers.GPT2LMHeadModel(config)


def rows(count):
    """Return ``count`` rows of 16 tokens."""
    tokens = torch.randint(0, 8000, (count, 16), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in tokens]


class Flushes:
    """Adds up the seconds spent in ``os.fsync``."""

    def __init__(self):
        self.seconds, self._fsync = 0.0, os.fsync

    def __call__(self, descriptor):
        begin = time.perf_counter()
        self._fsync(descriptor)
        self.seconds += time.perf_counter() - begin


def measure(package, options, **settings):
    """Return seconds of stall a save, seconds of flushing a save, bytes of a checkpoint and seconds of the run."""
    stalls = []

    class Clock(package.TrainerCallback):
        end = None

        def on_step_end(self, args, state, control, **kwargs):
            self.end = time.perf_counter()

        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step and state.global_step % SAVE_STEPS == 0:
                stalls.append(time.perf_counter() - self.end)

    flushes = os.fsync = Flushes()
    try:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
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
                optim="adamw_torch",
                **settings,
            )
            trainer = package.Trainer(model(options), args, train_dataset=options.rows, callbacks=[Clock()])
            begin = time.perf_counter()
            trainer.train()
            seconds = time.perf_counter() - begin
            size = sum(path.stat().st_size for path in Path(folder, f"checkpoint-{STEPS}").rglob("*"))
    finally:
        os.fsync = flushes._fsync
    saves = len(stalls) + 1  # the last update step is saved too
    return statistics.mean(stalls), flushes.seconds / saves, size, seconds


def main():
    """Print the medians and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where to write; its file system decides what flushing costs")
    options = parser.parse_args()
    options.rows = rows(STEPS)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    kinds = {
        "transformers": (transformers, {}),
        "at once": (hf_compat, {}),
        "in the background": (hf_compat, {"save_async": True}),
    }
    runs = {name: [] for name in kinds}
    for _ in range(options.rounds):
        for name, (package, settings) in kinds.items():
            runs[name].append(measure(package, options, **settings))
    medians = {name: [statistics.median(column) for column in zip(*found, strict=True)] for name, found in runs.items()}
    theirs = medians["transformers"][0]
    for name, (stall, flush, size, seconds) in medians.items():
        print(
            f"{name:>17}: stall {1e3 * stall:7.1f} ms ({stall / theirs:.2f} of transformers'), flushing "
            f"{1e3 * flush:7.1f} ms a save, {size / 1e6:.1f} MB, run {seconds:.2f} s"
        )


if __name__ == "__main__":
    main()
