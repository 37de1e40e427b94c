"""Whether our Trainer does on a GPU what transformers' does, and what only a GPU can show."""

from __future__ import annotations

import gc
import os
import shutil
import time
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

import hf_compat
from tests.gpu.acceptance.running import Case
from tests.gpu.comparing import ON_GPUS, OWN, differing
from tests.gpu.scenarios import GPU_SCENARIOS, compiled
from tests.support import parity
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.processes import free_port
from tests.support.scenarios.common import plain

__all__ = ["CORRECTNESS"]

FAKE_MEMORY = 1 << 28
"""Bytes of the fake GPU that runs out of memory."""
LEFT_OUT = "memory_runs_out"
"""A scenario for a GPU of one size; :func:`out_of_memory` is for any."""
CROSSWISE = "crosswise_"
ONE_RANK = "one_rank_"
OF_ONE_RANK = (
    *("ddp_fp32", "ddp_bf16", "ddp_fp16", "ddp_compiled"),
    *("resume_fsdp1_fp32", "resume_fsdp1_fp16", "fsdp1_bf16_sharded"),
    *("resume_fsdp2_fp32", "resume_fsdp2_bf16", "fsdp2_fp16_sharded", "fsdp2_compiled"),
)
"""Scenarios of several ranks that one rank runs, too."""


@contextmanager
def reproducible() -> Iterator[None]:
    """Let kernels add in the same order each time, of which many on a GPU have no other way to be equal to the bit."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read when the process first multiplies
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def scenario(name: str, folder: Path, *, small: bool) -> dict[str, Any]:
    """Compare a scenario under transformers with itself and with ours, all to the last bit.

    Raises:
        AssertionError: If ours differs where transformers does not differ from itself, or one of them cannot run it.
    """
    with reproducible():
        noise = differing([name], folder / "noise", subject="upstream")[name]
        found = differing([name], folder / "ours")[name]
    _check(found, noise)
    return {"transformers differs from itself": noise, "ours differs": found}


def crosswise(name: str, folder: Path, *, small: bool) -> dict[str, Any]:
    """Let each library resume what the other has begun, as if it were its own; :func:`scenario` says how it compares.

    Args:
        name: ``crosswise_`` and the name of a scenario that resumes.
        folder: An empty folder.
        small: Not used.
    """
    body = name.removeprefix(CROSSWISE)
    with reproducible():
        noise = differing([body], folder / "noise", subject="upstream")[body]
        ours = differing([body], folder / "ours", starter="upstream")[body]
        theirs = differing([body], folder / "theirs", subject="upstream", starter="ours")[body]
    for found in (ours, theirs):
        _check(found, noise)
    return {"transformers differs from itself": noise, "ours resuming theirs": ours, "theirs resuming ours": theirs}


def one_rank(name: str, folder: Path, *, small: bool) -> dict[str, Any]:
    """Run a scenario of several ranks in the only rank of a launch, over NCCL; :func:`scenario` says how it compares.

    Args:
        name: ``one_rank_`` and the name of a scenario.
        folder: An empty folder.
        small: Not used.
    """
    launch = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ.update(launch, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    found = scenario(name.removeprefix(ONE_RANK), folder, small=small)
    backend = torch.distributed.get_backend()
    torch.distributed.destroy_process_group()
    assert backend == "nccl", backend
    return {"backend": backend, **found}


def _check(found: str, noise: str) -> None:
    """Fail if what differs is more than noise, or one of the libraries cannot run the scenario."""
    for text in (noise, found):
        assert not text.startswith("Traceback"), text
    assert not found or _is_noise(found, noise), found


def _is_noise(found: str, noise: str) -> bool:
    """Return whether ``found``, what differs, is what differs from run to run too: the same values."""
    places = [{line.partition(":")[0] for line in text.splitlines()} for text in (found, noise)]
    return places[0] <= places[1]


def compiled_kernels(name: str, folder: Path, *, small: bool) -> dict[str, Any]:
    """Compare a model in bf16 whose kernels are compiled for the GPU, of which the fake one has none of its own."""
    OWN[name] = compiled("aot_eager" if small else "inductor", bf16=True)
    return scenario(name, folder, small=small)


# ---- a steady step ----


def steady_steps(name: str, folder: Path, *, small: bool) -> dict[str, Any]:
    """Train some steps in which nothing may wait for the GPU: torch raises where the host would."""

    class Steady(hf_compat.TrainerCallback):
        """Forbids waiting from the end of step 3 to that of step 8."""

        def __init__(self) -> None:
            self.watch: AbstractContextManager[Any] = nullcontext()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 3:
                self.watch = _without_waiting(small)
                self.watch.__enter__()
            elif state.global_step == 8:
                self.watch.__exit__(None, None, None)

    steps = {}
    for precision in ("fp32", "bf16"):
        args = hf_compat.TrainingArguments(
            str(folder / precision),
            bf16=precision == "bf16",
            max_steps=12,
            logging_steps=100,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            accelerator_config={"non_blocking": True},
        )
        data = ListDataset(vector_rows(200))
        trainer = hf_compat.Trainer(PlainModel(), args, train_dataset=data, callbacks=[Steady()])
        steps[precision] = trainer.train().global_step
    return {"steps": steps}


@contextmanager
def _without_waiting(small: bool) -> Iterator[None]:
    """Raise where the host waits for the GPU; the fake one records it."""
    if not small:
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return
    from tests.gpu.events import watching  # only where the fake device is

    with watching() as events:
        yield
    assert [event for event in events if event.kind != "race"] == [], events


# ---- saving ----


def background_saves(name: str, folder: Path, *, small: bool) -> dict[str, Any]:
    """Save every second step of a large model, synchronously and in the background.

    Raises:
        AssertionError: If a file does not hold what the model and optimizer were at its step, or the losses differ.
    """
    found: dict[str, Any] = {}
    losses = []
    with reproducible():
        for kind in ("synchronous", "background"):
            found[kind], logged = _saving(kind, folder, small=small)
            losses.append(logged)
    found["losses"] = losses
    assert losses[0] == losses[1], losses
    return found


def _saving(kind: str, folder: Path, *, small: bool) -> tuple[dict[str, Any], list[float]]:
    """Train with saves of a ``kind``, and check their files; return times and losses."""
    notes = Notes()
    args = hf_compat.TrainingArguments(
        str(folder / kind),
        max_steps=5,
        save_steps=2,
        save_async=kind == "background",
        per_device_train_batch_size=1,
        learning_rate=1e-3,  # every step changes weights in bfloat16
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
    )
    model, tokens = llama(small=small)
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 64, (8, tokens))]
    trainer = hf_compat.Trainer(model, args, train_dataset=rows, callbacks=[notes])
    begin = time.perf_counter()
    trainer.train()
    times = {"seconds": time.perf_counter() - begin, "seconds of steps": notes.seconds()}
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    for step, values in notes.values.items():
        _check_files(folder / kind / f"checkpoint-{step}", *values)
    del trainer, model
    gc.collect()
    torch.cuda.empty_cache()
    shutil.rmtree(folder / kind)
    return times, losses


class Notes(hf_compat.TrainerCallback):
    """What model and optimizer are when a save begins, and when each step ends."""

    def __init__(self) -> None:
        self.values: dict[int, tuple[dict[str, int], list[int]]] = {}
        self._times: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step % 2 == 0:
            weights = {key: checksum(value) for key, value in given["model"].state_dict().items()}
            states = [checksum(value) for state in given["optimizer"].state.values() for value in state.values()]
            self.values[state.global_step] = weights, sorted(states)
        self._times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Return the time from the end of each step to that of the next."""
        return [round(end - begin, 3) for begin, end in pairwise(self._times)]


