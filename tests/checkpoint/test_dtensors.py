"""Full state dicts of sharded models."""

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from hf_compat.checkpoint.distributed_files import full_tensors, untied


@pytest.fixture
def mesh():
    """A device mesh of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_full_tensors_share_nothing_with_the_model(mesh):
    """A copy stays what it was when the tensors change, wherever they are placed; what is one object stays one."""
    plain = nn.Parameter(torch.ones(4))
    values = {"plain": plain, "tied": plain, "step": 3}
    for name, placement in (("replicated", Replicate()), ("sharded", Shard(0))):
        values[name] = distribute_tensor(torch.ones(4), mesh, [placement])
    copied = full_tensors({"state": [values]}, keeps=True)["state"][0]
    with torch.no_grad():
        for name in ("plain", "replicated", "sharded"):
            values[name].mul_(2)
    assert copied["tied"] is copied["plain"]
    assert copied.pop("step") == 3
    for value in copied.values():
        assert type(value) is torch.Tensor
        assert torch.equal(value, torch.ones(4))


def test_other_ranks_keep_nothing():
    """They get the dict without its tensors."""
    assert full_tensors({"a": torch.ones(1), "b": {"c": 1}}, keeps=False) == {"b": {"c": 1}}


def test_untied():
    """A tensor under two names is copied for the second; everything else stays what it is."""
    weight = torch.ones(2)
    state = untied({"first": weight, "second": weight, "other": None})
    assert state["first"] is weight
    assert torch.equal(state["second"], weight)
    assert state["second"].data_ptr() != weight.data_ptr()
    assert state["other"] is None
