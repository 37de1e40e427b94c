"""Full and mixed precision, with autocast around the model's forward pass only.

As in transformers, the forward pass runs under autocast and returns float32; the loss, the backward pass and a
subclass's additions run without it. Lightning's own plugin runs the whole training step under autocast.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import MethodType
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import (
    DoublePrecision,
    HalfPrecision,
    MixedPrecision,
    Precision,
    TransformerEnginePrecision,
)
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.optim import Optimizer

from hf_compat.distributed.accelerators import accelerator_module
from hf_compat.engine.internals.stepping import call_hook
from hf_compat.errors import MissingPackageError, NotSupportedError, warn_user
from hf_compat.nested import map_nested
from hf_compat.optim.prepared import scaled_step, unwrap_optimizer

if TYPE_CHECKING:
    from hf_compat.engine.strategies.choice import StrategyTraits


_OWN_SCALER = ("mlu", "musa", "npu", "sdaa")
"""Device types whose package has a gradient scaler of its own, as accelerate ``utils/modeling.py``."""


_NOTHING = nullcontext()


class FullPrecision(Precision):
    """Full precision; calls ``optimizer.step`` without a closure.

    Lightning calls its gradient hooks in a closure, which some optimizers do not accept. Here the hooks run before the
    step.
    """

    def train_step_context(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Return a context that does nothing."""
        return _NOTHING

    val_step_context = test_step_context = predict_step_context = train_step_context  # type: ignore[assignment]

    def optimizer_step(  # type: ignore[override]
        self, optimizer: Optimizer, model: pl.LightningModule, closure: Callable[[], Any], **kwargs: Any
    ) -> Any:
        """Run the gradient hooks, then the step."""
        closure()
        call_hook(model, "on_before_optimizer_step", optimizer)
        return optimizer.step(**kwargs)

    def pre_backward(self, tensor: Tensor, module: pl.LightningModule) -> Tensor:  # type: ignore[override]
        """Run the hook, and return the loss."""
        call_hook(module, "on_before_backward", tensor)
        return tensor

    def post_backward(self, tensor: Tensor, module: pl.LightningModule) -> Tensor:  # type: ignore[override]
        """Run the hook, and return the loss."""
        call_hook(module, "on_after_backward")
        return tensor


class TrueHalf(HalfPrecision):
    """The model in bfloat16 or float16; ``_prepare_inputs`` converts the inputs."""

    optimizer_step = FullPrecision.optimizer_step  # type: ignore[assignment]
    pre_backward = FullPrecision.pre_backward  # type: ignore[assignment]
    post_backward = FullPrecision.post_backward  # type: ignore[assignment]

    def convert_input(self, data: Any) -> Any:
        """Return ``data``: Lightning's batch is a window, whose batches the Trainer prepares."""
        return data


class TrueDouble(DoublePrecision):
    """The model in float64; ``_prepare_inputs`` converts the inputs."""

    optimizer_step = FullPrecision.optimizer_step  # type: ignore[assignment]
    pre_backward = FullPrecision.pre_backward  # type: ignore[assignment]
    post_backward = FullPrecision.post_backward  # type: ignore[assignment]
    convert_input = TrueHalf.convert_input


