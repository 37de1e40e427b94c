"""A CUDA device for a build of torch without one: ``device.cpp`` behind the functions of ``torch.cuda``.

Kernels are the CPU's. What is a GPU's own: operands on two devices raise, memory that was not written is NaN, pinned
copies are made as late as the streams allow, and :mod:`tests.gpu.events` records what makes the host wait. Rounding,
speed, Triton, CUDA graphs and fused attention are not imitated. It changes torch for the whole process: tests start
processes of their own, by :mod:`tests.gpu.harness`.
"""

from __future__ import annotations

import sys
from functools import cache, partial
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from tests.gpu import build, nccl

CAPABILITY = (9, 0)
_LIBRARY = torch.library.Library("aten", "IMPL")
GIB = 1 << 30
DEFAULT_MEMORY = 80 * GIB

_state = SimpleNamespace(devices=1, memory=DEFAULT_MEMORY, initialized=False)


@cache
def extension() -> ModuleType:
    """Return the compiled half, compiled if need be."""
    return build.load()


def install(devices: int = 1, *, memory: int = DEFAULT_MEMORY) -> None:
    """Make this process see ``devices`` GPUs. Call it before anything asks torch for CUDA.

    Args:
        devices: How many.
        memory: Bytes of each; what does not fit ends in ``torch.OutOfMemoryError``.
    """
    device = extension()
    if not device.install(devices):
        raise RuntimeError("torch was asked for CUDA before the fake device was installed")
    device.set_memory_limit(memory)
    _state.devices, _state.memory = devices, memory
    _put_devices()
    _put_streams()
    _put_marks()
    _put_compiler()
    _put_memory()
    _put_generators()
    _put_copies()
    _put_products()
    nccl.install(device)


def _put(value: Any, *names: str, also: tuple[ModuleType, ...] = ()) -> None:
    for module in (torch.cuda, *also):
        for name in names:
            setattr(module, name, value)


def _index(device: Any = None) -> int:
    if device is None or device == -1:
        return extension().current_device()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return extension().current_device() if index is None else index


# ---- devices ----


class _Device:
    def __init__(self, device: Any) -> None:
        self._index, self._before = _index(device), -1

    def __enter__(self) -> None:
        self._before = extension().exchange_device(self._index)

    def __exit__(self, *_: object) -> None:
        extension().exchange_device(self._before)


class _DeviceOf(_Device):
    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.get_device() if tensor.is_cuda else None)


def _initialize() -> None:
    _state.initialized = True
    torch.cuda._initialized = True


def _set_device(device: Any) -> None:
    _initialize()
    extension().exchange_device(_index(device))


def _properties(device: Any = None) -> SimpleNamespace:
    return SimpleNamespace(
        name="Fake GPU",
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        total_memory=_state.memory,
        multi_processor_count=132,
        warp_size=32,
        is_integrated=False,
        is_multi_gpu_board=False,
        gcnArchName="",
        L2_cache_size=50 << 20,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_multiprocessor=233472,
    )


def _put_devices() -> None:
    random, memory = torch.cuda.random, torch.cuda.memory
    _put(lambda: _state.devices > 0, "is_available")
    _put(lambda: True, "_is_compiled", "is_tf32_supported")
    _put(lambda including_emulation=True: True, "is_bf16_supported")
    _put(lambda: _state.devices, "device_count", also=(random,))
    _put(lambda: _state.initialized, "is_initialized", also=(random, memory))
    _put(_initialize, "_lazy_init", "init", also=(random, memory))
    _put(lambda call, **_: call(), "_lazy_call", also=(random,))
    _put(lambda: False, "_is_in_bad_fork")
    _put(extension().current_device, "current_device", also=(random,))
    _put(_set_device, "set_device")
    for name in ("_exchange_device", "_maybe_exchange_device"):  # torch.compile tells them apart by identity
        _put(partial(extension().exchange_device), name)
    _put(_Device, "device")
    _put(_DeviceOf, "device_of")
    _put(lambda device=None: CAPABILITY, "get_device_capability")
    _put(lambda device=None: "Fake GPU", "get_device_name")
    _put(_properties, "get_device_properties")
    _put(lambda: [f"sm_{CAPABILITY[0]}{CAPABILITY[1]}"], "get_arch_list")
    torch.version.cuda = "12.8"
    torch.backends.cuda.is_built = lambda: True


