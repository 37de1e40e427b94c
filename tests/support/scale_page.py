"""``docs/scale.md``, from the formulas that the tests compare with counts: ``python -m tests.support.scale_page``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from tests.support.scale import SHARDINGS, Sharding

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"

COMPUTE = 400e12
"""Floating-point operations a GPU does in a second: 40 % of an H100's peak in bfloat16."""
LATENCY = 5e-6
"""Seconds that a message takes from one GPU to the next in a ring."""
NODE = 8
"""GPUs of a node."""
WRITE, SHARED, TO_HOST = 2e9, 100e9, 25e9
"""Bytes a second: what a node writes to a file system, what that takes from all nodes, and from a GPU to its host."""
MEAN_TIME = 50_000 * 3600
"""Seconds that a GPU runs, on average, until something of it or around it fails."""
STATE = 12
"""Bytes a parameter of a checkpoint: float32 weights and AdamW's two moments."""
MODELS = {"1B": (1e9, 24), "8B": (8e9, 32), "70B": (70e9, 80)}
"""Parameters and layers."""


@dataclass(frozen=True)
class Cluster:
    """GPUs that train together."""

    ranks: int
    bandwidth: float
    """Bytes a second that each GPU of a ring passes on, where the ring is narrowest."""
    what: str


NETWORK = 50e9
"""Bytes a second of one 400 Gbit/s adapter; a node has one for each GPU, so that eight rings leave it at once."""
CLUSTERS = (
    Cluster(8, 450e9, "8, one node with NVLink"),
    Cluster(64, 350e9, "64, eight adapters of 400 Gbit/s a node"),
    Cluster(1024, 350e9, "1024, the same"),
    Cluster(64, 12.5e9, "64, one adapter of 100 Gbit/s a node"),
)

