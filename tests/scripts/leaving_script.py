"""Ends right after an operation of gloo's whose tensors its threads have yet to release; started by ``test_processes``.

The group is referred to until the end, as a sharded model does, so its threads outlive ``destroy_process_group``. With
the word ``before`` the script joins by itself, before the arguments would.
"""

import sys

import torch
from torch import distributed

from hf_compat import TrainingArguments

if "before" in sys.argv:
    distributed.init_process_group("gloo")
device = TrainingArguments(sys.argv[1], use_cpu=True, report_to="none").device
group = distributed.new_group([0, 1])
sys.setswitchinterval(1000)  # the main thread keeps the interpreter lock
distributed.all_reduce_coalesced([torch.ones(3, device=device) for _ in range(20000)], group=group)
if "destroys" in sys.argv:
    distributed.destroy_process_group()
