"""An optimizer for each parameter."""

from __future__ import annotations

import pytest
import torch

from hf_compat.arguments.releases import resolve_semantics
from hf_compat.optim.optimizers import optimizer_class_and_kwargs
from tests.support.optimizers import Settings, linears


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:This implementation of AdamW:FutureWarning")
@pytest.mark.parametrize("name", ["galore_adamw_layerwise", "galore_adafactor_layerwise"])
@pytest.mark.parametrize(("semantics", "follows"), [("4.57", True), ("5.23", False)])
def test_layerwise_learning_rate(name, semantics, follows):
    """Each backward pass updates, with the scheduled learning rate before 5.1 and with the first one since."""
    settings = Settings(name, "rank=2", optim_target_modules="all-linear")
    model = linears()
    optimizer, kwargs = optimizer_class_and_kwargs(settings, model, semantics=resolve_semantics(semantics))
    built = optimizer(kwargs.pop("optimizer_dict"), **kwargs)
    built.param_groups[0]["lr"] = 0.0
    before = model["q"].weight.detach().clone()
    model["q"](torch.ones(1, 4)).square().sum().backward()
    assert torch.equal(before, model["q"].weight) is follows
    assert model["q"].weight.grad is None
