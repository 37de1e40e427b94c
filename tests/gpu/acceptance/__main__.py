"""Run every case on this machine's GPU, or on the fake one, each in a process of its own; a result is a line of JSON.

    python -m tests.gpu.acceptance [--only NAME ...] [--deadline 570] [--results acceptance.jsonl] [--fake]
    python -m tests.gpu.acceptance speed

The first is about correctness, ``speed`` about time and memory. It says first what fits the deadline, and runs the
longest cases first. It ends with 1 if a case failed or was not reached.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from pathlib import Path

import torch

from tests.gpu.acceptance.correctness import CORRECTNESS
from tests.gpu.acceptance.running import run_all
from tests.gpu.acceptance.speed import SPEED
from tests.gpu.build import reason_to_skip

SUITES = {"correctness": CORRECTNESS, "speed": SPEED}


def main() -> int:
    """Run what is asked for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.acceptance", description=__doc__.splitlines()[0])
    parser.add_argument("suite", nargs="?", choices=SUITES, default="correctness")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases by name, which may hold `*`; default: all")
    parser.add_argument("--deadline", type=float, default=570, metavar="SECONDS", help="cases left then are skipped")
    parser.add_argument("--jobs", type=int, default=None, help="small cases at a time; default: 8, on the fake GPU 1")
    parser.add_argument("--results", type=Path, default=None, help="default: SUITE.jsonl in the working directory")
    parser.add_argument("--fake", action="store_true", help="the fake GPU and small sizes, as without a GPU")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    options = parser.parse_args()
    cases = SUITES[options.suite]
    chosen = [name for name in cases if any(fnmatch.fnmatch(name, pattern) for pattern in options.only or "*")]
    if not chosen:
        parser.error(f"no case is named {' or '.join(options.only)}; there are {', '.join(cases)}")
    if options.list:
        print("\n".join(chosen))
        return 0
    fake = options.fake or not torch.cuda.is_available()
    if fake and (reason := reason_to_skip()) is not None:
        parser.error(reason)
    return run_all(
        {name: cases[name] for name in chosen},
        results=options.results or Path(f"{options.suite}.jsonl"),
        deadline=options.deadline,
        jobs=options.jobs or (1 if fake else 8),
        fake=fake,
    )


if __name__ == "__main__":
    sys.exit(main())
