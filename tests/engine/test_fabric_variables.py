"""The variables of ``fabric run``: keywords of ``lightning.Trainer`` that a script did not write."""

import os

import pytest
import torch
from lightning.fabric import cli

from hf_compat.distributed.accelerators import wants_cpu
from hf_compat.engine.keywords import FABRIC_VARIABLES
from hf_compat.errors import ArgumentsError, TrainerSetupError
from tests.support.trainers import new_trainer


def trainer_with(folder, lightning=None, **fields):
    """Return a Trainer that is told what Lightning's is to be."""
    return new_trainer(folder, rows=4, given={"lightning": lightning}, **fields)


@pytest.fixture
def command(monkeypatch):
    """Set the variables that ``fabric run`` sets for its options; all of them are gone afterwards."""
    for name in (*FABRIC_VARIABLES, "LT_CLI_USED"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def run(**options):
        defaults = {"accelerator": None, "strategy": None, "devices": "1", "num_nodes": 1, "precision": None}
        cli._set_env_variables(cli.Namespace(**{**defaults, **options}))

    return run


def test_every_variable_is_known(command):
    """Lightning's command sets these variables and no others; each says what a keyword says."""
    before = {*os.environ}
    command(accelerator="cpu", strategy="ddp", precision="bf16-mixed")
    assert {*os.environ} - before == {*FABRIC_VARIABLES, "LT_CLI_USED"}


def test_what_the_command_says_is_done(tmp_path, command):
    """Device, strategy and precision are the command's; what a script says as well changes nothing."""
    command(accelerator="cpu", strategy="ddp", precision="bf16")
    assert wants_cpu(use_cpu=False)
    for keywords in (None, {"precision": "bf16-mixed", "devices": 1, "num_nodes": 1, "accelerator": "auto"}):
        made = trainer_with(tmp_path, keywords)
        assert (made.args.bf16, made.args.world_size) == (True, 1)


@pytest.mark.parametrize(
    ("options", "keywords", "fields", "told"),
    [
        pytest.param({"strategy": "dp"}, {}, {}, "'dp'.*not supported.*`LT_STRATEGY=dp`", id="strategy"),
        pytest.param(
            {"strategy": "deepspeed"},
            {},
            {"deepspeed": {"zero_optimization": {"stage": 1}}},
            "contradicts `deepspeed=.*'stage': 1.*`LT_STRATEGY=deepspeed`",
            id="deepspeed",
        ),
        pytest.param({"strategy": "fsdp"}, {}, {}, "world size is only 1.*`LT_STRATEGY=fsdp`", id="shards for one"),
        pytest.param(
            {"accelerator": "gpu"}, {}, {}, r"\(cpu, chosen from `use_cpu=True`.*`LT_ACCELERATOR=gpu`", id="device"
        ),
        pytest.param({"devices": "0,1"}, {}, {}, "CUDA_VISIBLE_DEVICES.*`LT_DEVICES=0,1`", id="list of devices"),
        pytest.param({"num_nodes": "two"}, {}, {}, "`LT_NUM_NODES=two` is not a valid number", id="nodes"),
        pytest.param({"precision": "64"}, {}, {"bf16": True}, "contradicts `bf16=True`.*`LT_PRECISION=64`", id="field"),
        pytest.param({}, {"devices": 2}, {}, "'devices': 2.*contradicts `LT_DEVICES=1`.*--devices", id="keyword"),
        pytest.param(
            {"precision": "bf16-mixed"},
            {"precision": "32-true"},
            {},
            "'precision': '32-true'.*contradicts `LT_PRECISION=bf16-mixed`",
            id="precision of the script",
        ),
    ],
)
def test_what_the_command_cannot_say(tmp_path, command, options, keywords, fields, told):
    """The error names variable and value, beside reason and remedy."""
    command(**options)
    with pytest.raises((TrainerSetupError, ArgumentsError), match=f"(?s){told}"):
        trainer_with(tmp_path, keywords, **fields)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the precision is supported")
def test_precision_that_the_device_lacks(tmp_path, command):
    """An error about a field that the command has set names the variable."""
    command(precision="bf16-mixed")
    with pytest.raises(ArgumentsError, match=r"(?s)'bf16-mixed'.*doesn't support bf16.*`LT_PRECISION=bf16-mixed`"):
        trainer_with(tmp_path, use_cpu=False)
