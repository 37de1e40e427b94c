"""What is measured in a process of its own: starting up, evaluating many rows, and the most memory that takes.

Run it as ``python -m tests.benchmarks.processes start hf_compat`` or ``... predict transformers 8000``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import HF_COMPAT, TRANSFORMERS, Benchmark, Cost, in_the_same_run

__all__ = ["benchmarks"]

BOTH = (HF_COMPAT, TRANSFORMERS)


def _in_a_process(*words: object) -> dict[str, Any]:
    command = [sys.executable, "-m", __name__, *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def _told(**found: object) -> None:
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


def predict(package: str, *counts: str) -> None:
    """Tell what ``predict`` takes for a row, of ``counts`` rows of logits, and the most memory of the process in MB."""
    from tests.benchmarks.update_steps import Tiny

    with tempfile.TemporaryDirectory() as folder:
        trainer, arguments = _classes(package)
        made = trainer(Tiny(), arguments(folder))
        told = _in_turn({count: (partial(made.predict, _vectors(int(count))), int(count)) for count in counts})
    _told(**told, memory=_most_memory())


def predict_ragged(package: str, *counts: str) -> None:
    """Tell what ``predict`` takes for a row, of ``counts`` rows of 5 to 40 logits, each batch as wide as its widest."""
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
    widths = torch.randint(5, 41, (max(map(int, counts)),), generator=draw).tolist()
    rows = [{"tokens": torch.randint(0, 50, (width,), generator=draw)} for width in widths]
    with tempfile.TemporaryDirectory() as folder:
        trainer, arguments = _classes(package)
        made = trainer(Tagger(), arguments(folder, remove_unused_columns=False), collate)
        _told(**_in_turn({count: (partial(made.predict, rows[: int(count)]), int(count)) for count in counts}))


def evaluate(package: str, *counts: str) -> None:
    """Tell what ``evaluate`` takes for a row, of ``counts`` rows."""
    from tests.benchmarks.update_steps import Tiny

    with tempfile.TemporaryDirectory() as folder:
        trainer, arguments = _classes(package)
        made = trainer(Tiny(), arguments(folder))
        _told(**_in_turn({count: (partial(made.evaluate, _vectors(int(count))), int(count)) for count in counts}))


def evaluate_inside(package: str, count: str) -> None:
    """Tell what ``evaluate`` takes for a row of ``count``, outside of training and inside."""
    from tests.benchmarks.update_steps import Tiny

    trainer, arguments = _classes(package)

    class Timed(trainer):  # type: ignore[misc, valid-type]
        def evaluate(self, *given: Any, **keywords: Any) -> Any:
            with stopwatch:
                return super().evaluate(*given, **keywords)

    stopwatch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        args = arguments(folder, max_steps=1, eval_strategy="steps", eval_steps=1, save_strategy="no")
        made = Timed(Tiny(), args, train_dataset=_vectors(8), eval_dataset=_vectors(int(count)))
        _told(**_in_turn({"outside": (made.evaluate, int(count)), "inside": (made.train, int(count))}, stopwatch))


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


class Stopwatch:
    """A context that adds up the CPU and wall time spent in it, in seconds."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    def __enter__(self) -> None:
        self.cpu -= time.process_time()
        self.wall -= time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.cpu += time.process_time()
        self.wall += time.perf_counter()

    def reset(self) -> tuple[float, float]:
        """Return the times, and begin anew."""
        found = self.cpu, self.wall
        self.cpu = self.wall = 0.0
        return found


def _in_turn(
    works: Mapping[str, tuple[Callable[[], object], int]], stopwatch: Stopwatch | None = None
) -> dict[str, tuple[float, float]]:
    """Return the CPU and wall time of each of ``works`` in microseconds a row: the least of three, of fewer if slow.

    They take turns, each with as many rows as the largest: what disturbs a long one has as long to disturb a short one.

    Args:
        works: Each with its number of rows.
        stopwatch: Runs in what is to be timed. Default: all of it is.
    """
    most = max(rows for _, rows in works.values())
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    begun = time.perf_counter()
    watch = stopwatch or Stopwatch()
    for _ in range(3):
        for name, (run, rows) in works.items():
            for _ in range(most // rows):
                with contextlib.nullcontext() if stopwatch else watch:
                    run()
            times[name].append(watch.reset())
        if time.perf_counter() - begun > 30:
            break
    return {
        name: tuple(1e6 * min(kind) / most for kind in zip(*found, strict=True))  # type: ignore[misc]
        for name, found in times.items()
    }


def _most_memory() -> float:
    """Return the most memory that this process has had, in MB; ``getrusage`` would tell of the process before too."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def _start(package: str) -> Cost:
    os.environ["BEGUN"] = str(time.time())
    return Cost(**_in_a_process("start", package))


def _taken(name: str, found: Mapping[str, Any]) -> Cost:
    return Cost(*found[name])


def _memory(found: Mapping[str, Any]) -> Cost:
    return Cost(found["memory"], found["memory"])


def _predict() -> list[Benchmark]:
    work = {package: partial(_in_a_process, "predict", package, 8_000, 128_000) for package in BOTH}
    costs = (partial(_taken, "8000"), partial(_taken, "128000"), _memory)
    small, large, memory = in_the_same_run(work, *costs)
    return [
        Benchmark("predict, a row of 8,000", "µs", small),
        Benchmark("predict, a row of 128,000", "µs", large),
        Benchmark("predict, 128,000 rows, most memory", "MB", memory),
    ]


def _predict_ragged() -> list[Benchmark]:
    """Return the benchmarks of ragged rows; 128,000 would take transformers, which pads all at each batch, minutes."""
    sizes = {HF_COMPAT: (8_000, 32_000, 128_000), TRANSFORMERS: (8_000, 32_000)}
    work = {package: partial(_in_a_process, "predict_ragged", package, *counts) for package, counts in sizes.items()}
    small, medium, large = in_the_same_run(work, *(partial(_taken, str(count)) for count in sizes[HF_COMPAT]))
    return [
        Benchmark("predict, a row of 8,000, ragged", "µs", small),
        Benchmark("predict, a row of 32,000, ragged", "µs", medium),
        Benchmark("predict, a row of 128,000, ragged", "µs", {HF_COMPAT: large[HF_COMPAT]}),
    ]


def _evaluate() -> list[Benchmark]:
    work = {package: partial(_in_a_process, "evaluate", package, 8_000, 128_000) for package in BOTH}
    small, large = in_the_same_run(work, partial(_taken, "8000"), partial(_taken, "128000"))
    work = {package: partial(_in_a_process, "evaluate_inside", package, 32_000) for package in BOTH}
    outside, inside = in_the_same_run(work, partial(_taken, "outside"), partial(_taken, "inside"))
    return [
        Benchmark("evaluate, a row of 8,000", "µs", small),
        Benchmark("evaluate, a row of 128,000", "µs", large),
        Benchmark("evaluate, a row of 32,000", "µs", outside),
        Benchmark("evaluate inside training, a row of 32,000", "µs", inside),
    ]


def benchmarks() -> list[Benchmark]:
    """Return the benchmarks of this file."""
    first_step = {package: partial(_start, package) for package in BOTH}
    return [
        # The first start finds none of the files in the page cache.
        Benchmark("start to the first update step", "s", first_step, turns=3),
        *_predict(),
        *_predict_ragged(),
        *_evaluate(),
    ]


if __name__ == "__main__":
    measured = {each.__name__: each for each in (start, predict, predict_ragged, evaluate, evaluate_inside)}
    measured[sys.argv[1]](*sys.argv[2:])
