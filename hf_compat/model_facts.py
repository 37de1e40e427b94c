"""Facts of a model, found without importing the package it comes from."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

_LIGHTNING = ("lightning.pytorch.core.module", "pytorch_lightning.core.module")
"""Modules of the class LightningModule."""
_FSDP = "FSDP"
"""With what the name of a class begins that FSDP 2 makes of a model's."""


def is_peft_model(model: object) -> bool:
    """Return whether ``model`` is a peft model, an adapter around a base model."""
    return any(cls.__module__.partition(".")[0] == "peft" for cls in type(model).__mro__)


def is_instance_of(value: object, *classes: str) -> bool:
    """Return whether ``value`` is an instance of one of ``classes``, each named with its module.

    Nothing is imported: if there is an instance, the module of its class has been.
    """
    places = (name.rpartition(".") for name in classes)
    loaded = (getattr(sys.modules.get(module), kind, None) for module, _, kind in places)
    return isinstance(value, tuple(kind for kind in loaded if kind is not None))


def is_pretrained_model(model: object) -> bool:
    """Return whether ``model`` is a ``PreTrainedModel`` of transformers."""
    return is_instance_of(model, "transformers.modeling_utils.PreTrainedModel")


def is_presharded(model: object) -> bool:
    """Return whether ``from_pretrained(distributed_config=...)`` or ``(tp_plan=...)`` of transformers 5 sharded it."""
    is_instance = not isinstance(model, type)  # of a class, a property is true
    return is_instance and bool(getattr(model, "is_distributed_loading_by_transformers", False))


def presharded_size(model: object, name: str) -> int:
    """Return a size of the ``distributed_config`` of ``model``, such as ``tp_size``; 1 if it does not set it."""
    config = getattr(getattr(model, "config", None), "distributed_config", None)
    return getattr(config, name, None) or 1


def _wrappers() -> tuple[Any, ...]:
    """Return the wrapper classes of distributed training, of the packages that are imported."""
    elsewhere = (("torch.distributed.fsdp", "FullyShardedDataParallel"), ("deepspeed", "DeepSpeedEngine"))
    found = [getattr(sys.modules.get(module), name, None) for module, name in elsewhere]
    return (DistributedDataParallel, nn.DataParallel, *(wrapper for wrapper in found if wrapper is not None))


def is_compiled(model: nn.Module) -> bool:
    """Return whether ``model`` is one that ``torch.compile`` has returned."""
    return "_orig_mod" in vars(model).get("_modules", ())


def is_in_training_mode(model: nn.Module) -> bool:
    """Return whether ``model.train()`` would change nothing; False if that is not known.

    ``train`` walks over all modules and sets an attribute of each, several times more slowly than this looks.
    """
    modules: list[nn.Module | None] = [model]
    for module in modules:  # which grows meanwhile
        if module is None:
            continue
        if not module.training or "train" in module.__dict__:
            return False
        train = type(module).train
        if train is not nn.Module.train and not _only_sets_the_mode(train, module):
            return False
        if module._modules:
            modules += module._modules.values()
    return True


def parameters_of(model: nn.Module) -> list[nn.Parameter]:
    """Return what ``model.parameters()`` yields, which walks over the modules several times more slowly."""
    kind, plain = type(model), nn.Module
    if (
        kind.parameters is not plain.parameters
        or kind.named_parameters is not plain.named_parameters
        or kind._named_members is not plain._named_members
    ):
        return list(model.parameters())
    found: list[nn.Parameter | None] = []
    seen: dict[nn.Module, None] = {}
    rest: list[nn.Module | None] = [model]
    while rest:
        module = rest.pop()
        if module is None or module in seen:
            continue
        if type(module).named_modules is not plain.named_modules:
            return list(model.parameters())
        seen[module] = None
        if module._parameters:
            found += module._parameters.values()
        if module._modules:
            rest += reversed(module._modules.values())
    each_once = dict(zip(map(id, found), found, strict=True))
    return [parameter for parameter in each_once.values() if parameter is not None]


