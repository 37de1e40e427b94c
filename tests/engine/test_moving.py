"""Which models are moved to the device of their rank, quantized ones among them."""

from typing import Any

import pytest
import torch
from torch import nn

from hf_compat.engine.moving import move_model, settle_model
from hf_compat.errors import ModelError

BITS: dict[str, Any] = {"is_loaded_in_4bit": True, "quantization_method": "bitsandbytes"}
META = torch.device("meta")
"""A device that is not the CPU."""


def moved(move: Any, facts: dict[str, Any]) -> bool:
    """Return whether ``move`` moves a model with ``facts``."""
    model = nn.Linear(1, 1)
    for name, value in facts.items():
        setattr(model, name, value)
    move(model, META)
    return model.weight.device == META


@pytest.mark.parametrize(
    ("facts", "by_the_constructor", "by_a_run"),
    [
        pytest.param({}, True, True, id="not quantized"),
        pytest.param({"quantization_method": "torchao"}, True, True, id="quantized"),
        pytest.param(BITS, False, True, id="in 4 bits"),
        pytest.param({"is_loaded_in_8bit": True}, True, True, id="in 8 bits"),
        pytest.param({"hf_device_map": {"": "cpu"}}, False, True, id="loaded elsewhere"),
        pytest.param({"hf_device_map": {"": "cpu"}, "quantization_method": "gptq"}, False, True, id="both"),
        pytest.param({"hf_device_map": {"": "meta"}, **BITS}, False, False, id="in 4 bits, loaded there"),
        pytest.param({"hf_device_map": {"a": 0, "b": 1}, **BITS}, False, False, id="in 4 bits, spread"),
        pytest.param({"hf_device_map": {"a": 0, "b": 1}}, False, False, id="spread"),
    ],
)
def test_models_are_moved_as_by_accelerate(facts, by_the_constructor, by_a_run):
    """Only weights in 8 or 4 bits that a ``device_map`` has placed, and models on several devices, stay."""
    assert moved(move_model, facts) == by_the_constructor
    assert moved(settle_model, facts) == by_a_run


def test_weights_in_few_bits_on_another_device():
    """They cannot be moved, and the error says how to load them."""
    with pytest.raises(ModelError, match=r"on cpu, but the run is on meta. Load it with `device_map={'': 'meta'}`"):
        moved(settle_model, {"hf_device_map": {"": "cpu"}, **BITS})
