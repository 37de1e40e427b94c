"""What the scripts of FSDP 1 and 2 and of tensor parallelism share: a small Llama, settings, running a scenario."""

from __future__ import annotations

import os
import threading
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hf_compat import Trainer, TrainerCallback
from hf_compat.checkpoint.background import CheckpointFile
from hf_compat.checkpoint.writer import CheckpointWriter
from hf_compat.errors import NotSupportedError
from tests.support import helpers
from tests.support.processes import PATIENCE

GLOBAL_BATCH = 4
SETTINGS: dict[str, Any] = {
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
    "dataloader_pin_memory": False,
    "num_train_epochs": 2,
    "logging_steps": 1,
    "learning_rate": 1e-2,
    "weight_decay": 0.1,
    "max_grad_norm": 0.5,
    "eval_strategy": "epoch",
    "save_strategy": "no",
    "average_tokens_across_devices": True,
}
"""Fields of ``TrainingArguments`` in every scenario; each script adds its batch sizes."""
Seen = dict[str, Any]


def world() -> int:
    """Return the world size."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def llama(seed: int = 0, **fields: Any) -> Any:
    """Return a Llama of two layers with the weights of ``seed``."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    settings = {
        "vocab_size": helpers.VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
        "pad_token_id": 0,
    }
    return LlamaForCausalLM(LlamaConfig(**(settings | fields)))


def adapted(seed: int = 0, **fields: Any) -> Any:
    """Return such a Llama with an adapter, in one of whose matrices all is drawn from ``seed``."""
    from peft import LoraConfig, get_peft_model

    model = llama(**fields)
    torch.manual_seed(seed)
    return get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))


def second_model(accelerator: Any) -> list[str]:
    """Return the errors of preparing a second model that is trained; one that is not is returned as it is."""
    second, told = nn.Linear(2, 2), []
    assert accelerator.prepare_model(second, evaluation_mode=True) is second
    for prepare in (accelerator.prepare, accelerator.prepare_model):
        try:
            prepare(nn.Linear(2, 2))
        except NotSupportedError as error:
            told.append(str(error))
    return told


class Reductions(TorchDispatchMode):
    """Counts the reductions of gradients; a backward pass on the CPU runs in this thread."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "reduce_scatter" in str(function)
        return function(*args, **(kwargs or {}))


class CountsReductions(TrainerCallback):
    """Has the number of reductions of each update step in ``counted``."""

    def __init__(self) -> None:
        self.counted: list[int] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.mode = Reductions()
        self.mode.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.mode.__exit__(None, None, None)
        self.counted.append(self.mode.count)


class UnwatchedWriter(CheckpointWriter):
    """Takes nobody to be looking at its folders, so that callbacks may be told of a save."""

    def write_in_background(self, *args: Any, **kwargs: Any) -> None:
        super().write_in_background(*args, **{**kwargs, "must_finish": lambda: False})


class HeldWriter(UnwatchedWriter):
    """Writes nothing in the background before the next update has changed the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.is_trained: defaultdict[int, threading.Event] = defaultdict(threading.Event)

    def _publish(self, publication: Any, snapshot: Any, folder: Path, then: Any) -> None:
        step = int(folder.name.split("-")[1])
        held = CheckpointFile(lambda *_, group: self._wait_for(step), None, folder, by_all_ranks=True)
        snapshot.files.insert(0, held)
        super()._publish(publication, snapshot, folder, then)

    def _wait_for(self, step: int) -> None:
        assert self.is_trained[step].wait(PATIENCE)


class Releases(TrainerCallback):
    """Tells the writer of every update step."""

    def __init__(self, writer: HeldWriter) -> None:
        self.writer = writer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.writer.is_trained[state.global_step - 1].set()


def held(trainer: Trainer) -> Trainer:
    """Return ``trainer``, whose saves in the background are written when it has trained on, or has come to its end."""
    writer = trainer.checkpoint_writer = HeldWriter()
    trainer.add_callback(Releases(writer))
    finalize = trainer._finalize_training

    def release_and_finalize(*given: Any) -> Any:
        writer.is_trained[trainer.state.global_step].set()
        return finalize(*given)

    trainer._finalize_training = release_and_finalize  # type: ignore[method-assign]
    return trainer


def run_scenario(name: str, folder: Path, body: Callable[[Path], Seen]) -> None:
    """Run ``body`` in ``folder/<name>``; write what it returns, or its traceback, into a file of this rank."""
    rank = os.environ.get("RANK", "0")
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    try:
        torch.save(body(place), folder / f"{name}.{rank}")
    except Exception:
        (folder / f"{name}.{rank}.error").write_text(traceback.format_exc())
        raise


def set_up_process() -> None:
    """Give a process of a script one thread and no warnings."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