def llama(*, small: bool) -> tuple[nn.Module, int]:
    """Return a Llama of 1.2B parameters in bfloat16, whose weights are made on the GPU, and the tokens of its rows."""
    size = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "vocab_size": 32_000}
    tiny = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 64}
    config = transformers.LlamaConfig(**(tiny if small else size), num_attention_heads=32, num_key_value_heads=8)
    torch.manual_seed(0)
    with torch.device("cuda"):
        model: nn.Module = transformers.LlamaForCausalLM(config)
    return model.to(torch.bfloat16), 16 if small else 512


def checksum(value: Tensor) -> int:
    """Return a number that another value of a tensor has not."""
    return zlib.crc32(value.detach().cpu().reshape(-1).view(torch.uint8).numpy())


def _check_files(folder: Path, weights: dict[str, int], states: list[int]) -> None:
    """Check that a checkpoint holds the weights and the optimizer's state of its step."""
    saved = load_file(folder / "model.safetensors")
    assert {key: weights[key] for key in saved} == {key: checksum(value) for key, value in saved.items()}, folder.name
    optimizer = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True, mmap=True)
    found = [checksum(value) for state in optimizer["state"].values() for value in state.values()]
    assert sorted(found) == states, f"{folder.name}: the optimizer's state"


# ---- memory ----


def out_of_memory(name: str, folder: Path, *, small: bool) -> dict[str, Any]:
    """Run out of the GPU's memory with 16 rows a batch under `auto_find_batch_size`, as transformers does.

    Raises:
        AssertionError: If ours does not go on with the same batch size and numbers.
    """
    parity.DEFAULTS.update(ON_GPUS)
    outcomes = []
    with reproducible():
        for which in ("upstream", "ours"):
            outcomes.append(parity.run(_exhausting, which, folder / which))
            gc.collect()
            torch.cuda.empty_cache()
    found = parity.differences(*outcomes)
    assert not found, found
    return {"batch size": outcomes[0].results[-1]["value"]}


class Wide(PlainModel):
    """Each of its rows takes a tenth of the GPU's memory."""

    def forward(self, features: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Return loss and logits."""
        each = torch.cuda.get_device_properties(features.device).total_memory // 10
        wide = features.new_empty(len(features), each, dtype=torch.uint8)
        outputs: dict[str, Tensor] = super().forward(features=features, labels=labels)
        del wide
        return outputs


def _exhausting(kit: parity.Kit) -> None:
    fields = {"auto_find_batch_size": True, "per_device_train_batch_size": 16}
    trainer = plain(kit, rows=32, fields=fields, model=kit.model(Wide))
    kit.train(trainer)
    kit.keep("batch size", trainer._train_batch_size)


CORRECTNESS: dict[str, Case] = {
    "steady_steps": Case(steady_steps, alone=True),
    "out_of_memory": Case(out_of_memory, alone=True, fake_memory=FAKE_MEMORY),
    "background_saves": Case(background_saves, alone=True, seconds=90),
    "compiled_kernels": Case(compiled_kernels, seconds=90),
    **{
        f"{CROSSWISE}resume_{precision}": Case(crosswise, seconds=45, fake_seconds=20)
        for precision in ("fp32", "bf16", "fp16")
    },
    **{f"{ONE_RANK}{name}": Case(one_rank, seconds=40, fake_seconds=20) for name in OF_ONE_RANK},
    **{name: Case(scenario) for name in GPU_SCENARIOS if name != LEFT_OUT},
}
"""Cases by name."""
