"""A model that its ``device_map`` spreads over the GPUs of a process trains where it is, equal to transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version

from tests.gpu.comparing import assert_same_states, differing
from tests.gpu.device_maps import HALVES as GPT2_HALVES, SPREAD_SCENARIOS
from tests.gpu.harness import needs_fake_gpu, run_on_gpu, run_on_gpus
from tests.support.helpers import ListDataset, PlainModel, gpt2, token_rows, vector_rows

pytestmark = needs_fake_gpu

THOROUGH = {
    f"spread_{name}"
    for name in ("balanced", "all_on_the_first_GPU", "resumed_in_fp16", "label_smoothing", "embedding_noise")
}
"""Scenarios that are much like a quicker one."""
SINCE_5 = {"spread_adapters_on_quantized"}
"""What transformers 4 refuses to train."""
LEFT_OUT = set() if Version(transformers.__version__) >= Version("5") else SINCE_5
QUICK = [name for name in SPREAD_SCENARIOS if name not in THOROUGH | LEFT_OUT]
HALVES = {"body.0": 0, "body.1": 0, "body.2": 1, "body.3": 1, "body.4": 0}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What differs in each of the quick scenarios; all run in one process."""
    return run_on_gpu(differing, QUICK, tmp_path_factory.mktemp("quick"), devices=2)


@pytest.mark.parametrize("name", QUICK)
def test_equal_to_transformers(name: str, quick: dict[str, str]) -> None:
    """Where everything is, losses, weights, optimizer, random states, files and metrics are equal."""
    assert quick[name] == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(THOROUGH))
def test_the_rest_is_equal_to_transformers(name: str, tmp_path: Path) -> None:
    """The same of scenarios that are like others."""
    assert run_on_gpu(differing, [name], tmp_path, devices=2) == {name: ""}


@pytest.mark.slow
def test_ours_resumes_theirs(tmp_path: Path) -> None:
    """A checkpoint of transformers' run is continued as by transformers."""
    found = run_on_gpu(differing, ["spread_resumed"], tmp_path, starter="upstream", devices=2)
    assert found == {"spread_resumed": ""}


def dispatched(device_map: dict[str, Any], **given: Any) -> Any:
    """Return a plain module that accelerate has spread."""
    from accelerate import dispatch_model

    model = dispatch_model(PlainModel(dropout=0.0), device_map, force_hooks=True, **given)
    model.hf_device_map = device_map
    return model


def trainer_of_model(model: Any, folder: Path, **fields: Any) -> Any:
    """Return our Trainer of ``model``."""
    from hf_compat import Trainer, TrainingArguments

    data = ListDataset(vector_rows(14) if isinstance(model, PlainModel) else token_rows(14, shortest=8, longest=8))
    chosen = {"per_device_train_batch_size": 2, "max_steps": 2, "report_to": "none", "disable_tqdm": True, **fields}
    return Trainer(model, TrainingArguments(str(folder), **chosen), train_dataset=data, eval_dataset=data)


def saved_in_both_ways(folder: Path) -> None:
    """Train twice, saving in the background and not."""
    for is_background in (False, True):
        torch.manual_seed(0)
        fields = {"save_strategy": "steps", "save_steps": 1, "save_async": is_background}
        trainer_of_model(dispatched(HALVES), folder / str(is_background), **fields).train()


def test_saved_in_the_background(tmp_path: Path) -> None:
    """The checkpoints of parameters on two GPUs are those of synchronous saves."""
    run_on_gpu(saved_in_both_ways, tmp_path, devices=2)
    assert_same_states(tmp_path / "True", tmp_path / "False")


def offloaded(folder: Path) -> list[Any]:
    """Return the loss of a model of which a part is on the CPU, and why it is not trained."""
    device_map = {**HALVES, "body.4": "cpu"}
    trainer = trainer_of_model(dispatched(device_map, main_device=0), folder)
    loss = trainer.evaluate()["eval_loss"]
    whole = trainer_of_model(PlainModel(dropout=0.0), folder, use_cpu=True)
    with pytest.raises(ValueError, match="offloaded to the CPU") as error:
        trainer.train()
    return [type(error.value).__name__, isinstance(loss, float), whole.evaluate()["eval_loss"] > 0]


