#!/usr/bin/env bash
# A distributed checkpoint is loaded into whatever type is there.
#
# Versions:  torch 2.13.0, numpy 2.4.6; Python 3.11 on a CPU
# Behaviour: `torch.distributed.checkpoint.load` checks the shape of a tensor, not its type: values are rounded, become
#            infinite or lose their fraction without a message.
# Seen:      1.001 and 70000 become 1.0 and 70144 in bfloat16, 1.00098 and infinity in float16, 1 and 70000 in int32.
# Date:      2026-11-27
. "$(dirname "$0")/common.sh"
install torch==2.13.0 numpy==2.4.6
run <<'PYTHON'
import torch
import torch.distributed.checkpoint as dcp

dcp.save({"weight": torch.tensor([1.001, 70000.0])}, checkpoint_id="saved")
loaded = {}
for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32):
    state = {"weight": torch.zeros(2, dtype=dtype)}
    dcp.load(state, checkpoint_id="saved")
    loaded[dtype] = state["weight"].tolist()
    print(f"float32 values 1.001 and 70000 loaded into {dtype}: {loaded[dtype]}")
assert loaded[torch.float16] == [1.0009765625, float("inf")]
assert loaded[torch.int32] == [1, 70000]
PYTHON
