"""What an update step costs, as a ratio to transformers' Trainer and to a hand-written loop, in one run.

    python tests/benchmarks/bench_overhead.py [--steps 300] [--accumulate 1] [--width 32]

The three train the same tiny GPT-2 on the same batches, taking turns, so that a change of the machine's speed meets all
alike. The model is small on purpose: what is measured is the cost around it. Times are CPU times of the thread that
trains, and of the fastest tenth of the update steps the longest, which other programs disturb least.
"""

import argparse
import itertools
import statistics
import tempfile
import time

import torch
import transformers
from torch.utils.data import DataLoader

import hf_compat

ROUNDS = 5
WARM_UP = 10  # steps at the start of a run that are not timed


def model(width):
    """Return a GPT-2 of two layers, ``width`` wide, without dropout."""
    transformers.set_seed(0)
    config = transformers.GPT2Config(
        vocab_size=128, n_positions=64, n_embd=width, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    return transformers.GPT2LMHeadModel(config)


def rows(count):
    """Return ``count`` rows of 32 tokens."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 128, (count, 32), generator=draw)
    return [{"input_ids": row, "labels": row} for row in tokens]


def typical(marks):
    """Return the seconds between two of ``marks`` after the warm-up: of the fastest tenth the longest."""
    steps = sorted(after - before for before, after in itertools.pairwise(marks[WARM_UP:]))
    return steps[len(steps) // 10]


def with_trainer(package, options):
    """Return the CPU seconds of an update step under ``package``'s Trainer."""
    marks = []

    class Clock(package.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            marks.append(time.thread_time())

    with tempfile.TemporaryDirectory() as folder:
        args = package.TrainingArguments(
            output_dir=folder,
            max_steps=options.steps,
            per_device_train_batch_size=8,
            use_cpu=True,
            report_to="none",
            gradient_accumulation_steps=options.accumulate,
            save_strategy="no",
            logging_steps=50,
            disable_tqdm=False,
            optim="adamw_torch",
        )
        trainer = package.Trainer(model(options.width), args, train_dataset=options.rows, callbacks=[Clock()])
        trainer.train()
    return typical(marks)


def by_hand(options):
    """Return the CPU seconds of an update step in a plain loop with the same optimizer, schedule and clipping."""
    network = model(options.width)
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-5, weight_decay=0.0)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, options.steps)
    batches = iter(())
    loader = DataLoader(options.rows, batch_size=8, shuffle=True)
    marks = []
    network.train()
    for _ in range(options.steps):
        for _ in range(options.accumulate):
            batch = next(batches, None)
            if batch is None:
                batches = iter(loader)
                batch = next(batches)
            (network(**batch).loss / options.accumulate).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        marks.append(time.thread_time())
    return typical(marks)


def main():
    """Print the median of each and the two ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--width", type=int, default=32)
    options = parser.parse_args()
    if options.steps <= WARM_UP:
        parser.error(f"--steps is {options.steps}; the first {WARM_UP} steps are not timed: give more than that.")
    options.rows = rows(800)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    runs = {"hf_compat": [], "transformers": [], "by hand": []}
    for _ in range(ROUNDS):
        runs["hf_compat"].append(with_trainer(hf_compat, options))
        runs["transformers"].append(with_trainer(transformers, options))
        runs["by hand"].append(by_hand(options))
    medians = {name: statistics.median(seconds) for name, seconds in runs.items()}
    for name, seconds in medians.items():
        print(f"{name:>13}: {1e3 * seconds:7.3f} ms an update step")
    for other in ("transformers", "by hand"):
        print(f"hf_compat / {other}: {medians['hf_compat'] / medians[other]:.3f}")
    above = {name: seconds - medians["by hand"] for name, seconds in medians.items()}
    print(f"above the loop by hand, hf_compat / transformers: {above['hf_compat'] / above['transformers']:.3f}")


if __name__ == "__main__":
    main()
