"""What processes that share each sequence (DeepSpeed's Ulysses) do under either library."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from tests.scripts.deepspeed_scenarios import TORCH_ADAM, config
from tests.scripts.distributed_scenarios import shared
from tests.scripts.sharded_common import llama
from tests.support import helpers
from tests.support.deepspeed_tools import without_extension
from tests.support.parity import Kit
from tests.support.scenarios.resuming import resume

LENGTH = 12
"""Tokens of a row, which the ranks share."""
STATE = "deepspeed.runtime.sequence_parallel.parallel_state_sp"
Row = dict[str, Tensor]


class Rows(Dataset[Row]):
    """Rows whose first labels are not scored, so that the ranks score different numbers of tokens.

    Of every fifth row the first of two ranks scores none.

    Args:
        count: The number of rows.
        seed: Of their tokens.
        change: Changes a row, whose index it gets too.
    """

    def __init__(self, count: int, seed: int = 0, change: Callable[[Row, int], Row] | None = None) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(1, helpers.VOCABULARY, (count, LENGTH), generator=generator)
        self.change = change

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Row:
        labels = self.tokens[index].clone()
        labels[: 2 * (index % 5)] = helpers.IGNORED
        row = {"input_ids": self.tokens[index].clone(), "labels": labels, "position_ids": torch.arange(LENGTH)}
        return row if self.change is None else self.change(row, index)


class Stream(IterableDataset[Row]):
    """The same rows one after the other."""

    def __init__(self, count: int) -> None:
        self.rows = Rows(count)

    def __iter__(self) -> Any:
        return (self.rows[index] for index in range(len(self.rows)))


def padded(row: Row, index: int) -> Row:
    """Return ``row`` with padding at its end, under a mask."""
    mask = torch.ones(LENGTH, dtype=torch.int64)
    mask[LENGTH - index % 4 :] = 0
    tokens, labels = row["input_ids"] * mask, torch.where(mask == 1, row["labels"], helpers.IGNORED)
    return {**row, "input_ids": tokens, "labels": labels, "attention_mask": mask}


def packed(row: Row, index: int) -> Row:
    """Return ``row`` as two documents in one sequence."""
    return {**row, "position_ids": torch.cat([torch.arange(5), torch.arange(LENGTH - 5)])}


def prepare(kit: Kit) -> None:
    """Undo what upstream leaves in the process, and start DeepSpeed, which transformers on a CPU leaves to a script."""
    without_extension()
    if kit.which == "upstream" and not torch.cuda.is_available():
        importlib.import_module("deepspeed").init_distributed("gloo")
    state, groups = importlib.import_module(STATE), importlib.import_module("deepspeed.utils.groups")
    state._release_sequence_parallel_groups()
    groups.mpu = None
    functions = importlib.import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    functions["sdpa"] = importlib.import_module("transformers.integrations.sdpa_attention").sdpa_attention_forward


def sharing(**sizes: Any) -> Any:
    """Return accelerate's configuration for two ranks a sequence, or other ``sizes``."""
    handler = importlib.import_module("accelerate.utils").DeepSpeedSequenceParallelConfig
    given = handler(sp_seq_length_is_variable=True, sp_attn_implementation="sdpa")
    sizes = {"sp_size": 2, "sp_backend": "deepspeed", "sp_handler": given, **sizes}
    return importlib.import_module("accelerate").ParallelismConfig(**sizes)


def language_model(
    kit: Kit,
    stage: int,
    *,
    rows: int = 20,
    subclass: Any = None,
    sizes: Any = None,
    change: Any = None,
    model: Any = None,
    buckets: Any = None,
    **fields: Any,
) -> Any:
    """Return a Trainer of a Llama of two layers under ZeRO ``stage``, perhaps with ``buckets`` of other sizes."""
    prepare(kit)
    fields = {
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "parallelism_config": sharing(**(sizes or {})),
        "deepspeed": config(stage, optimizer=TORCH_ADAM, zero_optimization=buckets or {}),
        "weight_decay": 0.1,
        **fields,
    }
    data = {"train_dataset": Rows(rows, change=change), "eval_dataset": Rows(5, seed=1, change=change)}
    if fields.pop("streams", False):
        data["train_dataset"] = Stream(rows)
    return kit.trainer(subclass, model=kit.model(llama, **(model or {})), args=kit.args(**fields), **data)


