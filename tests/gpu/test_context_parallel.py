"""Ranks that share sequences by ring attention: which part each has, and the numbers of one process without.

That all is as with transformers, to the last bit, is in ``test_scenarios.py``.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version
from torch.nn import functional

from hf_compat import Trainer, TrainingArguments
from hf_compat.errors import DataError
from tests.gpu.comparing import ON_GPUS
from tests.gpu.context_parallel import MATRICES_TOO, PaddingCollator, shared
from tests.gpu.fused_attention import fused_attention
from tests.gpu.harness import needs_fake_gpu, run_on_gpu, run_on_gpus, run_script_on_gpus
from tests.scripts.sharded_common import llama
from tests.support import helpers, parity
from tests.support.parity import Which
from tests.support.paths import SCRIPTS

pytestmark = needs_fake_gpu
IS_5 = Version(transformers.__version__) >= Version("5")

SHARING = {
    "fsdp": True,
    "fsdp_config": {"version": 2},
    "parallelism_config": {"cp_size": 2, "cp_handler": {"cp_comm_strategy": "alltoall"}},
}


def gpu_arguments(folder: Path, **fields: Any) -> TrainingArguments:
    """Return training arguments, quiet ones."""
    quiet = {
        "disable_tqdm": True,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "learning_rate": 1e-2,
    }
    return TrainingArguments(str(folder), **{**quiet, **fields})


def rows(count: int, seed: int = 0) -> Any:
    """Return a dataset of ``count`` rows of tokens."""
    return helpers.ListDataset(helpers.token_rows(count, seed=seed))


def ranked(prediction: Any) -> dict[str, float]:
    """Return the share of tokens that are predicted, and their number."""
    is_scored = prediction.label_ids[:, 1:] != helpers.IGNORED
    is_right = prediction.predictions[:, :-1].argmax(-1) == prediction.label_ids[:, 1:]
    assert prediction.inputs.shape == prediction.label_ids.shape
    return {"right": float(is_right[is_scored].mean()), "scored": int(is_scored.sum())}


def numbers(folder: Path, **fields: Any) -> dict[str, Any]:
    """Return the numbers of a run, of an evaluation whose last batch is not full, and predictions."""
    trainer = Trainer(
        llama(),
        gpu_arguments(
            folder,
            per_device_train_batch_size=2,
            per_device_eval_batch_size=3,
            gradient_accumulation_steps=2,
            include_num_input_tokens_seen="all",
            include_for_metrics=["inputs"],
            **fields,
        ),
        train_dataset=rows(12),
        eval_dataset=rows(5, seed=1),
        data_collator=PaddingCollator(4, attention_mask=False),
        compute_metrics=ranked,
    )
    attention = functional.scaled_dot_product_attention
    with fused_attention():
        trainer.train()
        predicted = trainer.predict(trainer.eval_dataset)
    layers = [module for name, module in trainer.model.named_modules() if name.endswith("self_attn")]
    return {
        "logs": [
            {name: value for name, value in entry.items() if "_per_" not in name and "runtime" not in name}
            for entry in trainer.state.log_history
        ],
        "metrics": {name: predicted.metrics[f"test_{name}"] for name in ("loss", "right", "scored")},
        "predictions": (predicted.predictions, predicted.label_ids),
        "left": (
            functional.scaled_dot_product_attention is attention,
            [len(each._forward_pre_hooks) for each in layers],
        ),
        "size": trainer.get_total_train_batch_size(trainer.args),
    }


def test_numbers_of_one_process(tmp_path: Path):
    """Two ranks with parts of the sequences train, evaluate, count and predict as one process that has them whole."""
    one = run_on_gpu(numbers, tmp_path / "one")
    for found in run_on_gpus(numbers, tmp_path / "two", **SHARING):
        assert found["size"] == one["size"] == 4
        assert found["metrics"] == pytest.approx(one["metrics"], rel=1e-4)
        for line, other in zip(found["logs"], one["logs"], strict=True):
            assert line == pytest.approx(other, rel=1e-4)
        for ours, theirs in zip(found["predictions"], one["predictions"], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
        assert found["left"] == (True, [0, 0])


def parts(folder: Path, length: int) -> dict[str, Any]:
    """Return this rank's part of a batch with ``length`` tokens, and whether the batch itself has stayed whole."""
    seen: dict[str, Any] = {}
    row = {"input_ids": list(range(10, 10 + length)), "labels": [helpers.IGNORED, *range(11, 10 + length)]}

    class Watching(Trainer):
        def training_step(self, model: Any, inputs: dict[str, Any], *given: Any) -> Any:
            try:
                return super().training_step(model, inputs, *given)
            finally:
                seen["stays whole"] = inputs["input_ids"].tolist() == [row["input_ids"]]

        def compute_loss(self, model: Any, inputs: dict[str, Any], *given: Any, **named: Any) -> Any:
            seen.update({name: value[0].tolist() for name, value in inputs.items()})
            return super().compute_loss(model, inputs, *given, **named)

    args = gpu_arguments(folder, max_steps=1, per_device_train_batch_size=1, **SHARING)
    trainer = Watching(
        llama(vocab_size=40), args, train_dataset=helpers.ListDataset([row]), data_collator=PaddingCollator(1)
    )
    with fused_attention():
        try:
            trainer.train()
        except DataError as error:
            return {"error": str(error)}
    return seen


