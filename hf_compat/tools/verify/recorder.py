"""Records what a Trainer does, transformers' or ours: a callback, which each Trainer gets when it is built."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from hf_compat.masking import masked_value, secrets_in

_MOST_BYTES = 256 * 2**20
"""Size up to which the weights after every update step are kept; else those of the beginning and the end."""
_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


class Recorder:
    """Writes one process's record: a line of JSON for each thing that happened, and the weights of rank 0.

    Args:
        folder: Where it is written.
        steps: Update steps after which a ``train`` call is stopped.
    """

    def __init__(self, folder: Path, steps: int) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.folder = folder
        self.steps = steps
        self._file: TextIO = (folder / f"rank-{self.rank}.jsonl").open("w", encoding="utf-8")
        self._trains = 0
        self._losses: list[Any] = []
        self._done = 0
        self._began = 0.0
        self._gradients: float | None = None
        self._rates: list[float] = []
        self._evaluated = False

    def write(self, kind: str, **content: Any) -> None:
        """Write one line."""
        line = {"kind": kind, "train": self._trains, **content}
        self._file.write(json.dumps(line, default=_plain) + "\n")

    def close(self, failed: str | None) -> None:
        """Write how the process ended, with the memory that it needed, in bytes."""
        unit = 1 if sys.platform == "darwin" else 1024
        memory = {"cpu": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            memory["gpu"] = torch.cuda.max_memory_allocated()
        self.write("end", failed=failed, memory=memory)
        self._file.close()

    def attach(self, watched: Any, callback: type[Any]) -> None:
        """Record the steps and events of ``watched``, a Trainer."""
        self.write("trainer", **_facts_of(watched))
        own_step = watched.training_step

        @functools.wraps(own_step)
        def training_step(*positional: Any, **named: Any) -> Any:
            loss = own_step(*positional, **named)
            self._losses.append(loss)
            return loss

        watched.training_step = training_step
        watched.add_callback(callback(self))

    def record_event(self, event: str, args: Any, state: Any, control: Any, keywords: dict[str, Any]) -> None:
        """Record an event, and stop the run after its number of update steps."""
        if event == "on_train_begin":
            self._trains += 1
            self._done, self._evaluated = 0, False
            self._losses.clear()
        self.write("event", name=event, step=state.global_step)
        note = getattr(self, f"_{event}", None)
        if note is not None:
            note(args, state, control, keywords)

    def _on_train_begin(self, args: Any, state: Any, control: Any, keywords: dict[str, Any]) -> None:
        self._keep_weights(keywords.get("model"), state.global_step, is_needed=True)

    def _on_step_begin(self, args: Any, state: Any, control: Any, keywords: dict[str, Any]) -> None:
        self._began = time.perf_counter()

    def _on_pre_optimizer_step(self, args: Any, state: Any, control: Any, keywords: dict[str, Any]) -> None:
        norms = [
            float(parameter.grad.detach().float().norm())
            for _, parameter in _bare_parameters(keywords.get("model"))
            if parameter.grad is not None
        ]
        self._gradients = math.sqrt(sum(norm * norm for norm in norms))
        groups = getattr(keywords.get("optimizer"), "param_groups", [])
        self._rates = [float(group["lr"]) for group in groups]

    def _on_step_end(self, args: Any, state: Any, control: Any, keywords: dict[str, Any]) -> None:
        seconds = time.perf_counter() - self._began
        self._done += 1
        losses = [float(loss.detach().float().mean()) for loss in self._losses]
        self._losses.clear()
        self.write(
            "step",
            step=state.global_step,
            loss=sum(losses) if losses else None,
            gradient_norm=self._gradients,
            learning_rates=self._rates,
            seconds=seconds,
        )
        self._keep_weights(keywords.get("model"), state.global_step, is_needed=False)
        if self._done >= self.steps:
            control.should_training_stop = True
            control.should_log = True
            control.should_evaluate |= not self._evaluated and _value(args, "eval_strategy") != "no"
            control.should_save |= _value(args, "save_strategy") not in ("no", "best")

    def _on_log(self, args: Any, state: Any, control: Any, keywords: dict[str, Any]) -> None:
        self.write("log", step=state.global_step, values=dict(keywords.get("logs") or {}))

    def _on_evaluate(self, args: Any, state: Any, control: Any, keywords: dict[str, Any]) -> None:
        self._evaluated = True
        self._on_predict(args, state, control, keywords)

    def _on_predict(self, args: Any, state: Any, control: Any, keywords: dict[str, Any]) -> None:
        self.write("metrics", step=state.global_step, values=dict(keywords.get("metrics") or {}))

    def _on_train_end(self, args: Any, state: Any, control: Any, keywords: dict[str, Any]) -> None:
        self._keep_weights(keywords.get("model"), state.global_step, is_needed=True, at="end")
        self._file.flush()

    def _keep_weights(self, model: Any, step: int, *, is_needed: bool, at: str = "step") -> None:
        """Write the checksum of each parameter, and the weights themselves if requested or if they are small."""
        if self.rank != 0:
            return
        tensors = {name: _on_cpu(parameter) for name, parameter in _bare_parameters(model)}
        digests = {name: _digest(tensor) for name, tensor in tensors.items()}
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        file = None
        if tensors and (is_needed or size * (self.steps + 2) <= _MOST_BYTES):
            from safetensors.torch import save_file

            file = f"weights-{self._trains}-{at}-{step}.safetensors"
            save_file({name: tensor.clone() for name, tensor in tensors.items()}, self.folder / file)
        self.write("weights", step=step, at=at, digests=digests, file=file)


def record_trainers(recorder: Recorder) -> None:
    """Record in ``recorder`` the steps and events of each Trainer that is built from here on.

    The names of transformers are looked up now: if hf_compat is installed in their place, they are ours.
    """
    import transformers

    callback = callback_class(transformers.TrainerCallback)
    kind = transformers.Trainer
    own_init = kind.__init__

    @functools.wraps(own_init)
    def __init__(self: Any, *positional: Any, **named: Any) -> None:  # noqa: N807
        own_init(self, *positional, **named)
        recorder.attach(self, callback)

    kind.__init__ = __init__


def callback_class(base: Any) -> type[Any]:
    """Return a callback of either library, with a method for each event that ``base`` has."""

    def method_of(event: str) -> Any:
        def method(self: Any, args: Any, state: Any, control: Any, **keywords: Any) -> None:
            self.recorder.record_event(event, args, state, control, keywords)

        return method

    def __init__(self: Any, recorder: Recorder) -> None:  # noqa: N807
        self.recorder = recorder

    events = {event: method_of(event) for event in dir(base) if event.startswith("on_")}
    return type("VerifyCallback", (base,), {"__init__": __init__, **events})


def _bare_parameters(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters by their names in the bare model."""
    for name, parameter in model.named_parameters() if model is not None else ():
        bare = name
        for wrapper in _WRAPPERS:
            bare = bare.replace(wrapper, "") if wrapper != "module." else bare.removeprefix(wrapper)
        yield bare, parameter


