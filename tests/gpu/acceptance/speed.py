"""The time and the memory of update steps of language models of 124M and 1.2B parameters on a GPU, in bf16."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch._dynamo.utils import counters

import hf_compat
from tests.benchmarks.measuring import BY_HAND, HF_COMPAT, TRANSFORMERS, Cost
from tests.benchmarks.update_steps import Work, token_rows
from tests.gpu.acceptance.running import Case

__all__ = ["SPEED"]

ROUNDS = 3
SIZES: dict[str, tuple[Any, dict[str, Any], int]] = {
    "124M": (transformers.GPT2Config, {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}, 16),
    "1.2B": (
        transformers.LlamaConfig,
        {
            "vocab_size": 32_000,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
        },
        8,
    ),
}
"""Size → class of the configuration, its values, and rows of a batch."""
SMALL: dict[str, dict[str, Any]] = {
    "124M": {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 64, "n_positions": 16},
    "1.2B": {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "vocab_size": 64},
}
"""What is smaller on the fake GPU."""


def steps(name: str, folder: Path, *, small: bool) -> dict[str, Any]:
    """Measure update steps by our Trainer, transformers' and a loop by hand, which take turns.

    Args:
        name: ``SIZE`` or ``SIZE_compiled``.
        folder: Not used.
        small: Whether models and numbers of steps are small.

    Returns:
        By subject the tokens a second of each turn, the graphs that torch compiled in it, which the later turns find
        again, and the most memory in GiB; and the ratios of ours by the medians.
    """
    work = _work(name, small=small)
    subjects: dict[str, Callable[[], Cost]] = {
        HF_COMPAT: partial(work.with_trainer, hf_compat),
        TRANSFORMERS: partial(work.with_trainer, transformers),
        BY_HAND: work.by_hand,
    }
    rates: dict[str, list[float]] = {subject: [] for subject in subjects}
    graphs: dict[str, list[int]] = {subject: [] for subject in subjects}
    memory: dict[str, float] = dict.fromkeys(subjects, 0.0)
    compilation = counters["stats"]
    for _ in range(ROUNDS):
        for subject, run in subjects.items():
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = compilation["unique_graphs"]
            rates[subject].append(1e6 / run().wall)
            graphs[subject].append(compilation["unique_graphs"] - before)
            memory[subject] = max(memory[subject], torch.cuda.max_memory_allocated() / (1 << 30))
    medians = {subject: statistics.median(values) for subject, values in rates.items()}
    return {
        "tokens a second": rates,
        "graphs compiled": graphs,
        "most memory, GiB": memory,
        "ours to transformers": medians[HF_COMPAT] / medians[TRANSFORMERS],
        "ours to by hand": medians[HF_COMPAT] / medians[BY_HAND],
    }


def _work(name: str, *, small: bool) -> Work:
    size, _, compiled = name.partition("_")
    kind, values, batch = SIZES[size]
    config = kind(**values | (SMALL[size] if small else {}))
    tokens = 16 if small else 1024
    work = Work(
        partial(_on_gpu, config),
        token_rows(config.vocab_size, tokens),
        steps=40,
        accumulate=1,
        warm_up=10,
        units=batch * tokens,
        batch=batch,
        device="cuda",
        bf16=True,
        compiler=("aot_eager" if small else "inductor") if compiled else None,  # the fake GPU has no kernels of its own
    )
    return replace(work, steps=6, warm_up=2) if small else work


def _on_gpu(config: Any) -> nn.Module:
    """Return a model whose weights are made on the GPU."""
    with torch.device("cuda"):
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(config)
    return model


COSTS = {"124M": 60, "124M_compiled": 120, "1.2B": 120, "1.2B_compiled": 200}
"""About how many seconds a case takes on a GPU; on the fake one all take the same."""
SPEED: dict[str, Case] = {
    name: Case(steps, alone=True, seconds=seconds, fake_seconds=35) for name, seconds in COSTS.items()
}
"""Cases by name."""
