"""What both libraries do with several GPUs in one process; called through :mod:`tests.gpu.harness`."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.support import parity
from tests.support.parity import Kit, Which, compare, differences, run

Body = Callable[[Kit], None]
STATES = {"model.safetensors", "optimizer.pt", "scheduler.pt"}


def differing(
    table: Callable[[], Mapping[str, Body]],
    names: Iterable[str],
    folder: Path,
    *,
    subject: Which = "ours",
    starter: Which | None = None,
) -> dict[str, str]:
    """Return each scenario with what differs between the libraries, or the error; empty if nothing does.

    Args:
        table: Returns the scenarios by name.
        names: Those to run.
        folder: An empty folder.
        subject: What is compared with transformers.
        starter: The library that runs the stages before the last one. Default: the same.
    """
    torch.set_num_threads(1)
    parity.DEFAULTS.update(use_cpu=False, dataloader_pin_memory=True)
    return {name: _difference(table()[name], folder / name.replace(" ", "-"), subject, starter) for name in names}


def _difference(body: Body, folder: Path, subject: Which, starter: Which | None) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = run(body, "upstream", folder / "upstream")
            return differences(expected, run(body, subject, folder / subject, starter=starter))
    except Exception:
        return traceback.format_exc()


def assert_same_states(found: Path, expected: Path) -> None:
    """Fail unless two runs have written the same weights and states, wherever the tensors were."""
    names = sorted(str(path.relative_to(expected)) for path in expected.rglob("*") if path.name in STATES)
    assert names
    assert names == sorted(str(path.relative_to(found)) for path in found.rglob("*") if path.name in STATES)
    for name in names:
        assert list(compare(_state_in(expected / name), _state_in(found / name), name)) == []


def _state_in(path: Path) -> Any:
    if path.suffix == ".safetensors":
        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=False)
