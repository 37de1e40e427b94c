"""A Trainer of processes that cannot share its model, or what its ``model_init`` returns: each says what it met."""

from __future__ import annotations

import os
import sys
from typing import Any

from hf_compat import Trainer, TrainingArguments
from hf_compat.errors import HFCompatError
from tests.scripts.sharded_common import llama

FSDP = {"fsdp": True, "fsdp_config": {"version": 2}}
ZERO = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto"}
CASES: dict[str, dict[str, Any]] = {
    "matrices": {"parallelism_config": {"tp_size": 3}, "use_cpu": True},
    "chunks": {"parallelism_config": {"sp_size": 3}, "deepspeed": ZERO, "use_cpu": True},
    "sequences": {"parallelism_config": {"cp_size": 3}, **FSDP},
}
"""What is shared → training arguments with which three processes would share the model."""

if __name__ == "__main__":
    folder, case, given = sys.argv[1:]
    args = TrainingArguments(folder, report_to="none", **CASES[case])
    model = llama(num_attention_heads=4, attn_implementation="eager" if case == "sequences" else "sdpa")
    try:
        Trainer(args=args, lightning={"devices": 3}, **{given: model if given == "model" else lambda: model})
    except HFCompatError as error:
        print(f"PROCESS {os.environ.get('LOCAL_RANK')}: {type(error).__name__}: {error}", flush=True)
