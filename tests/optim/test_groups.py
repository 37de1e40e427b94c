"""Which parameters decay, and the groups made of that."""

from __future__ import annotations

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
from transformers import Trainer

from hf_compat.optim.prepared import decay_parameter_names, groups_by_mesh, parameter_groups
from tests.support import helpers


class Awkward(nn.Module):
    """Names and modules on both sides of every rule."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.bias_proj = nn.Linear(2, 2)
        self.Bias = nn.Parameter(torch.ones(2))
        self.norm = nn.Linear(2, 2, bias=False)
        self.normal = nn.Linear(2, 2)
        self.q_norm = nn.Linear(2, 2)
        self.q_normed = nn.Linear(2, 2)
        self.RMSNorm = nn.Linear(2, 2)
        self.inner = nn.ModuleDict({"LayerNorm": nn.Linear(2, 2), "ln": nn.LayerNorm(2), "gn": nn.GroupNorm(1, 2)})
        self.around = nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 2))
        self.tied = self.normal
        self.register_parameter("absent", None)


MODELS = [
    pytest.param(Awkward, id="awkward names"),
    pytest.param(lambda: nn.LayerNorm(2), id="a norm alone"),
    pytest.param(lambda: nn.BatchNorm1d(2), id="a batch norm alone"),
    pytest.param(lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.RMSNorm(2)), id="norms of torch"),
    pytest.param(helpers.PlainModel, id="plain"),
    pytest.param(helpers.gpt2, id="gpt2, tied embeddings"),
    pytest.param(helpers.bert_classifier, id="bert"),
    pytest.param(helpers.t5, id="t5, shared embeddings"),
]


def upstream_names(model):
    return Trainer.get_decay_parameter_names(None, model)


@pytest.mark.parametrize("build", MODELS)
def test_names_are_upstreams(build):
    """The decaying names and their order are those of the installed transformers."""
    model = build()
    assert decay_parameter_names(model) == upstream_names(model)


def test_awkward_names():
    """What decays is neither in a LayerNorm nor named after a bias or a norm."""
    assert decay_parameter_names(Awkward()) == [
        "normal.weight",
        "q_normed.weight",
        "inner.gn.weight",
        "around.1.weight",
        "scale",
        "absent",
    ]


@pytest.mark.parametrize("build", MODELS)
def test_groups_are_upstreams(build):
    """Both groups hold the same parameters in the same order as the optimizer that upstream would create."""
    model = build()
    parameters = list(model.named_parameters())
    if len(parameters) > 1:
        parameters[1][1].requires_grad_(False)
    decayed = upstream_names(model)
    expected = [
        [item for name, item in parameters if name in decayed and item.requires_grad],
        [item for name, item in parameters if name not in decayed and item.requires_grad],
    ]
    groups = parameter_groups(model, 0.1)
    assert [[id(item) for item in group["params"]] for group in groups] == [[id(i) for i in each] for each in expected]
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]


def test_names_can_be_given():
    """A subclass's own choice of names decides, not ours."""
    model = nn.Linear(2, 2)
    groups = parameter_groups(model, 0.5, ["bias"])
    assert groups[0]["params"] == [model.bias]
    assert groups[1]["params"] == [model.weight]


@pytest.fixture
def mesh():
    """A device mesh of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_groups_are_divided_by_mesh(mesh):
    """Each group has parameters of one mesh, or of none, in their order; groups of one mesh alone stay as they are."""
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    split = distribute_tensor(torch.ones(2), mesh, [Replicate()])
    divided = groups_by_mesh([{"params": [first, split, second], "lr": 1.0}, {"params": [], "lr": 2.0}])
    assert [group["lr"] for group in divided] == [1.0, 1.0]
    assert [[id(item) for item in group["params"]] for group in divided] == [[id(first), id(second)], [id(split)]]
    whole = [{"params": [first], "lr": 1.0}, {"params": [], "lr": 2.0}]
    assert groups_by_mesh(whole) is whole
