"""Installs the device of ``third_party.cpp`` under the name of a real one, with the ``torch`` module that it needs.

Under the name ``npu`` transformers and accelerate take it for Ascend's, so that both libraries can train on it. It is
for the whole process: call :func:`install` before anything has used a device, in a process of its own.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import distributed

from tests.gpu.build import load

__all__ = ["install"]

SOURCE = Path(__file__).with_name("third_party.cpp")
PACKAGES = {"npu": "torch_npu", "mlu": "torch_mlu", "musa": "torch_musa"}
"""Name of a device → the package that adds it to torch; the libraries look for it."""
COLLECTIVES = {"npu": "hccl", "mlu": "cncl", "musa": "mccl"}
"""Name of a device → the name of its collectives."""

FLASH_ATTENTION = ("npu_fusion_attention", "npu_rotary_mul")
"""Functions of ``torch_npu`` that transformers imports with its models."""


def install(name: str = "npu", *, devices: int = 1) -> None:
    """Make this process see ``devices`` devices of the type ``name``.

    Args:
        name: One of ``PACKAGES``, or a name that the libraries do not know.
        devices: Number of devices.
    """
    extension: Any = load(SOURCE, "third_party_device")
    extension.install(devices)
    torch.utils.rename_privateuse1_backend(name)
    module = _module(extension, name)
    torch._register_device_module(name, module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    if name in PACKAGES:
        package = ModuleType(PACKAGES[name])
        package.__spec__ = importlib.machinery.ModuleSpec(PACKAGES[name], None)
        vars(package).update(dict.fromkeys(FLASH_ATTENTION))
        sys.modules[PACKAGES[name]] = package
    if name in COLLECTIVES:
        _register_collectives(extension, name)


def _register_collectives(extension: Any, name: str) -> None:
    def create(store: Any, rank: int, size: int, timeout: Any) -> Any:
        inner = distributed.ProcessGroupGloo(distributed.PrefixStore("gloo", store), rank, size, timeout)
        return extension.Collectives(rank, size, inner)

    distributed.Backend.register_backend(COLLECTIVES[name], create, devices=[name])


def _module(extension: Any, name: str) -> ModuleType:
    """Return ``torch.<name>``."""

    def index(device: Any = None) -> int:
        if device is None or isinstance(device, int):
            return extension.current_device() if device is None else device
        found = torch.device(device).index
        return extension.current_device() if found is None else found

    def seed_all(seed: int) -> None:
        for each in range(extension.device_count()):
            extension.generator(each).manual_seed(seed)

    @contextmanager
    def within(device: Any) -> Iterator[None]:
        before = extension.current_device()
        extension.set_device(index(device))
        try:
            yield
        finally:
            extension.set_device(before)

    random: Any = SimpleNamespace(
        get_rng_state=lambda device=None: extension.generator(index(device)).get_state(),
        get_rng_state_all=lambda: [extension.generator(each).get_state() for each in range(extension.device_count())],
        set_rng_state=lambda state, device=None: extension.generator(index(device)).set_state(state),
        set_rng_state_all=lambda states: [random.set_rng_state(state, each) for each, state in enumerate(states)],
    )
    module = ModuleType(f"torch.{name}")
    vars(module).update(
        vars(random),
        random=random,
        manual_seed=lambda seed: extension.generator(extension.current_device()).manual_seed(seed),
        manual_seed_all=seed_all,
        is_available=lambda: extension.device_count() > 0,
        is_initialized=lambda: True,
        _is_in_bad_fork=lambda: False,
        device_count=extension.device_count,
        current_device=extension.current_device,
        device=within,
        set_device=lambda device: extension.set_device(index(device)),
        synchronize=lambda device=None: None,
        empty_cache=lambda: None,
        memory_allocated=lambda device=None: extension.allocated(index(device)),
        max_memory_allocated=lambda device=None: extension.peak(index(device)),
        reset_peak_memory_stats=lambda device=None: extension.reset_peak(index(device)),
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        is_bf16_supported=lambda *_: True,
        Event=torch.Event,
        Stream=torch.Stream,
        amp=SimpleNamespace(GradScaler=partial(torch.amp.GradScaler, name)),
    )
    return module
