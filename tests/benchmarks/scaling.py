"""Weak scaling from 1 to 4 processes, with what each sends and holds counted and compared with the formulas."""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
from typing import Any

from tests.benchmarks.measuring import HF_COMPAT, TRANSFORMERS
from tests.support.processes import TORCHRUN, finish, start
from tests.support.scale import SHARDINGS, Sharding

__all__ = ["counted", "has_own_network", "table"]

RANKS = (1, 2, 4)
_ALONE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
"""Ahead of a command: it gets a loopback device of its own, which nobody else sends on."""


def has_own_network() -> bool:
    """Return whether commands are run with a loopback device of their own; else other programs' bytes count too."""
    return sys.platform == "linux" and os.geteuid() == 0 and None not in map(shutil.which, ("unshare", "ip"))


@functools.cache
def counted(package: str, name: str, ranks: int, *precision: str) -> dict[str, float]:
    """Return what a run on ``ranks`` processes counted: see ``tests/scripts/scale_script.py``."""
    command = [*TORCHRUN, f"--nproc-per-node={ranks}", "-m", "tests.scripts.scale_script", package, name, *precision]
    variables = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    (ended,) = finish([start([*(_ALONE if has_own_network() else ()), *command], **variables)])
    assert ended.code == 0, ended.output
    told: dict[str, float] = json.loads(next(line for line in ended.output.splitlines() if line.startswith('{"wall"')))
    return told


def table() -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [
        "| | ranks | sent, bytes a parameter | formula | | held, bytes a parameter | formula | | update step, ms | "
        "CPU time of a rank, ms |",
        f"|---|{'---|' * 9}",
    ]
    for sharding in SHARDINGS:
        # One rank has nothing to shard with FSDP, and transformers' does not run on the CPU.
        lines += [_line(HF_COMPAT, sharding, ranks) for ranks in RANKS if ranks > 1 or "fsdp" not in sharding.fields]
        if not sharding.fields:
            lines += [_line(TRANSFORMERS, sharding, ranks) for ranks in RANKS]
    return lines


def _line(package: str, sharding: Sharding, ranks: int) -> str:
    told = counted(package, sharding.name, ranks)
    cells: list[Any] = [sharding.name if package == HF_COMPAT else f"{sharding.name}, {package}", ranks]
    formulas = {"sent": sharding.sent(ranks, gloo=True), "held": sharding.held_by(ranks)}
    for quantity, expected in formulas.items():
        cells += [f"{told[quantity]:.3f}", f"{expected:.3g}", f"{told[quantity] / expected:.3f}" if expected else ""]
    cells += [f"{told['wall']:.0f}", f"{told['cpu']:.0f}"]
    return f"| {' | '.join(map(str, cells))} |"