# ---- streams ----


class Stream(torch.Stream):
    """A stream, as ``torch.cuda.Stream``."""

    def __new__(
        cls,
        device: Any = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int | None = None,
    ) -> Stream:
        if stream_id is None:
            device_index, stream_id = _index(device), extension().new_stream_id()
        return super().__new__(cls, stream_id=stream_id, device_index=device_index, device_type=1, priority=priority)

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __eq__(self, other: object) -> bool:
        same = (self.stream_id, self.device_index)
        return isinstance(other, torch.Stream) and same == (other.stream_id, other.device_index)


class Event(torch.Event):
    """An event, as ``torch.cuda.Event``."""

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> Event:
        return super().__new__(cls, device="cuda", enable_timing=enable_timing)


class _StreamContext:
    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            index = self.stream.device_index
            device = extension().exchange_device(index)
            self._before = device, extension().set_stream(index, self.stream.stream_id)

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            device, stream = self._before
            extension().set_stream(self.stream.device_index, stream)
            extension().exchange_device(device)


def _current_stream(device: Any = None) -> Stream:
    index = _index(device)
    return Stream(stream_id=extension().stream_id(index), device_index=index)


def _put_streams() -> None:
    streams = torch.cuda.streams
    _put(Stream, "Stream", also=(streams,))
    _put(Event, "Event", also=(streams,))
    _put(_StreamContext, "StreamContext", "stream")
    _put(_current_stream, "current_stream")
    _put(lambda device=None: Stream(stream_id=0, device_index=_index(device)), "default_stream")
    _put(lambda stream: extension().set_stream(stream.device_index, stream.stream_id), "set_stream")
    _put(lambda device=None: extension().synchronize(_index(device)), "synchronize")
    _put(lambda: False, "is_current_stream_capturing", also=(torch.cuda.graphs,))


def _put_marks() -> None:
    """Put NVTX's marks for a profiler, which DeepSpeed makes around its calls; nothing reads them."""
    torch.cuda.nvtx._nvtx = SimpleNamespace(rangePushA=lambda text: 0, rangePop=lambda: 0, markA=lambda text: None)


def _put_compiler() -> None:
    """Put what ``torch.compile`` imports of CUDA, and leave out graphs, which ``torch.compiler.reset`` would forget."""
    torch._C._cuda_getCurrentRawStream = extension().stream_id
    graphs = ModuleType("torch._inductor.cudagraph_trees")
    graphs.reset_cudagraph_trees = lambda: None
    sys.modules[graphs.__name__] = graphs


# ---- memory ----


def _statistics(device: Any = None) -> dict[str, int]:
    figures = {"current": extension().allocated(_index(device)), "peak": extension().peak(_index(device))}
    names = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
    return {f"{name}.all.{kind}": figure for name in names for kind, figure in figures.items()}


def _put_memory() -> None:
    memory = torch.cuda.memory
    allocated, peak = (lambda device=None: extension().allocated(_index(device))), extension().peak
    _put(allocated, "memory_allocated", "memory_reserved", also=(memory,))
    _put(lambda device=None: peak(_index(device)), "max_memory_allocated", "max_memory_reserved", also=(memory,))
    _put(lambda device=None: extension().reset_peak(_index(device)), "reset_peak_memory_stats", also=(memory,))
    _put(_statistics, "memory_stats", also=(memory,))
    _put(lambda device=None: (_state.memory - allocated(device), _state.memory), "mem_get_info", also=(memory,))
    _put(lambda: None, "empty_cache", also=(memory,))
    _put(lambda: None, "ipc_collect")
    torch.accelerator.empty_host_cache = lambda: None  # pinned memory is not cached here


