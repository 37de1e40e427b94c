"""A loss divided by a number: the same bits as torch's own division, also backwards."""

import pytest
import torch

from hf_compat.optim.losses import divide_scalar


@pytest.mark.parametrize("by", [1, 2, 3, 7, 48, 1_000_003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_bits_are_those_of_a_division(by, dtype):
    """Values and gradients equal those of ``/``, of finite numbers and of others."""
    values = [*torch.randn(50, generator=torch.Generator().manual_seed(0)).tolist(), 0.0, float("inf"), float("nan")]
    for number in values:
        weights = [torch.tensor(number, dtype=dtype, requires_grad=True) for _ in range(2)]
        expected, found = weights[0] * 1.7 / by, divide_scalar(weights[1] * 1.7, by)
        assert found.dtype is expected.dtype
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        expected.backward()
        found.backward()
        torch.testing.assert_close(weights[1].grad, weights[0].grad, rtol=0, atol=0, equal_nan=True)


def test_what_is_kept_can_be_used_in_a_backward_pass():
    """A first division in inference mode does not spoil a later one that is differentiated."""
    with torch.inference_mode():
        divide_scalar(torch.tensor(1.0), 12_345)
    weight = torch.tensor(3.0, requires_grad=True)
    divide_scalar(weight * 2, 12_345).backward()
    assert weight.grad.item() == torch.tensor(2 / 12_345).item()
