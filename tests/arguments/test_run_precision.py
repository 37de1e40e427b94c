"""The precision of a run."""

import inspect
from types import SimpleNamespace

import pytest
import torch

from hf_compat import TrainingArguments
from hf_compat.arguments import checks, process_facts
from hf_compat.distributed import accelerators
from hf_compat.distributed.accelerators import set_tf32
from hf_compat.errors import UnsupportedArgumentsError


def test_mixed_precision(monkeypatch):
    """bfloat16 needs no GPU if the CPU is asked for; ``accelerate launch`` decides where no field does."""
    assert TrainingArguments("out").mixed_precision == "no"
    assert TrainingArguments("out", bf16=True, use_cpu=True).mixed_precision == "bf16"
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert TrainingArguments("out").mixed_precision == "bf16"
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    with pytest.raises(UnsupportedArgumentsError, match="ACCELERATE_MIXED_PRECISION=fp8"):
        TrainingArguments("out")


def test_what_a_gpu_allows(monkeypatch):
    """With CUDA float16 is accepted, a process without a launcher has all GPUs, and ``use_cpu`` stays on the CPU."""
    torch = pytest.importorskip("torch")
    # Stands in for a machine with a GPU; the device is only named, never used.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    args = TrainingArguments("out", fp16=True, per_device_train_batch_size=4)
    assert (args.device, args.n_gpu, args.mixed_precision) == (torch.device("cuda", 0), 2, "fp16")
    assert (args.train_batch_size, args.parallel_mode.value) == (8, "not_distributed")
    args._n_gpu = 1  # as scripts do that want one
    assert (args.n_gpu, args.train_batch_size, args.parallel_mode.value) == (1, 4, "not_parallel")
    assert TrainingArguments("out", use_cpu=True).n_gpu == 0
    monkeypatch.setenv("LOCAL_RANK", "0")  # of a launcher, which starts a process for each GPU
    assert TrainingArguments("out", ddp_backend="gloo").n_gpu == 1
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("wanted", [True, False])
def test_tf32(wanted, monkeypatch):
    """On a GPU that has it, TF32 is switched on or off for the process."""
    for module in (process_facts, checks):
        monkeypatch.setattr(module, "lacks_tf32", lambda: False)  # stands in for such a GPU
    name, products = "tf32" if wanted else "ieee", torch.backends.cuda.matmul
    try:
        TrainingArguments("out", tf32=wanted)
        assert (torch.backends.fp32_precision, products.fp32_precision) == (name, name)
        # torch's older switches raise if they disagree with the newer ones.
        assert torch.get_float32_matmul_precision() == ("high" if wanted else "highest")
        assert (products.allow_tf32, torch.backends.cudnn.allow_tf32) == (wanted, wanted)
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = True
        products.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision = torch.backends.fp32_precision = "none"


@pytest.mark.parametrize(
    ("capability", "lacks"), [((1, 0), True), ((2, 1), True), ((2, 2), False), ((3, 1), False)], ids=str
)
def test_tf32_on_musa(capability, lacks, monkeypatch):
    """TF32 on MUSA is judged by the device's own capability, as in transformers, and never refused for want of CUDA."""
    from transformers.utils import import_utils

    properties = SimpleNamespace(major=capability[0], minor=capability[1])
    device = SimpleNamespace(current_device=lambda: 0, get_device_properties=lambda device: properties)
    monkeypatch.setattr(torch, "musa", device, raising=False)
    monkeypatch.setattr(accelerators, "accelerator_type", lambda: "musa")
    monkeypatch.setattr(accelerators, "accelerator_module", lambda kind: device)
    monkeypatch.setattr(import_utils, "is_torch_musa_available", lambda: True)
    theirs = inspect.unwrap(import_utils.is_torch_tf32_available)
    assert accelerators.lacks_tf32() is lacks is not theirs()


def test_mudnn_has_a_switch_of_its_own(monkeypatch):
    """Before torch 2.9 TF32 on MUSA is switched by its own library's flag."""
    backends = SimpleNamespace(cudnn=SimpleNamespace(), mudnn=SimpleNamespace(allow_tf32=False))
    monkeypatch.setattr(torch, "backends", backends)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda name: None)
    set_tf32(True)
    assert backends.mudnn.allow_tf32
