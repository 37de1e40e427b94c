"""Scenarios under both libraries in a process with GPUs, and what differs; called through :mod:`tests.gpu.harness`."""

from __future__ import annotations

import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import distributed

from hf_compat.checkpoint.background import ENVIRONMENT_VARIABLE, BackgroundTasks
from tests.gpu.context_parallel import CONTEXT_MESH_SCENARIOS, CONTEXT_REPLICA_SCENARIOS, CONTEXT_SCENARIOS
from tests.gpu.device_maps import SPREAD_SCENARIOS
from tests.gpu.drawn import SHARES_BATCHES, drawn
from tests.gpu.replicas import REPLICA_SCENARIOS
from tests.gpu.scenarios import GPU_SCENARIOS, LOADED_SCENARIOS, MESH_SCENARIOS, RANKS_SCENARIOS
from tests.support import parity, scenarios
from tests.support.parity import SCENARIOS, Kit, Outcome, Which, compare, differences, run

ON_GPUS = {"use_cpu": False, "dataloader_pin_memory": True}
"""What is otherwise than in the scenarios of the CPU: both libraries' own defaults."""

BESIDE_SHARDS = re.compile(r"checkpoint-\d+/((generation_)?config\.json|training_args\.bin)$")
"""What hf_compat writes beside sharded weights, so that they can be made whole without a script."""
ALLOWED = re.compile(r"\['betas'\]: \[0.9, 0.999\] expected, got \(0.9, 0.999\)")
"""What torch makes of a pair in an optimizer that has read a full state dict."""

OTHER_STREAM = re.compile(r"stream [1-9]\d*")
"""A stream that is not the default one; they are counted in the order in which a process makes them."""
OF_TWO_GPUS = re.compile(r"cuda:(\d+) .*cuda:(?!\1 )")
"""A race between streams of two GPUs: torch's copies between these wait for both, which the fake device does not."""
COUNTED_TWICE = "total_flos"
"""What transformers sums over ranks with the same batches."""
MEANS = ("loss", "train_loss", "training_loss")
"""What it averages over them, too, which rounds otherwise."""

FREES_ITS_GRADIENTS = "fsdp1_drawn_"
"""Beginning of the names of drawn scenarios of FSDP 1. It frees gradients of a stream of its own that the optimizer may
still read, and waits before it uses their memory. transformers' copies of batches wait too; those here have a stream.
"""

Body = Callable[[Kit], None]
OWN: dict[str, Body] = {
    **GPU_SCENARIOS,
    **RANKS_SCENARIOS,
    **MESH_SCENARIOS,
    **REPLICA_SCENARIOS,
    **SPREAD_SCENARIOS,
    **LOADED_SCENARIOS,
    **CONTEXT_SCENARIOS,
    **CONTEXT_MESH_SCENARIOS,
    **CONTEXT_REPLICA_SCENARIOS,
}
STATES = {"model.safetensors", "optimizer.pt", "scheduler.pt"}


def differing(
    names: Iterable[str], folder: Path, *, subject: Which = "ours", starter: Which | None = None
) -> dict[str, str]:
    """Return each scenario with what differs between the libraries on this rank, or the error; empty if nothing does.

    Args:
        names: Names of scenarios, of this folder or of ``tests.support.scenarios``.
        folder: An empty folder, the same on all ranks.
        subject: What is compared with transformers.
        starter: The library that runs the stages before the last one. Default: the same.
    """
    torch.set_num_threads(1)
    parity.DEFAULTS.update(ON_GPUS)
    return {name: _difference(name, folder / name, subject, starter) for name in names}


def differing_in_background(names: Iterable[str], folder: Path) -> dict[str, str]:
    """Return what :func:`differing` does, of runs that save in the background; those that did not differ in that."""
    found, start, started = {}, BackgroundTasks.start, list[object]()

    def noting(tasks: BackgroundTasks, task: Callable[[], object]) -> None:
        started.append(task)
        start(tasks, task)

    os.environ[ENVIRONMENT_VARIABLE] = "1"  # which transformers does not read
    BackgroundTasks.start = noting  # type: ignore[method-assign]
    for name in names:
        started.clear()
        found |= differing([name], folder)
        found[name] += "" if started else "nothing was saved in the background"
    return found


def _body(name: str) -> Body:
    assert scenarios.__all__  # importing it has filled the table
    if name in OWN:
        return OWN[name]
    if name in SCENARIOS:
        return SCENARIOS[name].body
    if "_drawn_" in name:
        return drawn(name)
    from tests.gpu.partitions import PARTITION_SCENARIOS  # needs packages that a lent machine may lack

    return PARTITION_SCENARIOS[name]


def _difference(scenario: str, folder: Path, subject: Which, starter: Which | None) -> str:
    body = _body(scenario)
    try:
        with _races() as known:
            expected = _outcome(body, "upstream", folder / "upstream", None)
        with _races() as races:
            actual = _outcome(body, subject, folder / "subject", starter)
        if starter is None and any(name.endswith(".distcp") for name in expected.files):
            for name in [name for name in actual.files if BESIDE_SHARDS.search(name)]:
                actual.files.pop(name)
        if scenario.startswith(SHARES_BATCHES):
            for outcome in (expected, actual):
                outcome.trace, outcome.results, outcome.files = map(
                    _counted_once, (outcome.trace, outcome.results, outcome.files)
                )
        found = differences(expected, actual, allowed=ALLOWED).splitlines()
        own = {kind: text for kind, text in races.items() if kind not in known}
        if scenario.startswith(FREES_ITS_GRADIENTS):
            own = {kind: text for kind, text in own.items() if " is freed " not in kind}
        return "\n".join([*found, *own.values()])
    except Exception:
        return traceback.format_exc()
    finally:
        torch.compiler.reset()


@contextmanager
def _races() -> Iterator[dict[str, str]]:
    """Collect what streams of a fake GPU do in the block without waiting for each other; of another GPU nothing.

    It has no place in what is compared: how often, and on which stream, is not seen by users. FSDP 2 itself frees
    gradients of its own stream while they may be read, and waits before it uses their memory.
    """
    found: dict[str, str] = {}
    if "FAKE_GPUS" not in os.environ or "FAKE_DEVICE_TYPE" in os.environ:
        yield found
        return
    from tests.gpu.events import watching  # the extension is only loaded where the device is installed

    with watching("race") as events:
        yield found
    for event in (event for event in events if not OF_TWO_GPUS.search(event.detail)):
        found[OTHER_STREAM.sub("another stream", event.detail)] = f"race: {event.detail}, in {event.frames}"


def _counted_once(value: Any) -> Any:
    """Return ``value`` without what ranks with the same batches count twice, and with rounded means over ranks."""
    if isinstance(value, dict):
        return {
            key: round(item, 6) if key in MEANS and isinstance(item, float) else _counted_once(item)
            for key, item in value.items()
            if key != COUNTED_TWICE
        }
    return type(value)(map(_counted_once, value)) if type(value) in (list, tuple) else value


def _outcome(body: Body, which: Which, folder: Path, starter: Which | None) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(partial(_together, body), which, folder, starter=starter)


def _together(body: Body, kit: Kit) -> None:
    body(kit)
    if distributed.is_initialized():
        distributed.barrier()  # files are read once rank 0 has written them


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
