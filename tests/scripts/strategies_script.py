"""Trainings on two processes under strategies of Lightning's; what they did is written down.

Words: the folder; then ``instances``, under torchrun, or names of strategies that start the processes.
"""

import json
import sys
from pathlib import Path

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_wrapper
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook

from hf_compat import Trainer, TrainerCallback, TrainingArguments
from hf_compat.errors import TrainerSetupError
from tests.support.helpers import ListDataset, PlainModel, vector_rows


class WithUnused(PlainModel):
    """Has a parameter that no loss depends on."""

    def __init__(self):
        super().__init__(dropout=0.0)
        self.unused = nn.Parameter(torch.ones(2))


def train_with(folder, model, **keywords):
    """Return the Trainer after a training of four update steps."""
    args = TrainingArguments(
        str(folder),
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        max_steps=4,
        per_device_train_batch_size=2,
        seed=1,
    )
    callbacks = keywords.pop("callbacks", None)
    trainer = Trainer(model, args, train_dataset=ListDataset(vector_rows(16)), lightning=keywords, callbacks=callbacks)
    trainer.train()
    return trainer


class Apart(TrainerCallback):
    """After each update step: whether the ranks have different weights."""

    def __init__(self):
        self.seen = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
        both = [torch.empty_like(weights) for _ in range(2)]
        torch.distributed.all_gather(both, weights)
        self.seen.append(not torch.equal(*both))


def counting_hook(state, bucket):
    state.append("hook")
    return allreduce_hook(None, bucket)


def instances(folder):
    """Return what strategies with arguments did."""
    counted, apart, wrapped = [], Apart(), []

    def wrapper(hook):
        def wrapping(state, bucket):
            wrapped.append("wrapper")
            return hook(state, bucket)

        return wrapping

    views = train_with(folder, PlainModel(dropout=0.0), strategy=DDPStrategy(gradient_as_bucket_view=True))
    static = train_with(folder, PlainModel(dropout=0.0), strategy=DDPStrategy(static_graph=True))
    hooks = DDPStrategy(ddp_comm_state=counted, ddp_comm_hook=counting_hook, ddp_comm_wrapper=wrapper)
    train_with(folder, PlainModel(dropout=0.0), strategy=hooks)
    local = PostLocalSGDState(process_group=None, subgroup=torch.distributed.new_subgroups(1)[0], start_localSGD_iter=1)
    averaged = DDPStrategy(ddp_comm_state=local, ddp_comm_hook=post_localSGD_hook, model_averaging_period=2)
    train_with(folder, PlainModel(dropout=0.0), strategy=averaged, callbacks=[apart])
    return {
        "views": views.model_wrapped.gradient_as_bucket_view,
        "static": static.model_wrapped.static_graph,
        "hook": len(counted),
        "wrapper": len(wrapped),
        "apart": apart.seen,
        "refused": [refusal(folder, strategy) for strategy in REFUSED_BY_TORCH],
    }


REFUSED_BY_TORCH = (
    DDPStrategy(ddp_comm_hook=allreduce_hook, ddp_comm_wrapper=bf16_compress_wrapper),
    DDPStrategy(bucket_cap_mb="1 MB"),
)
"""The first needs GPUs, the second has a value of another type."""


def refusal(folder, strategy):
    """Return the error of a training under ``strategy``."""
    try:
        train_with(folder, PlainModel(), strategy=strategy)
    except TrainerSetupError as error:
        return str(error)


def by_names(folder, names):
    """Return by name how trainings of a model with an unused parameter ended."""
    told = {}
    for name in names:
        try:
            trainer = train_with(folder, WithUnused(), strategy=name, devices=2)
        except RuntimeError as error:
            told[name] = "find_unused_parameters=True" in str(error)
        else:
            told[name] = trainer.state.global_step
    return told


if __name__ == "__main__":
    place = Path(sys.argv[1])
    outcome = instances(place) if sys.argv[2] == "instances" else by_names(place, sys.argv[2:])
    if torch.distributed.is_initialized() and torch.distributed.get_rank():
        sys.exit()
    (place / "outcome.json").write_text(json.dumps(outcome))
