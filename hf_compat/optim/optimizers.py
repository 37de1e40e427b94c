"""Optimizers by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from packaging.version import Version
from torch import nn

from hf_compat.arguments.releases.semantics import Semantics, resolve_semantics
from hf_compat.errors import ArgumentsError
from hf_compat.optim import external, in_backward, low_rank
from hf_compat.optim.classes import adafactor_class
from hf_compat.optim.optimizer_request import (
    ClassAndKwargs,
    OptimizerRequest,
    convert_options,
    parse_bool,
    parse_optim_args,
    plain_name,
)

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["OPTIMIZERS", "optimizer_class_and_kwargs"]

_TORCH_READS_OPTIM_ARGS = Version("5.3")


def _adamw(request: OptimizerRequest, **extra: Any) -> ClassAndKwargs:
    return torch.optim.AdamW, request.adam | extra


def _adafactor(request: OptimizerRequest) -> ClassAndKwargs:
    return adafactor_class(), {"scale_parameter": False, "relative_step": False}


def _from_torch(
    request: OptimizerRequest, *, optimizer: type, converters: dict[str, Callable[[str], Any]]
) -> ClassAndKwargs:
    reads = request.semantics.release >= _TORCH_READS_OPTIM_ARGS
    return optimizer, convert_options(request.options, converters) if reads else {}


OPTIMIZERS: dict[str, Callable[[OptimizerRequest], ClassAndKwargs]] = {
    "adamw_hf": _adamw,  # removed in 4.50 in favour of torch's
    "adamw_torch": _adamw,
    "adamw_torch_fused": partial(_adamw, fused=True),
    "adamw_torch_xla": partial(external.adamw_like, module="torch_xla.amp.syncfree", attribute="AdamW", extra="xla"),
    "adamw_torch_npu_fused": partial(
        external.adamw_like, module="torch_npu.optim", attribute="NpuFusedAdamW", extra="npu"
    ),
    "adamw_apex_fused": external.apex,
    "adamw_anyprecision": external.anyprecision,
    "adamw_torch_4bit": partial(external.torchao, attribute="AdamW4bit"),
    "adamw_torch_8bit": partial(external.torchao, attribute="AdamW8bit"),
    "adafactor": _adafactor,
    "sgd": partial(
        _from_torch,
        optimizer=torch.optim.SGD,
        converters={"momentum": float, "dampening": float, "weight_decay": float, "nesterov": parse_bool},
    ),
    "adagrad": partial(
        _from_torch, optimizer=torch.optim.Adagrad, converters={"lr_decay": float, "weight_decay": float, "eps": float}
    ),
    "rmsprop": partial(
        _from_torch,
        optimizer=torch.optim.RMSprop,
        converters={"momentum": float, "alpha": float, "eps": float, "weight_decay": float, "centered": parse_bool},
    ),
    "adamw_bnb_8bit": partial(external.bnb_adamw, bits=8, paged=False),
    "adamw_8bit": partial(external.bnb_adamw, bits=8, paged=False),
    "paged_adamw_32bit": partial(external.bnb_adamw, bits=32, paged=True),
    "paged_adamw_8bit": partial(external.bnb_adamw, bits=8, paged=True),
    "lion_32bit": partial(external.bnb_lion, bits=32, paged=False),
    "lion_8bit": partial(external.bnb_lion, bits=8, paged=False),
    "paged_lion_32bit": partial(external.bnb_lion, bits=32, paged=True),
    "paged_lion_8bit": partial(external.bnb_lion, bits=8, paged=True),
    "ademamix": partial(external.bnb_ademamix, bits=32, paged=False),
    "ademamix_8bit": partial(external.bnb_ademamix, bits=8, paged=False),
    "paged_ademamix_32bit": partial(external.bnb_ademamix, bits=32, paged=True),
    "paged_ademamix_8bit": partial(external.bnb_ademamix, bits=8, paged=True),
    "rmsprop_bnb": partial(external.bnb_rmsprop, bits=32),
    "rmsprop_bnb_8bit": partial(external.bnb_rmsprop, bits=8),
    "rmsprop_bnb_32bit": partial(external.bnb_rmsprop, bits=32),
    "schedule_free_radam": partial(external.schedule_free, attribute="RAdamScheduleFree", adam=True, warmup=False),
    "schedule_free_adamw": partial(external.schedule_free, attribute="AdamWScheduleFree", adam=True, warmup=True),
    "schedule_free_sgd": partial(external.schedule_free, attribute="SGDScheduleFree", adam=False, warmup=True),
    "grokadamw": external.grokadamw,
    "stable_adamw": external.stable_adamw,
    "galore_adamw": partial(low_rank.galore, attribute="GaLoreAdamW"),
    "galore_adamw_8bit": partial(low_rank.galore, attribute="GaLoreAdamW8bit"),
    "galore_adafactor": partial(low_rank.galore, attribute="GaLoreAdafactor"),
    "galore_adamw_layerwise": partial(low_rank.galore, attribute="GaLoreAdamW", layerwise=True),
    "galore_adamw_8bit_layerwise": partial(low_rank.galore, attribute="GaLoreAdamW8bit", layerwise=True),
    "galore_adafactor_layerwise": partial(low_rank.galore, attribute="GaLoreAdafactor", layerwise=True),
    "apollo_adamw": low_rank.apollo,
    "apollo_adamw_layerwise": partial(low_rank.apollo, layerwise=True),
    "lomo": partial(in_backward.lomo, attribute="Lomo"),
    "adalomo": partial(in_backward.lomo, attribute="AdaLomo"),
}
"""``optim`` to the function that returns the class and its keywords, without the learning rate."""


def optimizer_class_and_kwargs(
    settings: TrainingArguments, model: nn.Module | None = None, *, semantics: Semantics | None = None
) -> ClassAndKwargs:
    """Return the optimizer class of ``settings.optim``, and its keywords without the parameters.

    Args:
        settings: The ``TrainingArguments``, ours or transformers'.
        model: The model to train; GaLore, APOLLO and LOMO need it.
        semantics: The transformers release to follow: it decides which optimizers read ``optim_args``. Default: the
            installed one.

    Raises:
        ArgumentsError: If ``optim`` is unknown, ``optim_args`` is invalid, or a field that the optimizer needs is not
            set.
        UnsupportedArgumentsError: If the optimizer needs a GPU and there is none.
        MissingPackageError: If the optimizer's package is not installed.

    References:
        Same as ``Trainer.get_optimizer_cls_and_kwargs`` of transformers.
    """
    name = plain_name(settings.optim)
    if name not in OPTIMIZERS:
        near = difflib.get_close_matches(name, OPTIMIZERS, n=1, cutoff=0.0)[0]
        raise ArgumentsError([f"`optim={name!r}` is unknown: did you mean {near!r}?"])
    options = parse_optim_args(settings.optim_args)
    request = OptimizerRequest(name, settings, options, semantics or resolve_semantics(), model)
    optimizer, kwargs = OPTIMIZERS[name](request)
    return optimizer, {"lr": settings.learning_rate} | kwargs
