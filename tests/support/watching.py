"""What update steps read from the device, and what they send to other processes."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["watching_steps"]

_READING_METHODS = {
    getattr(Tensor, name)
    for name in ("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "__array__")
}
_READING_OPERATORS = ("_local_scalar_dense", "equal.", "nonzero", "is_nonzero", "masked_select", "unique")


class _Methods(TorchFunctionMode):
    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _READING_METHODS:
            self.seen[f"Tensor.{function.__name__}"] += 1
        return function(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(function).removeprefix("aten.")
        if name.startswith(_READING_OPERATORS):
            self.seen[name] += 1
        elif name.startswith("c10d"):
            kinds = {str(leaf.dtype).removeprefix("torch.") for leaf in tree_leaves(args) if isinstance(leaf, Tensor)}
            self.seen[" ".join([name, *sorted(kinds)])] += 1
        return function(*args, **(kwargs or {}))


def watching_steps(callback_class: type, first: int, last: int) -> Any:
    """Return a callback whose ``seen`` counts reads and collectives from the end of step ``first`` to that of ``last``.

    A backward pass on the CPU runs in the thread that is watched.

    Args:
        callback_class: ``TrainerCallback`` of either library.
        first: The update step after which to begin.
        last: The last update step that is watched.
    """

    class Watch(callback_class):  # type: ignore[misc]
        def __init__(self) -> None:
            self.seen: Counter[str] = Counter()
            self.modes = ExitStack()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == first:
                self.modes.enter_context(_Methods(self.seen))
                self.modes.enter_context(_Operators(self.seen))
            elif state.global_step == last:
                self.modes.close()

    return Watch()
