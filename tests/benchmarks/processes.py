"""What is measured in a process of its own: starting up, evaluating many rows, and the most memory that takes.

Run it as ``python -m tests.benchmarks.processes start hf_compat`` or ``... predict transformers 8000``.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import HF_COMPAT, TRANSFORMERS, Benchmark, Cost

__all__ = ["benchmarks"]


def _in_a_process(*words: object) -> dict[str, float]:
    command = [sys.executable, "-m", __name__, *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def _told(**found: float) -> None:
    print(json.dumps(found), flush=True)


def start(package: str) -> None:
    """Tell what it takes from an empty process to the end of the first update step of a tiny model."""
    import transformers

    config = transformers.GPT2Config(vocab_size=16, n_positions=16, n_embd=8, n_layer=1, n_head=1)
    module: Any = importlib.import_module(package)
    trainer_class, arguments_class, base = module.Trainer, module.TrainingArguments, module.TrainerCallback

    class Leave(base):
        def on_step_end(self, args, state, control, **kwargs):
            _told(cpu=time.process_time(), wall=time.time() - float(os.environ["BEGUN"]))
            os._exit(0)

    rows = [{"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]}] * 8
    with tempfile.TemporaryDirectory() as folder:
        args = arguments_class(folder, use_cpu=True, report_to="none", disable_tqdm=True)
        model = transformers.GPT2LMHeadModel(config)
        trainer_class(model, args, train_dataset=rows, callbacks=[Leave()]).train()


def predict(package: str, count: str) -> None:
    """Tell what ``predict`` takes for a row, of ``count`` rows of logits, and the most memory of the process in MB."""
    import torch

    from tests.benchmarks.update_steps import Tiny

    module: Any = importlib.import_module(package)
    values = torch.randn(int(count), 8, generator=torch.Generator().manual_seed(0))

    class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(values)

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"features": values[index], "labels": index % 2}

    with tempfile.TemporaryDirectory() as folder:
        args = module.TrainingArguments(
            folder, per_device_eval_batch_size=8, use_cpu=True, report_to="none", disable_tqdm=True
        )
        trainer = module.Trainer(Tiny(), args)
        begin = time.process_time(), time.perf_counter()
        trainer.predict(Rows())
        end = time.process_time(), time.perf_counter()
    cpu, wall = (1e6 * (after - before) / int(count) for before, after in zip(begin, end, strict=True))
    _told(cpu=cpu, wall=wall, memory=_most_memory())


def _most_memory() -> float:
    """Return the most memory that this process has had, in MB; ``getrusage`` would tell of the process before too."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def _start(package: str) -> Cost:
    os.environ["BEGUN"] = str(time.time())
    return Cost(**_in_a_process("start", package))


def _predict(package: str, count: int) -> Cost:
    found = _in_a_process("predict", package, count)
    _memories[package, count] = found["memory"]
    return Cost(found["cpu"], found["wall"])


_memories: dict[tuple[str, int], float] = {}
"""The most memory of the last ``predict`` of so many rows."""


def _memory(package: str, count: int) -> Cost:
    return Cost(_memories[package, count], _memories[package, count])


def benchmarks() -> list[Benchmark]:
    """Return the benchmarks of this file."""

    def of_both(name: str, unit: str, measure: Any, *words: Any) -> Benchmark:
        return Benchmark(
            name,
            unit,
            {HF_COMPAT: partial(measure, "hf_compat", *words), TRANSFORMERS: partial(measure, "transformers", *words)},
        )

    return [
        of_both("start to the first update step", "s", _start),
        of_both("predict, a row of 8,000", "µs", _predict, 8_000),
        of_both("predict, a row of 128,000", "µs", _predict, 128_000),
        of_both("predict, 128,000 rows, most memory", "MB", _memory, 128_000),
    ]


if __name__ == "__main__":
    {"start": start, "predict": predict}[sys.argv[1]](*sys.argv[2:])
