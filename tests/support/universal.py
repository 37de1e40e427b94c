"""DeepSpeed's own conversion of its checkpoints into universal ones."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.processes import finish, start

__all__ = ["to_universal"]


def to_universal(states: Path, target: Path, *, stage: int) -> None:
    """Write to ``target`` what DeepSpeed's script makes of the ``states`` that its ranks have saved."""
    script = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--num_extract_workers=1"]
    folders = ["--num_merge_workers=1", "--input_folder", states, "--output_folder", target]
    more = ["--inject_missing_state"] if stage < 3 else []
    (ended,) = finish([start([*script, *folders, *more], DS_ACCELERATOR="cpu")], timeout=300)
    assert ended.code == 0, ended.output
