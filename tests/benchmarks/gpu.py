"""Language models of 124M and 1B parameters on a GPU, in bf16: what a token costs, and what a step's timeline shows."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn
from torch.profiler import ProfilerActivity, profile

import hf_compat
from tests.benchmarks.measuring import HF_COMPAT, Benchmark, synchronize
from tests.benchmarks.update_steps import Work, benchmark, token_rows

__all__ = ["MODELS", "Model", "Timeline", "benchmarks", "report"]

TOKENS = 1024
STEPS, WARM_UP = 40, 10
WATCHED = (20, 25)
"""The update steps between whose ends the timeline is looked at."""


class Model(NamedTuple):
    """A language model that is measured."""

    name: str
    config: Any
    batch: int
    """Rows of a batch."""
    tokens: int = TOKENS
    """Tokens of a row."""

    def make(self) -> nn.Module:
        """Return it with random weights."""
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(self.config)
        return model

    def work(self, *, compiled: bool) -> Work:
        """Return update steps of it."""
        return Work(
            self.make,
            token_rows(self.config.vocab_size, self.tokens),
            steps=STEPS,
            accumulate=1,
            warm_up=WARM_UP,
            units=self.batch * self.tokens,
            batch=self.batch,
            device="cuda",
            bf16=True,
            compiled=compiled,
        )

    def flops_of_a_token(self) -> int:
        """Return the floating-point operations of forward and backward pass: 6 a weight that is multiplied, as usual.

        The attention is counted in full, though half of it is masked.
        """
        with torch.device("meta"):
            layers = [each for each in self.make().modules() if type(each).__name__ in ("Linear", "Conv1D")]
        weights = sum(layer.weight.numel() for layer in layers)  # type: ignore[operator, union-attr]
        return 6 * int(weights) + 12 * self.config.num_hidden_layers * self.config.hidden_size * self.tokens


MODELS = (
    Model("GPT-2 of 124M", transformers.GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0), batch=16),
    Model(
        "Llama of 1.2B",
        transformers.LlamaConfig(
            vocab_size=32_000,
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=16,
            num_attention_heads=32,
            num_key_value_heads=8,
        ),
        batch=8,
    ),
)


def benchmarks() -> list[Benchmark]:
    """Return the benchmarks of this file, none without a GPU."""
    if not torch.cuda.is_available():
        return []
    return [benchmark(f"token, {name}", "µs", work) for name, _, work in _cases()]


def _cases() -> list[tuple[str, Model, Work]]:
    return [
        (f"{model.name} in bf16{', compiled' if compiled else ''}", model, model.work(compiled=compiled))
        for model in MODELS
        for compiled in (False, True)
    ]


def report(measured: Iterable[Benchmark]) -> list[str]:
    """Return the lines of a section about ``measured``, the benchmarks of this file once they have run."""
    peak = matmul_rate("cuda")
    lines = [
        f"On one {torch.cuda.get_device_name()}: rows of {TOKENS} tokens, weights in float32, bf16 by autocast; the",
        f"time of a token is the mean over {STEPS - WARM_UP} update steps. A large matrix product in bf16 reaches",
        f"{peak / 1e12:.0f} TFLOP/s there.",
        "",
        "| what | tokens a second | of the matrix product's FLOP/s | GPU idle | longest gap, µs "
        "| copies to the GPU, pinned | under computation |",
        "|---|---|---|---|---|---|---|",
    ]
    for (name, model, work), each in zip(_cases(), measured, strict=True):
        rate = 1e6 / each.median(HF_COMPAT, "wall")
        seen = Timeline.of(watched(work))
        lines.append(
            f"| {name} | {rate:,.0f} | {rate * model.flops_of_a_token() / peak:.2f} | {seen.idle:.3f} "
            f"| {seen.longest_gap:.0f} | {seen.pinned:.2f} | {seen.covered:.2f} |"
        )
    return lines


def matmul_rate(device: str, size: int = 8192, times: int = 20) -> float:
    """Return the floating-point operations a second of the product of two square matrices in bf16."""
    one, other = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    for count in (3, times):
        synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            one @ other
        synchronize()
    return 2 * size**3 * times / (time.perf_counter() - begin)


class Activity(NamedTuple):
    """What a GPU did, in microseconds."""

    name: str
    begin: float
    end: float


def watched(work: Work) -> list[Activity]:
    """Return what the GPU does in some steady update steps of our Trainer."""

    class Watch(hf_compat.TrainerCallback):
        def __init__(self) -> None:
            self.profile = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step in WATCHED:
                synchronize()
                (self.profile.start if state.global_step == WATCHED[0] else self.profile.stop)()

    watch = Watch()
    work.with_trainer(hf_compat, watch)
    events = [event for event in watch.profile.events() or () if event.device_type == torch.autograd.DeviceType.CUDA]
    return [Activity(event.name, event.time_range.start, event.time_range.end) for event in events]


class Timeline(NamedTuple):
    """What a timeline shows."""

    idle: float
    """Share of the time in which nothing is computed."""
    longest_gap: float
    """Microseconds between two computations."""
    pinned: float
    """Share of the copies to the GPU that come from pinned memory."""
    covered: float
    """Share of the time of these copies in which the GPU computes too."""

    @classmethod
    def of(cls, activities: Sequence[Activity]) -> Timeline:
        """Return what ``activities`` show."""
        copies = [each for each in activities if each.name.startswith("Memcpy HtoD")]
        spans = _merged(each for each in activities if not each.name.startswith(("Memcpy", "Memset")))
        whole = spans[-1][1] - spans[0][0]
        gaps = [after[0] - before[1] for before, after in itertools.pairwise(spans)]
        copied = sum(each.end - each.begin for each in copies)
        covered = sum(max(0.0, min(each.end, end) - max(each.begin, begin)) for each in copies for begin, end in spans)
        return cls(
            sum(gaps) / whole,
            max(gaps, default=0.0),
            sum("Pinned" in each.name for each in copies) / len(copies) if copies else 1.0,
            covered / copied if copied else 1.0,
        )


def _merged(activities: Iterable[Activity]) -> list[tuple[float, float]]:
    """Return the times in which at least one of ``activities`` runs."""
    spans: list[tuple[float, float]] = []
    for each in sorted(activities, key=lambda one: one.begin):
        if spans and each.begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], each.end))
        else:
            spans.append((each.begin, each.end))
    return spans
