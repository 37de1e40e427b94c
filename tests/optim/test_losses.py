"""Label smoothing equals transformers', and so does dividing a loss."""

from __future__ import annotations

import inspect

import pytest
import torch
from transformers.modeling_outputs import CausalLMOutput
from transformers.trainer_pt_utils import LabelSmoother as UpstreamSmoother

from hf_compat.optim.losses import LabelSmoother
from hf_compat.trainer.loss import divide_scalar

UPSTREAM_COUNTS = "num_items_in_batch" in inspect.signature(UpstreamSmoother.__call__).parameters


def batch(shape=(3, 5), classes=7, dtype=torch.float32, ignored=-100):
    generator = torch.Generator().manual_seed(1)
    logits = (3 * torch.randn(*shape, classes, generator=generator)).to(dtype)
    labels = torch.randint(classes, shape, generator=generator)
    labels[0, ..., :2] = ignored
    return logits, labels


def loss_and_gradient(smoother, logits, labels, wrap, **kwargs):
    logits = logits.clone().requires_grad_()
    loss = smoother(wrap(logits), labels.clone(), **kwargs)
    loss.backward()
    return loss.detach(), logits.grad


OUTPUTS = [
    pytest.param(lambda logits: {"logits": logits}, id="dict"),
    pytest.param(lambda logits: (logits, None), id="tuple"),
    pytest.param(lambda logits: CausalLMOutput(logits=logits), id="model output"),
]


@pytest.mark.parametrize("wrap", OUTPUTS)
@pytest.mark.parametrize("shift", [False, True], ids=["aligned", "shifted"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
def test_loss_and_gradient_are_upstreams(epsilon, dtype, shift, wrap):
    """Loss, its dtype and the gradient of the logits are equal to the last bit."""
    logits, labels = batch(dtype=dtype)
    mine = loss_and_gradient(LabelSmoother(epsilon), logits, labels, wrap, shift_labels=shift)
    theirs = loss_and_gradient(UpstreamSmoother(epsilon), logits, labels, wrap, shift_labels=shift)
    for one, other in zip(mine, theirs, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_labels_may_have_a_last_axis():
    """Labels ``(..., 1)`` and another ignored index are read as upstream reads them."""
    logits, labels = batch(shape=(4, 2), ignored=-1)
    labels = labels.unsqueeze(-1)
    mine = LabelSmoother(ignore_index=-1)({"logits": logits}, labels)
    assert torch.equal(mine, UpstreamSmoother(ignore_index=-1)({"logits": logits}, labels))


COUNTS = [
    pytest.param(11, id="number"),
    pytest.param(torch.tensor(11), id="integer tensor"),
    pytest.param(torch.tensor(11.0), id="float tensor"),
]


@pytest.mark.skipif(not UPSTREAM_COUNTS, reason="this transformers divides by the batch's positions alone")
@pytest.mark.parametrize("count", COUNTS)
def test_given_count_is_upstreams(count):
    """With the window's item count the loss is equal to upstream's with it."""
    logits, labels = batch()
    mine = loss_and_gradient(LabelSmoother(), logits, labels, lambda x: (x,), num_items_in_batch=count)
    theirs = loss_and_gradient(UpstreamSmoother(), logits, labels, lambda x: (x,), num_items_in_batch=count)
    assert torch.equal(mine[0], theirs[0])
    assert torch.equal(mine[1], theirs[1])


@pytest.mark.parametrize("count", COUNTS)
def test_given_count_divides(count):
    """The sum over positions is divided by the count: here by 11 instead of the 13 scored positions."""
    logits, labels = batch()
    own = LabelSmoother()((logits,), labels)
    given = LabelSmoother()((logits,), labels, num_items_in_batch=count)
    torch.testing.assert_close(given, own * 13 / 11)


def test_uniform_distribution():
    """Equal logits of four classes cost log 4, whatever the smoothing."""
    loss = LabelSmoother(0.3)({"logits": torch.zeros(2, 4)}, torch.tensor([1, 3]))
    torch.testing.assert_close(loss, torch.tensor(4.0).log())


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