def test_offloaded_weights_are_evaluated_and_not_trained(tmp_path: Path) -> None:
    """Weights on the CPU are copied for each forward pass, so that training would not change them."""
    assert run_on_gpu(offloaded, tmp_path, devices=2) == ["ModelError", True, True]


def evaluated_in_half(folder: Path) -> list[Any]:
    """Return devices and types of a model after its evaluation in bfloat16."""
    gpt2(dropout=0.0).save_pretrained(folder)
    trainer = trainer_of_model(
        type(gpt2()).from_pretrained(folder, device_map=GPT2_HALVES), folder, bf16_full_eval=True
    )
    trainer.evaluate()
    return sorted({(str(one.device), str(one.dtype)) for one in trainer.model.parameters()})


def test_a_full_evaluation_leaves_the_model_where_it_is(tmp_path: Path) -> None:
    """The weights are cast, and stay on their GPUs."""
    found = run_on_gpu(evaluated_in_half, tmp_path, devices=2)
    assert found == [("cuda:0", "torch.bfloat16"), ("cuda:1", "torch.bfloat16")]


class Split(PlainModel):
    """A model that has spread itself."""

    is_parallelizable = model_parallel = True

    def __init__(self) -> None:
        super().__init__(dropout=0.0)
        self.body[:2].to("cuda:0")
        self.body[2:].to("cuda:1")

    def forward(self, features: Any, labels: Any = None) -> Any:
        """Return loss and logits."""
        logits = self.body[2:](self.body[:2](features).to("cuda:1")).to(features.device)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def split(folder: Path) -> list[Any]:
    """Return what a Trainer makes of a model that has spread itself."""
    trainer = trainer_of_model(Split(), folder)
    trainer.train()
    trainer.evaluate()
    devices = sorted({str(one.device) for one in trainer.model.parameters()})
    return [trainer.is_model_parallel, trainer.args.n_gpu, devices, type(trainer.model_wrapped).__name__]


def test_a_model_that_has_spread_itself(tmp_path: Path) -> None:
    """``is_parallelizable`` and ``model_parallel`` say that it is not to be moved."""
    assert run_on_gpu(split, tmp_path, devices=2) == [True, 1, ["cuda:0", "cuda:1"], "Split"]


def watched(folder: Path) -> list[Any]:
    """Return where the model is that is watched for infinities, which replicas could not be."""
    trainer = trainer_of_model(dispatched(HALVES), folder, debug="underflow_overflow")
    trainer.train()
    return [trainer.args.n_gpu, trainer.state.global_step]


def test_watching_for_infinities(tmp_path: Path) -> None:
    """A model that is not replicated can be watched."""
    assert run_on_gpu(watched, tmp_path, devices=2) == [1, 2]


def on_several_ranks(folder: Path) -> str:
    """Return why a model on several devices is refused on several ranks."""
    with pytest.raises(ValueError, match="each rank trains on one device") as error:
        trainer_of_model(dispatched(HALVES), folder)
    return str(error.value)


def on_the_devices_of_the_ranks(folder: Path) -> list[Any]:
    """Return where a model trains that each rank has loaded onto a GPU, all onto the first or each onto its own."""
    import os

    found = []
    for device in (0, int(os.environ["LOCAL_RANK"])):
        model = gpt2(dropout=0.0)
        model.to(f"cuda:{device}").hf_device_map = {"": device}
        trainer = trainer_of_model(model, folder)
        trainer.train()
        found.append((str(trainer.model.device), type(trainer.model_wrapped).__name__))
    return found


@pytest.mark.slow
def test_several_ranks(tmp_path: Path) -> None:
    """A model on several devices is refused; one on a single device trains on that of its rank."""
    for text in run_on_gpus(on_several_ranks, tmp_path):
        assert "['0', '1']" in text
    first, second = run_on_gpus(on_the_devices_of_the_ranks, tmp_path)
    assert first == [("cuda:0", "DistributedDataParallel")] * 2
    assert second == [("cuda:1", "DistributedDataParallel")] * 2
