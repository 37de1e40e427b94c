"""Two processes whose memory does not suffice: on one of them, the other or both, in many places."""

from __future__ import annotations

import itertools
import os
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from hf_compat.errors import BatchSizeError, TrainerSetupError
from tests.scripts.deepspeed_scenarios import config as deepspeed_config
from tests.scripts.distributed_scenarios import shared
from tests.support import helpers
from tests.support.deepspeed_tools import without_extension
from tests.support.parity import Kit
from tests.support.presharded import loaded, mixtral
from tests.support.scenarios.common import language_model, plain

__all__ = ["FURTHER_PLACES", "PLACES"]


class _FailsBetween(torch.autograd.Function):
    """Runs out of memory in the backward pass, when later layers have their gradients."""

    @staticmethod
    def forward(ctx: Any, value: Any) -> Any:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(OUT_OF_MEMORY)


class Deep(nn.Module):
    """Layers with a buffer among them; in several buckets if these are small."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(helpers.WIDTH, 600)
        self.norm = nn.BatchNorm1d(600)
        self.rest = nn.ModuleDict({"second": nn.Linear(600, 600), "third": nn.Linear(600, 3)})
        self.tp_plan = {"rest.second": "colwise", "rest.third": "rowwise"}
        self.fails = False

    def forward(self, features: Any, labels: Any = None, num_items_in_batch: Any = None) -> Any:
        hidden = self.norm(self.first(features)).relu()
        if self.fails and self.training:
            hidden = _FailsBetween.apply(hidden)
        logits = self.rest["third"](self.rest["second"](hidden).relu())
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


OUT_OF_MEMORY = "CUDA out of memory."
PLACES = ("backward", "optimizer", "save", "on_train_end")
"""Where memory runs out: in the middle of a backward pass, in an optimizer's step, a method, an event."""
FURTHER_PLACES = ("loader", "training_step", "on_optimizer_step", "on_step_end", "on_log", "on_epoch_end")
"""More of them, for the thorough test."""


class _Memory:
    """Runs out in the second update step, or at an end, if a batch has more than ``most`` samples; 0: in the first."""

    def __init__(self, place: str, *, fails: bool, most: int) -> None:
        self.place = place
        self.tried: list[int] = []
        self._fails = fails
        self._most = most

    def runs_out(self, state: Any, *, begun: int = 2) -> bool:
        """Return whether it has; ``begun`` is the last update step that has been begun."""
        is_time = begun == 2 or self._most == 0 or self.place in ("on_epoch_end", "on_train_end")
        return self._fails and is_time and state.train_batch_size > self._most

    def use(self, here: str, state: Any, *, begun: int = 2) -> None:
        if here == self.place and self.runs_out(state, begun=begun):
            raise RuntimeError(OUT_OF_MEMORY)


def _searching() -> dict[str, Any]:
    """Return the fields of a run that looks for its batch size, from 5 down."""
    return {
        "auto_find_batch_size": True,
        "per_device_train_batch_size": 5,
        "ddp_timeout": 1200,
        "logging_steps": 1,
        "save_strategy": "no",
    }


def _with_memory(kit: Kit, memory: _Memory, **more: Any) -> Any:
    """Return a Trainer of ``Deep`` that looks for the batch size for which ``memory`` suffices.

    Args:
        kit: The library under test.
        memory: When it runs out, and what was tried.
        **more: Further training arguments.
    """

    class Callback(kit.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            memory.tried.append(state.train_batch_size)

    def event(self: Any, args: Any, state: Any, control: Any, **_: Any) -> None:
        memory.use(memory.place, state, begun=state.global_step + (memory.place == "on_optimizer_step"))

    if memory.place.startswith("on_"):
        setattr(Callback, memory.place, event)

    class RunsOut(kit.Trainer):  # type: ignore[misc, name-defined]
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            begun = self.state.global_step + 1
            memory.use("training_step", self.state, begun=begun)
            self.model.fails = memory.place == "backward" and memory.runs_out(self.state, begun=begun)
            return super().training_step(model, inputs, num_items_in_batch)

        def create_optimizer(self, *args: Any) -> Any:
            super().create_optimizer(*args)
            self.optimizer.register_step_pre_hook(lambda *_: memory.use("optimizer", self.state, begun=begun(self)))
            return self.optimizer

        def save_model(self, *args: Any, **kwargs: Any) -> Any:
            memory.use("save", self.state)
            return super().save_model(*args, **kwargs)

    def begun(trainer: Any) -> int:
        return int(trainer.state.global_step) + 1

    def collate(rows: Any) -> Any:
        if trainer.is_in_train:
            memory.use("loader", trainer.state, begun=begun(trainer))
        return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}

    fields = {
        **_searching(),
        "ddp_bucket_cap_mb": 1,
        "save_strategy": "steps" if memory.place == "save" else "no",
        "save_steps": 2,
        **more,
    }
    chosen = {"data_collator": collate, "callbacks": [Callback()], "model": Deep()}
    trainer = plain(kit, rows=24, subclass=RunsOut, fields=fields, **chosen)
    return trainer


@shared
def ranks_run_out_of_memory(kit: Kit) -> None:
    """One rank, the other or both run out of memory at each of several places; then for batches of any size."""
    _run_out_at(kit, PLACES)
    memory = _Memory("training_step", fails=os.environ["RANK"] == "1", most=0)
    try:
        _with_memory(kit, memory).train()
    except BatchSizeError as error:
        kit.keep("nothing fits", {"tried": memory.tried, "error": str(error)})