# ---- operations that a CPU does not have ----


def _addmm(
    added: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    dtype: torch.dtype,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: torch.Tensor,
) -> torch.Tensor:
    """Multiply in half precision with sums in ``dtype``."""
    return out.copy_(torch.addmm(added.to(dtype), left.to(dtype), right.to(dtype), beta=beta, alpha=alpha))


def _put_products() -> None:
    if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::addmm.dtype_out", "CUDA"):
        _LIBRARY.impl("addmm.dtype_out", _addmm, "CUDA")


# ---- generators ----


def _generator(device: Any = None) -> torch.Generator:
    _initialize()
    return extension().generator(_index(device))


def _seed_all(seed: int) -> None:
    for index in range(_state.devices):
        _generator(index).manual_seed(int(seed))


def _set_states(states: Any) -> None:
    for index, state in enumerate(states):
        _generator(index).set_state(state)


def _put_generators() -> None:
    also = (torch.cuda.random,)
    _put(lambda device="cuda": _generator(device).get_state(), "get_rng_state", also=also)
    _put(lambda state, device="cuda": _generator(device).set_state(state), "set_rng_state", also=also)
    _put(lambda: [_generator(index).get_state() for index in range(_state.devices)], "get_rng_state_all", also=also)
    _put(_set_states, "set_rng_state_all", also=also)
    _put(lambda seed: _generator().manual_seed(int(seed)), "manual_seed", also=also)
    _put(_seed_all, "manual_seed_all", also=also)
    _put(lambda: _generator().initial_seed(), "initial_seed", also=also)
    _put(tuple(extension().generator(index) for index in range(_state.devices)), "default_generators")


# ---- copies between devices and of storages, which only a build of torch with CUDA has ----


def _place(index: int) -> torch.device:
    return torch.device("cpu") if index == -1 else torch.device("cuda", index)


def _scatter(tensor: torch.Tensor, devices: Any, sizes: Any = None, dim: int = 0, streams: Any = None) -> list[Any]:
    parts = tensor.split(sizes, dim) if sizes else tensor.chunk(len(devices), dim)
    return [part.to(_place(index)) for part, index in zip(parts, devices, strict=False)]


def _gather(tensors: Any, dim: int, destination: int | None = None) -> torch.Tensor:
    place = _place(0 if destination is None else destination)
    return torch.cat([tensor.to(place) for tensor in tensors], dim)


def _broadcast(tensor: torch.Tensor, devices: Any) -> list[Any]:
    return [tensor.to(_place(index)) for index in devices]


def _broadcast_coalesced(tensors: Any, devices: Any, size: int) -> list[Any]:
    return [[tensor.to(_place(index)) for tensor in tensors] for index in devices]


def _storage_to(storage: Any, *, device: Any, non_blocking: bool = False) -> Any:
    device = torch.device(device)
    if storage.device == device or (device.index is None and storage.device.type == device.type != "cuda"):
        return storage
    copy = torch.empty(storage.nbytes(), dtype=torch.uint8, device=device).untyped_storage()
    return copy.copy_(storage, non_blocking)


def _storage_cuda(storage: Any, device: Any = None, non_blocking: bool = False) -> Any:
    return _storage_to(storage, device=_place(_index(device)), non_blocking=non_blocking)


def _put_copies() -> None:
    of_torch = torch.UntypedStorage.resize_

    def resize_(storage: Any, size: int) -> Any:
        if storage.device.type != "cuda":
            return of_torch(storage, size)
        extension().resize_storage(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage), size)
        return storage

    torch.UntypedStorage.resize_ = resize_
    torch.storage._StorageBase.to = _storage_to
    torch.storage._StorageBase.cuda = _storage_cuda
    torch._C._broadcast, torch._C._broadcast_coalesced = _broadcast, _broadcast_coalesced
    torch._C._scatter, torch._C._gather = _scatter, _gather
