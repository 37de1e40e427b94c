"""The loss scale of fp16: its growth in checkpoints of a sharded model, and beside a Trainer of another precision."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import hf_compat
from tests.gpu.harness import needs_fake_gpu, run_on_gpu, run_on_gpus
from tests.gpu.scenarios import Overflowing
from tests.scripts.sharded_common import llama
from tests.support import helpers

pytestmark = needs_fake_gpu


def counted_in_a_step(folder: Path) -> dict[str, int]:
    """Return by how much the last of five update steps with SGD, which has no state, raises the count, by library."""
    found = {}
    for library in (transformers, hf_compat):
        output_dir = folder / library.__name__
        args = library.TrainingArguments(
            str(output_dir),
            max_steps=5,
            per_device_train_batch_size=1,
            optim="sgd",
            fp16=True,
            save_strategy="steps",
            save_steps=1,
            fsdp="full_shard",
            fsdp_config={"version": 2, "state_dict_type": "FULL_STATE_DICT"},
            disable_tqdm=True,
            report_to="none",
        )
        library.Trainer(llama(), args, train_dataset=helpers.ListDataset(helpers.token_rows(10))).train()
        before, after = (torch.load(output_dir / f"checkpoint-{step}" / "scaler.pt") for step in (4, 5))
        found[library.__name__] = after["_growth_tracker"] - before["_growth_tracker"]
    return found


def test_a_save_is_no_update_step(tmp_path):
    """Under FSDP 2 torch steps an optimizer without state before it saves that; transformers' scaler counts it too."""
    variables = {"FSDP_VERSION": "2", "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT"}  # which transformers 4.57 reads
    for found in run_on_gpus(counted_in_a_step, tmp_path, variables=variables):
        assert found == {"transformers": 2, "hf_compat": 1}


def largest_norms(folder: Path, library: str) -> list[float]:
    """Return the largest norm of a run with fp16, alone, and with a Trainer with bf16 made before it trains."""
    trainers = {"transformers": transformers, "hf_compat": hf_compat}[library]

    def made(name: str, **precision: bool) -> Any:
        args = trainers.TrainingArguments(
            str(folder / name),
            max_steps=2,
            per_device_train_batch_size=2,
            logging_steps=1,
            save_strategy="no",
            disable_tqdm=True,
            report_to="none",
            **precision,
        )
        rows = helpers.ListDataset(helpers.vector_rows(8))
        torch.manual_seed(0)
        return trainers.Trainer(helpers.PlainModel(dropout=0.0), args, train_dataset=rows)

    found = []
    for between in (False, True):
        trainer = made("float16", fp16=True)
        if between:
            made("bfloat16", bf16=True)
        trainer.train()
        found.append(max(log["grad_norm"] for log in trainer.state.log_history if "grad_norm" in log))
    return found


def test_a_trainer_keeps_its_scale_beside_another(tmp_path):
    """A Trainer with bf16 that is made before one with fp16 trains leaves transformers' gradients scaled."""
    alone, beside = run_on_gpu(largest_norms, tmp_path, "hf_compat")
    assert beside == alone
    alone, beside = run_on_gpu(largest_norms, tmp_path, "transformers")
    assert beside > 1000 * alone


def scales_of_trials(folder: Path, library: str) -> list[float]:
    """Return the scale with which each of two trials of a search begins, and that after the last one."""
    trainers = {"transformers": transformers, "hf_compat": hf_compat}[library]
    args = trainers.TrainingArguments(
        str(folder),
        max_steps=3,
        per_device_train_batch_size=2,
        fp16=True,
        eval_strategy="epoch",
        save_strategy="no",
        disable_tqdm=True,
        report_to="none",
    )
    rows, scales = helpers.ListDataset(helpers.vector_rows(8)), []

    class Scales(trainers.TrainerCallback):  # type: ignore[misc, name-defined]  # either library's
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            scales.append(trainer.accelerator.scaler.get_scale())

    trainer = trainers.Trainer(
        None, args, train_dataset=rows, eval_dataset=rows, model_init=lambda: Overflowing(), callbacks=[Scales()]
    )
    trainer.hyperparameter_search(lambda trial: {"learning_rate": 1e-3}, n_trials=2, backend="optuna")
    return [*scales, trainer.accelerator.scaler.get_scale()]


@pytest.mark.skipif(find_spec("optuna") is None, reason='pip install "hf-compat[optuna]"')
def test_each_trial_begins_with_the_first_scale(tmp_path):
    """A scale that gradients of one trial have lowered is in the next one as it was at first, in both libraries."""
    first, second, last = run_on_gpu(scales_of_trials, tmp_path / "ours", "hf_compat")
    assert first == second > last
    assert run_on_gpu(scales_of_trials, tmp_path / "theirs", "transformers") == [first, second, last]


def clipped_norms(folder: Path, library: str, unscale: str | None) -> list[float]:
    """Return the norms that an override of ``_clip_grad_norm`` finds, which unscales gradients before if it is to.

    Args:
        folder: Where the run writes.
        library: Whose Trainer.
        unscale: ``"all"`` optimizers, its ``"own"``, or None.
    """
    trainers = {"transformers": transformers, "hf_compat": hf_compat}[library]
    args = trainers.TrainingArguments(
        str(folder), max_steps=3, fp16=True, save_strategy="no", logging_steps=1, disable_tqdm=True, report_to="none"
    )

    class Clips(trainers.Trainer):  # type: ignore[misc, name-defined]  # either library's
        def _clip_grad_norm(self, model: Any) -> Any:
            if unscale is not None:
                self.accelerator.unscale_gradients(*[self.optimizer] * (unscale == "own"))
            return torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    torch.manual_seed(0)
    trainer = Clips(helpers.PlainModel(dropout=0.0), args, train_dataset=helpers.ListDataset(helpers.vector_rows(24)))
    trainer.train()
    return [log["grad_norm"] for log in trainer.state.log_history if "grad_norm" in log]


