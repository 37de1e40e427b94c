"""``debug="underflow_overflow"``: find the module that first returns an infinity or a NaN."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from hf_compat.errors import ModelError

_INDENT = " " * 18
_COLUMNS = f"{'abs min':8} {'abs max':8} metadata"


class DebugUnderflowOverflow:
    """Checks weights, inputs and outputs of every module; at an infinity or NaN, prints the last frames and raises.

    A *frame* is one forward pass of one module: its name and class, and the smallest and largest absolute value of each
    of its own parameters, positional inputs and outputs. Outputs in a dict and keyword inputs are not checked: the
    modules that returned them were.

    Training is several times slower: the values of each tensor are copied to the CPU.

    Args:
        model: The model to check.
        max_frames_to_save: Frames in the report.
        trace_batch_nums: Forward passes of the model, counted from 0, to print in full instead of checking them.
        abort_after_batch_num: The forward pass to stop after. Default: do not stop.

    Attributes:
        frames: The text of the last frames.
        batch_number: Forward passes of the model so far.

    References:
        Finds what transformers ``debug_utils.py`` finds, in the same place.
    """

    def __init__(
        self,
        model: nn.Module,
        max_frames_to_save: int = 21,
        trace_batch_nums: Sequence[int] | None = None,
        abort_after_batch_num: int | None = None,
    ) -> None:
        self.model = model
        self.trace_batch_nums = tuple(trace_batch_nums or ())
        self.abort_after_batch_num = abort_after_batch_num
        self.frames: deque[str] = deque(maxlen=max_frames_to_save)
        self.batch_number = 0
        self._header = self._batch_header()
        self._names = {module: name for name, module in model.named_modules()}
        self._hooks = [module.register_forward_hook(self._check_module) for module in model.modules()]

    def remove(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _batch_header(self) -> list[str]:
        return ["", "", f"{_INDENT}*** Starting batch number={self.batch_number} ***", _COLUMNS]

    def _check_module(self, module: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
        traced = self.batch_number in self.trace_batch_nums
        if traced:
            self.frames.clear()
        number = self.batch_number
        found = self._add_frame(module, inputs, output)
        if module is self.model:  # its hook runs after those of its submodules: the pass is over
            self.batch_number += 1
            self._header = self._batch_header()
        if traced:
            print("\n".join(self.frames))  # noqa: T201 - tracing prints
        elif found:
            self._report(number, self._describe(module), found)
        self._abort_if_due()

    def _describe(self, module: nn.Module) -> str:
        return f"{self._names.get(module, '')} {type(module).__name__}".strip()

    def _add_frame(self, module: nn.Module, inputs: tuple[Any, ...], output: object) -> list[str]:
        """Save the frame; return the names of its tensors that are not finite."""
        lines, found = [*self._header, f"{_INDENT}{self._names.get(module, '')} {type(module).__name__}"], []
        self._header = []
        parts = [*module.named_parameters(recurse=False), *_named("input", inputs), *_named("output", output, depth=2)]
        for name, value in parts:
            text, finite = _extremes(value)
            lines.append(f"{text:>17} {name}")
            if not finite:
                found.append(name)
        self.frames.append("\n".join(lines))
        return found

    def _report(self, number: int, where: str, parts: list[str]) -> None:
        names = " and ".join(parts)
        head = f"\nInfinite or NaN in {names} of {where}, in forward pass {number} of the model."
        print(  # noqa: T201 - the report
            "\n".join([head, f"The last {len(self.frames)} forward passes of its modules:", _COLUMNS, *self.frames])
        )
        raise ModelError(
            f"`debug='underflow_overflow'`: {names} of {where} is infinite or NaN in forward pass {number} of the "
            "model. The last frames are printed above; lower `learning_rate`, or use `bf16` instead of `fp16`."
        )

    def _abort_if_due(self) -> None:
        last = self.abort_after_batch_num
        if last is not None and self.batch_number > last:
            raise ModelError(
                f"Stopped after {self.batch_number} forward passes of the model: `abort_after_batch_num={last}`."
            )


def _named(name: str, values: object, depth: int = 1) -> Iterator[tuple[str, object]]:
    if depth and isinstance(values, tuple):
        for index, value in enumerate(values):
            yield from _named(f"{name}[{index}]", value, depth - 1)
    else:
        yield name, values


def _extremes(value: object) -> tuple[str, bool]:
    """Return the smallest and largest absolute value as text, and whether all values are finite."""
    if not isinstance(value, Tensor):
        return ("None" if value is None else "not a tensor"), True
    if value.numel() == 0:
        return "empty", True
    sizes = value.detach().abs() if value.dtype is not torch.bool else value.int()
    least, most = sizes.min().item(), sizes.max().item()
    return f"{least:8.2e} {most:8.2e}", math.isfinite(most)  # min() and max() of a tensor with a NaN are NaN
