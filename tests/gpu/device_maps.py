"""Scenarios of both libraries with a model that its ``device_map`` spreads over the GPUs of one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.gpu.replicas import in_any_order
from tests.scripts.sharded_common import llama
from tests.support import helpers
from tests.support.parity import Kit
from tests.support.scenarios.common import language_model
from tests.support.scenarios.resuming import resume
from tests.support.scenarios.updates import ACCUMULATION, train

Body = Callable[[Kit], None]
Fields = dict[str, Any]

CADENCE: Fields = {"num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "epoch"}
"""Two epochs, each of which ends with an evaluation and a checkpoint."""
HALVES = {"transformer.wte": 0, "transformer.wpe": 0, "transformer.drop": 0, "transformer.h.0": 0, "lm_head": 0}
HALVES |= {"transformer.h.1": 1, "transformer.ln_f": 1}
"""A GPT-2 of two layers, one on each GPU; the head shares its weights with the embedding."""
HALVES_OF_LLAMA = {"model.embed_tokens": 0, "model.rotary_emb": 0, "model.layers.0": 0, "model.layers.1": 1}
HALVES_OF_LLAMA |= {"model.norm": 1, "lm_head": 1}


def spread(kit: Kit, device_map: Any = HALVES, **config: Any) -> nn.Module:
    """Return a GPT-2 that is loaded with ``device_map``."""
    return loaded(kit, helpers.gpt2(**config), device_map=device_map)


def loaded(kit: Kit, model: Any, **given: Any) -> nn.Module:
    """Return ``model``, saved and loaded as ``given`` says."""
    from transformers import AutoModelForCausalLM

    folder = kit.folder / "pretrained"
    model.save_pretrained(folder)
    model = kit.model(AutoModelForCausalLM.from_pretrained, pretrained_model_name_or_path=folder, **given)
    model.name_or_path = model.config._name_or_path = "pretrained"  # both libraries'
    return model


def where(kit: Kit, trainer: Any) -> None:
    """Keep where everything is."""
    kit.keep("devices", {name: str(item.device) for name, item in trainer.model.named_parameters()})
    names = ("is_model_parallel", "place_model_on_device", "model_wrapped")
    kit.keep("trainer", [str(getattr(trainer, name))[:40] for name in names])
    kit.keep("arguments", [trainer.args.n_gpu, trainer.args.train_batch_size, trainer.args.parallel_mode.value])


def spread_trainer(kit: Kit, device_map: Any = HALVES, **fields: Any) -> Any:
    """Return a Trainer of a model loaded with ``device_map``."""
    layers = {"n_layer": 4} if isinstance(device_map, str) else {}  # enough of them not to fit a single GPU
    return language_model(kit, fields={**ACCUMULATION, **CADENCE, **fields}, model=spread(kit, device_map, **layers))


def training_spread(device_map: Any = HALVES, **fields: Any) -> Body:
    """Return a scenario that trains with accumulation, evaluates, predicts and saves."""

    def body(kit: Kit) -> None:
        trainer = spread_trainer(kit, device_map, **fields)
        where(kit, trainer)
        train(kit, trainer)
        where(kit, trainer)

    return body


def resuming_spread(**fields: Any) -> Body:
    """Return a scenario that goes on within an epoch."""
    return lambda kit: resume(kit, partial(spread_trainer, save_strategy="steps", save_steps=1, **fields), 4)


def evaluated(kit: Kit) -> None:
    """Evaluated without a training."""
    trainer = spread_trainer(kit)
    kit.evaluate(trainer)
    kit.predict(trainer, trainer.eval_dataset)
    where(kit, trainer)


def adapters(kit: Kit) -> None:
    """Adapters on a frozen model, each where its layer is."""
    import peft

    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    model = peft.get_peft_model(spread(kit), config)
    trainer = language_model(kit, fields={**ACCUMULATION, **CADENCE, "load_best_model_at_end": True}, model=model)
    where(kit, trainer)
    train(kit, trainer)
    where(kit, trainer)


def quantized(kit: Kit) -> None:
    """A model that says that its weights are of 8 bits, which is in more places to be left where it is."""
    model = spread(kit)
    model.is_loaded_in_8bit, model.quantization_method = True, "bitsandbytes"
    trainer = language_model(kit, fields={**ACCUMULATION, **CADENCE}, model=model)
    where(kit, trainer)
    train(kit, trainer)
    where(kit, trainer)


def quantized_adapters(kit: Kit) -> None:
    """Adapters on weights that torchao has quantized to integers."""
    import peft
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    config = TorchAoConfig(Int8WeightOnlyConfig())
    sizes = {"hidden_size": 64, "intermediate_size": 64}
    base = loaded(kit, llama(**sizes), device_map=HALVES_OF_LLAMA, quantization_config=config, dtype=torch.float32)
    base = peft.prepare_model_for_kbit_training(base, use_gradient_checkpointing=False)
    lora = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer = language_model(kit, fields={**ACCUMULATION, **CADENCE}, model=peft.get_peft_model(base, lora))
    where(kit, trainer)
    train(kit, trainer)
    where(kit, trainer)


def checkpointed(kit: Kit) -> None:
    """Activations are computed again in the backward pass."""
    fields = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    train(kit, spread_trainer(kit, **fields))


SPREAD_SCENARIOS: dict[str, Body] = {
    name: in_any_order(body)
    for name, body in {
        "spread_map": training_spread(),
        "spread_balanced": training_spread("balanced"),
        "spread_auto": training_spread("auto"),
        "spread_all_on_the_second_GPU": training_spread({"": 1}),
        "spread_all_on_the_first_GPU": training_spread({"": 0}, num_train_epochs=1),
        "spread_bf16": training_spread(bf16=True),
        "spread_fp16": training_spread(fp16=True),
        "spread_best_model": training_spread(
            load_best_model_at_end=True, metric_for_best_model="loss", save_total_limit=1
        ),
        "spread_label_smoothing": training_spread(label_smoothing_factor=0.1),
        "spread_embedding_noise": training_spread(neftune_noise_alpha=5.0),
        "spread_gradient_checkpointing": checkpointed,
        "spread_evaluated": evaluated,
        "spread_resumed": resuming_spread(),
        "spread_resumed_in_fp16": resuming_spread(fp16=True),
        "spread_adapters": adapters,
        "spread_in_8_bits": quantized,
        "spread_adapters_on_quantized": quantized_adapters,
    }.items()
}
"""Name → what to do with a kit where two GPUs are visible."""
