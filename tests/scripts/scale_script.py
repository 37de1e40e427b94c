"""Trains on each rank as many rows a step, whatever the world size, and prints what rank 0 counted, as JSON.

Arguments: ``hf_compat`` or ``transformers``, a name in ``SHARDINGS``, and ``bf16`` for mixed precision.

``sent`` and ``held`` are bytes a parameter: what passed through the loopback device for an update step, a rank, and
what the tensors of this process hold before the optimizer's step. ``wall`` and ``cpu`` are milliseconds of a step.
"""

from __future__ import annotations

import gc
import importlib
import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from tests.support.scale import SHARDINGS

FIRST, LAST, BATCH = 8, 24, 2
"""The update step from which on the count goes, the last one, and rows of a batch."""


def sent_on_loopback() -> int:
    """Return the bytes that have been sent on the loopback device, headers included."""
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split()[9])


def held_by_tensors() -> int:
    """Return the bytes of the memory that tensors of this process refer to, gradients included."""
    sizes = {}
    for found in gc.get_objects():
        if issubclass(type(found), torch.Tensor):
            for tensor in (found, found.grad if found.is_leaf else None):
                local = getattr(tensor, "_local_tensor", tensor)
                if local is not None and local.device.type == "cpu":
                    sizes[local.untyped_storage().data_ptr()] = local.untyped_storage().nbytes()
    return sum(sizes.values())


def train(package: str, name: str, *precision: str) -> dict[str, float]:
    """Train and return what was counted."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    module: Any = importlib.import_module(package)
    (sharding,) = (each for each in SHARDINGS if each.name == name)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=256, intermediate_size=768, num_hidden_layers=7, num_attention_heads=4
    )
    model: Any = transformers.LlamaForCausalLM(config)
    count, marks, held = sum(each.numel() for each in model.parameters()), [], []

    class Counts(module.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == FIRST:
                held.append(held_by_tensors())

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if distributed.is_initialized() and state.global_step in (FIRST, LAST):
                distributed.barrier()
            marks.append((time.perf_counter(), time.process_time(), sent_on_loopback()))

    with tempfile.TemporaryDirectory() as folder:
        args = module.TrainingArguments(
            output_dir=folder,
            max_steps=LAST,
            per_device_train_batch_size=BATCH,
            bf16="bf16" in precision,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            **sharding.fields,
        )
        rows = torch.randint(0, config.vocab_size, (LAST * BATCH * args.world_size, 32))
        samples = [{"input_ids": row, "labels": row} for row in rows]
        module.Trainer(model, args, train_dataset=samples, callbacks=[Counts()]).train()
    steps = marks[FIRST - 1 : LAST]
    wall, cpu = (1e3 * statistics.median(after[of] - before[of] for before, after in pairwise(steps)) for of in (0, 1))
    sent = (steps[-1][2] - steps[0][2]) / (LAST - FIRST) / args.world_size
    return {"wall": wall, "cpu": cpu, "sent": sent / count, "held": held[0] / count}


if __name__ == "__main__":
    counted = train(*sys.argv[1:])
    if not distributed.is_initialized() or distributed.get_rank() == 0:
        print(json.dumps(counted), flush=True)
