"""Devices beside CUDA: one of a third party, on which both libraries train, and which device each machine gives."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import hf_compat
from hf_compat import TrainingArguments
from hf_compat.arguments import process_facts
from hf_compat.checkpoint.states import rng_state, set_rng_state
from hf_compat.distributed import accelerators
from hf_compat.distributed.launch import Launch
from hf_compat.distributed.processes import join_processes
from hf_compat.engine.process_layout import lightning_accelerator
from hf_compat.errors import TrainerSetupError, UnsupportedArgumentsError
from hf_compat.memory import TrainerMemoryTracker
from tests.gpu.comparing import differing
from tests.gpu.harness import needs_fake_gpu, run_on_gpu, run_on_gpus
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.parity import Kit
from tests.support.scenarios.common import plain

ONE = (
    *(("npu", name) for name in ("fp32", "bf16_on_gpu", "fp16", "resume_bf16", "workers")),
    ("mlu", "fp32"),
    ("musa", "fp32"),
)
"""Types of a device, each with a scenario of ``tests.gpu.scenarios``."""
TWO = ("fp32", "bf16_on_gpu")
"""Scenarios of two ranks."""


def as_device(kind: str) -> dict[str, Any]:
    """Return the keywords of ``run_on_gpu`` for a process whose devices are of the type ``kind``."""
    return {"variables": {"FAKE_DEVICE_TYPE": kind}}


def result_of_a_run(folder: Path, *, use_cpu: bool) -> dict[str, Any]:
    """Return what is special about a run, its losses and its weights."""
    fields = {"max_steps": 6, "logging_steps": 1, "save_steps": 3, "skip_memory_metrics": False}
    trainer = _trainer(folder, use_cpu=use_cpu, **fields)
    metrics = trainer.train().metrics
    generators = torch.load(folder / "checkpoint-3" / "rng_state.pth", weights_only=False)
    return {
        "device": str(next(trainer.model.parameters()).device),
        "accelerator": type(trainer.lightning_backend.pl_trainer.accelerator).__name__,
        "generators": sorted(generators),
        "memory": sorted(name for name in metrics if name.startswith("train_mem")),
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "weights": {name: value.cpu() for name, value in trainer.model.state_dict().items()},
    }


def _trainer(folder: Path, **fields: Any) -> Any:
    args = TrainingArguments(str(folder), report_to="none", disable_tqdm=True, **fields)
    torch.manual_seed(0)
    model = PlainModel(dropout=0.0)
    model.body[1] = nn.Identity()  # torch has another layer norm for the CPU than for other devices
    return hf_compat.Trainer(model, args, train_dataset=ListDataset(vector_rows(24)))


def two_ranks(folder: Path) -> tuple[str, str, str]:
    """Return a rank's device, its backend, and the kind of distributed training."""
    trainer = _trainer(folder, max_steps=1)
    trainer.train()
    return (
        str(trainer.args.device),
        torch.distributed.get_backend(),
        str(trainer.args.distributed_state.distributed_type),
    )


def compared(name: str, folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return what differs in a scenario, and the device of each library's model after a training of its own."""
    found = differing([name], folder)
    places = {}
    for which in ("upstream", "ours"):
        trainer = plain(Kit(which, folder / "places" / which), fields={"max_steps": 1})
        trainer.train()
        places[which] = str(next(trainer.model.parameters()).device)
    return found, places


@needs_fake_gpu
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), ONE)
def test_both_libraries_on_one_device(kind, name, tmp_path):
    """Both train on the device and do the same to the last bit: events, losses, weights, files, its random state."""
    places = {"upstream": f"{kind}:0", "ours": f"{kind}:0"}
    assert run_on_gpu(compared, name, tmp_path, **as_device(kind)) == ({name: ""}, places)


@needs_fake_gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", TWO)
def test_both_libraries_on_two_ranks(name, tmp_path):
    """DDP on two NPUs is transformers' to the last bit, over the collectives that the device's package registers."""
    assert run_on_gpus(differing, [name], tmp_path, **as_device("npu")) == [{name: ""}] * 2


@needs_fake_gpu
@pytest.mark.slow
def test_two_ranks_use_the_devices_collectives(tmp_path):
    """Each rank has a device of its own, and the backend is the one that accelerate chooses."""
    expected = [(f"npu:{rank}", "hccl", "DistributedType.MULTI_NPU") for rank in (0, 1)]
    assert run_on_gpus(two_ranks, tmp_path, **as_device("npu")) == expected


