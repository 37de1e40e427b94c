"""The names of checkpoint folders and of the files in them."""

from __future__ import annotations

import pytest
import transformers.trainer as upstream_trainer_module
import transformers.utils as upstream_utils
from accelerate.utils import constants as accelerate_constants
from transformers import trainer_utils as upstream

from hf_compat.checkpoint import names


def test_names_are_upstreams():
    """Every name but Lightning's is the constant of that name in transformers, or what accelerate makes of its own."""
    sharded = {
        "SHARDED_METADATA_NAME": ".metadata",
        "SHARDED_OPTIMIZER_NAME": f"{accelerate_constants.OPTIMIZER_NAME}_0",
        "SHARDED_WEIGHTS_NAME": f"{accelerate_constants.FSDP_MODEL_NAME}_0",
        "FULL_FSDP_WEIGHTS_NAME": f"{accelerate_constants.FSDP_MODEL_NAME}.bin",
        "FULL_OPTIMIZER_NAME": f"{accelerate_constants.OPTIMIZER_NAME}.bin",
    }
    assert {name: getattr(names, name) for name in sharded} == sharded
    own = {"LIGHTNING_MARKER_NAME", "LIGHTNING_STATE_NAME", *sharded}
    for name in (name for name in vars(names) if name.isupper() and name not in own):
        places = (upstream_trainer_module, upstream, upstream_utils)
        expected = {getattr(place, name) for place in places if hasattr(place, name)}
        assert expected == {getattr(names, name)}, name


@pytest.mark.parametrize(
    ("rank", "world_size", "name"), [(0, 1, "rng_state.pth"), (0, 2, "rng_state_0.pth"), (3, 4, "rng_state_3.pth")]
)
def test_rng_state_name(rank, world_size, name):
    """One process writes one file; of several each has its own."""
    assert names.rng_state_name(rank, world_size) == name
