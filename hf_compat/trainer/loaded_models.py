"""Checks of what was passed as a model: that it is one, and that it was not loaded quantized or spread."""

from __future__ import annotations

from typing import Any

from torch import nn

from hf_compat.engine.moving import devices_of
from hf_compat.errors import ModelError
from hf_compat.model_facts import is_peft_model

__all__ = ["check_is_model", "check_loaded_model"]


def check_is_model(model: object, source: str) -> None:
    """Raise if ``model`` is no ``torch.nn.Module``, but a class, a name or something else.

    Args:
        model: The value passed as a model.
        source: What it is, for the message.

    Raises:
        ModelError: If so; it says what to pass.
    """
    if isinstance(model, nn.Module):
        return
    if isinstance(model, type):
        name = model.__name__
        loaded = f" or `{name}.from_pretrained(...)`" if hasattr(model, "from_pretrained") else ""
        raise ModelError(f"{source}: {name} is a class. Pass an instance of it: `{name}(...)`{loaded}.")
    if isinstance(model, str):
        raise ModelError(
            f"{source}: {model!r} is a string. Load the model of that name first, for instance with "
            f"`AutoModelFor....from_pretrained({model!r})`, and pass it."
        )
    raise ModelError(f"{source}: an object of type {type(model).__name__}. Pass a `torch.nn.Module`.")


def check_loaded_model(model: nn.Module, *, is_alone: bool) -> None:
    """Raise if ``model`` is quantized and cannot be trained, or is spread over devices that several processes use.

    Args:
        model: The model.
        is_alone: Whether there is a single process, whose model may be on several devices.

    Raises:
        ModelError: If so; it says what to do.
    """
    devices = devices_of(model)
    if len(devices) > 1 and not is_alone:
        raise ModelError(
            f"`model`: its `device_map` places it on {sorted(map(str, devices))}, but each rank trains on one device. "
            "Load it with `device_map={'': LOCAL_RANK}` or without `device_map`, or start one process, which trains it "
            "where it is."
        )
    if getattr(model, "is_quantized", False) and not getattr(model, "_hf_peft_config_loaded", False):
        _check_quantized(model)


def _check_quantized(model: nn.Module) -> None:
    quantizer: Any = getattr(model, "hf_quantizer", None)
    if hasattr(model, "_orig_mod"):
        raise ModelError(
            "`model`: You cannot fine-tune quantized model with `torch.compile()`. Pass the uncompiled model, and set "
            "`torch_compile=True`."
        )
    if not is_peft_model(model) and not getattr(quantizer, "is_qat_trainable", False):
        raise ModelError(
            "`model`: You cannot perform fine-tuning on purely quantized models, whose weights are not trained. Attach "
            "adapters with peft, or load it without a `quantization_config`."
        )
    if not getattr(quantizer, "is_trainable", False):
        method = getattr(getattr(quantizer, "quantization_config", None), "quant_method", "a method of its own")
        raise ModelError(
            f"`model`: it is quantized with {method}, but that quantization method do not support training. Load it "
            "with another `quantization_config`, or without one."
        )
