"""Several GPUs in one process: the model is replicated by ``DataParallel``, and all is equal to transformers'."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.comparing import assert_same_states, differing
from tests.gpu.harness import needs_fake_gpu, run_on_gpu
from tests.gpu.replicas import REPLICA_SCENARIOS
from tests.support.helpers import ListDataset, PlainModel, vector_rows

pytestmark = needs_fake_gpu

THOROUGH = {
    f"replicated_{name}"
    for name in ("generated", "workers", "resumed_in_fp16", "new_models", "gradient_checkpointing", "embedding_noise")
}
"""Scenarios that take longer, or are much like a quicker one."""
QUICK = [name for name in REPLICA_SCENARIOS if name not in THOROUGH]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What differs in each of the quick scenarios; all run in one process."""
    return run_on_gpu(differing, QUICK, tmp_path_factory.mktemp("quick"), devices=2)


@pytest.mark.parametrize("name", QUICK)
def test_equal_to_transformers(name: str, quick: dict[str, str]) -> None:
    """Batch sizes, losses, item counts, weights, optimizer, random states, files and metrics are equal."""
    assert quick[name] == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(THOROUGH))
def test_the_rest_is_equal_to_transformers(name: str, tmp_path: Path) -> None:
    """The same of scenarios that take longer."""
    assert run_on_gpu(differing, [name], tmp_path, devices=2) == {name: ""}


@pytest.mark.slow
def test_three_gpus(tmp_path: Path) -> None:
    """Three replicas, of which a short batch leaves some without samples."""
    names = ["replicated_plain", "replicated_label_smoothing_without_averaging", "replicated_tuple"]
    assert run_on_gpu(differing, names, tmp_path, devices=3) == dict.fromkeys(names, "")


@pytest.mark.slow
def test_ours_resumes_theirs(tmp_path: Path) -> None:
    """A checkpoint of transformers' ``DataParallel`` is continued as by transformers."""
    found = run_on_gpu(differing, ["replicated_resumed"], tmp_path, starter="upstream", devices=2)
    assert found == {"replicated_resumed": ""}


@pytest.mark.slow
def test_taken_apart(tmp_path: Path) -> None:
    """The pieces of ``to_lightning`` train on all GPUs, too."""
    found = run_on_gpu(differing, ["replicated_plain"], tmp_path, subject="pieces", devices=2)
    assert found == {"replicated_plain": ""}


def trainer_in(
    folder: Path, lightning: dict[str, Any] | None = None, *, model: PlainModel | None = None, **fields: Any
) -> Any:
    """Return our Trainer of a plain module, which does not log."""
    from hf_compat import Trainer, TrainingArguments

    chosen = {"per_device_train_batch_size": 2, "max_steps": 2, "report_to": "none", "disable_tqdm": True, **fields}
    args = TrainingArguments(str(folder), **chosen)
    rows = ListDataset(vector_rows(14))
    return Trainer(model or PlainModel(), args, train_dataset=rows, lightning=lightning)