class ForwardMixedPrecision(MixedPrecision):
    """Mixed precision without autocast around the training step; see :func:`autocast_forward`."""

    casts_forward = True
    """Whether the model's forward enters autocast; otherwise the strategy casts parameters, inputs and outputs."""
    step_was_skipped = False
    """Whether the gradient scaler skipped the last optimizer step; see :func:`scaled_step`."""
    unscaled: Optimizer | None = None
    """The optimizer that is about to be stepped, whose gradients are unscaled; None at other times."""

    def forward_context(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Return a context that does nothing: the model's forward enters autocast itself."""
        return _NOTHING

    train_step_context = val_step_context = forward_context  # type: ignore[assignment]
    test_step_context = predict_step_context = forward_context  # type: ignore[assignment]

    def autocast_context_manager(self, cache_enabled: bool | None = None) -> torch.autocast:
        """Return the autocast of one forward pass; ``cache_enabled`` is torch's."""
        dtype = torch.bfloat16 if self.precision == "bf16-mixed" else torch.float16
        return torch.autocast(self.device, dtype=dtype, cache_enabled=cache_enabled)

    post_backward = FullPrecision.post_backward  # type: ignore[assignment]

    def pre_backward(self, tensor: Tensor, module: pl.LightningModule) -> Tensor:  # type: ignore[override]
        """Scale the loss, run the hook, and return the loss."""
        scaled = tensor if self.scaler is None else self.scaler.scale(tensor)
        call_hook(module, "on_before_backward", scaled)
        return scaled

    def optimizer_step(  # type: ignore[override]
        self, optimizer: Optimizer, model: pl.LightningModule, closure: Callable[[], Any], **kwargs: Any
    ) -> Any:
        """Unscale, run the gradient hooks, then the step unless a gradient is infinite."""
        closure()
        if self.scaler is None:
            call_hook(model, "on_before_optimizer_step", optimizer)
            return optimizer.step(**kwargs)
        self.unscaled = unwrap_optimizer(optimizer)
        try:
            _unscale(self.scaler, self.unscaled)
            call_hook(model, "on_before_optimizer_step", optimizer)
        finally:
            self.unscaled = None
        output, self.step_was_skipped = scaled_step(self.scaler, optimizer, **kwargs)
        return output


def precision_plugin(
    mixed_precision: str, device: torch.device, plugins: Iterable[Any] = (), *, strategy: StrategyTraits
) -> Precision:
    """Return the Lightning precision plugin of a run.

    Args:
        mixed_precision: ``"no"``, ``"bf16"`` or ``"fp16"``.
        device: Device of the model.
        plugins: The user's plugins. A precision plugin among them is used; of Lightning's ``MixedPrecision`` the dtype
            and the scaler, with autocast around the forward pass only; of ``HalfPrecision`` the dtype.
        strategy: The properties of the run's strategy, which may handle precision itself, or in part.

    Warns:
        HFCompatWarning: If ``"fp16"`` computes in float32, because the device is the CPU; as in transformers.
    """
    plugin = _precision_plugin_in(plugins)
    if type(plugin) is MixedPrecision:
        return ForwardMixedPrecision(plugin.precision, plugin.device, plugin.scaler)  # type: ignore[arg-type]
    if type(plugin) is HalfPrecision:
        return TrueHalf(plugin.precision)
    if type(plugin) is DoublePrecision:
        return TrueDouble()
    if plugin is not None:
        return plugin
    if mixed_precision == "no" or strategy.own_precision:
        return FullPrecision()
    if mixed_precision == "fp16" and device.type == "cpu":
        remedy = "Remove it, or set `bf16=True` and `use_cpu=True`."
        text = f"`fp16=True`: float16 needs a GPU, so on the CPU this run computes in float32. {remedy}"
        warn_user(text)
        return FullPrecision()
    scaler = None if mixed_precision == "bf16" else _grad_scaler(device, flat_shards=strategy.flat_shards)
    made = ForwardMixedPrecision("bf16-mixed" if mixed_precision == "bf16" else "16-mixed", device.type, scaler)
    made.casts_forward = not strategy.own_casts
    return made


def _grad_scaler(device: torch.device, *, flat_shards: bool) -> GradScaler:
    """Return the gradient scaler for ``device``, which some packages bring themselves.

    That of FSDP version 1 checks for infinite gradients on all ranks.
    """
    if flat_shards:
        return ShardedGradScaler(device.type)
    if device.type in _OWN_SCALER:
        own: GradScaler = accelerator_module(device).amp.GradScaler()
        return own
    return GradScaler(device.type)


def _unscale(scaler: GradScaler, optimizer: Optimizer) -> None:
    """Unscale the gradients of ``optimizer``, unless the script has done so since its last step, to clip them."""
    try:
        scaler.unscale_(optimizer)
    except RuntimeError as error:
        if "already been called" not in str(error):
            raise


def set_scaler(plugin: Precision, scaler: GradScaler | None) -> None:
    """Let ``plugin`` scale losses by ``scaler``, or not at all.

    Raises:
        NotSupportedError: If ``plugin`` does not compute in float16.
    """
    if isinstance(plugin, ForwardMixedPrecision) and forward_precision(plugin) == "fp16":
        plugin.scaler = scaler
    elif scaler is not None:
        raise NotSupportedError(
            f"`accelerator.scaler = {type(scaler).__name__}(...)`: a gradient scaler is for float16, which this "
            "Trainer does not compute in. Set `fp16=True` on a GPU, or assign no scaler."
        )


def precision_problems(mixed_precision: str, plugins: Iterable[Any]) -> list[str]:
    """Return a problem if both ``mixed_precision`` and the user's ``plugins`` set the precision."""
    plugin = _precision_plugin_in(plugins)
    if plugin is None or mixed_precision == "no":
        return []
    return [
        f"`{mixed_precision}=True` and `lightning={{'plugins': [{type(plugin).__name__}]}}` both set the precision: "
        "choose one."
    ]


def _precision_plugin_in(plugins: Iterable[Any]) -> Precision | None:
    return next((plugin for plugin in plugins if isinstance(plugin, Precision)), None)


def true_precision(name: str) -> Precision:
    """Return Lightning's plugin for a ``precision`` that converts the model.

    Args:
        name: ``"bf16-true"``, ``"16-true"``, ``"64-true"``, ``"transformer-engine"`` or that with ``"-float16"``.

    Raises:
        MissingPackageError: If Transformer Engine is not installed.
    """
    if name == "64-true":
        return TrueDouble()
    if not name.startswith("transformer-engine"):
        return TrueHalf(name)  # type: ignore[arg-type]
    dtype = torch.float16 if name.endswith("float16") else torch.bfloat16
    try:
        return TransformerEnginePrecision(weights_dtype=dtype)
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"`lightning={{'precision': {name!r}}}` needs NVIDIA's Transformer Engine, which is not installed: "
            'pip install "transformer-engine[pytorch]"'
        ) from error


