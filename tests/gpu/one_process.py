"""What both libraries do with several GPUs in one process; called through :mod:`tests.gpu.harness`."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch

from tests.support import parity
from tests.support.parity import Kit, Which, differences, run

Body = Callable[[Kit], None]


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
