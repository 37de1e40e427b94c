"""The ``FinetuningScheduler`` of the package finetuning-scheduler in a run."""

from __future__ import annotations

import itertools

import pytest
import torch

from hf_compat import TrainerCallback
from hf_compat.errors import TrainerSetupError
from tests.engine.test_lightning_callbacks import trainer_with

package = pytest.importorskip("finetuning_scheduler")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the package's own

SCHEDULE = {
    0: {"params": ["model.head.*"], "max_transition_epoch": 1},
    1: {"params": ["model.backbone.*"], "max_transition_epoch": 4, "lr": 5e-3},
}


def thawing(folder, *, by_epoch=True, **settings):
    """A scheduler of two phases, the second from the second epoch on."""
    schedule = {depth: dict(phase) for depth, phase in SCHEDULE.items()}
    settings = {"restore_best": False, "epoch_transitions_only": by_epoch, "ft_schedule": schedule, **settings}
    return package.FinetuningScheduler(log_dir=str(folder), **settings)


def saving(folder):
    """The checkpoint callback that it needs."""
    return package.FTSCheckpoint(folder / "files", monitor="eval_loss")


class Weights(TrainerCallback):
    """Keeps backbone and head after each update step, and the optimizer's learning rates."""

    def __init__(self):
        self.seen = []

    def on_step_end(self, args, state, control, model, optimizer, **kwargs):
        parts = [part.weight.detach().clone() for part in (model.backbone[0], model.head)]
        self.seen.append((*parts, [group["lr"] for group in optimizer.param_groups]))


@pytest.mark.parametrize("by_epoch", [True, False])
def test_it_thaws_in_phases(tmp_path, by_epoch):
    """The head is trained alone for an epoch, then the backbone too, by the run's optimizer and schedule."""
    weights = Weights()
    more = [] if by_epoch else [package.FTSEarlyStopping("eval_loss", patience=9)]
    trainer = trainer_with(tmp_path, thawing(tmp_path, by_epoch=by_epoch), saving(tmp_path), *more, weights)
    before = trainer.model.backbone[0].weight.detach().clone()
    trainer.train()
    per_epoch = len(weights.seen) // 4
    backbones, heads, rates = zip(*weights.seen, strict=True)
    assert all(torch.equal(backbone, before) for backbone in backbones[:per_epoch])
    assert not any(torch.equal(one, other) for one, other in itertools.pairwise(heads))
    late = backbones[per_epoch - 1 :]
    assert not any(torch.equal(one, other) for one, other in itertools.pairwise(late[:-1]))
    assert len(rates[0]) < len(rates[-1]) == len(trainer.optimizer.param_groups)
    assert rates[-2][-1] == pytest.approx(rates[-2][0] * 5e-3 / trainer.args.learning_rate)


def test_what_it_cannot_do_is_refused(tmp_path):
    """Before training: best weights between phases, monitors that no run computes, and resuming."""
    with pytest.raises(TrainerSetupError, match="Pass `restore_best=False`"):
        trainer_with(tmp_path, thawing(tmp_path, restore_best=True), saving(tmp_path))
    with pytest.raises(TrainerSetupError, match=r"Pass `FTSCheckpoint\(monitor='eval_loss'\)`") as caught:
        trainer_with(tmp_path, thawing(tmp_path, by_epoch=False))
    assert "`FTSEarlyStopping(monitor='eval_loss')`" in str(caught.value)
    trainer_with(tmp_path, thawing(tmp_path), saving(tmp_path)).train()
    with pytest.raises(TrainerSetupError, match="FinetuningScheduler cannot be resumed"):
        trainer_with(tmp_path, thawing(tmp_path), saving(tmp_path)).train(resume_from_checkpoint=True)