def zero_gradients(model: nn.Module) -> None:
    """Do what ``model.zero_grad()`` does, without torch's slow walk over the modules."""
    if type(model).zero_grad is not nn.Module.zero_grad or "zero_grad" in vars(model):
        model.zero_grad()
        return
    for parameter in parameters_of(model):
        if parameter.grad is not None:
            parameter.grad = None


def _only_sets_the_mode(train: Callable[..., Any], module: nn.Module) -> bool:
    """Return whether ``train`` of ``module`` is torch's for DDP, or transformers', which may also change kernels."""
    if train is DistributedDataParallel.train:
        return True
    is_transformers = getattr(train, "__module__", "") == "transformers.modeling_utils"
    return is_transformers and not getattr(module, "use_kernels", True)


def unwrap_model(model: nn.Module) -> nn.Module:
    """Return the model itself, without the wrappers of ``torch.compile``, ``DataParallel`` and distributed training."""
    inner: Any = model
    while True:
        if hasattr(inner, "_orig_mod"):
            inner = inner._orig_mod
        elif isinstance(inner, _wrappers()):
            inner = inner.module
        else:
            return inner  # type: ignore[no-any-return]


def unwrap_peft(model: nn.Module) -> nn.Module:
    """Return the base model inside peft's wrappers, or ``model`` itself."""
    if not is_peft_model(model):
        return model
    base: Any = model
    return base.get_base_model() if hasattr(base, "get_base_model") else base.base_model.model  # type: ignore[no-any-return]


def accepts_loss_kwargs(model: nn.Module) -> bool:
    """Return whether ``num_items_in_batch`` is passed to ``model``: it says so, or its forward takes any keyword."""
    inner = unwrap_peft(unwrap_model(model))
    if hasattr(inner, "accepts_loss_kwargs"):
        return bool(inner.accepts_loss_kwargs)
    parameters = inspect.signature(inner.forward).parameters.values()
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)


@cache
def _source_of(function: Callable[..., Any]) -> str | None:
    try:
        return inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):
        return None


def ignores_item_count(model: nn.Module) -> bool:
    """Return whether ``model`` takes ``num_items_in_batch`` but still averages its loss over the batch.

    Decided by the source of its forward: it computes a loss itself, and mentions neither the count nor
    ``loss_function``, which divides by it. False if the source cannot be read, or the loss is another model's.
    """
    inner: Any = unwrap_peft(unwrap_model(model))
    if not accepts_loss_kwargs(inner):
        return False
    source = _source_of(type(inner).forward)
    if source is None or "num_items_in_batch" in source or "loss_function" in source:
        return False
    return any(loss in source for loss in ("CrossEntropyLoss(", "cross_entropy(", "MSELoss(", "BCEWithLogitsLoss("))


def _transformers(module: str, name: str) -> Any:
    """Return ``name`` of a transformers module, None if transformers is not imported."""
    if "transformers" not in sys.modules:
        return None
    try:
        return getattr(__import__(f"transformers.{module}", fromlist=[name]), name, None)
    except ImportError:
        return None


def shifts_labels(model: nn.Module, *, encoder_decoders_too: bool = False) -> bool:
    """Return whether ``model``'s loss compares the logits of position ``t`` with label ``t + 1``.

    Args:
        model: The model.
        encoder_decoders_too: Whether that is also said of encoder-decoder models with such a loss, which compare them
            with label ``t``, as transformers 5.10 to 5.14 do.
    """
    inner = unwrap_peft(model)
    if not encoder_decoders_too and getattr(getattr(inner, "config", None), "is_encoder_decoder", False):
        return False
    losses = _transformers("loss.loss_utils", "LOSS_MAPPING") or {}
    loss_type = getattr(inner, "loss_type", None)
    causal_loss = losses.get("ForCausalLM")
    return causal_loss is not None and losses.get(loss_type) is causal_loss


def is_causal_lm(model: nn.Module) -> bool:
    """Return whether the class of ``model`` is a causal language model of transformers."""
    return _names_causal_lm(type(unwrap_peft(model)).__name__)