INTRODUCTION = """\
# What scale costs

What a run on 8, 64 or 1024 GPUs spends on communication and on checkpoints, and which settings to use. The formulas
are verified, not estimated: `tests/distributed/test_scale.py` trains on two processes and compares them with the bytes
that the kernel sends and the memory of all tensors; `python -m tests.benchmarks scaling` counts 1, 2 and 4 processes.
The GPU figures are computed from them under the stated assumptions and have not been measured.

This page is generated from `tests/support/scale_page.py`.

## Bytes of an update step

`P` is the number of parameters, `n` the world size. A rank sends in an update step, without accumulation:

| | what is communicated | bytes, float32 | bytes, `bf16=True` | its memory, float32 | its memory, `bf16=True` |
|---|---|---|---|---|---|
"""
AFTER_BYTES = """
- Under DDP the gradients are float32 even with `bf16=True`, since the parameters are.
- `gradient_accumulation_steps=k` divides DDP's bytes for a batch by `k`. FSDP gathers the parameters for every batch
  and reduces the gradients once, ZeRO-2 reduces them for every batch and gathers once, ZeRO-3 does both for every
  batch.
- FSDP's outermost unit, with the embeddings, is not gathered a second time.
- The memory is that of parameters, gradients and AdamW's state. Activations are extra, and under FSDP and ZeRO-3 so are
  the one or two units that are gathered at a time. DeepSpeed additionally keeps a float32 copy of the parameters.
- gloo, on CPUs, has no reduce-scatter: an all-reduce is counted in its place.
- Other traffic per update step is a few bytes: token counts, the norm of sharded gradients, and, about twice a second,
  whether a rank was asked to stop.

## How many tokens hide the communication

A GPU performs `6 * P * tokens` operations per update step and communicates meanwhile. Communication is hidden if each
GPU processes at least this many tokens per update step (per batch, except with DDP), regardless of model size:

"""
AFTER_TOKENS = """
With fewer tokens, GPUs wait for the network. Assumptions: {compute:.0f} TFLOP/s per GPU; ring bandwidth
{nvlink:.0f} GB/s within a node, {fast:.0f} GB/s between nodes with eight adapters, {slow:.1f} GB/s with one.

`hybrid_shard` is `fsdp="hybrid_shard"` with `fsdp_config={{"version": 1}}`: parameters are sharded within a node and
replicated across nodes, so that each GPU sends only an eighth of the gradients to other nodes. It needs an eighth of
{state} bytes per parameter on each GPU.

Latency matters too: each ring collective takes {hop:.0f} µs per hop, and FSDP issues three per layer. On 1024 GPUs this
alone takes {ring_8b:.2f} s per update step for an 8B model with 32 layers, and {ring_hybrid:.2f} s with `hybrid_shard`.

## Memory on each GPU

GB for parameters, gradients and AdamW's state with `bf16=True`, by the formulas above:

"""
AFTER_MEMORY = """
## Checkpoints

A checkpoint has {state} bytes per parameter. With a full state dict rank 0 gathers and writes all of it; with a sharded
one (`fsdp_config={{"state_dict_type": "SHARDED_STATE_DICT"}}`, or DeepSpeed) every rank writes its part. Seconds that
training is blocked, if a node writes {write:.0f} GB/s, the file system takes {shared:.0f} GB/s from all nodes together,
and GPU memory is copied to the host at {host:.0f} GB/s:

"""
AFTER_CHECKPOINTS = """
How often? If a GPU fails once in 50,000 hours, a run on `n` GPUs fails every `50,000 / n` hours: on 1024 GPUs once in
two days. Saving every `sqrt(2 * c * m)` seconds loses the least, where a save costs `c` seconds and failures occur
every `m` seconds on average. The table shows this interval, and the share of time lost to saving and repeated steps:

"""
END = """
## Which settings

| GPUs | the model's {state_all} bytes per parameter | settings |
|---|---|---|
| one node | fit on one GPU | DDP, which is the default; `gradient_accumulation_steps` if tokens are few |
| one node | do not | `fsdp="full_shard"` |
| several, a fast network | fit on the GPUs of a node | `fsdp="hybrid_shard"`, `fsdp_config={{"version": 1}}` |
| several, a fast network | do not | `fsdp="full_shard"`, and as many tokens per GPU as its memory allows |
| several, a slow network | fit on one GPU | DDP with `gradient_accumulation_steps` from the table of tokens |
| several, a slow network | fit on the GPUs of a node | `fsdp="hybrid_shard"`, `fsdp_config={{"version": 1}}` |

Where the activations of a single sequence do not fit on a GPU, `parallelism_config={{"sp_size": 8}}` beside `deepspeed`
lets the eight GPUs of a node share it: [Long sequences](distributed.md#long-sequences).

With any of them: `bf16=True`, `save_async=True`, a sharded state dict from 8B on, `save_steps` from the interval above,
and `resume_from_checkpoint="auto"`, so that a restarted job resumes.
"""


