"""What is found out about a model."""

import pytest
from torch import nn

from hf_compat.model_facts import is_in_training_mode
from tests.support import helpers


class Frozen(nn.BatchNorm1d):
    """Stays in evaluation mode."""

    def train(self, mode=True):
        return super().train(False)


class Noted(nn.Linear):
    """Does more than set the mode."""

    def train(self, mode=True):
        self.noted = True
        return super().train(mode)


def with_own_method():
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].train = lambda mode=True: None
    return model


def with_kernels():
    model = helpers.gpt2().train()
    model._use_kernels = True
    return model


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU()), True),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU().eval())), False),
        (lambda: nn.Linear(2, 2).eval(), False),
        (lambda: nn.Sequential(nn.Linear(2, 2), Frozen(2)), False),
        (lambda: nn.Sequential(Noted(2, 2)), False),
        (with_own_method, False),
        (lambda: helpers.gpt2().train(), True),
        (lambda: helpers.gpt2().eval(), False),
        (with_kernels, False),
    ],
)
def test_training_mode(make, expected):
    """``train`` is left out only where it would change nothing, and is nobody's own."""
    assert is_in_training_mode(make()) is expected
