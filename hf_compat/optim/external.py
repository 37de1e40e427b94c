"""Optimizers of optional packages: the class and its keywords."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from packaging.version import Version
from torch import nn

from hf_compat.errors import MissingPackageError, is_installed, require_package
from hf_compat.optim.optimizer_request import (
    ClassAndKwargs,
    OptimizerRequest,
    convert_options,
    parse_flag,
    parse_literal,
)

__all__ = [
    "adamw_like",
    "anyprecision",
    "apex",
    "bnb_adamw",
    "bnb_ademamix",
    "bnb_lion",
    "bnb_rmsprop",
    "grokadamw",
    "has_triton_without_gpu",
    "keep_embeddings_in_32_bits",
    "schedule_free",
    "stable_adamw",
    "torchao",
]

_TORCHAO_READS_OPTIM_ARGS = Version("5.0")


def adamw_like(request: OptimizerRequest, *, module: str, attribute: str, extra: str) -> ClassAndKwargs:
    """Return an AdamW that takes torch's arguments."""
    return request.load(module, attribute, extra=extra), request.adam


def _load_built_from_source(request: OptimizerRequest, module: str, attribute: str, url: str) -> Callable[..., Any]:
    try:
        return request.load(module, attribute, extra="")
    except MissingPackageError as error:
        package = module.partition(".")[0]
        message = f"`optim={request.name!r}` needs the package `{package}`; install it from {url}"
        raise MissingPackageError(f"{message}, or use optim='adamw_torch_fused'.") from error


def apex(request: OptimizerRequest) -> ClassAndKwargs:
    """Return apex's fused Adam."""
    return _load_built_from_source(
        request, "apex.optimizers", "FusedAdam", "https://github.com/NVIDIA/apex"
    ), request.adam


def anyprecision(request: OptimizerRequest) -> ClassAndKwargs:
    """Return torchdistx's AdamW, whose state can be in half precision."""
    options = request.options
    kwargs = {
        "use_kahan_summation": parse_flag(options.get("use_kahan_summation", "false")),
        "momentum_dtype": getattr(torch, options.get("momentum_dtype", "float32")),
        "variance_dtype": getattr(torch, options.get("variance_dtype", "float32")),
        "compensation_buffer_dtype": getattr(torch, options.get("compensation_buffer_dtype", "bfloat16")),
    }
    url = "https://github.com/pytorch/torchdistx"
    optimizer = _load_built_from_source(request, "torchdistx.optimizers", "AnyPrecisionAdamW", url)
    return optimizer, request.adam | kwargs


def bnb_adamw(request: OptimizerRequest, *, bits: int, paged: bool) -> ClassAndKwargs:
    """Return bitsandbytes' AdamW with ``bits``-bit state."""
    optimizer = request.load("bitsandbytes.optim", "AdamW", extra="bitsandbytes")
    return optimizer, request.adam | {"optim_bits": bits, "is_paged": paged}


def bnb_lion(request: OptimizerRequest, *, bits: int, paged: bool) -> ClassAndKwargs:
    """Return bitsandbytes' Lion with ``bits``-bit state."""
    optimizer = request.load("bitsandbytes.optim", "Lion", extra="bitsandbytes")
    return optimizer, {"betas": request.adam["betas"], "optim_bits": bits, "is_paged": paged}


def bnb_ademamix(request: OptimizerRequest, *, bits: int, paged: bool) -> ClassAndKwargs:
    """Return bitsandbytes' AdEMAMix with ``bits``-bit state."""
    optimizer = request.load("bitsandbytes.optim", "AdEMAMix", extra="bitsandbytes")
    options, settings = request.options, request.settings
    kwargs: dict[str, Any] = {
        "betas": (
            float(options.get("beta1", settings.adam_beta1)),
            float(options.get("beta2", settings.adam_beta2)),
            float(options.get("beta3", 0.9999)),
        ),
        "alpha": float(options.get("alpha", 5.0)),
        "eps": float(options.get("eps", settings.adam_epsilon)),
    }
    kwargs |= convert_options(options, {"t_alpha": int, "t_beta3": int})
    return optimizer, kwargs | {"optim_bits": bits, "is_paged": paged}