def train_sequences(kit: Kit, stage: int, **given: Any) -> Any:
    """Train and evaluate; keep weights and sizes."""
    trainer = language_model(kit, stage, **given)
    kit.train(trainer)
    kit.keep("weights", trainer.accelerator.get_state_dict(trainer.deepspeed) or {})
    kit.keep("samples per update step", trainer.get_total_train_batch_size(trainer.args))
    kit.keep("sizes", [trainer.get_sp_size(), trainer.get_tp_size(), trainer.get_cp_size()])
    kit.evaluate(trainer)
    return trainer


ACCUMULATING = {"gradient_accumulation_steps": 3, "num_train_epochs": 2}
"""Ten batches an epoch, the last window short."""
CADENCE = {"eval_strategy": "steps", "eval_steps": 2, "include_num_input_tokens_seen": "all"}


@shared
def sequences_under_zero_1(kit: Kit) -> None:
    """The ranks' chunks have whole rows without a scored label, as each batch is one row."""
    train_sequences(kit, 1, per_device_train_batch_size=1, max_steps=6, **CADENCE)


@shared
def sequences_under_zero_2(kit: Kit) -> None:
    train_sequences(kit, 2, **ACCUMULATING, save_strategy="steps", save_steps=2)


@shared
def sequences_under_zero_3(kit: Kit) -> None:
    train_sequences(kit, 3, **ACCUMULATING, **CADENCE, save_strategy="steps", save_steps=2)


@shared
def sequences_under_zero_1_accumulated(kit: Kit) -> None:
    train_sequences(kit, 1, **ACCUMULATING, **CADENCE)


@shared
def sequences_in_bf16(kit: Kit) -> None:
    train_sequences(kit, 2, max_steps=3, bf16=True)


@shared
def padded_sequences(kit: Kit) -> None:
    """Their masks are not used."""
    train_sequences(kit, 2, change=padded, max_steps=4, include_num_input_tokens_seen="non_padding")


@shared
def packed_sequences(kit: Kit) -> None:
    train_sequences(kit, 1, change=packed, max_steps=4)


@shared
def sequences_with_one_key_head(kit: Kit) -> None:
    """Each rank has a copy of it."""
    train_sequences(kit, 1, model={"num_attention_heads": 4, "num_key_value_heads": 1}, max_steps=3)


@shared
def sequences_of_a_stream(kit: Kit) -> None:
    """The main process reads for all."""
    train_sequences(kit, 1, streams=True, max_steps=7)


@shared
def sequences_with_workers(kit: Kit) -> None:
    train_sequences(kit, 2, dataloader_num_workers=1, max_steps=4, dataloader_drop_last=True, rows=19)


@shared
def sequences_and_another_loss(kit: Kit) -> None:
    """An override gets the chunks, and what the Trainer makes of them."""

    class Doubles(kit.Trainer):  # type: ignore[misc, name-defined]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **given: Any) -> Any:
            kit.keep("inputs", [sorted(inputs), tuple(inputs["input_ids"].shape), given.get("num_items_in_batch")])
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **given)
            kit.keep("loss of the chunk", [outputs.loss, outputs.logits])
            return (2 * loss, outputs) if return_outputs else 2 * loss

    train_sequences(kit, 2, subclass=Doubles, gradient_accumulation_steps=2, max_steps=3)


@contextlib.contextmanager
def scattering_in_groups() -> Iterator[None]:
    """Have ``torch.distributed.nn`` scatter in any group: with gloo it takes the ranks of a group for global ones."""
    scatter = torch.distributed.scatter

    def scatter_in_group(received: Tensor, sent: list[Tensor], source: int, group: Any) -> Any:
        return scatter(received, sent, group=group, group_src=source)

    torch.distributed.scatter = scatter_in_group
    try:
        yield
    finally:
        torch.distributed.scatter = scatter


