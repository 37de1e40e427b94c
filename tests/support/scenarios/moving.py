"""Batches with objects that move themselves: of a graph library, of the script, of torch."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from tests.support import helpers
from tests.support.parity import Kit, scenario
from tests.support.scenarios.common import plain
from tests.support.scenarios.updates import ACCUMULATION, train

EVALUATING = {"remove_unused_columns": False, "eval_strategy": "epoch", **ACCUMULATION}
Calls = list[tuple[str, str, Any]]


@dataclass
class Graph:
    """The batch of a graph library: it moves, and is pinned, to a new object."""

    features: Tensor
    labels: Tensor
    calls: Calls

    def __len__(self) -> int:
        return len(self.features)

    def __contains__(self, name: str) -> bool:
        return hasattr(self, name)

    def to(self, device: torch.device, non_blocking: bool = False) -> Graph:
        self.calls.append(("graph", device.type, non_blocking))
        features, labels = (part.to(device, non_blocking=non_blocking) for part in (self.features, self.labels))
        return Graph(features, labels, self.calls)

    def pin_memory(self) -> Graph:
        self.calls.append(("pin", "", None))
        return Graph(self.features.pin_memory(), self.labels.pin_memory(), self.calls)


class Simple:
    """An object of the script, which moves itself and cannot be told not to wait."""

    def __init__(self, features: Tensor, calls: Calls) -> None:
        self.features = features
        self.calls = calls

    def __repr__(self) -> str:
        return f"Simple({self.features})"

    def to(self, device: torch.device) -> Simple:
        self.calls.append(("simple", device.type, None))
        self.features = self.features.to(device)
        return self


class Table(UserDict[str, Any]):
    """A mapping of tensors that moves itself, and has an attribute of its own."""

    calls: Calls

    def to(self, device: torch.device, non_blocking: bool = False) -> Table:
        moved = Table({name: value.to(device, non_blocking=non_blocking) for name, value in self.items()})
        moved.calls = [*self.calls, ("table", device.type, non_blocking)]
        self.calls.append(moved.calls[-1])
        return moved


class Collator:
    """Collates rows to batches with such objects in lists, tuples and dicts, or to one.

    Args:
        calls: Where each call is noted; that of a batch which workers make is in the batch.
        is_bare: Whether a batch is a :class:`Graph`.
    """

    def __init__(self, calls: Calls, *, is_bare: bool = False) -> None:
        self.calls = calls
        self.is_bare = is_bare

    def __call__(self, rows: list[Any]) -> Any:
        batch = default_collate([{name: torch.tensor(value) for name, value in row.items()} for row in rows])
        features, labels = batch["features"], batch["labels"]
        graph = Graph(features, labels, self.calls)
        if self.is_bare:
            return graph
        table = Table(features=features * 2)
        table.calls = self.calls
        return {
            "graph": graph,
            "parts": [Simple(features, self.calls), (Graph(features, labels, self.calls), "text", 1)],
            "by_name": {"table": table, "sizes": {"of": [3, 4]}},
            "labels": labels,
        }


class Adding(helpers.PlainModel):
    """Adds up what it finds in a batch of the collator."""

    def forward(self, graph: Any, parts: Any, by_name: Any, labels: Any = None) -> Any:  # type: ignore[override]
        simple, (other, text, one) = parts
        assert (text, one, by_name["sizes"]) == ("text", 1, {"of": [3, 4]})
        features = graph.features + simple.features + other.features - by_name["table"]["features"]
        return super().forward(features, labels)


def train_on_objects(kit: Kit, subclass: Any = None, *, is_bare: bool = False, **fields: Any) -> None:
    """Train, evaluate and predict on such batches; keep the calls of their methods."""
    calls: Calls = []
    model = kit.model(helpers.PlainModel if is_bare else Adding)
    trainer = plain(
        kit,
        fields={**EVALUATING, **fields},
        model=model,
        subclass=subclass,
        data_collator=Collator(calls, is_bare=is_bare),
    )
    train(kit, trainer)
    if not is_bare:
        kit.predict(trainer, trainer.eval_dataset)
    kit.keep("calls", calls)


@scenario()
def objects_that_move(kit: Kit) -> None:
    train_on_objects(kit)


@scenario(warns="leaves out the last")
def objects_that_move_without_waiting(kit: Kit) -> None:
    train_on_objects(kit, accelerator_config={"non_blocking": True}, dataloader_drop_last=True)


@scenario()
def parts_that_are_prepared(kit: Kit) -> None:
    """An override of ``_prepare_input`` gets each part of a batch, whatever it is."""
    parts: list[str] = []

    class Notes(kit.Trainer):  # type: ignore[misc, name-defined]
        def _prepare_input(self, data: Any) -> Any:
            parts.append(type(data).__name__)
            return super()._prepare_input(data)

    train_on_objects(kit, Notes)
    kit.keep("parts", parts)


@scenario()
def batches_that_move(kit: Kit) -> None:
    """A batch is an object without names, which overrides read."""

    class Reads(kit.Trainer):  # type: ignore[misc, name-defined]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **given: Any) -> Any:
            outputs = model(inputs.features, inputs.labels)
            return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

        def prediction_step(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
            with torch.no_grad():
                inputs = self._prepare_inputs(inputs)
                outputs = model(inputs.features, inputs.labels)
            return outputs["loss"], outputs["logits"], inputs.labels

    train_on_objects(kit, Reads, is_bare=True)
