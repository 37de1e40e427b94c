"""``accelerator_config``."""

import dataclasses

import pytest

from hf_compat.arguments import TrainingArguments
from hf_compat.arguments.accelerator_config import syncs_each_batch
from hf_compat.errors import ArgumentsError


def test_accumulation_of_accelerator_config():
    """``num_steps`` stands in for ``gradient_accumulation_steps``, also in a copy."""
    config = {"gradient_accumulation_kwargs": {"num_steps": 4}}
    args = TrainingArguments("out", accelerator_config=config)
    assert args.gradient_accumulation_steps == dataclasses.replace(args).gradient_accumulation_steps == 4


def test_accelerator_config_file(tmp_path):
    """The settings are read from a JSON file; a key that is none is refused."""
    path = tmp_path / "config.json"
    path.write_text('{"even_batches": false}', encoding="utf-8")
    assert TrainingArguments("out", accelerator_config=str(path)).accelerator_config.even_batches is False
    path.write_text('{"even": false}', encoding="utf-8")
    with pytest.raises(ArgumentsError, match=r"\['even'\]"):
        TrainingArguments("out", accelerator_config=str(path))


@pytest.mark.parametrize("given", [None, {}, {"sync_each_batch": False}, {"sync_each_batch": True}])
def test_batches_after_which_gradients_are_exchanged(given):
    """Each one is if the configuration says so; None and a dict without the key say nothing."""
    args = TrainingArguments("out", use_cpu=True, accelerator_config={"gradient_accumulation_kwargs": given})
    assert syncs_each_batch(args.accelerator_config) == bool(given and given["sync_each_batch"])