@shared
def ranks_run_out_of_memory_elsewhere(kit: Kit) -> None:
    _run_out_at(kit, FURTHER_PLACES)


def _run_out_at(kit: Kit, places: tuple[str, ...]) -> None:
    rank = int(os.environ["RANK"])
    for place, failing in itertools.product(places, ((0,), (1,), (0, 1))):
        memory = _Memory(place, fails=rank in failing, most=3)
        trainer = _with_memory(kit, memory)
        trainer.train()
        kept = {"tried": memory.tried, "found": trainer._train_batch_size, "steps": trainer.state.global_step}
        kept["weights"] = kit.plain(dict(trainer.model.named_parameters()))
        kept["optimizer"] = kit.plain(trainer.optimizer.state_dict())
        kit.keep(f"{place} {failing}", kept)
        kit.keep(f"{place} {failing}, buffers", kit.plain(dict(trainer.model.named_buffers())))


SHARDED: dict[str, dict[str, Any]] = {
    "fsdp": {
        "fsdp": True,
        "fsdp_config": {"version": 2, "auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 2000},
    },
    "tensor_parallelism": {"parallelism_config": {"tp_size": 2}},
    "zero_1": {"deepspeed": deepspeed_config(1)},
    "zero_2": {"deepspeed": deepspeed_config(2)},
}
"""Strategy whose ranks communicate in every layer → its training arguments."""


def _sharded_run_out(kit: Kit, strategy: str) -> None:
    """Ranks that communicate in every layer run out of memory; of one that fails they keep what both would.

    Not in an optimizer's step, which one rank would have made of its part; nor what a pass does to a norm's statistics.
    """
    without_extension()
    rank = int(os.environ["RANK"])
    for place, failing in itertools.product(("backward", "loader", "save"), ((0,), (1,), (0, 1))):
        memory = _Memory(place, fails=rank in failing, most=3)
        trainer = _with_memory(kit, memory, **SHARDED[strategy])
        trainer.train()
        kept = {"tried": memory.tried, "found": trainer._train_batch_size, "steps": trainer.state.global_step}
        kept["losses"] = [line["loss"] for line in trainer.state.log_history if "loss" in line]
        weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
        kept["weights"] = kit.plain(
            {name: weights[name] for name in weights if name.rpartition(".")[2] in ("weight", "bias")}
        )
        kit.keep(f"{place} {failing}", kept)


@shared
def ranks_of_fsdp_run_out_of_memory(kit: Kit) -> None:
    """At several places; then for batches of any size, in the first pass."""
    _sharded_run_out(kit, "fsdp")
    memory = _Memory("training_step", fails=os.environ["RANK"] == "1", most=0)
    try:
        _with_memory(kit, memory, **SHARDED["fsdp"]).train()
    except BatchSizeError:
        kit.keep("nothing fits", memory.tried)


@shared
def ranks_of_tensor_parallelism_run_out_of_memory(kit: Kit) -> None:
    _sharded_run_out(kit, "tensor_parallelism")


@shared
def ranks_of_zero_1_run_out_of_memory(kit: Kit) -> None:
    _sharded_run_out(kit, "zero_1")


@shared
def ranks_of_zero_2_run_out_of_memory(kit: Kit) -> None:
    _sharded_run_out(kit, "zero_2")


@shared
def ranks_with_experts_run_out_of_memory(kit: Kit) -> None:
    """Ranks that exchange tokens run out of memory between two exchanges, of either pass."""
    rank = int(os.environ["RANK"])
    sizes = {"fsdp_size": 2, "ep_size": 2}
    for place, failing in itertools.product(("forward", "backward"), ((0,), (1,), (0, 1))):
        model = loaded(kit.folder, mixtral, **sizes)
        trainer = language_model(kit, rows=24, model=model, fields={**_searching(), "max_steps": 4})

        def runs_out(trainer: Any = trainer, failing: tuple[int, ...] = failing) -> bool:
            is_time = trainer.is_in_train and trainer.state.global_step == 1
            return is_time and rank in failing and trainer._train_batch_size > 3

        def before(layer: Any, given: Any, runs_out: Any = runs_out) -> None:
            if runs_out():
                raise RuntimeError(OUT_OF_MEMORY)

        def after(layer: Any, given: Any, hidden: Any, runs_out: Any = runs_out) -> Any:
            return _FailsBetween.apply(hidden) if runs_out() else hidden

        first, second = model.model.layers
        if place == "forward":
            second.mlp.register_forward_pre_hook(before)
        else:
            first.mlp.register_forward_hook(after)
        trainer.train()
        kept = {"found": trainer._train_batch_size, "steps": trainer.state.global_step}
        kept["losses"] = [line["loss"] for line in trainer.state.log_history if "loss" in line]
        kept["weights"] = kit.plain(trainer.accelerator.get_state_dict(trainer.model))
        kit.keep(f"{place} {failing}", kept)


@shared
def batch_size_is_refused(kit: Kit) -> None:
    def refused(name: str, fields: Any = None, **given: Any) -> None:
        try:
            plain(kit, fields={"auto_find_batch_size": True, **(fields or {})}, **given).train()
        except TrainerSetupError as error:
            kit.keep(name, str(error))

    strategy = DDPStrategy(ddp_comm_hook=default_hooks.fp16_compress_hook)
    refused("a layer", model=nn.SyncBatchNorm(helpers.WIDTH))
    refused("a keyword", lightning={"sync_batchnorm": True})
    refused("a hook", lightning={"strategy": strategy})
    refused("fsdp", {"fsdp": "full_shard", "fsdp_config": {"version": 1}})
