"""What each member of accelerate's ``Accelerator`` gives: the same questions to ours and to upstream's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

VALUES = (
    "ao_recipe_handler",
    "autocast_handler",
    "dataloader_config",
    "deepspeed_plugin",
    "delayed_fp8_autocast",
    "device",
    "device_placement",
    "dispatch_batches",
    "distributed_type",
    "even_batches",
    "flag_tensor",
    "fp8_backend",
    "fp8_enabled",
    "fp8_recipe_handler",
    "gradient_accumulation_steps",
    "gradient_state",
    "has_fp8_handler",
    "has_lomo_optimizer",
    "init_handler",
    "is_composable_parallelism_enabled",
    "is_fsdp2",
    "is_last_process",
    "is_local_main_process",
    "is_main_process",
    "local_process_index",
    "log_with",
    "logging_dir",
    "mixed_precision",
    "msamp_recipe_handler",
    "multi_device",
    "native_amp",
    "non_blocking",
    "num_processes",
    "optimizer_step_was_skipped",
    "parallelism_config",
    "process_index",
    "profile_handler",
    "project_configuration",
    "project_dir",
    "rng_types",
    "save_iteration",
    "scaler",
    "scaler_handler",
    "should_save_model",
    "split_batches",
    "state",
    "step",
    "step_scheduler_with_optimizer",
    "sync_gradients",
    "te_recipe_handler",
    "torch_device_mesh",
    "trackers",
    "use_distributed",
    "use_seedable_sampler",
    "use_stateful_dataloader",
)
"""Members that are read; their value is upstream's."""

_OF_STATE = (
    "deepspeed_plugin",
    "device",
    "distributed_type",
    "is_fsdp2",
    "is_last_process",
    "is_local_main_process",
    "is_main_process",
    "local_process_index",
    "mixed_precision",
    "num_processes",
    "parallelism_config",
    "process_index",
    "use_distributed",
)
OF_GRADIENTS = (
    "active_dataloader",
    "adjust_scheduler",
    "end_of_dataloader",
    "in_dataloader",
    "num_steps",
    "plugin_kwargs",
    "remainder",
    "sync_gradients",
    "sync_with_dataloader",
)


def plain(value: Any) -> Any:
    """Return ``value`` as lists, dicts, numbers and strings, so that it can be compared across processes."""
    if isinstance(value, Tensor):
        return [str(value.dtype), value.detach().tolist()]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, bool | int | float | None) else str(value)


def value_of(accelerator: Any, name: str) -> Any:
    """Return the value of a member in plain form."""
    value = getattr(accelerator, name)
    if name == "state":
        return {item: plain(getattr(value, item)) for item in _OF_STATE}
    if name == "gradient_state":
        return {item: plain(getattr(value, item)) for item in OF_GRADIENTS}
    if name in ("dataloader_config", "project_configuration"):
        return plain(dataclasses.asdict(value))
    return plain(value)


def linear(seed: int = 0) -> nn.Linear:
    """Return a layer with the same weights each time."""
    torch.manual_seed(seed)
    return nn.Linear(3, 2)


def batch_of(accelerator: Any) -> Tensor:
    """Return a batch that differs from rank to rank."""
    return torch.arange(6.0).reshape(2, 3) / 7 + accelerator.process_index


def _gradients(accelerator: Any, clip: Callable[[Any], Any]) -> Any:
    model = linear()
    accelerator.backward(model(batch_of(accelerator)).pow(2).sum())
    clipped = clip(model.parameters())
    return [clipped, *(weight.grad for weight in model.parameters())]


def _autocast(accelerator: Any, folder: Path) -> Any:
    with accelerator.autocast():
        inside = linear()(batch_of(accelerator))
    return inside


def _backward(accelerator: Any, folder: Path) -> Any:
    return _gradients(accelerator, lambda _: None)


def _accumulated(accelerator: Any, folder: Path) -> Any:
    """Return what a loop of the script's own sees, and ends with, that updates after two batches each."""
    with accelerator.accumulate() as entered:
        seen = [accelerator.sync_gradients, accelerator.step, entered]
    accelerator.step, accelerator.gradient_accumulation_steps = 0, 2
    model, rows = linear(), list(torch.arange(15.0).reshape(5, 3) / 7)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for batch in accelerator.prepare(DataLoader(rows)):  # type: ignore[arg-type]  # any sequence is a dataset
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).pow(2).sum())
            optimizer.step()
            optimizer.zero_grad()
        seen += [accelerator.sync_gradients, accelerator.step]
    weights = list(accelerator.unwrap_model(model).state_dict().values())
    accelerator.gradient_accumulation_steps = 1
    accelerator.free_memory()
    return [*seen, *weights]


