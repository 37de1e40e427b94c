"""A training that resumes from its last checkpoint by itself, and that may lose a rank once: see ``Request``.

Each process appends the numbers of the samples it trains on to ``samples-<rank>``; at the end rank 0 writes losses,
gradient norms and learning rates to ``log.json``, and the whole weights to ``weights.pt``.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hf_compat import TrainerCallback
from hf_compat.checkpoint.finding import get_last_checkpoint
from tests.support import helpers

SETTINGS: dict[str, Any] = {
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
    "per_device_train_batch_size": 2,
    "num_train_epochs": 2,
    "learning_rate": 1e-2,
    "weight_decay": 0.1,
    "warmup_steps": 2,
    "logging_steps": 1,
    "save_strategy": "steps",
    "save_steps": 2,
    "remove_unused_columns": False,
    "dataloader_pin_memory": False,
}


def deepspeed(stage: int, **sections: Any) -> dict[str, Any]:
    """Return the fields of a run under ZeRO, with more ``sections`` of its config; on GPUs its buckets are small."""
    sizes = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")
    buckets = dict.fromkeys(("allgather_bucket_size", "reduce_bucket_size", "sub_group_size"), 100_000)
    zero = {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True, **buckets}
    half = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    return {"deepspeed": {**sizes, **half, "gradient_clipping": "auto", "zero_optimization": zero, **sections}}


ROWS = 36
"""Samples of an epoch."""
FSDP2: dict[str, Any] = {"fsdp": True, "fsdp_config": {"version": 2, "state_dict_type": "SHARDED_STATE_DICT"}}
OF_ANY_SIZE: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp1": {"fsdp": "full_shard auto_wrap", "fsdp_config": {"version": 1}},
    "fsdp2": FSDP2,
    "zero_1": deepspeed(1),
    "zero_2": deepspeed(2),
    "zero_3": deepspeed(3),
}
"""Strategies for any number of processes → their fields of ``TrainingArguments``."""
STRATEGIES: dict[str, dict[str, Any]] = {
    **OF_ANY_SIZE,
    "hsdp": {**FSDP2, "parallelism_config": {"dp_replicate_size": 2, "dp_shard_size": 2}},
    "tensor": {"parallelism_config": {"tp_size": 2}},
    "loaded": {},
    "sequences": {**deepspeed(2), "parallelism_config": {"sp_size": 2}},
    "split": deepspeed(1, tensor_parallel={"autotp_size": 2}),
}
ON_GPUS: dict[str, dict[str, Any]] = {"context": {**FSDP2, "parallelism_config": {"cp_size": 2}}}
"""Strategies that need GPUs."""
WHOLE_ROWS = ("sequences", "context")
"""Strategies whose ranks have parts of each row, all of which have one length."""
PROCESSES = {**dict.fromkeys(STRATEGIES, 2), "hsdp": 4}
"""Strategy → the processes on which tests run it."""


@dataclass
class Request:
    """What to train."""

    folder: str
    library: str = "hf_compat"
    """Whose Trainer it is."""
    strategy: str = "ddp"
    samples: int = 0
    """Samples of an update step over all processes; 0 for two of each process."""
    dropout: float = 0.1
    until: int | None = None
    """The update step after which the process ends, as if its time were up; it is saved."""
    lost: int | str | None = None
    """The rank that gets ``signal`` once; ``"node"`` for any, together with the process that has started it."""
    signal: str = "SIGKILL"
    moment: str = "begin"
    """Where: at the ``begin`` of an update step, in its ``backward`` pass, ``saving`` a checkpoint, or once it is
    ``saved``."""
    step: int = 5
    """The update step that ends, or would have ended, next."""
    fields: dict[str, Any] = field(default_factory=dict)
    """More fields of ``TrainingArguments``."""


class Ending(TrainerCallback):
    """Ends the process after ``request.until``, and loses a rank at the moments that are events."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        lose(self.request, args.process_index, "begin", state.global_step + 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.request.until:
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        lose(self.request, args.process_index, "saved", state.global_step + 1)


def lose(request: Request, rank: int, moment: str, step: int) -> None:
    """Signal this process if it is the one that is to be lost at this moment, unless that has been."""
    done = Path(request.folder, "lost")
    is_lost = request.lost in ("node", rank)
    if is_lost and (request.moment, request.step) == (moment, step) and not done.exists():
        done.touch()
        number = signal.Signals[request.signal]
        if request.lost == "node":
            os.kill(os.getppid(), number)
        os.kill(os.getpid(), number)


