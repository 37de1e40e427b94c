"""The fake GPU behaves as a GPU where a CPU would hide a fault, and its harness starts and ends processes with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.gpu.harness import needs_fake_gpu, run_on_gpu, run_on_gpus, run_script_on_gpus

pytestmark = needs_fake_gpu


def one_gpu() -> dict[str, Any]:
    """Return what is special about the device, seen from a process that has it."""
    from tests.gpu.events import watching  # the extension is only loaded where the device is installed

    there = torch.ones(4, device="cuda")
    seen: dict[str, Any] = {"device": str(there.device), "sum": (there + 1).sum().item()}
    with pytest.raises(RuntimeError, match="same device"):
        there + torch.ones(4)
    seen["unwritten is NaN"] = bool(torch.empty(4, device="cuda").isnan().all())
    pinned = torch.arange(4.0).pin_memory()
    with watching() as events:
        late = pinned.to("cuda", non_blocking=True)
        pinned.fill_(7)  # before the copy is waited for: it must show
        late.sum().item()
        torch.ones(4).to("cuda")
        torch.cuda.synchronize()
    seen["late"] = late.tolist()
    seen["events"] = [event.kind for event in events]
    return seen


def race() -> list[str]:
    """Return the kinds of events of a stream that reads what another has just written, without and with waiting."""
    from tests.gpu.events import watching

    kinds = []
    for waits in (False, True):
        with watching() as events:
            written = torch.ones(4, device="cuda") * 2
            other = torch.cuda.Stream()
            if waits:
                other.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(other):
                kept = written + 1
            torch.cuda.current_stream().wait_stream(other)
            del kept
        kinds.append(" ".join(event.kind for event in events))
    return kinds


def exhausted() -> str:
    """Return how memory runs out."""
    with pytest.raises(torch.OutOfMemoryError) as error:
        torch.empty(2_000_000, dtype=torch.uint8, device="cuda")
    return str(error.value)


def exchange(values: list[float]) -> tuple[str, list[float], float]:
    """Return a rank's device, the sum over ranks of ``values``, and the mean of a value of this rank."""
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    summed = torch.tensor(values, device="cuda")
    dist.all_reduce(summed)
    mean = torch.tensor(float(rank), device="cuda")
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    with pytest.raises(RuntimeError, match="No backend type"):
        dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    return str(summed.device), summed.tolist(), mean.item()


def one_fails() -> None:
    """Raise on one rank; the other waits for ever."""
    if os.environ["RANK"] == "1":
        raise ZeroDivisionError
    signal.pause()


def test_one_gpu():
    """Operands on two devices raise, new memory is NaN, pinned copies are late, and what waits is recorded."""
    assert run_on_gpu(one_gpu) == {
        "device": "cuda:0",
        "sum": 8.0,
        "unwritten is NaN": True,
        "late": [7.0, 7.0, 7.0, 7.0],
        "events": ["read", "h2d", "sync"],
    }


def test_a_race_between_streams():
    """A stream that uses another's memory without waiting for it is recorded."""
    without, waiting = run_on_gpu(race)
    assert set(without.split()) == {"race"}
    assert waiting == ""


def test_memory_runs_out():
    """A GPU of a megabyte does not hold two."""
    assert "Tried to allocate 2000000 bytes" in run_on_gpu(exhausted, variables={"FAKE_GPU_MEMORY": "1000000"})


def test_two_gpus():
    """Two ranks exchange tensors of their own GPU, and only those, over NCCL."""
    assert run_on_gpus(exchange, [1.0, 2.0]) == [("cuda:0", [2.0, 4.0], 0.5), ("cuda:1", [2.0, 4.0], 0.5)]


def test_processes_that_a_script_starts(tmp_path: Path):
    """A script's own children have the GPUs, too."""
    script = tmp_path / "script.py"
    child = "import torch; print(torch.cuda.device_count(), 'in the child')"
    script.write_text(
        "import subprocess, sys, torch\n"
        "print(torch.cuda.device_count(), *sys.argv[1:], flush=True)\n"
        f"subprocess.run([sys.executable, '-c', {child!r}], check=True)\n"
    )
    ended = run_script_on_gpus(script, "word", devices=3)
    assert (ended.code, ended.output.splitlines()) == (0, ["3 word", "3 in the child"])


def test_an_error_of_the_function_is_told():
    """What fails in the process fails the test, with the traceback."""
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run_on_gpu(divmod, 1, 0)


def test_an_error_of_one_rank_ends_the_others():
    """The test fails with its traceback, though the other rank would never have returned."""
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run_on_gpus(one_fails)


def test_other_processes_have_no_gpu():
    """The process of the tests, and one that it starts otherwise, are as they were."""
    assert not torch.cuda.is_available()
    command = [sys.executable, "-c", "import torch; print(torch.cuda.is_available())"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "False"