def smoothed(folder: Path, semantics: str, **fields: Any) -> tuple[list[float], list[str]]:
    """Return the logged losses of a run with smoothed labels, and what it warned of."""
    args = gpu_arguments(
        folder, per_device_train_batch_size=2, label_smoothing_factor=0.1, semantics=semantics, max_steps=4, **fields
    )
    data_collator = PaddingCollator(4, attention_mask=False)
    trainer = Trainer(llama(), args, train_dataset=rows(12), data_collator=data_collator)
    with fused_attention(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train()
    told = [str(item.message) for item in caught if "label_smoothing_factor" in str(item.message)]
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], told


@pytest.mark.skipif(not IS_5, reason="transformers 4 divides by the labels of a rank")
@pytest.mark.parametrize("sharing", [SHARING, {"fsdp": True, "fsdp_config": {"version": 2}}], ids=["parts", "FSDP 2"])
def test_smoothed_labels(sharing: dict[str, Any], tmp_path: Path):
    """Corrected, two ranks have the losses of one process; as in transformers they do not shift labels, and warn."""
    batches = {} if "parallelism_config" in sharing else {"accelerator_config": {"split_batches": True}}
    one, _ = run_on_gpu(smoothed, tmp_path / "one", "corrected")
    assert len(one) == 4
    for losses_of_rank, told in run_on_gpus(smoothed, tmp_path / "corrected", "corrected", **sharing, **batches):
        assert losses_of_rank == pytest.approx(one, rel=1e-4)
        assert told == []
    for losses_of_rank, told in run_on_gpus(smoothed, tmp_path / "own", "5.24", **sharing, **batches):
        assert losses_of_rank != pytest.approx(one, rel=1e-3)
        assert len(told) == 1
        assert "label_smoothing_factor=0.1` with FSDP 2" in told[0]


def test_parts(tmp_path: Path):
    """Of eight tokens one rank has the first and last two, the other the rest; shifted labels are those that follow."""
    first, second = run_on_gpus(parts, tmp_path, 8)
    assert first == {
        "input_ids": [10, 11, 16, 17],
        "labels": [helpers.IGNORED, 11, 16, 17],
        "shift_labels": [11, 12, 17, helpers.IGNORED],
        "position_ids": [0, 1, 6, 7],
        "attention_mask": [1, 1, 1, 1],
        "stays whole": True,
    }
    assert second["input_ids"] == [12, 13, 14, 15]
    assert second["shift_labels"] == [13, 14, 15, 16]


