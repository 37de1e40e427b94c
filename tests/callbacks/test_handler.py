"""Callbacks and the handler that calls them, side by side with the installed transformers."""

from __future__ import annotations

import functools
import inspect
import sys

import pytest
import transformers
from lightning.pytorch.callbacks import Callback
from transformers import trainer_callback as upstream

import hf_compat.callbacks as ours
from hf_compat import Trainer
from hf_compat.errors import HFCompatWarning
from hf_compat.state import TrainerControl, TrainerState
from tests.support.helpers import CONTROL_FLAGS, EVENTS, PlainModel, callback_args, recording_callback
from tests.support.trainers import arguments

LIBRARIES = pytest.mark.parametrize("library", [ours, upstream], ids=["ours", "transformers"])


def _handler(*callbacks, library=ours):
    return library.CallbackHandler(
        [library.DefaultFlowCallback, *callbacks], "model", "words", "optimizer", "scheduler"
    )


def _fire(handler, event, control=None, args=None, **state):
    """Fire ``event`` as a trainer does and return the control."""
    extra = {
        "on_log": {"logs": {"loss": 1.0}},
        "on_evaluate": {"metrics": {"eval_loss": 1.0}},
        "on_predict": {"metrics": {}},
    }
    given = (args or callback_args(), TrainerState(**{"max_steps": 10, **state}), control or TrainerControl())
    return getattr(handler, event)(*given, **extra.get(event, {}))


# The base class and the handler


def test_the_events_are_those_of_transformers():
    """Names and parameters are the installed release's; releases before 5.0 have no on_push_begin."""
    mine, theirs = (
        {
            name: list(inspect.signature(function).parameters)
            for name, function in vars(base).items()
            if name[:3] == "on_"
        }
        for base in (ours.TrainerCallback, upstream.TrainerCallback)
    )
    assert {**theirs, "on_push_begin": mine["on_push_begin"]} == mine
    assert set(EVENTS) | {"on_push_begin"} == set(mine)
    assert set(mine) <= set(vars(ours.CallbackHandler))


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_does_what_upstreams_does(event):
    """Callbacks are called in order with the same arguments, and the same switches are cleared before."""
    traces, controls = [], []
    for library in (ours, upstream):
        trace = []
        recorders = [recording_callback(library.TrainerCallback, trace) for _ in range(2)]
        control = TrainerControl(**dict.fromkeys(CONTROL_FLAGS, True))
        handler = _handler(*recorders, library=library)
        handler.train_dataloader = "train loader"
        controls.append(_fire(handler, event, control, callback_args(eval_strategy="no"), epoch=1.0, global_step=3))
        traces.append(trace)
    assert traces[0] == traces[1]
    assert len(traces[0]) == 2
    assert controls[0] == controls[1]


def test_events_take_positional_results_and_further_keywords():
    """``metrics`` and ``logs`` may be given by position; other keywords reach the callbacks."""
    seen = []

    class Callback(ours.TrainerCallback):
        def on_evaluate(self, args, state, control, metrics, **kwargs):
            seen.append((metrics, kwargs["more"]))

        def on_log(self, args, state, control, logs=None, **kwargs):
            seen.append((logs, kwargs["more"]))

        def on_push_begin(self, args, state, control, **kwargs):
            seen.append(kwargs["more"])

    handler, given = _handler(Callback), (callback_args(), TrainerState(), TrainerControl())
    handler.on_evaluate(*given, {"a": 1}, more=1)
    handler.on_log(*given, {"b": 2}, more=2)
    handler.on_push_begin(*given, more=3)
    assert seen == [({"a": 1}, 1), ({"b": 2}, 2), 3]