def input_dtype(plugin: Precision) -> torch.dtype | None:
    """Return the dtype of floating-point inputs under ``plugin``; None if it leaves them, or converts them itself."""
    if isinstance(plugin, TrueDouble):
        return torch.float64
    if isinstance(plugin, TrueHalf):
        return torch.bfloat16 if plugin.precision == "bf16-true" else torch.float16
    return None


def forward_precision(plugin: Precision) -> str:
    """Return the mixed precision of the forward pass under ``plugin``: ``"no"``, ``"bf16"`` or ``"fp16"``."""
    if not isinstance(plugin, ForwardMixedPrecision):
        return "no"
    return "bf16" if plugin.precision == "bf16-mixed" else "fp16"


def autocast_forward(model: nn.Module, context: Callable[[], AbstractContextManager[Any]]) -> None:
    """Replace ``model.forward`` by one that runs inside ``context()`` and returns float32; a second call does nothing.

    References:
        As accelerate's ``prepare_model`` with mixed precision; the model keeps the new forward.
    """
    if is_under_autocast(model):
        return
    forward: Any = model.forward
    # Bound to the model, so that a deep copy of the model uses its own weights.
    owner = getattr(forward, "__self__", None)
    function = forward.__func__ if owner is model else forward

    @functools.wraps(function)
    def in_autocast(*args: Any, **kwargs: Any) -> Any:
        with context():
            outputs = function(*args, **kwargs)
        return map_nested(_to_float32, outputs)

    in_autocast._hf_compat_autocast = True  # type: ignore[attr-defined]
    model.forward = MethodType(in_autocast, model) if owner is model else in_autocast


def is_under_autocast(model: nn.Module) -> bool:
    """Return whether :func:`autocast_forward` has replaced ``model.forward``."""
    return hasattr(model.forward, "_hf_compat_autocast")


def without_autocast(model: nn.Module) -> nn.Module:
    """Undo :func:`autocast_forward` and return ``model``."""
    if is_under_autocast(model):
        forward: Any = model.__dict__.pop("forward")
        original = forward.__wrapped__
        if not isinstance(forward, MethodType):
            model.forward = original
        elif original is not type(model).forward:
            model.forward = MethodType(original, model)
    return model


def _to_float32(leaf: object) -> object:
    if isinstance(leaf, Tensor) and leaf.dtype in (torch.float16, torch.bfloat16):
        return leaf.float()
    return leaf