def _on_cpu(parameter: Any) -> Any:
    local = parameter.to_local() if hasattr(parameter, "to_local") else parameter  # a sharded one: this rank's part
    return local.detach().cpu().contiguous()


def _digest(tensor: Any) -> str:
    import torch

    return hashlib.blake2b(tensor.reshape(-1).view(torch.uint8).numpy(), digest_size=8).hexdigest()


def _value(recorded: Any, field: str) -> str:
    value = getattr(recorded, field, None)
    return str(getattr(value, "value", value))


def _facts_of(watched: Any) -> dict[str, Any]:
    """Return library, precision, device, releases and arguments of a Trainer."""
    import torch
    import transformers

    recorded = watched.args
    parameter = next(
        (parameter for _, parameter in _bare_parameters(watched.model) if parameter.is_floating_point()), None
    )
    library = next(kind.__module__.partition(".")[0] for kind in type(watched).__mro__ if kind.__name__ == "Trainer")
    device = torch.device(recorded.device)
    return {
        "library": library,
        "class": f"{type(watched).__module__}.{type(watched).__qualname__}",
        "precision": _precision(recorded, None if parameter is None else parameter.dtype, device.type),
        "environment": {
            "device": torch.cuda.get_device_name() if device.type == "cuda" else device.type,
            "processes": recorded.world_size,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "system": platform.platform(),
            "threads": torch.get_num_threads(),
        },
        "arguments": masked_value("", recorded.to_dict(), secrets_in(sys.argv, os.environ)),
    }


def _precision(recorded: Any, dtype: Any, device: str) -> str:
    import torch

    for name, kinds in (("bf16", (torch.bfloat16,)), ("fp16", (torch.float16,))):
        if getattr(recorded, name, False) or dtype in kinds:
            return name
    if dtype == torch.float64:
        return "fp64"
    return "tf32" if device == "cuda" and _uses_tf32() else "fp32"


def _uses_tf32() -> bool:
    """Return whether matrix products on a GPU use TF32.

    Since torch 2.9 there is a newer switch, and the older one raises if they disagree.
    """
    import torch

    products = torch.backends.cuda.matmul
    if hasattr(torch.backends, "fp32_precision"):
        return bool(products.fp32_precision == "tf32")
    return bool(products.allow_tf32)


def _plain(value: Any) -> Any:
    """Return what JSON has no form for: a tensor's or array's values, else a text."""
    if hasattr(value, "item") and getattr(value, "size", None) is not None:
        try:
            return value.item()
        except (ValueError, RuntimeError):
            return str(value)
    return str(value)
