"""Measure everything, side by side in one run, and print one table.

    python -m tests.benchmarks [steps saving processes calls tracebacks scaling memory] [--rounds 5] [--write]

The subjects take turns, so that a change of the machine's speed meets all alike; the table shows medians of the rounds.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import platform
import warnings
from collections.abc import Collection, Mapping
from importlib.metadata import version
from pathlib import Path

import torch
import transformers

from tests.benchmarks import calls, memory, processes, saving, scaling, tracebacks, update_steps
from tests.benchmarks.measuring import Benchmark, table

FILES = {
    "steps": update_steps.benchmarks,
    "saving": saving.benchmarks,
    "processes": processes.benchmarks,
}
WHICH = (*FILES, "calls", "tracebacks", "scaling", "memory")
RESULTS = Path(__file__).with_name("RESULTS.md")


def report(measured: Mapping[str, list[Benchmark]], rounds: int, which: Collection[str]) -> str:
    """Return the tables, with the machine that they were measured on.

    Args:
        measured: What has been measured, by file.
        rounds: How often.
        which: The names of what is counted once, in processes of its own where it is memory.
    """
    benchmarks = list(itertools.chain.from_iterable(measured.values()))
    packages = ", ".join(f"{name} {version(name)}" for name in ("transformers", "lightning", "torch"))
    times = "once" if rounds == 1 else f"medians of {rounds} rounds"
    lines = [
        "# Benchmark results",
        "",
        f"`python -m tests.benchmarks`, {times}, in which all took turns, on {os.cpu_count()}",
        f"shared {platform.machine()} cores with one thread of torch; Python {platform.python_version()}, {packages}.",
        "The tiny model and the start took three turns a round. *Lightning* is a minimal `lightning.Trainer`,",
        "*by hand* a loop of torch, and of a save what torch and safetensors take to write the same two files",
        "and flush them. Our Trainer flushes a checkpoint to the disk, transformers' does not; where *flushed by",
        "all* says so, its files are flushed after it has written them. Of update steps the table has the longest",
        "of the fastest tenth, of saves the least of four, of predictions and evaluations the least of three",
        "turns, in each of which each number of rows is predicted until it comes to as many as the largest. A save",
        "counts to the end of the next update step, so what is written beside it counts by what it slows that",
        "step down; *stands still* is the time in which nothing is computed: between update steps, and before the",
        "weights are updated.",
        "",
        "## CPU time",
        "",
        *table(benchmarks, "cpu"),
        "",
        "## Wall time",
        "",
        *table(benchmarks, "wall"),
        "",
        "## On a GPU",
        "",
        "`python -m tests.gpu.acceptance speed` measures models of 124M and 1.2B parameters there, by transformers too",
        "and by a loop by hand; it has not been run on one since it was written.",
    ]
    if "calls" in which:
        lines += [
            "",
            "## Calls",
            "",
            "Python's and C's, by `cProfile` (`python -m tests.benchmarks calls`): other programs do not disturb them.",
            "At every step accelerate looks for the package `lomo_optim` on the import path, so that what transformers",
            "costs depends on how long that is; *without its search* it is told that there is none.",
            "",
            *calls.table(),
        ]
    if "tracebacks" in which:
        lines += [
            "",
            "## Tracebacks",
            "",
            "Frames from the call of `train` to the user's code that raises an error. *All* has those too that only",
            "pass a call on, in Lightning and in the engine, left out unless `HF_COMPAT_FULL_TRACEBACKS` is set.",
            "",
            *tracebacks.table(),
        ]
    if "scaling" in which:
        lines += [
            "",
            "## Several processes",
            "",
            "Weak scaling: each rank trains on as many rows a step, of a Llama of 5.6M parameters in float32, whatever",
            f"the world size; all share {os.cpu_count()} cores. *Sent* is what passed through the loopback device for",
            "an update step, by the kernel's count, a rank; *held* the memory of rank 0's tensors, gradients included.",
            "The formulas are in `tests/support/scale.py`. Gloo has no reduce-scatter: it sends an all-reduce instead.",
            "",
            *scaling.table(),
        ]
    if "memory" in which:
        lines += ["", *memory.section(rounds)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("which", nargs="*", help=f"any of {', '.join(WHICH)}; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name} too")
    options = parser.parse_args()
    if unknown := [name for name in options.which if name not in WHICH]:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(WHICH)}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    which = options.which or WHICH
    measured = {name: benchmarks() for name, benchmarks in FILES.items() if name in which}
    for _ in range(options.rounds):
        for each in itertools.chain.from_iterable(measured.values()):
            each.run_round()
    text = report(measured, options.rounds, which)
    print(text)
    if options.write:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
