"""Models that ``from_pretrained`` shards as it loads them, and scenarios of both libraries that train them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from tests.scripts.sharded_common import llama
from tests.support import helpers
from tests.support.parity import Kit
from tests.support.scenarios.common import language_model
from tests.support.scenarios.updates import ACCUMULATION, train


def mixtral(experts: int = 4) -> Any:
    """Return a Mixtral of two layers with ``experts``."""
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    return MixtralForCausalLM(
        MixtralConfig(
            vocab_size=helpers.VOCABULARY,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            num_local_experts=experts,
            num_experts_per_tok=2,
            max_position_embeddings=32,
            pad_token_id=0,
        )
    )


def heads() -> Any:
    """Return a Llama whose heads can be split."""
    return llama(num_attention_heads=4, num_key_value_heads=4)


def loaded(folder: Path, build: Callable[[], Any] = heads, **sizes: Any) -> Any:
    """Return the model of ``build``, saved in ``folder``, as ``from_pretrained`` shards it by ``sizes``."""
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    # Without a process group every rank writes; with one rank 0 alone.
    writer = 0 if distributed.is_initialized() else os.environ["RANK"]
    place = folder / f"pretrained-{writer}"
    build().save_pretrained(place)
    if distributed.is_initialized():
        distributed.barrier()
    chosen = sizes if "tp_plan" in sizes else {"distributed_config": DistributedConfig(**sizes)}
    # The device has no kernels of grouped experts.
    return AutoModelForCausalLM.from_pretrained(place, experts_implementation="eager", **chosen)


def limited(kit: Kit, most: int) -> Any:
    """Return a Trainer that runs out of memory in batches of more than ``most`` rows."""

    class Limited(kit.Trainer):  # type: ignore[misc, name-defined]
        def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
            if model.training and len(inputs["input_ids"]) > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate more.")
            return super().compute_loss(model, inputs, *given, **named)

    return Limited


def presharded(
    build: Callable[[], Any] = heads,
    *,
    sizes: dict[str, Any],
    most: int | None = None,
    made: bool = False,
    requested: dict[str, int] | None = None,
    **fields: Any,
) -> Callable[[Kit], None]:
    """Return a scenario that trains a model sharded by ``sizes``, evaluates it and saves it whole.

    Args:
        build: Builds the model.
        sizes: Sizes of its ``DistributedConfig``.
        most: The rows for which every rank's memory suffices; None for any number.
        made: Whether ``model_init`` returns the model.
        requested: Sizes of a ``ParallelismConfig``, if there is one.
        **fields: Training arguments.
    """

    def body(kit: Kit) -> None:
        cadence = {"num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "epoch"}
        every = {**ACCUMULATION, **cadence, "save_only_model": True, **fields}
        if requested is not None:
            from accelerate import ParallelismConfig

            every["parallelism_config"] = ParallelismConfig(**requested)

        def model() -> Any:
            return kit.model(lambda: loaded(kit.folder, build, **sizes))

        given = {"model_init": model} if made else {"model": model()}
        # One row is evaluated: transformers counts those of all ranks, also of ranks with the same batches.
        data = helpers.ListDataset(helpers.token_rows(1, seed=1))
        subclass = kit.Trainer if most is None else limited(kit, most)
        train(kit, language_model(kit, rows=28, fields=every, eval_dataset=data, subclass=subclass, **given))

    return body
