"""Whichever call of a save the file system refuses: the error is right, earlier checkpoints stay, nothing is left."""

from __future__ import annotations

import errno
import itertools
import logging

import pytest

from hf_compat import TrainerCallback
from hf_compat.errors import CheckpointWriteError
from hf_compat.tools.checkpoints import describe_checkpoints
from tests.support.failing_calls import KINDS, FailingCall
from tests.support.trainers import new_trainer

pytestmark = pytest.mark.filterwarnings("ignore:mtime may not be reliable")
REASONS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)


class Arms(TrainerCallback):
    """Lets calls fail while the run trains, with all its saves."""

    def __init__(self, call):
        self.call = call

    def on_train_begin(self, *_, **__):
        self.call.is_armed = True


def train_failing(folder, call, answer, save_async):
    """Train with two saves, the second of which deletes the first checkpoint; return the Trainer and the error."""
    saves = {"save_steps": 1, "save_total_limit": 1, "on_save_error": answer, "save_async": save_async}
    trainer = new_trainer(folder, callbacks=[Arms(call)], max_steps=2, per_device_train_batch_size=2, **saves)
    with call.installed():
        try:
            trainer.train()
        except CheckpointWriteError as error:
            return trainer, error
        finally:
            call.is_armed = False
    return trainer, None


def check_run(folder, call, answer, save_async):
    """Fail unless what a run leaves, and says, is right."""
    trainer, error = train_failing(folder, call, answer, save_async)
    assert error is None or (answer == "raise" and call.has_failed)
    assert error is None or error.errno in REASONS
    assert error is None or ".partial-" not in f"{error}{error.filename}"
    left = describe_checkpoints(folder, verify=True) if folder.exists() else []
    assert {item.problems for item in left} <= {()}
    assert {path.name for path in folder.iterdir()} == {item.path.name for item in left}, "hidden folders"
    if error is None:
        assert trainer.state.global_step == 2
    if not call.has_failed:
        assert [item.step for item in left] == [2]
    assert left or (error is not None and "checkpoint-1` cannot be written" in str(error))


@pytest.mark.parametrize("save_async", [False, True], ids=["synchronously", "in the background"])
@pytest.mark.parametrize("answer", ["raise", "warn"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "stride", [pytest.param(17, id="some"), pytest.param(1, id="every one", marks=pytest.mark.slow)]
)
def test_the_nth_call_fails(stride, kind, answer, save_async, tmp_path, caplog):
    """For each n until no call fails: the first call, then every ``stride``-th of them."""
    caplog.set_level(logging.CRITICAL)
    for number in itertools.count(1, stride):
        call = FailingCall(tmp_path / str(number), kind, number, REASONS[number % len(REASONS)])
        check_run(tmp_path / str(number), call, answer, save_async)
        if not call.has_failed:
            return
