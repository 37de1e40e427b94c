"""Optimizers of low rank: the modules that they train."""

from __future__ import annotations

import pytest

from hf_compat import Trainer as HFCompatTrainer, TrainingArguments
from hf_compat.errors import ArgumentsError
from hf_compat.optim.optimizers import optimizer_class_and_kwargs, target_weights
from tests.support.optimizers import Settings, linears


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        pytest.param("all-linear", {"q.weight", "mlp.up.weight", "mlp.down.weight"}, id="all"),
        pytest.param("all_linear", {"q.weight", "mlp.up.weight", "mlp.down.weight"}, id="all, other spelling"),
        pytest.param(r"mlp\..*", {"mlp.up.weight", "mlp.down.weight"}, id="regex over the whole name"),
        pytest.param("mlp", set(), id="a string is no part of a name"),
        pytest.param(["mlp"], {"mlp.up.weight", "mlp.down.weight"}, id="part of a name in a list"),
        pytest.param(["q", r".*\.up"], {"q.weight", "mlp.up.weight"}, id="name and regex in a list"),
    ],
)
def test_target_modules(targets, expected):
    """GaLore and APOLLO project the weights of linear layers that a name, a part of one or a regex finds."""
    assert target_weights(linears(), targets) == expected


@pytest.mark.parametrize(("targets", "count"), [("all-linear", 3), (["mlp"], 2)], ids=str)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_target_modules_of_a_run(targets, count):
    """The arguments' target modules are the group that is projected, with what ``optim_args`` say of it."""
    args = TrainingArguments("out", optim="apollo_adamw", optim_target_modules=targets, optim_args="rank=2,scale=3")
    _, kwargs = HFCompatTrainer.get_optimizer_cls_and_kwargs(args, linears())
    others, projected = kwargs["params"]
    assert len(projected["params"]) == count
    assert len(others["params"]) == 8 - count
    assert (projected["rank"], projected["scale"], "rank" in others) == (2, 3.0, False)


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        pytest.param("galore_adamw", {"optim_target_modules": None}, "needs `optim_target_modules`", id="no targets"),
        pytest.param("apollo_adamw", {"optim_target_modules": 3}, "optim_target_modules=3", id="no such targets"),
        pytest.param("galore_adamw", {"optim_target_modules": "x"}, "No target modules found", id="none found"),
        pytest.param(
            "galore_adamw_layerwise", {"gradient_accumulation_steps": 2}, "gradient_accumulation_steps=1", id="windows"
        ),
        pytest.param("apollo_adamw_layerwise", {"world_size": 2}, "optim='apollo_adamw'", id="several processes"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_low_rank_errors(name, changes, text):
    """What stands against GaLore and APOLLO is a ValueError that says what to set."""
    settings = Settings(name, **{"optim_target_modules": "all-linear", **changes})
    with pytest.raises(ArgumentsError, match=text):
        optimizer_class_and_kwargs(settings, linears())
