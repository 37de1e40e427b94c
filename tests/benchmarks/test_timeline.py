"""What the benchmark of a GPU reads from a timeline, and what it takes a model's work to be."""

import pytest

from tests.benchmarks.gpu import MODELS, Activity, Timeline


def test_timeline():
    """Kernels that overlap count once, and copies neither as computation nor as a gap."""
    seen = Timeline.of(
        [
            Activity("gemm", 0, 40),
            Activity("add", 30, 50),
            Activity("Memcpy HtoD (Pinned -> Device)", 45, 55),
            Activity("Memset (Device)", 51, 52),
            Activity("gemm", 60, 90),
            Activity("Memcpy HtoD (Pageable -> Device)", 70, 80),
            Activity("norm", 95, 100),
        ]
    )
    assert seen == Timeline(idle=0.15, longest_gap=10, pinned=0.5, covered=0.75)


def test_floating_point_operations():
    """GPT-2 multiplies its 85M weights of layers and the 38.6M of its head; embeddings are looked up."""
    gpt2 = MODELS[0]
    assert gpt2.flops_of_a_token() == pytest.approx(6 * (85.0e6 + 38.6e6) + 12 * 12 * 768 * 1024, rel=1e-3)
