"""The names that fields take: complete, equal to plain strings and to transformers' own members."""

import json
import pickle
from enum import EnumMeta

import pytest

from hf_compat.arguments import enums
from hf_compat.arguments.enums import ExplicitEnum, IntervalStrategy, OptimizerNames
from hf_compat.arguments.releases import LOG_LEVELS
from tests.support.paths import FACTS_FOLDER

FACTS = json.loads((FACTS_FOLDER / "training_arguments.json").read_text(encoding="utf-8"))
KINDS = [
    kind
    for name, kind in sorted(vars(enums).items())
    if isinstance(kind, EnumMeta) and kind.__module__ == enums.__name__
]
KINDS.remove(ExplicitEnum)
UPSTREAM_HOMES = ("transformers.trainer_utils", "transformers.training_args", "transformers.debug_utils")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_members_of_all_releases(kind):
    """Each set has the members that any release from 4.31 to 5.24 had, and no other; backends the installed one's."""
    expected = dict(FACTS["enums"][kind.__name__])
    if kind is enums.HPSearchBackend:
        import transformers

        expected = {member.name: member.value for member in transformers.trainer_utils.HPSearchBackend}
    assert {member.name: member.value for member in kind} == expected


def test_every_set_is_there():
    """No set of names is left out."""
    assert {kind.__name__ for kind in KINDS} == set(FACTS["enums"])


def test_count_of_optimizers():
    """43 names, those of older releases included."""
    assert len(OptimizerNames) == 43


def test_log_levels():
    """The names of log levels are upstream's."""
    assert FACTS["log_levels"] == LOG_LEVELS


@pytest.mark.parametrize("kind", [kind for kind in KINDS if issubclass(kind, str)], ids=lambda kind: kind.__name__)
def test_equal_to_strings(kind):
    """A member equals its value, is found where the value is, and survives pickling."""
    for member in kind:
        assert member == member.value
        assert member in {member.value}
        assert kind(member.value) is member
        assert pickle.loads(pickle.dumps(member)) is member


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_equal_to_upstream(kind):
    """A member equals transformers' of the same value, both ways, prints like it and can be made from it."""
    pytest.importorskip("transformers")
    homes = [pytest.importorskip(home) for home in UPSTREAM_HOMES]
    theirs = next((getattr(home, kind.__name__) for home in homes if hasattr(home, kind.__name__)), None)
    for other in theirs or ():
        ours = kind(other)
        assert ours.value == other.value
        assert (str(ours), f"{ours}") == (str(other), f"{other}")
        assert issubclass(kind, str) == isinstance(other, str)
        assert ours == other
        assert other == ours
        if not isinstance(other, str):  # of strings, the hash is that of the value, which transformers' members' is not
            assert ours in {other}
            assert ours != other.value
            assert pickle.loads(pickle.dumps(ours)) is ours
        assert all((ours == each) == (each is other) for each in theirs)


@pytest.mark.parametrize("wrong", ["step", 3, None, ["steps"]], ids=repr)
def test_a_name_that_is_none(wrong):
    """A wrong name is answered with the right ones."""
    with pytest.raises(
        ValueError, match=r"is not a valid IntervalStrategy; choose one of 'no', 'steps', 'epoch'\."
    ) as caught:
        IntervalStrategy(wrong)
    assert str(caught.value).startswith(repr(wrong))


def test_base_is_for_users_too():
    """Scripts derive sets of their own from the base."""

    class Task(ExplicitEnum):
        NER = "ner"

    assert Task("ner") == "ner"
