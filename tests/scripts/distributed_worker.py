"""One process of several: runs scenarios under both libraries and writes what this process saw of each.

Started by ``processes.run_scenarios``; its arguments are a folder and words such as ``upstream:scenario``.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed

from tests.scripts import (
    deepspeed_scenarios,
    distributed_scenarios,
    drawn_scenarios,
    memory_scenarios,
    sequence_parallel_scenarios,
    universal_scenarios,
)
from tests.support.parity import Kit, run

assert deepspeed_scenarios.shared  # importing these has entered their scenarios
assert drawn_scenarios.name_of
assert memory_scenarios.shared
assert sequence_parallel_scenarios.shared
assert universal_scenarios.go_on
torch.set_num_threads(1)
warnings.simplefilter("ignore")


def together(body: Callable[[Kit], None]) -> Callable[[Kit], None]:
    """Return ``body`` with a barrier behind it: files are read once the main process has written them."""

    def wait(kit: Kit) -> None:
        body(kit)
        if distributed.is_initialized():
            distributed.barrier()

    return wait


def main(folder: Path, words: list[str]) -> None:
    for word in words:
        library, name, *rest = word.split(":")
        starter = rest[0] if rest else library
        place = folder / name / "-".join([library, *rest])
        place.mkdir(parents=True, exist_ok=True)
        try:
            outcome = run(together(distributed_scenarios.BODIES[name]), library, place, starter=starter)
        except Exception:
            (place / f"{rank()}.error").write_text(traceback.format_exc())
            raise
        torch.save(outcome, place / f"{rank()}.outcome")


def rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
