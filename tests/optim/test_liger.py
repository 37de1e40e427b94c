"""Liger kernels in a model; what they compute needs a GPU, where they go does not."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from peft import LoraConfig, get_peft_model

from hf_compat import Trainer, TrainingArguments
from hf_compat.errors import MissingPackageError
from hf_compat.optim.model_patches import apply_liger_kernels
from tests.support import helpers
from tests.support.field_effects import QUIET


def test_missing_package(monkeypatch):
    """Without liger-kernel the field is an ImportError that says what to install."""
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", None)
    with pytest.raises(MissingPackageError, match=r"use_liger_kernel=True.*hf-compat\[liger\]"):
        apply_liger_kernels(helpers.gpt2())


@pytest.mark.parametrize(("semantics", "in_constructor"), [("4.57", True), ("5.2", True), ("5.3", False)])
def test_when(semantics, in_constructor, monkeypatch, tmp_path):
    """Kernels are asked for in the constructor before 5.3, and in ``train`` since."""
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", None)
    fields = {**QUIET, "output_dir": str(tmp_path), "use_liger_kernel": True, "semantics": semantics}

    def build() -> Trainer:
        rows = helpers.ListDataset(helpers.token_rows(8))
        return Trainer(helpers.gpt2(), TrainingArguments(**fields), helpers.PadCollator(), rows)

    if in_constructor:
        with pytest.raises(MissingPackageError):
            build()
    else:
        trainer = build()
        with pytest.raises(MissingPackageError):
            trainer.train()


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize(("switches", "given"), [(None, {}), ({"rope": False}, {"rope": False})], ids=str)
def test_switches(switches, given, monkeypatch, tmp_path):
    """The package is given the model, without peft's wrapper, and the switches; it stands in, for want of triton."""
    calls, module = [], ModuleType("liger_kernel.transformers")
    module._apply_liger_kernel_to_instance = lambda model, **named: calls.append((model, named))
    monkeypatch.setitem(sys.modules, "liger_kernel", ModuleType("liger_kernel"))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", module)
    base = helpers.gpt2()
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    fields = {**QUIET, "output_dir": str(tmp_path), "use_liger_kernel": True, "liger_kernel_config": switches}
    rows = helpers.ListDataset(helpers.token_rows(8))
    Trainer(model, TrainingArguments(**fields), helpers.PadCollator(), rows).train()
    assert calls == [(base, given)]


def test_layers_are_replaced():
    """With the real package a Llama gets the kernels that the switches leave on; other modules keep their layers."""
    pytest.importorskip("triton")
    pytest.importorskip("liger_kernel.transformers")
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))
    apply_liger_kernels(model, {"rms_norm": True, "swiglu": False})
    assert "Liger" in repr(model.model.norm)
    assert "liger" not in model.model.layers[0].mlp.forward.__module__
    plain = helpers.PlainModel()
    before = repr(plain)
    apply_liger_kernels(plain)
    assert repr(plain) == before
