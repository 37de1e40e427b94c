"""What several ranks send and hold is what the formulas in ``tests/support/scale.py`` say, and ``docs/scale.md``."""

import pytest

from tests.benchmarks import scaling
from tests.support.scale import SHARDINGS
from tests.support.scale_page import PAGE, page


@pytest.mark.slow
@pytest.mark.skipif(not scaling.has_own_network(), reason="a network of its own needs Linux, root, `unshare` and `ip`")
@pytest.mark.parametrize("precision", [pytest.param((), id="float32"), pytest.param(("bf16",), id="bf16")])
@pytest.mark.parametrize("sharding", [pytest.param(each, id=each.name) for each in SHARDINGS])
def test_counts_are_those_of_the_formulas(sharding, precision):
    """Bytes that a rank sends for an update step, by the kernel's count, and that its tensors hold, to 3 %."""
    told = scaling.counted("hf_compat", sharding.name, 2, *precision)
    width = 2 if precision and sharding.half else 4
    assert told["sent"] == pytest.approx(sharding.sent(2, width=width, gloo=True), rel=0.03)
    assert told["held"] == pytest.approx(sharding.held_by(2, *precision), rel=0.03)


def test_page_is_made_from_the_formulas():
    """``docs/scale.md`` is up to date."""
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.support.scale_page"
