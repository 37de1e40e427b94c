"""Models with quantized weights train as under transformers: adapters, on weights of bitsandbytes or torchao."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from torch import nn

from tests.scripts.sharded_common import llama
from tests.support.parity import Kit, differences, run
from tests.support.scenarios.common import language_model
from tests.support.scenarios.resuming import resume
from tests.support.scenarios.updates import ACCUMULATION, train

peft = pytest.importorskip("peft")

IS_5 = Version(transformers.__version__) >= Version("5")
CADENCE = {"num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "epoch"}
BEST = {"load_best_model_at_end": True, "metric_for_best_model": "loss"}


def in_4_bits() -> Any:
    """Return bitsandbytes' NF4."""
    pytest.importorskip("bitsandbytes")
    return transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")


def in_8_bits() -> Any:
    """Return bitsandbytes' LLM.int8."""
    pytest.importorskip("bitsandbytes")
    return transformers.BitsAndBytesConfig(load_in_8bit=True)


def in_int8() -> Any:
    """Return torchao's integers, of weights alone."""
    quantization = pytest.importorskip("torchao.quantization")
    return transformers.TorchAoConfig(quantization.Int8WeightOnlyConfig())


def adapters(kit: Kit, quantization: Callable[[], Any], **prepared: Any) -> nn.Module:
    """Return LoRA on a Llama that is loaded with its weights quantized.

    Args:
        kit: The library.
        quantization: Makes the configuration.
        **prepared: For peft, which prepares the model to be trained.
    """
    folder = kit.folder / "pretrained"
    llama(hidden_size=64, intermediate_size=64).save_pretrained(folder)
    config = quantization()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=config, device_map="cpu", dtype=torch.float32
    )
    model.name_or_path = model.config._name_or_path = "pretrained"  # both libraries'
    model = peft.prepare_model_for_kbit_training(model, **prepared)
    lora = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return kit.model(lambda: peft.get_peft_model(model, lora))


def training(quantization: Callable[[], Any], **fields: Any) -> Callable[[Kit], None]:
    """Return a scenario that trains, and loads the best adapter."""
    every = {**ACCUMULATION, **CADENCE, **BEST, **fields}
    return lambda kit: train(kit, language_model(kit, fields=every, model=adapters(kit, quantization)))


def resuming(quantization: Callable[[], Any]) -> Callable[[Kit], None]:
    """Return a scenario that goes on within an epoch, without activations that are computed again."""
    every = {**ACCUMULATION, **CADENCE, "save_strategy": "steps", "save_steps": 1}

    def build(kit: Kit) -> Any:
        model = adapters(kit, quantization, use_gradient_checkpointing=False)
        return language_model(kit, fields=every, model=model)

    return lambda kit: resume(kit, build, 4)


SCENARIOS = {
    "4 bits": training(in_4_bits),
    "4 bits, bf16": training(in_4_bits, bf16=True),
    "4 bits, resumed": resuming(in_4_bits),
    "8 bits": training(in_8_bits),
    **({"torchao": training(in_int8)} if IS_5 else {}),  # before, transformers did not train it
}


@pytest.mark.parametrize("body", SCENARIOS.values(), ids=SCENARIOS)
def test_adapters_on_quantized_weights(body: Callable[[Kit], None], tmp_path: Path):
    """Logs, weights, optimizer, random states, metrics and files are equal to transformers', to the last bit."""
    outcomes = [run(body, which, tmp_path / which) for which in ("upstream", "ours")]
    assert differences(*outcomes) == ""
