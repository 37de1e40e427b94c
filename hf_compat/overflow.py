"""Where a model first makes an infinity or a NaN: what ``debug="underflow_overflow"`` looks for."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from hf_compat.errors import ModelError

__all__ = ["DebugUnderflowOverflow"]

_INDENT = " " * 18
_COLUMNS = f"{'abs min':8} {'abs max':8} metadata"


class DebugUnderflowOverflow:
    """Watches the weights, inputs and outputs of every module; prints the last ones and stops at an infinity or NaN.

    A *frame* is one forward pass of one module: its name and class, and of each of its own weights, of its positional
    inputs and of its outputs the least and the greatest absolute value. Outputs in a dict, and inputs given by name,
    are not looked into: the modules that made them were.

    Slows training down several times: each tensor is read back from its device.

    Args:
        model: The model to watch.
        max_frames_to_save: How many frames the report shows.
        trace_batch_nums: Forward passes of the whole model, counted from 0, to print in full instead of watching them.
        abort_after_batch_num: The forward pass after which to stop. Default: go on.

    Attributes:
        frames: The text of the last frames.
        batch_number: Forward passes of the whole model so far.

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
        self._hooks = [module.register_forward_hook(self._watch) for module in model.modules()]

    def remove(self) -> None:
        """Watch no longer."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _batch_header(self) -> list[str]:
        return ["", "", f"{_INDENT}*** Starting batch number={self.batch_number} ***", _COLUMNS]

    def _watch(self, module: nn.Module, given: Any, output: Any) -> None:
        traced = self.batch_number in self.trace_batch_nums
        if traced:
            self.frames.clear()
        number = self.batch_number
        found = self._add_frame(module, given, output)
        if module is self.model:  # a parent's hook runs after those of its parts: the pass is over
            self.batch_number += 1
            self._header = self._batch_header()
        if traced:
            print("\n".join(self.frames))  # noqa: T201 - that is what tracing is for
        elif found:
            self._report(number, self._describe(module), found)
        self._stop_if_asked()

    def _describe(self, module: nn.Module) -> str:
        return f"{self._names.get(module, '')} {type(module).__name__}".strip()

    def _add_frame(self, module: nn.Module, given: Any, output: Any) -> list[str]:
        """Keep the frame; return the names of the tensors in it that are not finite."""
        lines, found = [*self._header, f"{_INDENT}{self._names.get(module, '')} {type(module).__name__}"], []
        self._header = []
        parts = [*module.named_parameters(recurse=False), *_named("input", given), *_named("output", output, depth=2)]
        for name, value in parts:
            text, finite = _extremes(value)
            lines.append(f"{text:>17} {name}")
            if not finite:
                found.append(name)
        self.frames.append("\n".join(lines))
        return found

    def _report(self, number: int, where: str, found: list[str]) -> None:
        names = " and ".join(found)
        head = f"\nInfinite or NaN in {names} of {where}, in forward pass {number} of the model."
        print(  # noqa: T201 - the report is what this class is for
            "\n".join([head, f"The last {len(self.frames)} forward passes of its modules:", _COLUMNS, *self.frames])
        )
        raise ModelError(
            f"`debug='underflow_overflow'`: {names} of {where} is infinite or NaN, in forward pass {number} of the "
            "model. The values that led to it are printed above; lower `learning_rate`, or use `bf16` for `fp16`."
        )

    def _stop_if_asked(self) -> None:
        last = self.abort_after_batch_num
        if last is not None and self.batch_number > last:
            raise ModelError(
                f"Stopped after {self.batch_number} forward passes of the model: `abort_after_batch_num={last}`."
            )


def _named(name: str, values: Any, depth: int = 1) -> Iterator[tuple[str, Any]]:
    if depth and isinstance(values, tuple):
        for index, value in enumerate(values):
            yield from _named(f"{name}[{index}]", value, depth - 1)
    else:
        yield name, values


def _extremes(value: Any) -> tuple[str, bool]:
    """Return the least and greatest absolute value as text, and whether all values are finite."""
    if not isinstance(value, Tensor):
        return ("None" if value is None else "not a tensor"), True
    if value.numel() == 0:
        return "empty", True
    sizes = value.detach().abs() if value.dtype is not torch.bool else value.int()
    least, most = sizes.min().item(), sizes.max().item()
    return f"{least:8.2e} {most:8.2e}", math.isfinite(most)  # a NaN is both the least and the greatest