def test_a_returned_control_replaces_the_one_given():
    """Later callbacks and the caller get the control that a callback returns."""
    seen = []

    class Replace(ours.TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            return TrainerControl(should_epoch_stop=True)

    class See(ours.TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            seen.append(control)

    control = _fire(_handler(Replace, See), "on_save")
    assert control.should_epoch_stop
    assert seen == [control]


def test_a_tokenizer_is_passed_to_those_who_name_it():
    """Scripts for releases before 4.46 name ``tokenizer``; who takes any keyword gets ``processing_class`` alone."""
    seen = {}

    class Old(ours.TrainerCallback):
        def on_save(self, args, state, control, tokenizer, **kwargs):
            seen["old"] = (tokenizer, "processing_class" in kwargs)

        def on_log(self, args, state, control, *, tokenizer=None, **kwargs):
            seen["keyword"] = tokenizer

    class New(upstream.TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            seen["new"] = sorted(kwargs)

    handler = _handler(Old, New)
    _fire(handler, "on_save")
    _fire(handler, "on_log")
    common = ["eval_dataloader", "lr_scheduler", "model", "optimizer", "processing_class", "train_dataloader"]
    assert seen == {"old": ("words", True), "keyword": "words", "new": common}


class _Duck:
    """Not derived from any base class."""

    def __init__(self, calls):
        self.calls = calls

    def __getattr__(self, name):
        if name not in ("on_step_end", "on_log"):
            raise AttributeError(name)
        return lambda args, state, control, **kwargs: self.calls.append(name)


@pytest.mark.parametrize("base", [ours.TrainerCallback, upstream.TrainerCallback], ids=["ours", "transformers"])
def test_a_method_of_the_object_itself_is_called(base):
    """An event set on an object is called, also when it was set or taken away after the event was first fired."""
    calls = []
    callback, other = base(), base()
    handler = _handler(callback, other)
    _fire(handler, "on_step_end", global_step=1)
    callback.on_step_end = lambda args, state, control, **kwargs: calls.append(state.global_step)
    _fire(handler, "on_step_end", global_step=2)
    _fire(handler, "on_step_end", global_step=3)
    del callback.on_step_end
    _fire(handler, "on_step_end", global_step=4)
    assert calls == [2, 3]


def test_an_object_that_makes_its_methods_up_is_called():
    """Events from ``__getattr__`` are called; those that are not there are passed over."""
    calls = []
    handler = _handler(_Duck(calls))
    for event in ("on_step_end", "on_save", "on_log", "on_step_end"):
        _fire(handler, event)
    assert calls == ["on_step_end", "on_log", "on_step_end"]


def test_a_patched_class_is_called(monkeypatch):
    """A method put on a class, or a wrapper around the base class's own, is called from the next event on."""
    calls = []
    callback = type("Callback", (ours.TrainerCallback,), {})()
    handler = _handler(callback)
    _fire(handler, "on_save")

    @functools.wraps(ours.TrainerCallback.on_save)
    def wrapper(self, *given, **kwargs):
        calls.append("wrapper")

    monkeypatch.setattr(ours.TrainerCallback, "on_save", wrapper)
    _fire(handler, "on_save")
    monkeypatch.setattr(type(callback), "on_save", lambda self, *given, **kwargs: calls.append("own"))
    _fire(handler, "on_save")
    assert calls[-1] == "own"
    assert "wrapper" in calls


def test_a_class_that_is_called_like_the_base_is_called():
    """A user's class may be named TrainerCallback too."""
    calls = []

    class TrainerCallback(upstream.TrainerCallback):
        def on_save(self, *given, **kwargs):
            calls.append("saved")

    TrainerCallback.on_save.__qualname__ = "TrainerCallback.on_save"
    _fire(_handler(TrainerCallback), "on_save")
    assert calls == ["saved"]


def test_a_callable_that_is_no_function_is_called():
    """A partial, or a class that is built in, can handle an event."""
    callback, calls = ours.TrainerCallback(), []
    callback.on_save = functools.partial(lambda *given, **kwargs: calls.append("partial"))
    _fire(_handler(callback), "on_save")
    callback.on_save = dict.fromkeys  # has no signature that can be read, and refuses the call
    with pytest.raises(TypeError):
        _fire(_handler(callback), "on_save")
    assert calls == ["partial"]


@pytest.mark.parametrize("base", [ours.TrainerCallback, upstream.TrainerCallback], ids=["ours", "transformers"])
def test_events_nobody_overrides_cost_no_call(base):
    """The base class's own methods, which do nothing, are not entered."""
    handler = _handler(base(), type("Callback", (base,), {})())
    entered = []
    sys.setprofile(lambda frame, event, extra: entered.append(frame.f_code) if event == "call" else None)
    try:
        _fire(handler, "on_substep_end")
    finally:
        sys.setprofile(None)
    assert ours.CallbackHandler.on_substep_end.__code__ in entered
    assert base.on_substep_end.__code__ not in entered


def test_the_list_may_be_changed_in_place():
    """Callbacks that scripts put into ``handler.callbacks``, or a new list, are called."""
    trace = []
    handler = _handler()
    _fire(handler, "on_save")
    handler.callbacks.insert(0, recording_callback(ours.TrainerCallback, trace))
    _fire(handler, "on_save")
    handler.callbacks = [recording_callback(upstream.TrainerCallback, trace)]
    _fire(handler, "on_save")
    assert len(trace) == 2


# Adding and removing


@LIBRARIES
def test_callbacks_are_found_by_object_and_by_class(library):
    """Classes are made into objects; both find what is there, and answer alike when nothing is."""
    first, second = library.EarlyStoppingCallback(), library.EarlyStoppingCallback()
    handler = _handler(first, second, library.ProgressCallback, library=library)
    assert handler.callback_list.split() == [
        "DefaultFlowCallback",
        "EarlyStoppingCallback",
        "EarlyStoppingCallback",
        "ProgressCallback",
    ]
    assert handler.pop_callback(second) is second
    assert handler.pop_callback(second) is None
    assert handler.pop_callback(library.PrinterCallback) is None
    handler.remove_callback(library.PrinterCallback)
    handler.remove_callback(library.ProgressCallback)
    with pytest.raises(ValueError, match="not "):
        handler.remove_callback(second)
    flow = handler.callbacks[0]
    assert handler.pop_callback(library.TrainerCallback) is flow  # a base class stands for all derived from it


BUILT_IN = ["DefaultFlowCallback", "ProgressCallback", "PrinterCallback", "EarlyStoppingCallback"]


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_class_of_one_library_finds_that_of_the_other(name):
    """Scripts that remove transformers' class take ours out, and the other way round."""
    mine, theirs = getattr(ours, name)(), getattr(transformers.trainer_callback, name)()
    derived = type("Derived", (type(mine),), {})()
    assert ours.is_kind_of(mine, type(theirs))
    assert ours.is_kind_of(theirs, type(mine))
    assert ours.is_kind_of(derived, type(theirs))
    handler = _handler()
    handler.callbacks = [mine, theirs]
    assert handler.pop_callback(type(theirs)) is theirs  # the class itself comes first
    assert handler.pop_callback(type(theirs)) is mine


def test_classes_of_other_packages_are_told_apart_by_identity():
    """The name alone makes no counterpart."""
    stranger = type("ProgressCallback", (ours.TrainerCallback,), {"__module__": "script"})
    assert not ours.is_kind_of(stranger(), transformers.trainer_callback.ProgressCallback)
    assert not ours.is_kind_of(ours.ProgressCallback(), stranger)
    assert not ours.is_kind_of(ours.ProgressCallback(), transformers.trainer_callback.PrinterCallback)


def test_a_second_callback_of_a_class_is_warned_of(caplog):
    """It is added all the same."""
    handler = _handler(ours.ProgressCallback)
    assert not caplog.records
    handler.add_callback(ours.ProgressCallback())
    assert "ProgressCallback" in caplog.text
    assert len(handler.callbacks) == 3


@pytest.mark.parametrize(("flow", "warns"), [(ours, 0), (upstream, 0), (None, 1)], ids=["ours", "transformers", "none"])
def test_a_handler_without_a_flow_is_warned_of(flow, warns, caplog):
    """Either library's DefaultFlowCallback will do."""
    callbacks = [flow.DefaultFlowCallback] if flow else []
    ours.CallbackHandler(callbacks, None, None, None, None)
    assert len(caplog.records) == warns


class Misspelt(ours.TrainerCallback):
    def on_step_ended(self, *given, **named):
        """Never called."""

    def on_epoch_end(self, *given, **named):
        """An event."""

    def on_epoch_ended(self, *given, **named):
        """A help for the event."""

    def on_duty(self):
        """Like no event."""


class MisspeltOfUpstream(upstream.TrainerCallback):
    on_step_ended = Misspelt.on_step_ended


class OfLightning1(Callback):
    def on_epoch_end(self, *given):
        """A hook that Lightning 2 does not have."""


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        (Misspelt, "on_step_ended", "on_step_end"),
        (MisspeltOfUpstream, "on_step_ended", "on_step_end"),
        (OfLightning1, "on_epoch_end", "on_train_epoch_end"),
    ],
)
def test_misspelt_events(kind, name, meant, tmp_path):
    """A method that no run calls is warned of once, with the event that is meant, unless that is there too."""
    args = arguments(tmp_path)
    with pytest.warns(HFCompatWarning, match="no run calls") as caught:
        Trainer(PlainModel(), args, callbacks=[kind()])
    (told,) = [str(warning.message) for warning in caught]
    assert f"no run calls `{kind.__name__}.{name}`. Rename it to `{meant}`, unless your own code calls it." in told
