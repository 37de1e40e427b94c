"""The table of events and hooks says what a run does."""

from hf_compat.callbacks import TrainerCallback
from hf_compat.run.events import HOOKS, Events
from hf_compat.run.flow import Flow

FIRED_ELSEWHERE = {"on_init_end", "on_predict", "on_push_begin"}
"""By the constructor, by ``predict`` outside a run, and by pushes to the Hub."""


def test_every_event_has_a_hook():
    """Each event of a run is fired from a hook, and no other event is named."""
    events = {name for name in vars(TrainerCallback) if name.startswith("on_")}
    assert {event for fired in HOOKS.values() for event in fired} == events - FIRED_ELSEWHERE


def test_every_hook_is_implemented():
    """Each hook of the table is defined by the events, or by the flow of log, evaluate, save, or by the evaluation."""
    assert set(HOOKS) - set(vars(Events)) - set(vars(Flow)) == {"on_validation_batch_end"}
