"""Freeing memory, attributes that keep nothing in it, and the memory that each stage of a run uses.

``skip_memory_metrics=False`` adds that to the metrics. Names and order of the metrics, and what they measure, are those
of transformers ``trainer_utils.py`` ``TrainerMemoryTracker``.
"""

from __future__ import annotations

import gc
import mmap
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, Self, TypeVar, overload

from hf_compat.distributed.accelerators import accelerator_module, accelerator_type
from hf_compat.errors import TrainerSetupError, require_package

_T = TypeVar("_T")

STAGES: dict[str, str] = {
    "__init__": "init",
    "train": "train",
    "_inner_training_loop": "train",
    "_finish_training": "train",
    "evaluate": "eval",
    "predict": "test",
}
"""Method of the Trainer to its stage, the prefix of the metrics."""

_SAMPLING_SECONDS = 0.001


def mapped(size: int) -> mmap.mmap:
    """Return ``size`` bytes of memory, at least one, that go back to the system as soon as they are freed.

    What ``malloc`` gives may stay the process's: it keeps what is not at the end of its heap.
    """
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    return mmap.mmap(-1, size, **private)


def free_memory() -> None:
    """Collect garbage and empty the device's memory cache."""
    gc.collect()
    empty_cache()


def empty_cache() -> None:
    """Empty the device's memory cache, where it has one."""
    kind = accelerator_type()
    if kind is None:
        return
    for name in ("empty_cache", "clear_graph_cache"):  # HPUs have neither; MPS keeps a graph for each shape too
        if hasattr(accelerator_module(kind), name):
            getattr(accelerator_module(kind), name)()


