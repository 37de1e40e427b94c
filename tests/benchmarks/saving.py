"""How long training stands still for a checkpoint of some 400 MB, optimizer's state included.

Run it under torchrun as ``-m tests.benchmarks.saving FOLDER hf_compat DDP async`` for several ranks.
"""

from __future__ import annotations

import importlib
import itertools
import json
import statistics
import sys
import tempfile
import time
from functools import partial
from typing import Any

import torch
import transformers

import hf_compat
from tests.benchmarks.measuring import HF_COMPAT, TRANSFORMERS, Benchmark, Cost
from tests.support.processes import TORCHRUN, finish, start
from tests.support.scale import SHARDINGS

__all__ = ["benchmarks"]

STEPS, SAVE_STEPS = 17, 4
SHARDED = ("DDP", "FSDP", "ZeRO-2")
"""What two ranks save with, of ``SHARDINGS``."""


def _model() -> Any:
    config = transformers.GPT2Config(vocab_size=8000, n_positions=64, n_embd=640, n_layer=6, n_head=8)
    return transformers.GPT2LMHeadModel(config)  # 34.6M parameters


def _model_of_layers() -> Any:
    """Return a model of as many parameters that FSDP wraps by layers."""
    config = transformers.LlamaConfig(
        vocab_size=8000, hidden_size=512, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=8
    )
    return transformers.LlamaForCausalLM(config)


def _rows() -> list[dict[str, Any]]:
    tokens = torch.randint(0, 8000, (4 * STEPS, 16), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in tokens]


def _stall(package: Any, folder: str, model: Any, **settings: Any) -> Cost:
    """Return how much longer it takes from one update step to the next where a checkpoint is saved between them.

    What is copied or written beside the next step counts by what it slows that step down. It is the least of four
    saves: memory and disk are slow when they are first used.
    """
    ends: list[tuple[float, float]] = []

    class Clock(package.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            ends.append((time.process_time(), time.perf_counter()))

    args = package.TrainingArguments(
        output_dir=folder,
        max_steps=STEPS,
        save_steps=SAVE_STEPS,
        save_total_limit=1,
        per_device_train_batch_size=1,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        **settings,
    )
    trainer = package.Trainer(model, args, train_dataset=_rows(), callbacks=[Clock()])
    trainer.remove_callback(package.PrinterCallback)
    trainer.train()
    stalls = []
    for clock in zip(*ends, strict=True):
        steps = [1e3 * (after - before) for before, after in itertools.pairwise(clock)]
        plain = [step for number, step in enumerate(steps, 1) if number % SAVE_STEPS]
        stalls.append(min(steps[SAVE_STEPS - 1 :: SAVE_STEPS]) - statistics.median(plain))
    return Cost(*stalls)


def _stall_of_one(package: Any, **settings: Any) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        return _stall(package, folder, _model(), **settings)


def _stall_of_two(package: str, name: str, *words: str) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        command = [*TORCHRUN, "--nproc-per-node=2", "-m", __name__, folder, package, name, *words]
        (ended,) = finish([start(command, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")], timeout=300)
    assert ended.code == 0, ended.output
    return Cost(**json.loads(next(line for line in ended.output.splitlines() if line.startswith('{"cpu"'))))


def main(folder: str, package: str, name: str, *words: str) -> None:
    """Print what rank 0 stood still, under torchrun."""
    module: Any = importlib.import_module(package)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    (sharding,) = (each for each in SHARDINGS if each.name == name)
    settings = {**sharding.fields, **({"save_async": True} if "async" in words else {})}
    if "fsdp_config" in settings:
        settings["fsdp_config"] = {**settings["fsdp_config"], "state_dict_type": "SHARDED_STATE_DICT"}
    stall = _stall(module, folder, _model_of_layers(), **settings)
    if torch.distributed.get_rank() == 0:
        print(json.dumps(vars(stall)), flush=True)


def benchmarks() -> list[Benchmark]:
    """Return the benchmarks of this file; transformers' Trainer does not flush to the disk, ours does.

    Its FSDP does not run on the CPU.
    """
    found = []
    for suffix, settings in (("", {}), (", `save_async=True`", {"save_async": True})):
        subjects = {HF_COMPAT: partial(_stall_of_one, hf_compat, **settings)}
        subjects[TRANSFORMERS] = partial(_stall_of_one, transformers)
        found.append(Benchmark(f"save of 415 MB{suffix}", "ms", subjects))
    for name in SHARDED:
        for suffix, words in (("", ()), (", `save_async=True`", ("async",))):
            subjects = {HF_COMPAT: partial(_stall_of_two, "hf_compat", name, *words)}
            if name != "FSDP":
                subjects[TRANSFORMERS] = partial(_stall_of_two, "transformers", name)
            found.append(Benchmark(f"save of 420 MB, {name}, two ranks{suffix}", "ms", subjects))
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