def chosen_by(lightning: dict[str, Any], folder: Path, **fields: Any) -> dict[str, Any]:
    """Return where a Trainer with these keywords of ``lightning.Trainer`` trains, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = trainer_in(folder, lightning, **fields)
        trainer.train()
        trainer.train()
    return {
        "GPUs": trainer.args.n_gpu,
        "ranks": trainer.args.world_size,
        "samples": trainer.args.train_batch_size,
        "strategy": type(trainer.lightning_trainer.strategy).__name__,
        "wrapper": type(trainer.model_wrapped).__name__,
        "warnings": [str(one.message) for one in caught if "torchrun" in str(one.message)],
    }


ONE = {"GPUs": 1, "ranks": 1, "samples": 2, "strategy": "OneDeviceStrategy", "wrapper": "PlainModel", "warnings": []}
TWO = {"GPUs": 1, "ranks": 2, "samples": 2, "strategy": "DDPStrategy", "wrapper": "DistributedDataParallel"}
TWO["warnings"] = []


@pytest.mark.parametrize(
    ("lightning", "expected"),
    [
        pytest.param({"devices": 1}, ONE, id="one device"),
        pytest.param({"strategy": "single_device"}, ONE, id="a strategy for one device"),
        pytest.param({"strategy": "ddp"}, TWO, id="a strategy for several"),
        pytest.param({"devices": -1}, TWO, id="all devices", marks=pytest.mark.slow),
    ],
)
def test_keywords_of_lightning_keep_their_meaning(lightning: Any, expected: dict[str, Any], tmp_path: Path) -> None:
    """Devices and strategies that are asked for are those of Lightning; none of them is ``DataParallel``."""
    assert run_on_gpu(chosen_by, lightning, tmp_path, devices=2) == expected


def test_other_keywords_leave_the_choice(tmp_path: Path) -> None:
    """Without devices and strategy all GPUs are used, and one warning, for all runs, names what is faster."""
    found = run_on_gpu(chosen_by, {"accelerator": "gpu"}, tmp_path, bf16=True, devices=2)
    texts = found.pop("warnings")
    assert found == {
        "GPUs": 2,
        "ranks": 1,
        "samples": 4,
        "strategy": "OneDeviceStrategy",
        "wrapper": "DataParallel",
    }
    assert len(texts) == 1
    assert "`torchrun --nproc-per-node 2`" in texts[0]
    assert "as without `bf16=True`" in texts[0]


def with_a_trainer_of_lightning(folder: Path) -> list[Any]:
    """Return GPUs and strategy of a run in a ``lightning.Trainer`` for one device that a person has built."""
    import lightning.pytorch as pl

    from hf_compat import TrainingArguments
    from hf_compat.lightning import HFDataModule, HFModule, callbacks

    args = TrainingArguments(str(folder), max_steps=2, report_to="none", per_device_train_batch_size=2)
    trainer = pl.Trainer(callbacks=callbacks(args), logger=False, devices=1, enable_progress_bar=False)
    data = HFDataModule(train_dataset=ListDataset(vector_rows(14)))
    trainer.fit(HFModule(PlainModel()), datamodule=data)
    return [type(trainer.strategy).__name__, trainer.global_step]


def test_a_trainer_of_lightning_for_one_device(tmp_path: Path) -> None:
    """A run in it is on that device."""
    assert run_on_gpu(with_a_trainer_of_lightning, tmp_path, devices=2) == ["OneDeviceStrategy", 2]


class Bare(PlainModel):
    """A model that returns its loss alone, 1 on the first GPU and 3 on the second."""

    def forward(self, features: Any, labels: Any = None) -> Any:
        loss = super().forward(features, labels)["loss"]
        return loss * 0 + 1 + 2 * loss.device.index


def loss_of_replicas(folder: Path) -> float:
    """Return the logged loss of a run of two replicas."""
    trainer = trainer_in(folder, model=Bare(), logging_steps=1)
    trainer.train()
    return float(trainer.state.log_history[0]["loss"])


def test_a_bare_loss_is_that_of_all_replicas(tmp_path: Path) -> None:
    """The mean of 1 and 3 is logged, and trained on."""
    assert run_on_gpu(loss_of_replicas, tmp_path, devices=2) == 2.0


def refused(folder: Path) -> str:
    """Return why the watch for infinities is refused."""
    from hf_compat.errors import TrainerSetupError

    with pytest.raises(TrainerSetupError) as error:
        trainer_in(folder, debug="underflow_overflow")
    trainer_in(folder, {"devices": 1}, debug="underflow_overflow")
    return str(error.value)


def test_watching_for_infinities_is_refused(tmp_path: Path) -> None:
    """As in transformers, but as the Trainer is made; on one GPU it works."""
    assert "`debug='underflow_overflow'` is not supported under DP" in run_on_gpu(refused, tmp_path, devices=2)


def saved_in_both_ways(folder: Path) -> None:
    """Train twice, saving in the background and not."""
    import torch

    for is_background in (False, True):
        torch.manual_seed(0)
        trainer_in(folder / str(is_background), save_strategy="steps", save_steps=1, save_async=is_background).train()


def test_saved_in_the_background(tmp_path: Path) -> None:
    """The checkpoints are those of synchronous saves, with the names of the model itself."""
    from safetensors import safe_open

    run_on_gpu(saved_in_both_ways, tmp_path, devices=2)
    assert_same_states(tmp_path / "True", tmp_path / "False")
    with safe_open(tmp_path / "True" / "checkpoint-2" / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(PlainModel().state_dict())
