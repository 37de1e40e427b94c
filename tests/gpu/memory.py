"""The memory of a GPU: what a run finds and leaves in use, and what happens when there is not enough."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tests.support import helpers
from tests.support.parity import Kit
from tests.support.scenarios.common import plain

ROW = 4 << 20
"""Bytes that a row of a batch needs."""
MEMORY = 48 << 20
"""Bytes of the GPU."""
ASKED = 16
"""Rows of a batch, for which the memory is not enough."""


@contextmanager
def limited(size: int) -> Iterator[None]:
    """Let each fake GPU have ``size`` bytes in the block."""
    from tests.gpu.device import extension  # it only loads where the device is installed

    before = torch.cuda.mem_get_info()[1]
    extension().set_memory_limit(size)
    try:
        yield
    finally:
        extension().set_memory_limit(before)


class Wide(helpers.PlainModel):
    """A model that needs :data:`ROW` for each row."""

    def forward(self, features: Any, labels: Any = None) -> Any:
        """Return what the plain one returns."""
        wide = features.new_empty(features.shape[0], ROW // features.element_size())
        return super().forward(features=features + 0 * wide.zero_().sum(), labels=labels)


def exhausted(kit: Kit) -> None:
    """Memory runs out with the rows that are asked for, so that batches get smaller until they fit."""
    fields = {"auto_find_batch_size": True, "per_device_train_batch_size": ASKED, "save_strategy": "epoch"}
    with limited(MEMORY):
        trainer = plain(kit, rows=2 * ASKED, fields=fields, model=kit.model(Wide))
        kit.train(trainer)
    assert 0 < trainer._train_batch_size * ROW < MEMORY, "the memory was enough"
    kit.keep("batch size", [trainer._train_batch_size, trainer.args.train_batch_size])


def memory_of_the_gpu(kit: Kit) -> None:
    """The names of the metrics, and the bytes of the GPU that each stage has found in use, and left.

    A run before takes what is allocated once in a process, such as the workspaces of matrix products.
    """
    first = plain(kit)
    first.train()
    del first
    gc.collect()
    trainer = plain(kit, fields={"skip_memory_metrics": False, "eval_strategy": "epoch"})
    kit.keep("train", trainer.train().metrics)
    kit.keep("evaluate", trainer.evaluate())
    stages = trainer._memory_tracker.gpu
    stages["train"].pop("peaked")  # transformers' is 8 bytes more
    kit.keep("the GPU's", stages)