def bnb_rmsprop(request: OptimizerRequest, *, bits: int) -> ClassAndKwargs:
    """Return bitsandbytes' RMSprop with ``bits``-bit state."""
    optimizer = request.load("bitsandbytes.optim", "RMSprop", extra="bitsandbytes")
    # transformers passes strings, which bitsandbytes cannot compute with.
    options = {name: parse_literal(value) for name, value in request.options.items()}
    return optimizer, options | {"optim_bits": bits}


def keep_embeddings_in_32_bits(model: nn.Module) -> None:
    """Keep the optimizer state of ``model``'s embeddings in float32, in an 8-bit optimizer of bitsandbytes."""
    optim = require_package("bitsandbytes.optim", extra="bitsandbytes", purpose="an 8-bit optimizer")
    manager = optim.GlobalOptimManager.get_instance()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})


def torchao(request: OptimizerRequest, *, attribute: str) -> ClassAndKwargs:
    """Return torchao's low-bit AdamW."""
    optimizer = request.load("torchao.optim", attribute, extra="torchao")
    if request.semantics.release < _TORCHAO_READS_OPTIM_ARGS:
        return optimizer, request.adam
    kwargs = {
        "block_size": int(request.options.get("block_size", 256)),
        "bf16_stochastic_round": parse_flag(request.options.get("bf16_stochastic_round", "false")),
    }
    return optimizer, kwargs | request.adam


def schedule_free(request: OptimizerRequest, *, attribute: str, adam: bool, warmup: bool) -> ClassAndKwargs:
    """Return a schedule-free optimizer, with Adam's arguments and ``warmup_steps`` if it takes them."""
    settings = request.settings
    kwargs: dict[str, Any] = (request.adam if adam else {}) | {"weight_decay": settings.weight_decay}
    if warmup:
        kwargs["warmup_steps"] = settings.warmup_steps
    kwargs["weight_lr_power"] = float(request.options.get("weight_lr_power", 2.0))
    kwargs["r"] = float(request.options.get("r", 0.0))
    return request.load("schedulefree", attribute, extra="schedulefree"), kwargs


def grokadamw(request: OptimizerRequest) -> ClassAndKwargs:
    """Return GrokAdamW."""
    defaults = {
        "alpha_init": 0.98,
        "lamb": 2.0,
        "gamma": 0.1,
        "grokking_signal_decay_rate": 0.1,
        "gradient_clipping": 1.0,
    }
    kwargs = {name: float(request.options.get(name, default)) for name, default in defaults.items()}
    return request.load("grokadamw", "GrokAdamW", extra="grokadamw"), kwargs


def has_triton_without_gpu() -> bool:
    """Return whether Triton is installed, as with torch's builds for GPUs, on a machine that has none."""
    has_gpu = torch.cuda.is_available() or torch.xpu.is_available()
    return is_installed("triton") and not has_gpu


def stable_adamw(request: OptimizerRequest) -> ClassAndKwargs:
    """Return optimi's StableAdamW."""
    # In transformers any value is true, even "false".
    truth: Callable[[str], bool] = (lambda value: bool(parse_flag(value))) if request.semantics.corrected else bool
    chosen = convert_options(request.options, {"decouple_lr": truth, "max_lr": float, "kahan_sum": truth})
    kwargs = {"weight_decay": request.settings.weight_decay, "decouple_lr": False, "max_lr": None, "kahan_sum": None}
    if has_triton_without_gpu():
        chosen["triton"] = False  # optimi 0.3 takes Triton's kernels wherever it is installed, and they need a GPU
    return request.load("optimi", "StableAdamW", extra="optimi"), request.adam | kwargs | chosen
