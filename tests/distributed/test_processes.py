"""The process group that ranks join."""

import atexit
import os
from datetime import timedelta

import pytest
import torch

from hf_compat import TrainingArguments
from hf_compat.distributed.launch import Launch
from hf_compat.distributed.processes import join_processes
from tests.support import processes
from tests.support.paths import SCRIPTS
from tests.support.processes import forked, torchrun

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
OFFLOADED = {"fsdp": True, "fsdp_config": {"cpu_offload": True}}


@pytest.fixture
def joined(monkeypatch):
    """What the process group was initialized with, one entry a call, and "barrier"; none is."""
    calls = []
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda **given: calls.append(given))
    monkeypatch.setattr(torch.distributed, "barrier", lambda: calls.append("barrier"))
    monkeypatch.setattr(atexit, "register", lambda function: None)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    return calls


@pytest.mark.parametrize(
    ("device", "asked", "offloads", "backend", "bound"),
    [
        pytest.param(CPU, None, False, "gloo", None, id="CPU"),
        pytest.param(GPU, None, False, "nccl", GPU, id="GPU"),
        pytest.param(GPU, "nccl", True, "cuda:nccl,cpu:gloo", GPU, id="offloaded"),
        pytest.param(CPU, None, True, "gloo", None, id="offloaded, without a GPU"),
        pytest.param(GPU, "gloo", True, "gloo", None, id="offloaded, over gloo"),
    ],
)
def test_backend(device, asked, offloads, backend, bound, joined):
    """GPUs communicate by NCCL; what is offloaded to the host's memory by gloo, without which clipping would fail.

    With gloo alone a rank waits for the others, which would fail if it left while they connect.
    """
    launch = Launch("torchrun", world_size=2, rank=0, local_rank=0, local_world_size=2)
    join_processes(launch, device, backend=asked, offloads=offloads, timeout=timedelta(minutes=1))
    given, *waits = joined
    assert (given["backend"], given["device_id"]) == (backend, bound)
    assert waits == ["barrier"] * (backend == "gloo")


def test_arguments_do_not_initialize_cuda(monkeypatch, tmp_path):
    """With ``bf16`` neither: processes could not be forked from this one any more."""
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: asked.append("bf16"))
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "")
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK")
    TrainingArguments(str(tmp_path), report_to="none", bf16=True)
    assert asked == []
    assert os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"


@pytest.mark.parametrize(("fields", "backend"), [({}, "nccl"), (OFFLOADED, "cuda:nccl,cpu:gloo")])
def test_backend_of_arguments(fields, backend, joined, monkeypatch, tmp_path):
    """The arguments say whether a run offloads."""
    args = TrainingArguments(str(tmp_path), report_to="none", **fields)
    monkeypatch.setattr(type(args), "launch", Launch("torchrun", world_size=2, rank=0, local_rank=0))
    args.join_processes(GPU)
    assert joined[-1]["backend"] == backend


@pytest.mark.parametrize(
    "words",
    [
        (),
        pytest.param(("destroys",), marks=pytest.mark.slow),
        pytest.param(("before",), marks=pytest.mark.slow),
        ("before", "destroys"),
    ],
    ids=" ".join,
)
def test_exit_waits_for_gloo(words, tmp_path):
    """A process whose threads release tensors while the interpreter exits would be aborted."""
    ended = torchrun(SCRIPTS / "leaving_script.py", tmp_path, *words)
    assert ended.code == 0, ended.output


def test_a_test_after_one_that_hangs(monkeypatch, tmp_path):
    """A script that hangs under a test is killed and what it printed told; how the next one ends is its own."""
    script = tmp_path / "script.py"
    words = ("import sys, time", "print('began', flush=True)", "time.sleep(3600 * len(sys.argv[1:]))")
    script.write_text("\n".join(words))
    assert forked(script).code == 0
    monkeypatch.setattr(processes, "PATIENCE", 5)
    with pytest.raises(TimeoutError, match="after 5 s: began"):
        forked(script, "hang")
    monkeypatch.undo()
    assert forked(script).code == 0
