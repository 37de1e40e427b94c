"""Callbacks see upstream's events, in upstream's order, with upstream's keyword arguments.

Every fact is checked of transformers, too: a fact that transformers does not hold to is no fact.
"""

from __future__ import annotations

import pytest

from tests.support import helpers
from tests.support.parity import Kit, clean_process

COMMON = {"model", "processing_class", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader"}

FULL_STEP = "step_begin substep_end pre_optimizer_step optimizer_step step_end log"
SHORT_STEP = "step_begin pre_optimizer_step optimizer_step step_end log"
EVALUATION = "prediction_step prediction_step log evaluate"

# Ten rows in batches of 2 and windows of 2: two full windows and a short one in each of two epochs. Evaluation of four
# rows in batches of 2 at the start and every 2 update steps, a checkpoint every 4 and at the last.
TRACE = [
    "init_end train_begin",
    EVALUATION,
    "epoch_begin",
    FULL_STEP,
    FULL_STEP,
    EVALUATION,
    SHORT_STEP,
    "epoch_end",
    "epoch_begin",
    FULL_STEP,
    EVALUATION,
    "save",
    FULL_STEP,
    SHORT_STEP,
    EVALUATION,
    "save",
    "epoch_end",
    "log train_end",
]


@pytest.fixture(params=["upstream", "ours"])
def kit(request, tmp_path):
    """The library under test."""
    with clean_process():
        yield Kit(request.param, tmp_path)


def build(kit, *, callbacks=(), **fields):
    """Return a trainer of a plain module on ten rows that evaluates four."""
    chosen = {
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
    }
    return kit.trainer(
        model=helpers.PlainModel(),
        args=kit.args(**{**chosen, **fields}),
        train_dataset=helpers.ListDataset(helpers.vector_rows(10)),
        eval_dataset=helpers.ListDataset(helpers.vector_rows(4, seed=1)),
        callbacks=callbacks,
    )


def build_full(kit):
    """Return the trainer whose events are ``TRACE``."""
    steps = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 4}
    return build(kit, eval_on_start=True, **steps)


def names(trace):
    """Return the names of the events, without ``on_``."""
    return [entry["event"].removeprefix("on_") for entry in trace]


def at(trace, event):
    """Return the entries of one event."""
    return [entry for entry in trace if entry["event"] == event]


def test_order(kit):
    """A step is followed by log, evaluate, save; a short window is a step; the last log comes before the end."""
    build_full(kit).train()
    assert names(kit.outcome.trace) == " ".join(TRACE).split()


def test_step_and_epoch(kit):
    """``global_step`` and ``epoch`` have grown when ``on_step_end`` comes; a short window ends on a whole epoch."""
    build_full(kit).train()
    ends = at(kit.outcome.trace, "on_step_end")
    assert [(entry["global_step"], entry["epoch"]) for entry in ends] == [
        (1, 0.4),
        (2, 0.8),
        (3, 1.0),
        (4, 1.4),
        (5, 1.8),
        (6, 2.0),
    ]
    for event in ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step"):
        assert [entry["global_step"] for entry in at(kit.outcome.trace, event)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("event", "extra", "empty"),
    [
        pytest.param(
            "on_init_end", set(), COMMON - {"model"}, id="init: there is nothing but the model, which is in no wrapper"
        ),
        pytest.param("on_train_begin", set(), {"processing_class", "eval_dataloader"}, id="train begin"),
        pytest.param("on_step_end", set(), {"processing_class"}, id="step end"),
        pytest.param("on_log", {"logs"}, {"processing_class"}, id="log"),
        pytest.param("on_evaluate", {"metrics"}, {"processing_class"}, id="evaluate"),
        pytest.param("on_save", set(), {"processing_class"}, id="save"),
        pytest.param("on_train_end", set(), {"processing_class"}, id="train end"),
    ],
)
def test_keyword_arguments(kit, event, extra, empty):
    """Each event gets the common six, None where there is nothing yet, and what is its own."""
    build_full(kit).train()
    expected = sorted(f"{name}=None" if name in empty else name for name in COMMON | extra)
    assert at(kit.outcome.trace, event)[0]["given"] == expected


