"""How long training stands still for a checkpoint of some 400 MB, optimizer's state included.

Run it under torchrun as ``-m tests.benchmarks.saving FOLDER DDP hf_compat async`` for several ranks.
"""

from __future__ import annotations

import importlib
import itertools
import json
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from safetensors.torch import save_model

from hf_compat.checkpoint import publish
from tests.benchmarks.measuring import BY_HAND, HF_COMPAT, TRANSFORMERS, Benchmark, Cost, in_the_same_run
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


class Stall(NamedTuple):
    """What one checkpoint costs training, in milliseconds."""

    cpu: float
    """CPU time of the process, to the end of the next update step."""
    wall: float
    """Time that passes to the end of the next update step."""
    still: float
    """Time in which training stands still: that between update steps, and that before the weights are updated."""


class _Marks:
    """The ends of update steps, and how long each update step let training wait."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, float]] = []
        self.still: list[float] = []
        self._waiting_since: float | None = None

    def end_step(self) -> None:
        self.ends.append((time.process_time(), time.perf_counter()))
        self.still.append(0.0)
        self.wait()

    def wait(self, *_: object) -> None:
        """From now on training waits, unless it computes until this is called again."""
        self._waiting_since = time.perf_counter()

    def compute(self, *_: object) -> None:
        """Training computes again."""
        if self._waiting_since is not None and self.still:
            self.still[-1] += time.perf_counter() - self._waiting_since
        self._waiting_since = None

    def stall(self) -> Stall:
        """Return what the cheapest of the checkpoints costs: memory and disk are slow when they are first used."""
        spans = [
            [after - before for before, after in itertools.pairwise(clock)] for clock in zip(*self.ends, strict=True)
        ]
        return Stall(*(_above_plain(steps) for steps in (*spans, self.still[:-1])))


def _above_plain(steps: list[float]) -> float:
    """Return what a step with a checkpoint takes more than those before it: the machine may be faster elsewhere."""
    last = range(SAVE_STEPS - 1, len(steps), SAVE_STEPS)
    return 1e3 * min(steps[end] - statistics.median(steps[end - SAVE_STEPS + 1 : end]) for end in last)


def _stall(package: Any, folder: str, model: Any, words: Collection[str], **settings: Any) -> Stall:
    """Return what a checkpoint costs, measured at the steps after which one is saved against the others.

    Args:
        package: Whose Trainer saves it.
        folder: The output folder.
        model: The model.
        words: ``async`` to save in the background, ``flush`` to flush for a Trainer that does not.
        **settings: Training arguments.
    """
    marks = _Marks()

    class Clock(package.TrainerCallback):
        def on_train_begin(self, args, state, control, optimizer=None, **kwargs):
            while getattr(optimizer, "optimizer", optimizer) is not optimizer:  # of accelerate, of DeepSpeed
                optimizer = optimizer.optimizer
            optimizer.register_step_pre_hook(marks.compute)

        def on_step_end(self, args, state, control, **kwargs):
            marks.end_step()

    class Timed(package.Trainer):
        def training_step(self, *given, **keywords):
            marks.compute()
            loss = super().training_step(*given, **keywords)
            marks.wait()
            return loss

    class Flushing(Timed):
        def _save_checkpoint(self, *given, **keywords):
            super()._save_checkpoint(*given, **keywords)
            if args.should_save:
                publish.flush(Path(folder, f"checkpoint-{self.state.global_step}"))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(marks.wait)  # the last one: DeepSpeed updates in training_step
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
        **({"save_async": True} if "async" in words else {}),
        **settings,
    )
    trainer = (Flushing if "flush" in words else Timed)(model, args, train_dataset=_rows(), callbacks=[Clock()])
    trainer.remove_callback(package.PrinterCallback)
    trainer.train()
    return marks.stall()


def _stall_of_one(package: str, *words: str) -> Stall:
    with tempfile.TemporaryDirectory() as folder:
        return _stall(importlib.import_module(package), folder, _model(), words)


def _stall_of_two(sharding: str, package: str, *words: str) -> Stall:
    with tempfile.TemporaryDirectory() as folder:
        command = [*TORCHRUN, "--nproc-per-node=2", "-m", __name__, folder, sharding, package, *words]
        (ended,) = finish([start(command, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")])
    assert ended.code == 0, ended.output
    return Stall(**json.loads(next(line for line in ended.output.splitlines() if line.startswith('{"cpu"'))))


def _by_hand() -> Stall:
    """Return what it takes to write the same two files by torch and safetensors, and to flush them."""
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    model(input_ids=torch.arange(16)[None], labels=torch.arange(16)[None]).loss.backward()
    optimizer.step()
    spans = []
    with tempfile.TemporaryDirectory() as folder:
        weights, state = Path(folder, "model.safetensors"), Path(folder, "optimizer.pt")
        for _ in range(STEPS // SAVE_STEPS):
            begin = time.process_time(), time.perf_counter()
            save_model(model, str(weights))
            torch.save(optimizer.state_dict(), state)
            publish.flush(Path(folder))
            spans.append((1e3 * (time.process_time() - begin[0]), 1e3 * (time.perf_counter() - begin[1])))
            weights.unlink()
            state.unlink()
    cpu, wall = map(min, zip(*spans, strict=True))
    return Stall(cpu, wall, wall)


def _disk_alone() -> Cost:
    """Return what it takes to have as many bytes on the disk, past the page cache: no flushed save can take less."""
    size, part = 415_000_000, 8 << 20
    spans = []
    with tempfile.TemporaryDirectory() as folder, mmap.mmap(-1, part) as memory:
        memory.write(os.urandom(part))
        for _ in range(STEPS // SAVE_STEPS):
            path = Path(folder, "bytes")
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
            begin = time.process_time(), time.perf_counter()
            for _ in range(size // part):
                os.write(file, memory)
            os.fsync(file)
            spans.append((1e3 * (time.process_time() - begin[0]), 1e3 * (time.perf_counter() - begin[1])))
            os.close(file)
            path.unlink()
    return Cost(*map(min, zip(*spans, strict=True)))


def main(folder: str, name: str, package: str, *words: str) -> None:
    """Print what a checkpoint costs rank 0, under torchrun."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    (sharding,) = (each for each in SHARDINGS if each.name == name)
    settings = {**sharding.fields}
    if "fsdp_config" in settings:
        settings["fsdp_config"] = {**settings["fsdp_config"], "state_dict_type": "SHARDED_STATE_DICT"}
    stall = _stall(importlib.import_module(package), folder, _model_of_layers(), words, **settings)
    if torch.distributed.get_rank() == 0:
        print(json.dumps(stall._asdict()), flush=True)
    os._exit(0)  # transformers' processes now and then abort in gloo's threads as they end