@needs_fake_gpu
@pytest.mark.slow
def test_a_device_that_no_library_knows(tmp_path):
    """A run is on the accelerator of torch, whatever its name; with `use_cpu=True` the numbers are the CPU's."""
    found = run_on_gpu(result_of_a_run, tmp_path / "device", use_cpu=False, **as_device("chip"))
    expected = run_on_gpu(result_of_a_run, tmp_path / "cpu", use_cpu=True, **as_device("chip"))
    assert (found["device"], found["accelerator"]) == ("chip:0", "TorchAccelerator")
    assert (expected["device"], expected["accelerator"]) == ("cpu", "CPUAccelerator")
    assert found["generators"] == expected["generators"] == ["chip", "cpu", "numpy", "python"]
    kinds = [f"train_mem_{place}_{kind}_delta" for place in ("cpu", "gpu") for kind in ("alloc", "peaked")]
    assert found["memory"] == expected["memory"] == kinds
    assert found["losses"] == expected["losses"]
    assert len(found["losses"]) == 6
    for name, value in expected["weights"].items():
        assert torch.equal(found["weights"][name], value), name


# ---- which device: machines that are said to have one ----


@pytest.fixture
def machine(monkeypatch):
    """Return a function that makes torch say which accelerator there is, and how many of them."""

    def install(kind: str | None, count: int = 1, **facts: Any) -> None:
        device = None if kind is None else torch.device(kind)
        facts = {"is_initialized": lambda: False, "set_device": lambda device: None, **facts}
        module = SimpleNamespace(device_count=lambda: count, is_available=lambda: count > 0, **facts)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: device)
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch, "get_device_module", lambda _=None: module)

    return install


@pytest.mark.parametrize(
    ("kind", "local_rank", "expected"),
    [("mps", 0, "mps"), ("xpu", 0, "xpu:0"), ("xpu", 1, "xpu:1"), ("hpu", 0, "hpu:0"), (None, 0, "cpu")],
)
def test_the_device_of_a_machine(kind, local_rank, expected, machine, monkeypatch):
    """The device is the accelerator of torch with the local rank as its index; MPS has none."""
    machine(kind, 2)
    monkeypatch.setattr(TrainingArguments, "local_process_index", local_rank)
    assert process_facts.choose_device(TrainingArguments("out")) == torch.device(expected)
    assert kind != "mps" or os.environ["PYTORCH_ENABLE_MPS_FALLBACK"] == "1"
    assert process_facts.choose_device(TrainingArguments("out", use_cpu=True)) == torch.device("cpu")


def test_a_driver_without_a_device(machine):
    """A build of torch for a device that this machine lacks trains on the CPU, as transformers does."""
    machine("xpu", 0)
    assert process_facts.choose_device(TrainingArguments("out")) == torch.device("cpu")


def test_more_ranks_than_devices(machine, monkeypatch):
    """A rank for which there is no device is told so."""
    machine("xpu", 2)
    monkeypatch.setattr(TrainingArguments, "local_process_index", 2)
    with pytest.raises(TrainerSetupError, match=r"LOCAL_RANK=2: only 2 XPU devices are visible.*use_cpu=True"):
        process_facts.choose_device(TrainingArguments("out"))


def test_xla_is_refused(machine, monkeypatch):
    """With torch_xla transformers trains on an XLA device: an error, not the CPU."""
    machine(None)
    monkeypatch.setattr(process_facts, "find_spec", lambda name: name == "torch_xla" or None)
    with pytest.raises(TrainerSetupError, match=r"torch_xla.*is not supported: set `use_cpu=True`"):
        process_facts.choose_device(TrainingArguments("out"))
    assert process_facts.choose_device(TrainingArguments("out", use_cpu=True)) == torch.device("cpu")


@pytest.mark.parametrize(
    ("kind", "expected"), [("cpu", "cpu"), ("cuda", "TrainersCUDA"), ("mps", "mps"), ("xpu", "TorchAccelerator")]
)
def test_the_accelerator_of_lightning(kind, expected, machine):
    """Lightning's own accelerator where there is one, without its care for CUDA; else one over the device's module."""
    machine(kind, 3)
    found = lightning_accelerator(torch.device(kind))
    assert (found if isinstance(found, str) else type(found).__name__) == expected


def test_the_accelerator_over_a_module_of_torch(machine):
    """It knows the devices of its type, by the module of torch."""
    machine("hpu", 3, memory_stats=lambda device: {"allocated": 7})
    found: Any = lightning_accelerator(torch.device("hpu"))
    assert (found.name(), found.is_available(), found.auto_device_count()) == ("hpu", True, 3)
    assert found.parse_devices([1]) == [1]
    assert found.parse_devices(2) == [0, 1]
    assert found.get_parallel_devices([0, 2]) == [torch.device("hpu", 0), torch.device("hpu", 2)]
    assert found.get_device_stats(torch.device("hpu", 0)) == {"allocated": 7}


