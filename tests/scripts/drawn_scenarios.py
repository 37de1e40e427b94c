"""The runs of ``support.drawn_runs``, as scenarios of both libraries."""

from __future__ import annotations

import functools
from typing import Any

from tests.scripts.deepspeed_scenarios import config
from tests.scripts.distributed_scenarios import BODIES
from tests.support import helpers
from tests.support.deepspeed_tools import without_extension
from tests.support.drawn_runs import RUN_SEEDS, draw_run
from tests.support.parity import Kit
from tests.support.scenarios.common import language_model
from tests.support.scenarios.resuming import resume
from tests.support.scenarios.updates import train

__all__ = ["name_of"]


def name_of(seed: int) -> str:
    """Return the name of the scenario of ``seed``."""
    return f"drawn_run_{seed}"


def _run(seed: int, kit: Kit) -> None:
    drawn = draw_run(seed)

    def build(each: Kit) -> Any:
        fields = dict(drawn.fields, accelerator_config=dict(drawn.fields["accelerator_config"]))
        if drawn.strategy.startswith("zero"):
            without_extension()
            half = {"bf16": {"enabled": "auto"}} if fields.get("bf16") else {}
            fields["deepspeed"] = config(int(drawn.strategy[-1]), **half)
        settings = drawn.fields["accelerator_config"]
        evaluated = 7 if settings.get("even_batches", True) else 3 * drawn.processes
        # accelerate's dispatcher puts a short last batch and the first one together, which are of one length then.
        lengths = {"shortest": 6, "longest": 6} if settings.get("dispatch_batches") else {}
        train_dataset = helpers.ListDataset(helpers.token_rows(drawn.rows, **lengths))
        eval_dataset = helpers.ListDataset(helpers.token_rows(evaluated, seed=1, **lengths))
        return language_model(each, fields=fields, train_dataset=train_dataset, eval_dataset=eval_dataset)

    if drawn.resumed_at is not None:
        resume(kit, build, drawn.resumed_at)
        return
    train(kit, build(kit))


for _seed in RUN_SEEDS:
    BODIES[name_of(_seed)] = functools.partial(_run, _seed)