@shared
def sequences_of_four_processes(kit: Kit) -> None:
    """Two groups of two ranks, which train on different batches."""
    with scattering_in_groups() if kit.which == "upstream" else contextlib.nullcontext():
        train_sequences(kit, 2, **ACCUMULATING, sizes={"dp_replicate_size": 2}, rows=40, save_strategy="epoch")


def _resumed(kit: Kit, stage: int, step: int, **fields: Any) -> None:
    fields = {"save_strategy": "steps", "save_steps": 1, **fields}
    resume(kit, lambda each: language_model(each, stage, **fields), step)


@shared
def resume_sequences_under_zero_2(kit: Kit) -> None:
    """The rest of a round: of its two batches one has been trained on."""
    _resumed(kit, 2, 3, max_steps=6)


@shared
def resume_sequences_under_zero_3(kit: Kit) -> None:
    """A run that goes on into the second epoch, and loses an update step there."""
    _resumed(kit, 3, 1, gradient_accumulation_steps=3, num_train_epochs=2)


CORRECTED = {"semantics": "corrected", "gradient_accumulation_steps": 3, "num_train_epochs": 2}


@shared
def resume_corrected_sequences(kit: Kit) -> None:
    """Within the second epoch."""
    _resumed(kit, 1, 6, **CORRECTED)


@shared
def resume_corrected_sequences_of_an_epoch(kit: Kit) -> None:
    _resumed(kit, 1, 4, **CORRECTED)


@shared
def sequences_twice(kit: Kit) -> None:
    """A Trainer trains twice, then another one without sequence parallelism; keep what is in the process between."""
    functions = importlib.import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    state, groups = importlib.import_module(STATE), importlib.import_module("deepspeed.utils.groups")
    before = functions["sdpa"]
    trainer = language_model(kit, 2, max_steps=2)
    for _ in range(2):
        torch.manual_seed(0)
        trainer.model.load_state_dict(llama().state_dict())
        trainer.optimizer = None
        trainer.train()
        kit.keep("losses", [entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
        kit.keep("attention is transformers' own", functions["sdpa"] is before)
    trainer.lightning_backend.release()
    kit.keep("left", [groups.mpu, state._SEQUENCE_PARALLEL_GROUP, state._SEQUENCE_DATA_PARALLEL_GROUP])
    other = language_model(kit, 2, max_steps=2, parallelism_config=None)
    other.train()
    kit.keep("size without it", other.get_total_train_batch_size(other.args))


def same_batches(kit: Kit, **fields: Any) -> None:
    """Train on four rows an update step, in any number of processes."""
    fields = {"num_train_epochs": 1, "max_grad_norm": 0.0, "weight_decay": 0.0, **fields}
    # transformers 4.57 counts the first label too, which no token predicts: it is not scored.
    rows = Rows(24, change=lambda row, _: {**row, "labels": row["labels"].index_fill(0, torch.tensor(0), -100)})
    kit.train(kit.trainer(model=kit.model(llama), args=kit.args(**fields), train_dataset=rows))


@shared
def same_batches_of_shared_sequences(kit: Kit) -> None:
    prepare(kit)
    sharded = {"parallelism_config": sharing(), "deepspeed": config(2, optimizer=TORCH_ADAM)}
    same_batches(kit, per_device_train_batch_size=4, **sharded)


def refused_batches(kit: Kit) -> dict[str, Any]:
    """Return changes of rows after which batches cannot be shared."""
    return {
        "positions": lambda row, _: {name: row[name] for name in ("input_ids", "labels")},
        "odd": lambda row, _: {name: value[:-1] for name, value in row.items()},
        "shape": lambda row, _: {**row, "attention_mask": torch.ones(3)},
    }


@shared
def batches_that_cannot_be_shared(kit: Kit) -> None:
    for name, change in refused_batches(kit).items():
        trainer = language_model(kit, 1, change=change, max_steps=1)
        try:
            trainer.train()
        except ValueError as error:
            kit.keep(name, str(error))
