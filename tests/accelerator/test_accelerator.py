"""What ``accelerator`` gathers, in evaluation and in training."""

import pytest
import torch

from hf_compat import Trainer, TrainingArguments
from hf_compat.accelerator import Accelerator
from hf_compat.accelerator.plugins import FsdpVersion
from hf_compat.arguments.accelerator_config import AcceleratorConfig
from hf_compat.arguments.deepspeed import DeepSpeedPlugin, HfTrainerDeepSpeedConfig
from hf_compat.distributed.launch import Launch
from hf_compat.distributed.process_state import RunState
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.trainers import new_trainer


class WithScalar(PlainModel):
    """Returns a number beside the logits, as mixtures of experts do with their balance loss."""

    def forward(self, features, labels=None):
        outputs = super().forward(features, labels)
        return outputs | {"balance": outputs["logits"].mean()}


def counting_trainer(tmp_path, kind=Trainer, **fields):
    """Return a Trainer that counts the 7 samples it evaluates, in batches of 3, the last one partial."""
    given = {
        "eval_dataset": ListDataset(vector_rows(7)),
        "compute_metrics": lambda prediction: {"count": len(prediction.label_ids)},
    }
    return new_trainer(tmp_path, kind, given=given, save_strategy="no", per_device_eval_batch_size=3, **fields)


def test_outputs_without_dimensions_pass_a_partial_last_batch(tmp_path):
    """A number among a model's outputs cannot be trimmed, so the batch is kept as it is."""
    assert counting_trainer(tmp_path, model=WithScalar()).evaluate()["eval_count"] == 7


def test_training_gathers_whole_batches_after_an_evaluation(tmp_path):
    """What a ``compute_loss`` gathers in training is not trimmed by the loader evaluated before."""
    gathered = []

    class Gathers(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
            if model.training:
                gathered.append(len(self.accelerator.gather_for_metrics(outputs["logits"])))
            return (loss, outputs) if return_outputs else loss

    settings = {"max_steps": 4, "per_device_train_batch_size": 2, "eval_strategy": "steps", "eval_steps": 2}
    counting_trainer(tmp_path, Gathers, **settings).train()
    assert gathered == [2, 2, 2, 2]


@pytest.mark.parametrize("at_end", [False, True], ids=["within the pass", "on the last batch"])
def test_only_the_last_batch_is_trimmed(tmp_path, at_end):
    """A batch is cut to the samples that the data set has left, on the last batch alone."""
    trainer = counting_trainer(tmp_path)
    accelerator, loaders = trainer.accelerator, trainer.lightning_backend.loaders

    class Followed:
        end_of_dataloader = at_end
        remainder = 1

    before = loaders.watch_evaluation(Followed())
    assert len(accelerator.gather_for_metrics(torch.ones(3, 2))) == (1 if at_end else 3)
    loaders.watch_evaluation(before)
    assert len(accelerator.gather_for_metrics(torch.ones(3, 2))) == 3


def test_settings_of_the_loaders_are_readable(tmp_path):
    """The accelerator tells how loaders are shared out, as accelerate's does."""
    config = {"even_batches": False, "use_seedable_sampler": False, "dispatch_batches": False}
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none", accelerator_config=config)
    accelerator = Trainer(PlainModel(), args).accelerator
    assert {name: getattr(accelerator, name) for name in config} == config
    assert accelerator.split_batches is False


DISTRIBUTED_TYPES = {
    "one process": (1, "cpu", {}, "NO"),
    "one process, sharded over itself": (1, "cuda", {"fsdp": 1}, "NO"),
    "several on the CPU": (2, "cpu", {}, "MULTI_CPU"),
    "several GPUs": (2, "cuda", {}, "MULTI_GPU"),
    "FSDP": (2, "cuda", {"fsdp": 2}, "FSDP"),
    "DeepSpeed, one process": (1, "cpu", {"deepspeed": 2}, "DEEPSPEED"),
    "DeepSpeed, several": (2, "cuda", {"deepspeed": 3}, "DEEPSPEED"),
}
"""Processes, device, what shards the model, and the name of accelerate's member."""


@pytest.mark.parametrize("case", DISTRIBUTED_TYPES)
def test_kinds_of_processes_have_accelerates_names(tmp_path, case):
    """``distributed_type`` equals accelerate's member, and ``state.deepspeed_plugin`` answers for DeepSpeed."""
    size, device, asked, name = DISTRIBUTED_TYPES[case]
    stage = asked.get("deepspeed")
    config = {"zero_optimization": {"stage": stage}}
    plugin = None if stage is None else DeepSpeedPlugin(HfTrainerDeepSpeedConfig(config))
    launch = Launch(world_size=size, local_world_size=size)
    fsdp = FsdpVersion(asked["fsdp"]) if "fsdp" in asked else None
    state = RunState(torch.device(device), launch, deepspeed_plugin=plugin, fsdp_plugin=fsdp)
    accelerator = Accelerator(launch, state, AcceleratorConfig(), counting_trainer(tmp_path).lightning_backend)
    theirs = pytest.importorskip("accelerate").DistributedType[name]
    assert accelerator.distributed_type == accelerator.state.distributed_type == theirs
    assert f"{accelerator.distributed_type} {accelerator.distributed_type!s}" == f"{theirs} {theirs!s}"
    assert accelerator.state.deepspeed_plugin is accelerator.deepspeed_plugin is plugin
    assert getattr(accelerator.state.deepspeed_plugin, "zero_stage", None) == stage
    assert accelerator.is_fsdp2 == accelerator.state.is_fsdp2 == (name == "FSDP")
