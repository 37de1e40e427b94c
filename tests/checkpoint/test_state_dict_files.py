"""The states of optimizers and schedulers go from hf_compat to transformers and back."""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau

from hf_compat.checkpoint import names
from hf_compat.checkpoint.states import load_state_file, save_state_file
from hf_compat.checkpoint.unpickle import load_trusted
from hf_compat.errors import CheckpointError
from tests.support.checkpoints import train_upstream, upstream_trainer
from tests.support.helpers import gpt2

NAMES = (names.OPTIMIZER_NAME, names.SCHEDULER_NAME)


def assert_same(left, right):
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right)
    elif isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list):
        assert len(left) == len(right)
        for pair in zip(left, right, strict=True):
            assert_same(*pair)
    else:
        assert left == right


def fresh(folder, **fields):
    trainer = upstream_trainer(gpt2(), folder, **fields)
    trainer.create_optimizer_and_scheduler(2)
    return trainer


@pytest.mark.parametrize("optim", ["adamw_torch", "adafactor", "sgd", "rmsprop", "adagrad"])
@pytest.mark.parametrize("kind", ["linear", "cosine_with_restarts", "polynomial", "constant"])
def test_both_ways(optim, kind, tmp_path):
    """We write what transformers' Trainer writes, byte by byte, and read it into a fresh optimizer and scheduler."""
    fields = {"optim": optim, "lr_scheduler_type": kind}
    trained = train_upstream(gpt2(), tmp_path, **fields)
    checkpoint, ours = tmp_path / "checkpoint-2", tmp_path / "ours"
    ours.mkdir()
    sources = (getattr(trained.optimizer, "optimizer", trained.optimizer), trained.lr_scheduler)
    targets = fresh(tmp_path, **fields)
    for name, source, target in zip(NAMES, sources, (targets.optimizer, targets.lr_scheduler), strict=True):
        save_state_file(source, ours, name)
        assert (ours / name).read_bytes() == (checkpoint / name).read_bytes()
        load_state_file(target, checkpoint, name)
        assert_same(target.state_dict(), source.state_dict())


def test_upstream_reads_ours(tmp_path):
    """The Trainer of transformers goes on from our files."""
    trained, target = train_upstream(gpt2(), tmp_path), fresh(tmp_path)
    ours = tmp_path / "ours"
    ours.mkdir()
    for name, source in zip(NAMES, (trained.optimizer, trained.lr_scheduler), strict=True):
        save_state_file(source, ours, name)
    target._load_optimizer_and_scheduler(str(ours))
    assert_same(target.optimizer.state_dict(), trained.optimizer.state_dict())
    assert_same(target.lr_scheduler.state_dict(), trained.lr_scheduler.state_dict())


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda optimizer: ReduceLROnPlateau(optimizer, patience=0), id="plateau"),
        pytest.param(lambda optimizer: CosineAnnealingLR(optimizer, 5), id="cosine"),
        pytest.param(lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=9), id="one cycle"),
        pytest.param(lambda optimizer: LambdaLR(optimizer, lambda step: 0.9**step), id="function"),
    ],
)
def test_torchs_schedulers(make, tmp_path):
    """A scheduler of torch's own goes on where it was."""
    schedulers = [make(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)) for _ in range(2)]
    for metric in (1.0, 2.0, 3.0):
        schedulers[0].optimizer.step()
        schedulers[0].step(*([metric] if isinstance(schedulers[0], ReduceLROnPlateau) else []))
    save_state_file(schedulers[0], tmp_path, "scheduler.pt")
    load_state_file(schedulers[1], tmp_path, "scheduler.pt")
    states = [{name: value for name, value in item.state_dict().items() if not callable(value)} for item in schedulers]
    assert states[0] == states[1]


def test_gradient_scaler(tmp_path):
    """A gradient scaler's scale and counts are kept."""
    scaler, target = (torch.amp.GradScaler("cpu", init_scale=scale) for scale in (8.0, 2.0))
    save_state_file(scaler, tmp_path, names.SCALER_NAME)
    load_state_file(target, tmp_path, names.SCALER_NAME)
    assert target.state_dict() == scaler.state_dict()


@pytest.mark.parametrize("content", [[], {}, {"state": {}, "param_groups": []}, {"state": 1, "param_groups": 2}, 7])
def test_state_of_something_else(content, tmp_path):
    """A file that is no such optimizer's state is an error that names it."""
    torch.save(content, tmp_path / "optimizer.pt")
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    with pytest.raises(CheckpointError, match=r"optimizer\.pt` does not fit this run's AdamW"):
        load_state_file(optimizer, tmp_path, "optimizer.pt")


def test_missing_file(tmp_path):
    """A file that is not there is an error that names it."""
    with pytest.raises(CheckpointError, match=r"optimizer\.pt` cannot be read"):
        load_trusted(tmp_path / "optimizer.pt")
