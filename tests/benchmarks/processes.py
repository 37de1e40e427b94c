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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import HF_COMPAT, TRANSFORMERS, Benchmark, Cost, in_the_same_run

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
    from tests.benchmarks.update_steps import Tiny

    with tempfile.TemporaryDirectory() as folder:
        trainer, arguments = _classes(package)
        made = trainer(Tiny(), arguments(folder))
        told = _timed(partial(made.predict, _vectors(int(count))), int(count))
    _told(**told, memory=_most_memory())


def predict_ragged(package: str, count: str) -> None:
    """Tell what ``predict`` takes for a row, of ``count`` rows of 5 to 40 logits, each batch as wide as its widest."""
    import torch
    from torch import nn
    from torch.nn.utils.rnn import pad_sequence

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tags = nn.Embedding(50, 4)

        def forward(self, tokens, labels=None):
            logits = self.tags(tokens)
            return {"loss": nn.functional.cross_entropy(logits.transpose(1, 2), labels), "logits": logits}

    def collate(rows):
        tokens = pad_sequence([row["tokens"] for row in rows], batch_first=True)
        labels = pad_sequence([row["tokens"] % 4 for row in rows], batch_first=True, padding_value=-100)
        return {"tokens": tokens, "labels": labels}

    draw = torch.Generator().manual_seed(0)
    widths = torch.randint(5, 41, (int(count),), generator=draw).tolist()
    rows = [{"tokens": torch.randint(0, 50, (width,), generator=draw)} for width in widths]
    with tempfile.TemporaryDirectory() as folder:
        trainer, arguments = _classes(package)
        made = trainer(Tagger(), arguments(folder, remove_unused_columns=False), collate)
        told = _timed(partial(made.predict, rows), int(count))
    _told(**told)


def evaluate(package: str, count: str, where: str) -> None:
    """Tell what ``evaluate`` takes for a row of ``count``, inside of training or outside."""
    from tests.benchmarks.update_steps import Tiny

    trainer, arguments = _classes(package)
    found: dict[str, float] = {}

    class Timed(trainer):  # type: ignore[misc, valid-type]
        def evaluate(self, *given: Any, **keywords: Any) -> Any:
            kept = []
            found.update(_timed(lambda: kept.append(super(Timed, self).evaluate(*given, **keywords)), int(count)))
            return kept[0]

    with tempfile.TemporaryDirectory() as folder:
        args = arguments(folder, max_steps=1, eval_strategy="steps", eval_steps=1, save_strategy="no")
        made = Timed(Tiny(), args, train_dataset=_vectors(8), eval_dataset=_vectors(int(count)))
        if where == "inside":
            made.train()
        else:
            made.evaluate()
    _told(**found)


def _classes(package: str) -> tuple[Any, Any]:
    """Return the Trainer, and a function of a folder and fields that returns its arguments."""
    module: Any = importlib.import_module(package)
    quiet = {"per_device_eval_batch_size": 8, "use_cpu": True, "report_to": "none", "disable_tqdm": True}
    return module.Trainer, partial(module.TrainingArguments, **quiet)


def _vectors(count: int) -> Any:
    import torch

    values = torch.randn(count, 8, generator=torch.Generator().manual_seed(0))

    class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(values)

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"features": values[index], "labels": index % 2}

    return Rows()


def _timed(run: Callable[[], object], rows: int) -> dict[str, float]:
    """Return the CPU and wall time of ``run`` in microseconds a row: the least of three, of fewer if they are slow.

    Other programs on the machine disturb a run of a third of a second by more than what is looked for.
    """
    times: list[tuple[float, float]] = []
    while len(times) < 3 and sum(wall for _, wall in times) < 15:
        begin = time.process_time(), time.perf_counter()
        run()
        times.append((time.process_time() - begin[0], time.perf_counter() - begin[1]))
    cpu, wall = (1e6 * min(kind) / rows for kind in zip(*times, strict=True))
    return {"cpu": cpu, "wall": wall}


def _most_memory() -> float:
    """Return the most memory that this process has had, in MB; ``getrusage`` would tell of the process before too."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def _start(package: str) -> Cost:
    os.environ["BEGUN"] = str(time.time())
    return Cost(**_in_a_process("start", package))


def _measured(package: str, what: str, *words: object) -> Cost:
    found = _in_a_process(what, package, *words)
    return Cost(found["cpu"], found["wall"])


def benchmarks() -> list[Benchmark]:
    """Return the benchmarks of this file."""

    def of_both(name: str, unit: str, measure: Any, *words: Any) -> Benchmark:
        return Benchmark(
            name,
            unit,
            {package: partial(measure, package, *words) for package in (HF_COMPAT, TRANSFORMERS)},
        )

    large = {name: partial(_in_a_process, "predict", name, 128_000) for name in (HF_COMPAT, TRANSFORMERS)}
    a_row, memory = in_the_same_run(
        large,
        lambda found: Cost(found["cpu"], found["wall"]),
        lambda found: Cost(found["memory"], found["memory"]),
    )
    return [
        of_both("start to the first update step", "s", _start),
        of_both("predict, a row of 8,000", "µs", _measured, "predict", 8_000),
        Benchmark("predict, a row of 128,000", "µs", a_row),
        Benchmark("predict, 128,000 rows, most memory", "MB", memory),
        of_both("predict, a row of 8,000, ragged", "µs", _measured, "predict_ragged", 8_000),
        of_both("predict, a row of 64,000, ragged", "µs", _measured, "predict_ragged", 64_000),
        Benchmark(
            "predict, a row of 128,000, ragged",
            "µs",
            {HF_COMPAT: partial(_measured, HF_COMPAT, "predict_ragged", 128_000)},
        ),
        of_both("evaluate, a row of 8,000", "µs", _measured, "evaluate", 8_000, "outside"),
        of_both("evaluate, a row of 32,000", "µs", _measured, "evaluate", 32_000, "outside"),
        of_both("evaluate, a row of 128,000", "µs", _measured, "evaluate", 128_000, "outside"),
        of_both("evaluate inside training, a row of 32,000", "µs", _measured, "evaluate", 32_000, "inside"),
    ]


if __name__ == "__main__":
    measured = {each.__name__: each for each in (start, predict, predict_ragged, evaluate)}
    measured[sys.argv[1]](*sys.argv[2:])