def elastic_trainer(request: Request) -> Any:
    """Return the class of a Trainer that notes the samples it trains on."""

    class ElasticTrainer(importlib.import_module(request.library).Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: dict[str, Any], **given: Any) -> Any:
            numbers = inputs.pop("number", torch.empty(0)).tolist()
            with Path(request.folder, f"samples-{self.args.process_index}").open("a") as file:
                file.writelines(f"{number}\n" for number in numbers)
            return super().compute_loss(model, inputs, **given)

        def training_step(self, *given: Any, **named: Any) -> Any:
            loss = super().training_step(*given, **named)
            lose(request, self.args.process_index, "backward", self.state.global_step + 1)
            return loss

        def _save_rng_state(self, output_dir: str) -> None:
            super()._save_rng_state(output_dir)
            lose(request, self.args.process_index, "saving", self.state.global_step + 1)

    return ElasticTrainer


def rows(count: int) -> list[dict[str, Any]]:
    """Return rows for a language model with their numbers."""
    return [{**row, "number": number} for number, row in enumerate(helpers.token_rows(count))]


def model_and_rows(request: Request) -> tuple[Any, list[dict[str, Any]]]:
    """Return a GPT-2, or a Llama where ranks share its heads, its sequences or what each has loaded; and its rows."""
    if request.strategy not in ("tensor", "loaded", "split", *WHOLE_ROWS):
        return helpers.gpt2(dropout=request.dropout), rows(ROWS)
    from tests.support.presharded import heads, loaded

    if request.strategy == "loaded":
        return loaded(Path(request.folder), fsdp_size=2), rows(ROWS)
    length = 12
    tokens = torch.randint(1, helpers.VOCABULARY, (ROWS, length), generator=torch.Generator().manual_seed(0))
    whole = [{"input_ids": row, "labels": row, "position_ids": torch.arange(length)} for row in tokens]
    return heads(), whole if request.strategy in WHOLE_ROWS else rows(ROWS)


def kernels_of(strategy: str) -> AbstractContextManager[None]:
    """Return a context in which fake GPUs have the kernel that ring attention is made of."""
    if strategy not in ON_GPUS:
        return nullcontext()
    from tests.gpu.fused_attention import fused_attention

    return fused_attention()


def train(request: Request) -> None:
    """Train, from the last checkpoint on if there is one."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    windows = {"gradient_accumulation_steps": request.samples // (2 * processes)} if request.samples else {}
    fields = {**SETTINGS, **windows, **(STRATEGIES | ON_GPUS)[request.strategy], **request.fields}
    output = str(Path(request.folder, "output"))
    Path(output).mkdir(exist_ok=True)
    args = importlib.import_module(request.library).TrainingArguments(output, **fields)
    if "deepspeed" in fields:
        from tests.support.deepspeed_tools import without_extension

        without_extension()
    torch.manual_seed(0)
    assert args.device is not None  # joins the ranks, before transformers would as it loads a model in shards
    model, data = model_and_rows(request)
    trainer = elastic_trainer(request)(
        model=model,
        args=args,
        callbacks=[Ending(request)],
        train_dataset=helpers.ListDataset(data),
        data_collator=None if request.strategy in WHOLE_ROWS else helpers.PadCollator(),
    )
    last = "auto" if request.library == "hf_compat" else get_last_checkpoint(output)
    with kernels_of(request.strategy):
        trainer.train(resume_from_checkpoint=last)
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if args.process_index == 0:
        names = ("loss", "grad_norm", "learning_rate")
        logs = [[entry[name] for name in names] for entry in trainer.state.log_history if "loss" in entry]
        Path(request.folder, "log.json").write_text(json.dumps(logs))
        torch.save(weights, Path(request.folder, "weights.pt"))


def main(requests: list[Request]) -> None:
    """Train as requested, one after the other; after a kill go on with the request in which it was."""
    for request in requests:
        if all(Path(request.folder, name).exists() for name in ("lost", "weights.pt")):
            continue
        if request.library == "hf_compat":
            train(request)
        else:
            from tests.support.parity import clean_process

            with clean_process():
                train(request)


if __name__ == "__main__":
    main([Request(**json.loads(words)) for words in sys.argv[1:]])
