"""Classes that both libraries have: an object of either counts as one of the other's."""

import pytest
import transformers

import hf_compat
from hf_compat.callbacks.trainer_callback import is_kind_of


class TheirCallback(transformers.TrainerCallback):
    """A script's callback, derived from transformers' class."""


class OurCallback(hf_compat.TrainerCallback):
    """A script's callback, derived from hf_compat's class."""


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (TheirCallback(), hf_compat.TrainerCallback),
        (transformers.PrinterCallback(), hf_compat.PrinterCallback),
        (transformers.TrainerState(), hf_compat.TrainerState),
    ],
    ids=["a script's callback", "a callback", "a state"],
)
def test_an_object_of_transformers_is_one_of_ours(given, kind):
    """However often it is asked: classes with ABCMeta remember what they have answered."""
    assert [isinstance(given, kind) for _ in range(3)] == [True] * 3
    assert [issubclass(type(given), kind) for _ in range(3)] == [True] * 3


@pytest.mark.parametrize("given", [3, TheirCallback(), transformers.TrainerState()], ids=["int", "callback", "state"])
def test_nothing_else_is(given):
    """Neither other objects nor those of another class; a class of a script's own has no counterpart."""
    for kind in (OurCallback, hf_compat.PrinterCallback, hf_compat.TrainerControl):
        assert [isinstance(given, kind) for _ in range(3)] == [False] * 3


def test_both_ways():
    """``is_kind_of`` takes transformers' class for ours and ours for transformers'."""
    assert is_kind_of(OurCallback(), transformers.TrainerCallback)
    assert is_kind_of(TheirCallback(), hf_compat.TrainerCallback)
    assert not is_kind_of(TheirCallback(), hf_compat.PrinterCallback)