def test_lengths(tmp_path: Path):
    """Six tokens are shared out in one piece each, as they are no multiple of four; five are an error on every rank."""
    first, second = run_on_gpus(parts, tmp_path / "six", 6)
    assert (first["input_ids"], second["input_ids"]) == ([10, 11, 12], [13, 14, 15])
    for found in run_on_gpus(parts, tmp_path / "five", 5):
        assert "sequences of 5 tokens cannot be shared out over `cp_size=2`" in found["error"]
        assert "multiple of 4" in found["error"]


@pytest.mark.slow
def test_no_process_is_started_for_a_model_that_cannot_be_shared(tmp_path: Path):
    """Where the Trainer is to start the processes, attention that they cannot share is one error ahead of that."""
    output = run_script_on_gpus(SCRIPTS / "shares_script.py", tmp_path, "sequences", "model", devices=3).output
    (line,) = [line for line in output.splitlines() if line.startswith("PROCESS")]
    assert line.startswith("PROCESS None: ModelError: `model`: the attention of LlamaForCausalLM is 'eager', but")
    assert "`cp_size=3`" in line


def losses(folder: Path, which: Which) -> list[dict[str, float]]:
    """Return the losses and norms of four ranks that share sequences and matrices, under one of the libraries."""
    torch.set_num_threads(1)
    parity.DEFAULTS.update(ON_GPUS)
    outcome = parity.run(shared(sizes=MATRICES_TOO), which, folder)
    history = outcome.results[0]["value"]["log_history"]
    return [{name: line[name] for name in line if "loss" in name or name == "grad_norm"} for line in history]


def splits(folder: Path) -> set[str]:
    """Return the names of the dimensions of the mesh over which a layer's matrix is divided in a run of both."""
    config = {**SHARING["parallelism_config"], **MATRICES_TOO}
    args = gpu_arguments(folder, max_steps=1, fsdp=True, fsdp_config={"version": 2}, parallelism_config=config)
    trainer = Trainer(llama(), args, train_dataset=rows(8), data_collator=PaddingCollator(4, attention_mask=False))
    with fused_attention():
        trainer.train()
    weight = trainer.model.get_parameter("model.layers.0.self_attn.q_proj.weight")
    dimensions = zip(weight.device_mesh.mesh_dim_names, weight.placements, strict=True)
    return {name for name, placement in dimensions if not placement.is_replicate()}


@pytest.mark.slow
@pytest.mark.skipif(not IS_5, reason="transformers 4 has other numbers under FSDP 2")
def test_matrices_are_split_too(tmp_path: Path):
    """With a tensor-parallel size beside it the numbers are those of transformers, which leaves matrices whole."""
    found, expected = (
        run_on_gpus(losses, tmp_path / which, which, processes=4, devices=4) for which in ("ours", "upstream")
    )
    for history, other in zip(found, expected, strict=True):
        for line, theirs in zip(history, other, strict=True):
            assert line == pytest.approx(theirs, rel=1e-4)
    assert all("tp" in split for split in run_on_gpus(splits, tmp_path / "splits", processes=4, devices=4))


def shrunk(folder: Path) -> dict[str, Any]:
    """Return the numbers of a run whose second rank runs out of memory in its second batch of six rows."""

    class Exhausted(Trainer):
        batches = 0

        def compute_loss(self, *given: Any, **named: Any) -> Any:
            loss = super().compute_loss(*given, **named)
            self.batches += 1
            if self.batches == 2 and self.args.process_index == 1:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried")
            return loss

    args = gpu_arguments(folder, max_steps=3, per_device_train_batch_size=6, auto_find_batch_size=True, **SHARING)
    trainer = Exhausted(llama(), args, train_dataset=rows(24), data_collator=PaddingCollator(4))
    with fused_attention():
        trainer.train()
    return {"size": trainer._train_batch_size, "losses": [line["loss"] for line in trainer.state.log_history[:-1]]}


@pytest.mark.slow
def test_smaller_batches(tmp_path: Path):
    """When one rank runs out of memory, both begin again with fewer rows in a batch."""
    first, second = run_on_gpus(shrunk, tmp_path)
    assert first == second
    assert first["size"] == 5
    assert len(first["losses"]) == 3
