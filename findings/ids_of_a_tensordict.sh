#!/usr/bin/env bash
# A `TensorDict` that is sent to bfloat16 rounds token ids and labels, too.
#
# Versions:  tensordict 0.15.3, torch 2.13.0; Python 3.11 on a CPU
# Behaviour: `to(torch.bfloat16)`, `half()` and `bfloat16()` convert all tensors. `torch.nn.Module.to` leaves what is no float,
#            and `BatchEncoding.to` as well, so that one expects the same of a batch. What is above 256 is rounded, and the
#            ids are floats; a loss that takes class indices refuses them, one that takes numbers does not. No message says
#            so.
# Seen:      the ids 257 and 40,001 are 256 and 39,936; a module with a buffer of these has them as they were.
# Date:      2026-11-29
. "$(dirname "$0")/common.sh"
install tensordict==0.15.3 torch==2.13.0
run <<'PYTHON'
import torch
from tensordict import TensorDict

ids = torch.tensor([257, 40001])
batch = TensorDict({"inputs": torch.ones(2), "ids": ids}, batch_size=[2])
module = torch.nn.Linear(1, 1)
module.register_buffer("ids", ids)
for name, sent in (("to", batch.to(torch.bfloat16)), ("bfloat16", batch.bfloat16())):
    print(name, sent["ids"])
    assert sent["ids"].dtype is torch.bfloat16 and sent["ids"].tolist() == [256, 39936]
kept = module.to(torch.bfloat16).ids
print("of a module:", kept)
assert kept.tolist() == [257, 40001] and module.weight.dtype is torch.bfloat16
PYTHON