@pytest.mark.parametrize(
    ("event", "cleared"),
    [
        pytest.param("on_step_begin", {"should_log", "should_evaluate", "should_save"}, id="step begin"),
        pytest.param("on_epoch_begin", {"should_epoch_stop"}, id="epoch begin"),
        pytest.param("on_train_begin", {"should_training_stop"}, id="train begin"),
        pytest.param("on_log", {"should_log"}, id="log"),
        pytest.param("on_evaluate", {"should_evaluate"}, id="evaluate"),
        pytest.param("on_save", {"should_save"}, id="save"),
    ],
)
def test_flags_are_cleared(kit, event, cleared):
    """The flag that an event answers is off when its callbacks are called."""
    build_full(kit).train()
    for entry in at(kit.outcome.trace, event):
        assert not cleared & set(entry["control"])


def test_flags_are_decided_before_user_callbacks(kit):
    """The flow's decisions for a step are visible to the user's callback at that step's end."""
    build_full(kit).train()
    assert [entry["control"] for entry in at(kit.outcome.trace, "on_step_end")] == [
        ["should_log"],
        ["should_evaluate", "should_log"],
        ["should_log"],
        ["should_save", "should_evaluate", "should_log"],
        ["should_log"],
        ["should_training_stop", "should_save", "should_evaluate", "should_log"],
    ]


def test_evaluate_and_predict_on_their_own(kit):
    """``evaluate`` logs; ``predict`` does not, and its metrics have no epoch."""
    trainer = build(kit)
    kit.outcome.trace.clear()
    trainer.evaluate()
    trainer.predict(trainer.eval_dataset)
    assert names(kit.outcome.trace) == [*EVALUATION.split(), "prediction_step", "prediction_step", "predict"]
    assert sorted(kit.outcome.trace[-1]["metrics"])[0] == "test_loss"


def test_late_callback_misses_init_end(kit):
    """``add_callback`` after the constructor fires nothing."""
    trainer = build(kit)
    late = []
    trainer.add_callback(helpers.recording_callback(kit.TrainerCallback, late))
    assert late == []
    trainer.train()
    assert late[0]["event"] == "on_train_begin"


def test_returned_control_replaces_the_old_one(kit):
    """A callback that returns a control object is obeyed."""

    class Stopping(kit.TrainerCallback):
        def on_step_end(self, args, state, control, **given):
            return type(control)(should_training_stop=state.global_step == 2)

    trainer = build(kit, callbacks=[Stopping()])
    trainer.train()
    assert trainer.state.global_step == 2


def test_callbacks_share_the_logs(kit):
    """What one callback adds to ``logs`` the next one sees."""

    class Adding(kit.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **given):
            logs["added"] = state.global_step

    build(kit, callbacks=[Adding()]).train()
    assert all("added" in entry["logs"] for entry in at(kit.outcome.trace, "on_log"))


@pytest.mark.parametrize(("disable_tqdm", "last"), [(True, "PrinterCallback"), (False, "ProgressCallback")])
def test_order_of_callbacks(kit, disable_tqdm, last):
    """The flow decides first; what shows progress is called last."""
    trainer = build(kit, disable_tqdm=disable_tqdm)
    callbacks = [type(each).__name__ for each in trainer.callback_handler.callbacks]
    assert callbacks == ["DefaultFlowCallback", "RecordingCallback", last]


def test_callback_given_as_a_class(kit):
    """A class among the callbacks is instantiated."""

    class Counting(kit.TrainerCallback):
        steps = 0

        def on_step_end(self, args, state, control, **given):
            self.steps += 1

    trainer = build(kit, callbacks=[Counting])
    trainer.train()
    assert trainer.pop_callback(Counting).steps == 6
