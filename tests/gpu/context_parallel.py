"""Sequences that ranks share by torch's ring attention, as scenarios of both libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from accelerate import ParallelismConfig
from accelerate.utils import TorchContextParallelConfig
from torch import Tensor, nn

from tests.gpu.fused_attention import fused_attention
from tests.scripts.sharded_common import llama
from tests.support import helpers
from tests.support.parity import Kit
from tests.support.scenarios.common import language_model
from tests.support.scenarios.resuming import resume
from tests.support.scenarios.updates import ACCUMULATION

Body = Callable[[Kit], None]
Fields = dict[str, Any]

FIELDS: Fields = {
    **ACCUMULATION,
    "num_train_epochs": 2,
    "eval_strategy": "epoch",
    "save_strategy": "steps",
    "save_steps": 2,
    "fsdp": "full_shard",
}
FULL_BATCHES = 6
"""Rows that are evaluated: of a last batch that is not full transformers counts the first rank's part alone."""


class PaddingCollator(helpers.PadCollator):
    """Pads to a multiple of ``multiple`` tokens; with ``positions`` it adds those too, as of packed documents."""

    def __init__(self, multiple: int, *, attention_mask: bool = True, positions: bool = False) -> None:
        super().__init__(attention_mask=attention_mask)
        self.multiple, self.positions = multiple, positions

    def __call__(self, rows: list[helpers.Row]) -> dict[str, Tensor]:
        batch = super().__call__(rows)
        if self.positions:
            batch["position_ids"] = torch.arange(batch["input_ids"].shape[1]).expand_as(batch["input_ids"]) % 5
        return batch

    def _column(self, key: str, values: list[Any]) -> Tensor:
        column = super()._column(key, values)
        filler = helpers.IGNORED if key == "labels" else 0
        return nn.functional.pad(column, (0, -column.shape[1] % self.multiple), value=filler)


def shared(
    *,
    sizes: Fields | None = None,
    multiple: int = 4,
    positions: bool = False,
    rotation: str | None = None,
    state: str = "full",
    resumes: bool = False,
    own_loss: bool = False,
    evaluated: int = FULL_BATCHES,
    **fields: Any,
) -> Body:
    """Return a scenario of a Llama whose sequences are shared.

    Args:
        sizes: Sizes of the ``ParallelismConfig``; two ranks share sequences by default.
        multiple: Sequences have a multiple of so many tokens.
        positions: Whether batches have ``position_ids``.
        rotation: How keys and values are exchanged.
        state: Kind of the checkpoints, ``"full"`` or ``"sharded"``.
        resumes: Whether it also goes on within an epoch.
        own_loss: Whether the loss is computed by a ``compute_loss_func``.
        evaluated: Rows that are evaluated.
        **fields: Training arguments.
    """

    def build(kit: Kit) -> Any:
        handler = None if rotation is None else TorchContextParallelConfig(cp_comm_strategy=rotation)
        every = {
            **FIELDS,
            "fsdp_config": {"version": 2, "state_dict_type": f"{state.upper()}_STATE_DICT"},
            "parallelism_config": ParallelismConfig(**(sizes or {"cp_size": 2}), cp_handler=handler),
            **fields,
        }
        return language_model(
            kit,
            rows=28,
            fields=every,
            model=kit.model(llama),
            eval_dataset=helpers.ListDataset(helpers.token_rows(evaluated, seed=1)),
            data_collator=PaddingCollator(multiple, attention_mask=not positions, positions=positions),
            compute_loss_func=scored_at_their_places if own_loss else None,
        )

    def body(kit: Kit) -> None:
        with fused_attention():
            if resumes:
                resume(kit, build, 2)
                return
            trainer = build(kit)
            kit.train(trainer)
            kit.evaluate(trainer)

    return body


def scored_at_their_places(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """Return the loss of logits for the labels at their own places."""
    logits = outputs["logits"].flatten(0, 1)
    summed = nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=helpers.IGNORED, reduction="sum")
    return summed / num_items_in_batch


SHARDS: Fields = {"cp_size": 2, "dp_shard_size": 2}
CONTEXT_SCENARIOS: dict[str, Body] = {
    "cp_fp32_full": shared(),
    "cp_bf16_sharded": shared(bf16=True, state="sharded"),
    "cp_fp16_full": shared(fp16=True),
    "cp_rotated": shared(rotation="alltoall"),
    "cp_in_one_piece": shared(multiple=2),
    "cp_packed": shared(positions=True),
    "cp_own_loss": shared(own_loss=True),
    "cp_smoothed": shared(label_smoothing_factor=0.1),
    "cp_averaged_by_batch": shared(average_tokens_across_devices=False),
    "resume_cp_fp32": shared(resumes=True),
    "resume_cp_bf16_sharded": shared(resumes=True, bf16=True, state="sharded"),
}
"""Each scenario of two GPUs by its name."""
CONTEXT_MESH_SCENARIOS: dict[str, Body] = {
    "cp_shards": shared(sizes=SHARDS),
    "resume_cp_shards_rotated": shared(sizes=SHARDS, resumes=True, rotation="alltoall"),
    "cp_of_four": shared(sizes={"cp_size": 4}, multiple=8),
    "cp_of_four_rotated": shared(sizes={"cp_size": 4}, multiple=4, rotation="alltoall"),
}
"""Each scenario of four GPUs by its name."""
MATRICES_TOO: Fields = {"cp_size": 2, "tp_size": 2}
CONTEXT_REPLICA_SCENARIOS: dict[str, Body] = {
    "cp_replicas": shared(sizes={**SHARDS, "dp_replicate_size": 2}, evaluated=2 * FULL_BATCHES)
}
"""Each scenario of eight GPUs by its name."""