def _lines(name: str, subjects: dict[str, Callable[[], Stall]]) -> list[Benchmark]:
    """Return what the same runs tell of the time to the end of the next step, and of the time training stands still."""
    to_the_next_end, still = in_the_same_run(
        subjects, lambda stall: Cost(stall.cpu, stall.wall), lambda stall: Cost(cpu=0.0, wall=stall.still)
    )
    return [Benchmark(name, "ms", to_the_next_end), Benchmark(f"{name}: stands still", "ms", still, wall_only=True)]


def benchmarks() -> list[Benchmark]:
    """Return the benchmarks of this file; our Trainer and by hand flush to the disk, transformers' only where told.

    Its FSDP does not run on the CPU.
    """
    found = _benchmarks_of("save of 415 MB", _stall_of_one, by_hand=True)
    if hasattr(os, "O_DIRECT"):
        found.append(Benchmark("415 MB to the disk, nothing else", "ms", {BY_HAND: _disk_alone}))
    for sharding in SHARDED:
        measure = partial(_stall_of_two, sharding)
        found += _benchmarks_of(f"save of 420 MB, {sharding}, two ranks", measure, has_upstream=sharding != "FSDP")
    return found


def _benchmarks_of(
    name: str, measure: Callable[..., Stall], *, has_upstream: bool = True, by_hand: bool = False
) -> list[Benchmark]:
    plain, background = partial(measure, HF_COMPAT), partial(measure, HF_COMPAT, "async")
    if not has_upstream:
        return _lines(name, {HF_COMPAT: plain}) + _lines(f"{name}, `save_async=True`", {HF_COMPAT: background})
    theirs, flushed = partial(measure, TRANSFORMERS), partial(measure, TRANSFORMERS, "flush")
    all_flushed = {HF_COMPAT: plain, TRANSFORMERS: flushed, **({BY_HAND: _by_hand} if by_hand else {})}
    return [
        *_lines(name, {HF_COMPAT: plain, TRANSFORMERS: theirs}),
        *_lines(f"{name}, flushed by all", all_flushed),
        *_lines(f"{name}, `save_async=True`", {HF_COMPAT: background, TRANSFORMERS: theirs}),
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
