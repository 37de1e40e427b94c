"""The table of events and hooks says what the bridge does."""

from hf_compat.callbacks import TrainerCallback
from hf_compat.engine.bridge import HOOKS, BridgeCallback
from hf_compat.engine.module import HFModule

FIRED_ELSEWHERE = {"on_init_end", "on_predict", "on_push_begin"}
"""By the constructor, by ``predict`` outside a run, and by pushes to the Hub."""


def test_every_event_has_a_hook():
    """Each event of a run is fired from a Lightning hook, and no other event is named."""
    events = {name for name in vars(TrainerCallback) if name.startswith("on_")}
    assert {event for fired in HOOKS.values() for event in fired} == events - FIRED_ELSEWHERE


def test_every_hook_is_implemented():
    """Each hook of the table is a method of the bridge, of the module, or of the session's loop."""
    own = set(vars(BridgeCallback)) | set(vars(HFModule))
    assert {hook.partition(",")[0] for hook in HOOKS} - own == {"on_validation_batch_end"}