def _within(name: str, *arguments: Any, takes_model: bool = False) -> Callable[[Any, Path], Any]:
    """Return what happens inside the context that a member returns."""

    def run(accelerator: Any, folder: Path) -> Any:
        given = (linear(), *arguments) if takes_model else arguments
        with getattr(accelerator, name)(*given) as entered:
            return [accelerator.sync_gradients, entered]

    return run


def _on(name: str, **where: int) -> Callable[[Any, Path], Any]:
    """Return what a decorator of the accelerator makes of a function."""

    def run(accelerator: Any, folder: Path) -> Any:
        decorate = getattr(accelerator, name)
        return decorate(lambda: "called")() if not where else decorate(**where)(lambda: "called")()

    return run


class Tracker:
    """Stands for one of accelerate's trackers: it keeps what it is told."""

    name = "kept"

    def __init__(self) -> None:
        self.told: list[Any] = []

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.told.append((values, step, kwargs))

    def finish(self) -> None:
        self.told.append("finished")


def _log(accelerator: Any, folder: Path) -> Any:
    tracker = Tracker()
    accelerator.trackers = [tracker]
    accelerator.log({"loss": 1.0}, step=3, log_kwargs={"kept": {"also": 1}})
    accelerator.trackers = []
    return tracker.told


def _triggers(accelerator: Any, folder: Path) -> Any:
    before = accelerator.check_trigger()
    if accelerator.is_last_process:
        accelerator.set_trigger()
    return [before, accelerator.check_trigger(), accelerator.check_trigger()]


def _loaded(accelerator: Any, folder: Path) -> Any:
    loader = accelerator.prepare_data_loader(DataLoader(list(range(10)), batch_size=2, shuffle=True))
    torch.manual_seed(3)
    return [list(loader), list(accelerator.skip_first_batches(loader, 1)), loader.end_of_dataloader]


def _dispatching(accelerator: Any, folder: Path) -> Any:
    before = accelerator.dataloader_config.even_batches
    accelerator.dataloader_config.even_batches = False
    sizes = [len(batch) for batch in accelerator.prepare(DataLoader(list(range(5)), batch_size=2))]
    accelerator.dataloader_config.even_batches = before
    return sizes


def _together(accelerator: Any, *objects: Any) -> Any:
    return accelerator.prepare(*objects)


def _one_by_one(accelerator: Any, model: Any, optimizer: Any, schedule: Any) -> Any:
    model, optimizer = accelerator.prepare_model(model), accelerator.prepare_optimizer(optimizer)
    return model, optimizer, accelerator.prepare_scheduler(schedule)


SCHEDULES: dict[str, tuple[Callable[[Any], Any], tuple[float, ...]]] = {
    "by a function": (lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)), ()),
    "by a metric": (lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0), (1.0,)),
    "past its end": (lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=3), ()),
}
"""A schedule of an optimizer, and what its ``step`` is given."""


def _trained(prepare: Callable[..., Any]) -> Callable[[Any, Path], Any]:
    """Return what each of ``SCHEDULES`` gives with an own model and optimizer, prepared by ``prepare``."""

    def run(accelerator: Any, folder: Path) -> Any:
        return {name: _trained_by(name, prepare, accelerator) for name in SCHEDULES}

    return run


def _trained_by(kind: str, prepare: Callable[..., Any], accelerator: Any) -> Any:
    """Return weights and rates of four updates in eight batches."""
    model, (build, given) = linear(), SCHEDULES[kind]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, schedule = prepare(accelerator, model, optimizer, build(optimizer))
    rates = []
    for index in range(8):
        accelerator.gradient_state._set_sync_gradients(index % 2 == 1)
        with nullcontext() if index % 2 else accelerator.no_sync(model):
            accelerator.backward(model(batch_of(accelerator)).pow(2).mean())
        optimizer.step()
        schedule.step(*given)
        optimizer.zero_grad()
        rates.append([schedule.get_last_lr(), optimizer.param_groups[0]["lr"]])
    weights = list(accelerator.unwrap_model(model).state_dict().values())
    accelerator.free_memory()
    return [rates, type(optimizer.optimizer).__name__, weights]


def _evaluated(accelerator: Any, folder: Path) -> Any:
    model = accelerator.prepare_model(linear(), evaluation_mode=True)
    again = accelerator.prepare_model(model, evaluation_mode=True)
    unwrapped = accelerator.unwrap_model(model)
    return [again is model, unwrapped is model, model(batch_of(accelerator)), model.weight]