@pytest.mark.skipif(not hasattr(transformers.Trainer, "_clip_grad_norm"), reason="transformers 4.57 has no such method")
def test_an_override_clips_unscaled_gradients(tmp_path):
    """An override may unscale gradients, as with transformers, where it has to if it clips them itself."""
    ours = [run_on_gpu(clipped_norms, tmp_path / "ours", "hf_compat", unscale) for unscale in ("own", "all", None)]
    theirs = [run_on_gpu(clipped_norms, tmp_path / "theirs", "transformers", unscale) for unscale in ("own", None)]
    assert ours == [theirs[0]] * 3
    assert theirs[1][0] == 65536 * theirs[0][0]


def weights_after_clipping(folder: Path, library: str, kind: str, where: str) -> list[float]:
    """Return some of the weights that a run with fp16 ends with, whose own code clips gradients.

    Args:
        folder: Where the run writes.
        library: Whose Trainer.
        kind: By ``"norm"`` or ``"value"``, or by norm after the gradient ``"scaler"`` itself has unscaled them.
        where: The method that does so.
    """
    trainers = {"transformers": transformers, "hf_compat": hf_compat}[library]
    args = trainers.TrainingArguments(
        str(folder),
        max_steps=4,
        gradient_accumulation_steps=2,
        per_device_train_batch_size=2,
        learning_rate=0.5,
        optim="sgd",
        max_grad_norm=float(where != "training_step"),  # or else the Trainer clips nothing
        fp16=True,
        save_strategy="no",
        disable_tqdm=True,
        report_to="none",
    )

    def clip(trainer: Any, model: Any) -> Any:
        if kind == "value":
            trainer.accelerator.clip_grad_value_(model.parameters(), 0.01)
            return torch.tensor(0.0)  # the norm
        if kind == "norm":
            return trainer.accelerator.clip_grad_norm_(model.parameters(), 0.1)
        trainer.accelerator.scaler.unscale_(trainer.optimizer.optimizer)
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    class Clips(trainers.Trainer):  # type: ignore[misc, name-defined]  # either library's
        def training_step(self, model: Any, *given: Any, **named: Any) -> Any:
            loss = super().training_step(model, *given, **named)
            if where == "training_step" and self.accelerator.sync_gradients:
                clip(self, model)
            return loss

        def _clip_grad_norm(self, model: Any) -> Any:
            return clip(self, model)

    torch.manual_seed(0)
    model = helpers.PlainModel(dropout=0.0)
    Clips(model, args, train_dataset=helpers.ListDataset(helpers.vector_rows(16))).train()
    weights: list[float] = torch.cat([weight.flatten()[:4] for weight in model.parameters()]).tolist()
    return weights


@pytest.mark.parametrize("kind", ["norm", "value", "scaler"])
def test_a_training_step_clips_unscaled_gradients(kind, tmp_path):
    """What it clips is unscaled once; transformers 5 unscales it again for the log, so that it can only clip later."""
    place = "training_step"
    if hasattr(transformers.Trainer, "_clip_grad_norm"):
        with pytest.raises(AssertionError, match="already been called on this optimizer"):
            run_on_gpu(weights_after_clipping, tmp_path / "failed", "transformers", kind, place)
        place = "_clip_grad_norm"
    theirs = run_on_gpu(weights_after_clipping, tmp_path / "theirs", "transformers", kind, place)
    assert run_on_gpu(weights_after_clipping, tmp_path / "ours", "hf_compat", kind, "training_step") == theirs


class OfNoClass:
    """What has the members of an optimizer that a run uses, and derives from nothing."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_optimizer"], name)


def norm_of_an_optimizer_of_no_class(folder: Path, library: str) -> float:
    """Return the first norm that a run with fp16 logs whose optimizer is none of torch's."""
    trainers = {"transformers": transformers, "hf_compat": hf_compat}[library]
    args = trainers.TrainingArguments(
        str(folder), max_steps=1, logging_steps=1, fp16=True, save_strategy="no", disable_tqdm=True, report_to="none"
    )
    model = helpers.PlainModel(dropout=0.0).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    rows = helpers.ListDataset(helpers.vector_rows(8))
    trainer = trainers.Trainer(model, args, train_dataset=rows, optimizers=(OfNoClass(optimizer), schedule))
    trainer.train()
    return float(trainer.state.log_history[0]["grad_norm"])


def test_an_optimizer_that_is_none_of_torchs(tmp_path):
    """Its gradients have their own size; in transformers they are scaled, and nothing unscales them."""
    ours = run_on_gpu(norm_of_an_optimizer_of_no_class, tmp_path / "ours", "hf_compat")
    theirs = run_on_gpu(norm_of_an_optimizer_of_no_class, tmp_path / "theirs", "transformers")
    assert theirs == pytest.approx(65536 * ours, rel=0.01)