def page() -> str:
    """Return the text of the page."""
    texts = {
        "compute": COMPUTE / 1e12,
        "nvlink": CLUSTERS[0].bandwidth / 1e9,
        "fast": CLUSTERS[1].bandwidth / 1e9,
        "slow": CLUSTERS[3].bandwidth / 1e9,
        "hop": LATENCY * 1e6,
        "ring_8b": _hops(32, 1024),
        "ring_hybrid": _hops(32, NODE) + 32 * LATENCY * 2 * (1024 // NODE - 1),
        "state": STATE,
        "state_all": 16,
        "write": WRITE / 1e9,
        "shared": SHARED / 1e9,
        "host": TO_HOST / 1e9,
    }
    parts = [
        INTRODUCTION + "\n".join(map(_bytes_row, SHARDINGS)),
        AFTER_BYTES + "\n".join(_tokens_table()),
        AFTER_TOKENS.format(**{**texts, "state": 16}) + "\n".join(_memory_table()),
        AFTER_MEMORY.format(**texts) + "\n".join(_checkpoint_table()),
        AFTER_CHECKPOINTS + "\n".join(_interval_table()),
        END.format(**texts),
    ]
    return "\n".join(parts)


def _bytes_row(sharding: Sharding) -> str:
    rounds = sharding.gathers + (2 if sharding.all_reduces else 1)
    reduction = "all-reduce of the gradients" if sharding.all_reduces else "reduce-scatter of the gradients"
    gathers = {0: "", 1: ", all-gather of the parameters", 2: ", two all-gathers of the parameters"}[sharding.gathers]
    widths = [f"`{rounds * width}P * (n - 1) / n`" for width in (4, 2 if sharding.half else 4)]
    held = [_terms(*sharding.held[precision]) for precision in ("float32", "bf16")]
    return f"| {sharding.name} | {reduction}{gathers} | {' | '.join([*widths, *held])} |"


def _terms(on_each: int, on_all: int) -> str:
    terms = [text for text, bytes_ in ((f"{on_each}P", on_each), (f"{on_all}P / n", on_all)) if bytes_]
    return f"`{' + '.join(terms)}`"


def _tokens_table() -> list[str]:
    names = [sharding.name for sharding in SHARDINGS]
    lines = [f"| GPUs | {' | '.join(names)} | hybrid_shard |", "|---|" + "---|" * (len(names) + 1)]
    for cluster in CLUSTERS:
        seconds = [_sent(sharding, cluster.ranks) / cluster.bandwidth for sharding in SHARDINGS]
        cells = [f"{_tokens(each):,.0f}" for each in [*seconds, _hybrid_seconds(cluster)]]
        lines.append(f"| {cluster.what} | {' | '.join(cells)} |")
    return lines


def _sent(sharding: Sharding, ranks: int) -> float:
    return sharding.sent(ranks, width=2 if sharding.half else 4)


def _hybrid_seconds(cluster: Cluster) -> float:
    """Return the seconds a parameter of FSDP within each node, and an all-reduce of each shard between the nodes."""
    (fsdp,) = (sharding for sharding in SHARDINGS if sharding.name == "FSDP")
    nodes = cluster.ranks // NODE
    # The GPUs of a node have a ring each, which share its adapters.
    between = 2 * 2 / NODE * (nodes - 1) / nodes / min(NETWORK, cluster.bandwidth / NODE)
    return _sent(fsdp, NODE) / CLUSTERS[0].bandwidth + between


def _tokens(seconds: float) -> float:
    return float(f"{seconds * COMPUTE / 6:.2g}")


def _hops(layers: int, ranks: int) -> float:
    return 3 * layers * (ranks - 1) * LATENCY


def _memory_table() -> list[str]:
    counts = (8, 64, 1024)
    lines = ["| | " + " | ".join(f"{name} on {count}" for name in MODELS for count in counts) + " |"]
    lines.append("|---|" + "---|" * (len(MODELS) * len(counts)))
    for sharding in SHARDINGS:
        held = [sharding.held_by(count, "bf16") * size / 1e9 for size, _ in MODELS.values() for count in counts]
        lines.append(f"| {sharding.name} | {' | '.join(map(_short, held))} |")
    return lines


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.2g}"


def _stalls(size: float, ranks: int) -> dict[str, float]:
    total = STATE * size
    return {
        "full": total / WRITE,
        "sharded": total / min(SHARED, WRITE * ranks / NODE),
        "sharded, `save_async=True`": total / ranks / TO_HOST,
    }


def _checkpoint_table() -> list[str]:
    counts = (8, 64, 1024)
    lines = ["| | " + " | ".join(f"{name} on {count}" for name in MODELS for count in counts) + " |"]
    lines.append("|---|" + "---|" * (len(MODELS) * len(counts)))
    for kind in _stalls(1, 8):
        cells = [_short(_stalls(size, count)[kind]) for size, _ in MODELS.values() for count in counts]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return lines


def _interval_table() -> list[str]:
    lines = ["| | 8B on 64 | 70B on 64 | 8B on 1024 | 70B on 1024 |", "|---|---|---|---|---|"]
    for kind in _stalls(1, 8):
        cells = []
        for count in (64, 1024):
            for name in ("8B", "70B"):
                cost, between = _stalls(MODELS[name][0], count)[kind], MEAN_TIME / count
                interval = math.sqrt(2 * cost * between)
                lost = cost / interval + interval / 2 / between
                cells.append(f"{interval / 60:.0f} min, {100 * lost:.2f} %")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