def is_renamed_causal_lm(model: nn.Module) -> bool:
    """Return whether FSDP 2 has replaced the class of a causal language model by its own, ``FSDP<class>``."""
    name = type(unwrap_peft(model)).__name__
    return name.startswith(_FSDP) and _names_causal_lm(name.removeprefix(_FSDP))


def _names_causal_lm(name: str) -> bool:
    names = _transformers("models.auto.modeling_auto", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES")
    return names is not None and name in names.values()


def is_bare_model(model: nn.Module) -> bool:
    """Return whether ``model`` is a base model of transformers, without a head that returns a loss."""
    names = _transformers("models.auto.modeling_auto", "MODEL_MAPPING_NAMES")
    if names is None or not type(model).__module__.startswith("transformers."):
        return False
    bare = {item for name in names.values() for item in ((name,) if isinstance(name, str) else name)}
    takes_labels = any("label" in name or name == "return_loss" for name in inspect.signature(model.forward).parameters)
    return type(model).__name__ in bare and not takes_labels


def lightning_methods_of(model: nn.Module) -> list[str]:
    """Return the names of the LightningModule's methods that ``model`` overrides, besides ``forward``; [] of others."""
    kinds = type(model).__mro__
    base = next((kind for kind in kinds if kind.__name__ == "LightningModule" and kind.__module__ in _LIGHTNING), None)
    if base is None or any(kind.__module__.startswith("hf_compat.") for kind in kinds):
        return []
    return [
        name
        for name in dir(base)
        if name.endswith(("_step", "_dataloader")) or name.startswith(("on_", "configure_"))
        if getattr(type(model), name) is not getattr(base, name)
    ]


def lacks_forward(model: nn.Module) -> bool:
    """Return whether ``model`` is a LightningModule that, like its base classes, computes nothing when it is called."""
    if "forward" in vars(model) or not is_instance_of(model, *(f"{place}.LightningModule" for place in _LIGHTNING)):
        return False
    owners = [cls for cls in type(model).__mro__ if "forward" in vars(cls)]
    return all(cls.__module__ in (*_LIGHTNING, nn.Module.__module__) for cls in owners)


def count_parameters(model: nn.Module, *, trainable_only: bool = False, over_all_ranks: bool = False) -> int:
    """Return the number of ``model``'s parameters, or of its trainable parameters.

    Args:
        model: The model.
        trainable_only: Leave out parameters that do not require gradients.
        over_all_ranks: Count all of a parameter that ZeRO-3 has partitioned, not what this rank holds of it.
    """
    counted = [item for item in model.parameters() if item.requires_grad or not trainable_only]
    return sum(int(getattr(item, "ds_numel", item.numel())) if over_all_ranks else item.numel() for item in counted)


def sample_of_weights(model: nn.Module) -> Tensor:
    """Return some elements of each parameter of this rank, in float32, on one device."""
    parts: list[Tensor] = []
    for parameter in model.parameters():
        own = parameter.detach()
        own = own.to_local() if hasattr(own, "to_local") else own
        if type(own) not in (Tensor, nn.Parameter):  # quantized ones, which are not trained, have no plain elements
            continue
        corner = own[(slice(2),) * own.dim()].flatten()[:8]
        parts.append((torch.view_as_real(corner).flatten() if corner.is_complex() else corner).float())
    return torch.cat([part.to(parts[0].device, copy=True) for part in parts]).nan_to_num() if parts else torch.empty(0)


def indivisible_heads(model: nn.Module, size: int) -> Iterator[tuple[str, int]]:
    """Yield the name and the value of each number of heads in ``model``'s config that is not a multiple of ``size``."""
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    for name in ("num_attention_heads", "num_key_value_heads"):
        count = getattr(config, name, None)
        if isinstance(count, int) and count % size:
            yield name, count


def number_of_arguments(func: Callable[..., Any]) -> int:
    """Return the number of arguments of ``func``, without those bound by a ``functools.partial``."""
    if isinstance(func, functools.partial):
        return len(inspect.signature(func.func).parameters) - len(func.args) - len(func.keywords)
    return len(inspect.signature(func).parameters)
