"""How a run computes: full or mixed precision, with autocast around the model's forward pass alone.

transformers runs the forward pass under autocast and hands its outputs on in float32; the loss, the backward pass and
whatever a subclass adds run outside. Lightning's own mixed-precision plugin covers the whole step; these do not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import MethodType
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from torch import Tensor, nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.optim import Optimizer

from hf_compat.nested import map_nested

__all__ = [
    "ForwardMixedPrecision",
    "FullPrecision",
    "autocast_forward",
    "forward_precision",
    "precision_plugin",
    "precision_problems",
    "without_autocast",
]


class FullPrecision(Precision):
    """Full precision whose gradient hooks run before ``optimizer.step``, which is called without a closure.

    Lightning passes the hooks to the optimizer as a closure; optimizers that take none would refuse it.
    """

    def optimizer_step(  # type: ignore[override]
        self, optimizer: Optimizer, model: pl.LightningModule, closure: Callable[[], Any], **kwargs: Any
    ) -> Any:
        """Run the gradient hooks, then the step."""
        closure()
        self._after_closure(model, optimizer)
        return optimizer.step(**kwargs)


class ForwardMixedPrecision(MixedPrecision):
    """Mixed precision without autocast around the step: :func:`autocast_forward` puts it around the model's forward."""

    step_was_skipped = False
    """Whether the gradient scaler found an infinite gradient and left the last optimizer step out."""

    @contextmanager
    def forward_context(self) -> Iterator[None]:
        """Do nothing: the model's forward opens its own autocast."""
        yield

    def autocast_context_manager(self) -> torch.autocast:
        """Return the autocast of one forward pass, with the weight cache on as in transformers."""
        dtype = torch.bfloat16 if self.precision == "bf16-mixed" else torch.float16
        return torch.autocast(self.device, dtype=dtype)

    def optimizer_step(  # type: ignore[override]
        self, optimizer: Optimizer, model: pl.LightningModule, closure: Callable[[], Any], **kwargs: Any
    ) -> Any:
        """Unscale, run the gradient hooks, then the step unless a gradient is infinite."""
        closure()
        if self.scaler is None:
            self._after_closure(model, optimizer)
            return optimizer.step(**kwargs)
        self.scaler.unscale_(optimizer)
        self._after_closure(model, optimizer)
        self.step_was_skipped = True
        made = optimizer.register_step_post_hook(self._note_step)
        try:
            output = self.scaler.step(optimizer, **kwargs)
        finally:
            made.remove()
        self.scaler.update()
        return output

    def _note_step(self, *_: Any) -> None:
        self.step_was_skipped = False


def precision_plugin(
    mixed_precision: str, device: torch.device, plugins: Iterable[Any] = (), *, flat_shards: bool = False
) -> Precision:
    """Return the Lightning plugin that says how a run computes.

    Args:
        mixed_precision: ``"no"``, ``"bf16"`` or ``"fp16"``.
        device: Where the model is.
        plugins: The user's. One for precision among them is taken, Lightning's ``MixedPrecision`` with its scaler but
            with autocast around the forward pass alone.
        flat_shards: Whether FSDP version 1 shards gradients, so that a scaler has to ask all processes whether one of
            them is infinite.
    """
    given = _given(plugins)
    if type(given) is MixedPrecision:
        return ForwardMixedPrecision(given.precision, given.device, given.scaler)  # type: ignore[arg-type]
    if given is not None:
        return given
    if mixed_precision == "no":
        return FullPrecision()
    if mixed_precision == "fp16" and flat_shards:
        return ForwardMixedPrecision("16-mixed", device.type, ShardedGradScaler(device.type))
    return ForwardMixedPrecision("bf16-mixed" if mixed_precision == "bf16" else "16-mixed", device.type)


def precision_problems(mixed_precision: str, plugins: Iterable[Any]) -> list[str]:
    """Return what is wrong where both ``mixed_precision`` and the user's ``plugins`` say how to compute."""
    given = _given(plugins)
    if given is None or mixed_precision == "no":
        return []
    return [
        f"`{mixed_precision}=True` and `lightning={{'plugins': [{type(given).__name__}]}}` both say how to compute: "
        "choose one."
    ]


def _given(plugins: Iterable[Any]) -> Precision | None:
    return next((plugin for plugin in plugins if isinstance(plugin, Precision)), None)


def forward_precision(plugin: Any) -> str:
    """Return what the forward pass is computed in under ``plugin``: ``"no"``, ``"bf16"`` or ``"fp16"``."""
    if not isinstance(plugin, ForwardMixedPrecision):
        return "no"
    return "bf16" if plugin.precision == "bf16-mixed" else "fp16"


def autocast_forward(model: nn.Module, context: Callable[[], AbstractContextManager[Any]]) -> None:
    """Make ``model.forward`` run inside ``context()`` and return float32; once, however often it is called.

    References:
        As accelerate's ``prepare_model`` under mixed precision: the model keeps the new forward.
    """
    if hasattr(model.forward, "_hf_compat_autocast"):
        return
    forward: Any = model.forward
    # Bound anew, so that a deep copy of the model runs its own weights and not those of this one.
    owner = getattr(forward, "__self__", None)
    function = forward.__func__ if owner is model else forward

    @functools.wraps(function)
    def in_autocast(*args: Any, **kwargs: Any) -> Any:
        with context():
            outputs = function(*args, **kwargs)
        return map_nested(_to_float32, outputs)

    in_autocast._hf_compat_autocast = True  # type: ignore[attr-defined]
    model.forward = MethodType(in_autocast, model) if owner is model else in_autocast


def without_autocast(model: nn.Module) -> nn.Module:
    """Return ``model``, its forward again as it was before :func:`autocast_forward`."""
    if hasattr(model.forward, "_hf_compat_autocast"):
        forward: Any = model.__dict__.pop("forward")
        original = forward.__wrapped__
        if not isinstance(forward, MethodType):
            model.forward = original
        elif original is not type(model).forward:
            model.forward = MethodType(original, model)
    return model


def _to_float32(leaf: Any) -> Any:
    if isinstance(leaf, Tensor) and leaf.dtype in (torch.float16, torch.bfloat16):
        return leaf.float()
    return leaf
