"""DeepSpeed on CPUs, and its own conversion of checkpoints into universal ones."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from tests.support.processes import finish, start

__all__ = ["allow_fp16", "to_universal", "without_extension"]


def without_extension() -> None:
    """Let processes talk by gloo: DeepSpeed would build a C++ extension for minutes."""
    importlib.import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False


def allow_fp16() -> None:
    """Let DeepSpeed train in float16 on any CPU; by itself it does where that is fast."""
    importlib.import_module("deepspeed.accelerator").get_accelerator().is_fp16_supported = lambda: True


def to_universal(states: Path, target: Path, *, stage: int) -> None:
    """Write to ``target`` what DeepSpeed's script makes of the ``states`` that its ranks have saved."""
    script = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--num_extract_workers=1"]
    folders = ["--num_merge_workers=1", "--input_folder", states, "--output_folder", target]
    more = ["--inject_missing_state"] if stage < 3 else []
    (ended,) = finish([start([*script, *folders, *more], DS_ACCELERATOR="cpu")])
    assert ended.code == 0, ended.output