def _without_autocast(accelerator: Any, folder: Path) -> Any:
    model = accelerator.prepare_model(linear(), evaluation_mode=True)
    return accelerator.unwrap_model(model, keep_fp32_wrapper=False)(batch_of(accelerator))


def _printed(accelerator: Any, folder: Path) -> Any:
    with Path(folder, f"printed-{accelerator.process_index}").open("w+") as file:
        accelerator.print("one", 2, file=file)
        file.seek(0)
        return file.read()


def _profiled(accelerator: Any, folder: Path) -> Any:
    with accelerator.profile() as profiler:
        linear()(batch_of(accelerator))
    return "aten::linear" in {event.key for event in profiler.key_averages()}


def _saved(accelerator: Any, folder: Path) -> Any:
    path = folder / "saved.pt"
    accelerator.save({"a": torch.ones(2)}, path)
    accelerator.save({"a": torch.ones(2)}, folder / "saved.safetensors", safe_serialization=True)
    accelerator.save_model(linear(), folder / "model")
    accelerator.wait_for_everyone()
    files = sorted(item.relative_to(folder).as_posix() for item in folder.rglob("*.*"))
    return [files, torch.load(path), Path(folder, "model", "model.safetensors").stat().st_size]


def _split(accelerator: Any, folder: Path) -> Any:
    with accelerator.split_between_processes([1, 2, 3], apply_padding=True) as part:
        return part


def _unscaled(accelerator: Any, folder: Path) -> Any:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accelerator.unscale_gradients(optimizer)
    return accelerator.unscale_gradients()


CALLS: dict[str, Callable[[Any, Path], Any]] = {
    "accumulate": _accumulated,
    "autocast": _autocast,
    "backward": _backward,
    "check_trigger": _triggers,
    "clear": lambda accelerator, _: accelerator.clear(object(), object()),
    "clip_grad_norm_": lambda accelerator, _: _gradients(
        accelerator, lambda weights: accelerator.clip_grad_norm_(weights, 0.5)
    ),
    "clip_grad_value_": lambda accelerator, _: _gradients(
        accelerator, lambda weights: accelerator.clip_grad_value_(weights, 0.1)
    ),
    "free_memory": lambda accelerator, _: accelerator.free_memory(object(), object()),
    "gather": lambda accelerator, _: accelerator.gather(batch_of(accelerator)),
    "gather_for_metrics": lambda accelerator, _: accelerator.gather_for_metrics([accelerator.process_index]),
    "get_state_dict": lambda accelerator, _: accelerator.get_state_dict(linear()),
    "local_main_process_first": _within("local_main_process_first"),
    "log": _log,
    "main_process_first": _within("main_process_first"),
    "maybe_context_parallel": _within("maybe_context_parallel"),
    "no_sync": _within("no_sync", takes_model=True),
    "on_last_process": _on("on_last_process"),
    "on_local_main_process": _on("on_local_main_process"),
    "on_local_process": _on("on_local_process", local_process_index=1),
    "on_main_process": _on("on_main_process"),
    "on_process": _on("on_process", process_index=1),
    "pad_across_processes": lambda accelerator, _: accelerator.pad_across_processes(
        torch.ones(2, 2 + accelerator.process_index), dim=1, pad_index=-1
    ),
    "prepare": _trained(_together),
    "prepare_data_loader": _loaded,
    "prepare_model": _evaluated,
    "prepare_optimizer": _trained(_one_by_one),
    "prepare_scheduler": _trained(_one_by_one),
    "print": _printed,
    "profile": _profiled,
    "reduce": lambda accelerator, _: accelerator.reduce(batch_of(accelerator), "mean"),
    "save": _saved,
    "save_model": _saved,
    "set_trigger": _triggers,
    "skip_first_batches": _loaded,
    "split_between_processes": _split,
    "trigger_sync_in_backward": _within("trigger_sync_in_backward", takes_model=True),
    "unscale_gradients": _unscaled,
    "unwrap_model": _without_autocast,
    "verify_device_map": lambda accelerator, _: accelerator.verify_device_map(linear()),
    "wait_for_everyone": lambda accelerator, _: accelerator.wait_for_everyone(),
}
"""Members that are called → what is seen of the call, which is what is seen with upstream's."""


def answers(accelerator: Any, folder: Path) -> dict[str, Any]:
    """Return what every member gives, in plain form; files go into a folder of each member."""
    found = {name: value_of(accelerator, name) for name in VALUES}
    for name, ask in CALLS.items():
        own = folder / name
        own.mkdir(parents=True, exist_ok=True)
        found[name] = plain(ask(accelerator, own))
    return found | {"even_batches assigned": _dispatching(accelerator, folder)}