@pytest.mark.parametrize(("kind", "expected"), [("cpu", "gloo"), ("cuda", "nccl"), ("xpu", "xccl"), ("mps", None)])
def test_the_backend_of_a_device(kind, expected):
    """The backend is the one that torch has for the device."""
    assert accelerators.default_backend(torch.device(kind)) == expected


@pytest.mark.parametrize("kind", ["mps", "hpu"])
def test_several_processes_without_a_backend(kind, machine):
    """Processes on devices that cannot communicate are refused, where transformers would train a copy in each."""
    machine(kind)
    launch = Launch("torchrun", world_size=2, local_world_size=2)
    with pytest.raises(TrainerSetupError, match=rf"no process-group backend for {kind.upper()}.*`use_cpu=True`"):
        join_processes(launch, torch.device(kind), backend=None, timeout=timedelta(seconds=9))


def test_processes_started_by_the_trainer_need_a_backend(machine, tmp_path):
    """`devices` is refused before any process is started."""
    machine("mps")
    args = TrainingArguments(str(tmp_path), report_to="none")
    with pytest.raises(TrainerSetupError, match="no process-group backend for MPS"):
        hf_compat.Trainer(PlainModel(), args, lightning={"devices": 2})


@pytest.mark.parametrize(("supported", "problems"), [(True, 0), (False, 1)])
def test_bf16_is_the_devices_matter(supported, problems, machine):
    """bf16 is refused on a device that says that it has none."""
    machine("xpu", is_bf16_supported=lambda: supported)
    if supported:
        assert TrainingArguments("out", bf16=True).bf16
    else:
        with pytest.raises(ValueError, match="bf16"):
            TrainingArguments("out", bf16=True)


@pytest.mark.parametrize("version", ["2.7.1", "2.8.0"])
def test_fp16_on_mps(version, machine, monkeypatch):
    """Torch scales gradients on MPS since 2.8."""
    machine("mps")
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(version))
    if version >= "2.8":
        assert TrainingArguments("out", fp16=True).fp16
    else:
        with pytest.raises(UnsupportedArgumentsError, match=r"fp16=True.*needs torch 2\.8"):
            TrainingArguments("out", fp16=True)


def test_memory_of_mps(machine):
    """MPS records no peak, so that transformers has none in the metrics either; its graphs are freed with the cache."""
    emptied: list[str] = []
    machine(
        "mps",
        current_allocated_memory=lambda: 7,
        empty_cache=lambda: emptied.append("cache"),
        clear_graph_cache=lambda: emptied.append("graphs"),
    )
    tracker, metrics = TrainerMemoryTracker(), {}
    tracker.start("train")
    tracker.stop_and_update_metrics(metrics, "train")
    assert (metrics["train_mem_gpu_alloc_delta"], metrics["train_mem_gpu_peaked_delta"]) == (0, "Not available")
    assert emptied == ["cache", "graphs"] * 2


def test_random_states_of_mps(machine):
    """A device whose module knows one generator alone has its state saved and set, on several ranks too."""
    states = [torch.tensor([1, 2], dtype=torch.uint8)]
    machine("mps", get_rng_state=lambda: states[-1].clone(), set_rng_state=states.append)
    saved = rng_state(distributed=True)
    states.append(torch.zeros(2, dtype=torch.uint8))
    set_rng_state(saved)
    assert saved["mps"].tolist() == states[-1].tolist() == [1, 2]


def test_compiling_for_hpus(machine):
    """HPUs have a compiler of their own."""
    machine("hpu")
    assert TrainingArguments("out", torch_compile=True).torch_compile_backend == "hpu_backend"
    assert TrainingArguments("out", torch_compile=True, use_cpu=True).torch_compile_backend == "inductor"


def test_a_package_that_cannot_be_imported(tmp_path, monkeypatch, caplog):
    """A device's package that fails on this machine is told of, and its device is not used."""
    (tmp_path / "torch_npu.py").write_text("raise OSError('no driver')")
    monkeypatch.syspath_prepend(tmp_path)
    accelerators._import_packages.cache_clear()
    try:
        assert accelerators.accelerator_type() is None
    finally:
        accelerators._import_packages.cache_clear()
        sys.modules.pop("torch_npu", None)
    assert "`torch_npu` is installed, but cannot be imported, so its devices are not used: no driver" in caplog.text
