#!/usr/bin/env bash
# FSDP 1 asked for "no_shard" by the name that is not deprecated shards all.
#
# Versions:  accelerate 1.15.0, torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `reshard_after_forward` takes the place of the deprecated `sharding_strategy` in accelerate's plugin, and
#            for version 1 becomes a strategy. What wraps the model reads `sharding_strategy`, whose default, of
#            FSDP_SHARDING_STRATEGY, stays. So transformers' `fsdp="no_shard"` and `fsdp="shard_grad_op"` shard all.
# Seen:      FULL_SHARD in `sharding_strategy` for each; by `sharding_strategy` itself what was asked for.
# Date:      2026-11-28
. "$(dirname "$0")/common.sh"
install accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch.distributed
from accelerate import FullyShardedDataParallelPlugin
from torch.distributed.fsdp import ShardingStrategy

found = {}
for name in ("no_shard", "shard_grad_op"):
    plugin = FullyShardedDataParallelPlugin(fsdp_version=1, reshard_after_forward=name)
    found[name] = (plugin.reshard_after_forward.name, plugin.sharding_strategy.name)
deprecated = FullyShardedDataParallelPlugin(fsdp_version=1, sharding_strategy="NO_SHARD").sharding_strategy
print(found, "by the deprecated name:", deprecated.name)
assert found == {"no_shard": ("NO_SHARD", "FULL_SHARD"), "shard_grad_op": ("SHARD_GRAD_OP", "FULL_SHARD")}
assert deprecated is ShardingStrategy.NO_SHARD
PYTHON
