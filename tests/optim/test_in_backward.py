"""An optimizer for each parameter."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_compat.arguments.releases import resolve_semantics
from hf_compat.optim.optimizers import optimizer_class_and_kwargs
from tests.gpu.harness import needs_fake_gpu, run_on_gpu, run_on_gpus
from tests.scripts.sharded_common import llama
from tests.support.helpers import ListDataset, PadCollator, token_rows
from tests.support.optimizers import Settings, linears

PACKAGES = {"lomo": "lomo_optim", "galore_adamw_layerwise": "galore_torch"}
"""A name of an optimizer and its package."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:This implementation of AdamW:FutureWarning")
@pytest.mark.parametrize("name", ["galore_adamw_layerwise", "galore_adafactor_layerwise"])
@pytest.mark.parametrize(("semantics", "follows"), [("4.57", True), ("5.23", False)])
def test_layerwise_learning_rate(name, semantics, follows):
    """Each backward pass updates, with the scheduled learning rate before 5.1 and with the first one since."""
    settings = Settings(name, "rank=2", optim_target_modules="all-linear")
    model = linears()
    optimizer, kwargs = optimizer_class_and_kwargs(settings, model, semantics=resolve_semantics(semantics))
    built = optimizer(kwargs.pop("optimizer_dict"), **kwargs)
    built.param_groups[0]["lr"] = 0.0
    before = model["q"].weight.detach().clone()
    model["q"](torch.ones(1, 4)).square().sum().backward()
    assert torch.equal(before, model["q"].weight) is follows
    assert model["q"].weight.grad is None


def refusals(folder: Path, optim: str, *, zero: int | None = None, **fields: Any) -> list[tuple[list[type], str]]:
    """Return the classes and the text of the error with which each library ends, transformers first.

    Args:
        folder: Where they train.
        optim: Name of an optimizer.
        zero: DeepSpeed's stage of ZeRO; None without DeepSpeed.
        **fields: Further training arguments.
    """
    found = []
    if zero is not None:
        from tests.gpu.partitions import BUCKETS
        from tests.scripts.deepspeed_scenarios import config
        from tests.support.deepspeed_tools import without_extension

        without_extension()
        fields["deepspeed"] = config(zero, zero_optimization=BUCKETS)
    if "layerwise" in optim:
        fields["optim_target_modules"] = "all-linear"
    warnings.simplefilter("ignore")
    for library in map(importlib.import_module, ("transformers", "hf_compat")):
        args = library.TrainingArguments(str(folder), optim=optim, report_to="none", disable_tqdm=True, **fields)
        rows = ListDataset(token_rows(8))
        trainer = library.Trainer(llama(), args, train_dataset=rows, data_collator=PadCollator())
        try:
            trainer.train()
        except Exception as error:
            found.append(([each for each in type(error).__mro__ if each.__module__ == "builtins"], str(error)))
    return found


def check_refusals(found: list[tuple[list[type], str]], kind: type, text: str) -> None:
    """Fail unless both libraries raise a ``kind``, and ours with ``text``."""
    (theirs, _), (ours, said) = found
    assert theirs[0] is kind
    assert kind in ours
    assert text in said


@pytest.mark.slow
@needs_fake_gpu
@pytest.mark.parametrize(("optim", "kind"), [("lomo", TypeError), ("galore_adamw_layerwise", AssertionError)])
def test_scaled_losses_are_refused(optim: str, kind: type, tmp_path: Path):
    """With ``fp16`` on a GPU the gradients of the backward pass are scaled: an error, as in transformers, and why."""
    pytest.importorskip(PACKAGES[optim])
    text = f"`optim={optim!r}` updates parameters in the backward pass, in which gradients with `fp16=True` are those"
    check_refusals(run_on_gpu(refusals, tmp_path, optim, fp16=True), kind, text)


@pytest.mark.slow
@needs_fake_gpu
def test_deepspeeds_backward_pass_is_refused(tmp_path: Path):
    """DeepSpeed's engine runs the backward pass: ranks would each train their own weights."""
    for package in ("lomo_optim", "deepspeed"):
        pytest.importorskip(package)
    for found in run_on_gpus(refusals, tmp_path, "lomo", zero=1):
        check_refusals(
            found, TypeError, "which with `deepspeed` is that of DeepSpeed's engine. Use optim='adamw_torch'"
        )


@pytest.mark.slow
@needs_fake_gpu
def test_layerwise_optimizers_of_several_ranks_are_refused(tmp_path: Path):
    """With the class of transformers' error, a NotImplementedError."""
    pytest.importorskip("galore_torch")
    for found in run_on_gpus(refusals, tmp_path, "galore_adamw_layerwise"):
        check_refusals(found, NotImplementedError, "does not support a world size of 2; use optim='galore_adamw'")
