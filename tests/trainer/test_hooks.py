"""The order of an update step, and what is around it in ``trainer/loop.py``, is what happens in a run."""

import inspect
import re

from hf_compat import Trainer, TrainerCallback
from hf_compat.trainer import loop, run, saving
from hf_compat.trainer.loop import RunHooks, UpdateLoop
from tests.support.helpers import ListDataset, PlainModel, vector_rows
from tests.support.trainers import arguments

OUTSIDE = {"on_init_end", "on_predict", "on_prediction_step", "on_push_begin", "on_log", "on_evaluate"}
"""Events that the constructor, evaluations, pushes, and the Trainer's methods of these names fire."""

# Three batches in windows of two: a full one and a short one, which ends the epoch.
SCRIPT = """
setup
on_fit_start
on_train_start: on_train_begin
on_train_epoch_start: on_epoch_begin
advance: on_step_begin
train: on_substep_end
on_before_optimizer_step: on_pre_optimizer_step
train: on_optimizer_step
advance: on_step_end on_log
advance: on_step_begin
train
on_before_optimizer_step: on_pre_optimizer_step
train: on_optimizer_step
advance: on_step_end on_log on_save
on_train_epoch_end: on_epoch_end
on_train_end: on_log on_train_end
teardown
""".strip().splitlines()


def test_the_script_is_what_runs(tmp_path, monkeypatch):
    """Each hook, and each part of an update step, is where the script says, and fires the events that it says."""
    seen, inside = [], []

    def noting(name, function):
        def call(self, *given, **named):
            inside.append([name])
            seen.append(inside[-1])
            try:
                return function(self, *given, **named)
            finally:
                inside.pop()

        return call

    functions = [(RunHooks, name) for name in vars(RunHooks) if name.startswith("on_") or name in ("setup", "teardown")]
    for owner, name in [*functions, (UpdateLoop, "advance"), (UpdateLoop, "train")]:
        monkeypatch.setattr(owner, name, noting(name, getattr(owner, name)))

    class Events(TrainerCallback):
        pass

    for event in (name for name in vars(TrainerCallback) if name.startswith("on_")):

        def note(self, args, state, control, event=event, **named):
            if not inside:
                return
            if seen[-1] is not inside[-1]:  # after a call that has ended
                inside[-1] = [inside[-1][0]]
                seen.append(inside[-1])
            inside[-1].append(event)

        setattr(Events, event, note)
    args = arguments(
        tmp_path,
        num_train_epochs=1,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=1,
        save_strategy="steps",
        save_steps=2,
    )
    Trainer(PlainModel(), args, train_dataset=ListDataset(vector_rows(6)), callbacks=[Events()]).train()
    assert [f"{name}: {' '.join(events)}" if events else name for name, *events in seen] == SCRIPT


def test_every_event_is_fired():
    """Each event of a run is fired in the files of its script, and no other event is named there."""
    source = "".join(map(inspect.getsource, (loop, run, saving)))
    fired = set(re.findall(r"callback_handler\.(on_\w+)\(", source))
    events = {name for name in vars(TrainerCallback) if name.startswith("on_")}
    assert fired == events - OUTSIDE