class WeakAttribute(Generic[_T]):
    """An attribute that refers weakly to what owns its object, so that the owner goes with its last user.

    It is assigned and read as any other. What is read is the owner itself; None before the first assignment, and once
    the owner is gone, together with which its objects go.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> _T: ...

    def __get__(self, instance: object | None, owner: type) -> Any:
        if instance is None:
            return self
        reference = instance.__dict__.get(self._name)
        return None if reference is None else reference()

    def __set__(self, instance: object, value: _T) -> None:
        instance.__dict__[self._name] = None if value is None else weakref.ref(value)


class TrainerMemoryTracker:
    """Measures one stage at a time; a stage started inside another is part of it and reports nothing.

    For each stage two values in bytes: ``alloc``, the memory in use at its end minus that at its start, and ``peaked``,
    the peak minus the memory in use at its end. On the CPU the resident memory of the process is sampled every
    millisecond; on a GPU the allocator records the peak, except on MPS, where it is ``"Not available"``.

    Args:
        skip_memory_metrics: Do not measure.

    Attributes:
        cpu: Stage to ``begin``, ``end``, ``alloc`` and ``peaked`` of the CPU.
        gpu: The same of the current GPU or other accelerator; empty without one.
        cur_stage: The current stage.

    Raises:
        MissingPackageError: If psutil is needed and not installed.
    """

    def __init__(self, skip_memory_metrics: bool = False) -> None:
        self.skip_memory_metrics = skip_memory_metrics
        self.cpu: dict[str, dict[str, int]] = {}
        self.gpu: dict[str, dict[str, Any]] = {}
        self.cur_stage: str | None = None
        self.init_reported = False
        self._gpu: Any = None
        self._at_start: tuple[int, int] = (0, 0)
        if not skip_memory_metrics:
            psutil = require_package("psutil", extra="memory", purpose="skip_memory_metrics=False")
            self._process = psutil.Process()
            kind = accelerator_type()
            self._gpu = None if kind is None else accelerator_module(kind)
        self._peak: _PeakMonitor | None = None

    def start(self, stage: str | None = None) -> None:
        """Start a stage.

        Args:
            stage: Its name. Default: that of the calling method in ``STAGES``, for copies of transformers' methods.

        Raises:
            TrainerSetupError: If the calling method is not in ``STAGES``.
        """
        if self.skip_memory_metrics:
            return
        stage = stage or _stage_of(sys._getframe(1).f_code.co_name)
        if self.cur_stage not in (None, stage):
            return
        self.cancel()
        self.cur_stage = stage
        gc.collect()
        if hasattr(self._gpu, "reset_peak_memory_stats"):
            self._gpu.reset_peak_memory_stats()
        empty_cache()
        self._at_start = (self.cpu_mem_used(), self._gpu_mem_used())
        self._peak = _PeakMonitor(self._process)
        self._peak.stop_with(self)  # after an error nobody may end the stage

    def stop_and_update_metrics(self, metrics: dict[str, Any] | None = None, stage: str | None = None) -> None:
        """End a stage and add its values to ``metrics``; with the first stage also those of ``init``.

        Args:
            metrics: Updated in place. Default: the values are only kept, as those of ``init``.
            stage: As for :meth:`start`.

        Raises:
            TrainerSetupError: If the calling method is not in ``STAGES``.
        """
        if self.skip_memory_metrics:
            return
        stage = stage or _stage_of(sys._getframe(1).f_code.co_name)
        if self.cur_stage == stage:
            self._stop(stage)
        if metrics is not None and self.cur_stage is None:
            self._report(stage, metrics)

    def cancel(self) -> None:
        """End the current stage, if any, without a result."""
        if self._peak is not None:
            self._peak.stop()
        self._peak = self.cur_stage = None

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Start ``stage``, and cancel it on an error; the block itself has to end it."""
        self.start(stage)
        try:
            yield
        except BaseException:
            if self.cur_stage == stage:
                self.cancel()
            raise

    def cpu_mem_used(self) -> int:
        """Return the resident memory of this process in bytes."""
        return int(self._process.memory_info().rss)

    def _gpu_mem_used(self) -> int:
        if self._gpu is None:
            return 0
        name = "memory_allocated" if hasattr(self._gpu, "memory_allocated") else "current_allocated_memory"  # of MPS
        return int(getattr(self._gpu, name)())

    def _stop(self, stage: str) -> None:
        assert self._peak is not None, "start() made a monitor"
        peak = self._peak.stop()
        gc.collect()
        cpu, gpu = self._at_start
        if self._gpu is not None:
            empty_cache()
            has_peak = hasattr(self._gpu, "max_memory_allocated")
            gpu_peak = self._gpu.max_memory_allocated() if has_peak else 0
            self.gpu[stage] = _memory_delta(gpu, self._gpu_mem_used(), gpu_peak)
            if not has_peak:
                self.gpu[stage]["peaked"] = "Not available"
        self.cpu[stage] = _memory_delta(cpu, self.cpu_mem_used(), peak)
        self._peak = self.cur_stage = None

    def _report(self, stage: str, metrics: dict[str, Any]) -> None:
        stages = [stage] if self.init_reported else ["init", stage]
        devices = {"cpu": self.cpu, "gpu": self.gpu} if self._gpu is not None else {"cpu": self.cpu}
        for name in stages:
            for kind in ("alloc", "peaked"):
                for device, numbers in devices.items():
                    if name in numbers:
                        metrics[f"{name}_mem_{device}_{kind}_delta"] = numbers[name][kind]
        if not self.init_reported and "init" in self.cpu:
            for device, numbers in devices.items():
                metrics[f"before_init_mem_{device}"] = numbers["init"]["begin"]
        self.init_reported = True


class _PeakMonitor:
    """Samples the memory in use in a thread until it is stopped."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self._peak = 0
        self._sample()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hf_compat-memory", daemon=True)
        self._thread.start()

    def stop_with(self, owner: object) -> None:
        """Stop sampling when ``owner`` is gone, unless :meth:`stop` is called before."""
        self._at_end_of_owner = weakref.finalize(owner, self._done.set)

    def stop(self) -> int:
        """Stop sampling and return the peak in bytes."""
        self._at_end_of_owner.detach()
        self._done.set()
        self._thread.join()
        self._sample()
        return self._peak

    def _sample(self) -> None:
        self._peak = max(self._peak, self._process.memory_info().rss)

    def _watch(self) -> None:
        while not self._done.wait(_SAMPLING_SECONDS):
            self._sample()


def _memory_delta(begin: int, end: int, peak: int) -> dict[str, Any]:
    return {"begin": begin, "end": end, "alloc": end - begin, "peaked": max(0, peak - end)}


def _stage_of(method: str) -> str:
    if method not in STAGES:
        known = ", ".join(STAGES)
        raise TrainerSetupError(
            f"The memory tracker was called from `{method}`, which has no stage: pass `stage`, or call it from {known}."
        )
    return STAGES[method]
