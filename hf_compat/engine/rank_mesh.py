"""The device mesh of a run's ranks, with the names of dimensions that accelerate's has."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from hf_compat.arguments.parallelism import ParallelSizes

DATA_PARALLEL = "dp"
"""All dimensions whose ranks get different batches, as one."""
SHARDED = "dp_shard"
"""The dimension over which FSDP shards parameters, together with ``CONTEXT_PARALLEL``."""
CONTEXT_PARALLEL = "cp"
"""The dimension whose ranks share sequences."""
TENSOR_PARALLEL = "tp"
"""The dimension over which matrices are split."""
LOSSES = "dp_cp"
"""All dimensions whose ranks have different losses, as one: of other batches, or of other parts of the sequences."""
_REPLICAS = "dp_replicate"
_SHARDED_TOGETHER = "dp_shard_cp"
_DIMENSIONS = (_REPLICAS, SHARDED, CONTEXT_PARALLEL, TENSOR_PARALLEL)


def create_device_mesh(sizes: ParallelSizes, device: torch.device) -> DeviceMesh:
    """Return a mesh of all ranks by the ``sizes`` above 1, and ``dp``: the data-parallel ones; every rank calls it."""
    # Without data parallelism, too, there is a group of the ranks with different batches: this rank.
    shape = {name: getattr(sizes, name) for name in _DIMENSIONS if name == SHARDED or getattr(sizes, name) > 1}
    mesh = init_device_mesh(device.type, tuple(shape.values()), mesh_dim_names=tuple(shape))
    mesh[tuple(name for name in shape if name in (_REPLICAS, SHARDED))]._flatten(DATA_PARALLEL)
    if sizes.cp > 1:
        mesh[SHARDED, CONTEXT_PARALLEL]._flatten(_SHARDED_TOGETHER)
        mesh[tuple(name for name in shape if name != TENSOR_PARALLEL)]._flatten(LOSSES)
    return mesh


def has_replicas(mesh: DeviceMesh) -> bool:
    """Return whether ``mesh`` has several replicas of what is sharded."""
    return _REPLICAS in (mesh.mesh_dim_names or ())


def sharding_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Return the part of ``mesh`` that FSDP shards parameters over: with replicas, those by the shards of each."""
    sharded = _SHARDED_TOGETHER if CONTEXT_PARALLEL in (mesh.mesh_dim_names or ()) else SHARDED
    return mesh[_REPLICAS, sharded] if has_replicas(mesh) else mesh[sharded]
