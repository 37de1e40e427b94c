"""Warm-up: update steps or a share of them."""

import dataclasses
import warnings

import pytest

from hf_compat.arguments import TrainingArguments
from hf_compat.errors import HFCompatWarning
from tests.support.helpers import RELEASE_4, RELEASE_5


@pytest.mark.parametrize(
    ("settings", "semantics", "expected"),
    [
        ({"warmup_steps": 7}, RELEASE_5, 7),
        ({"warmup_steps": 0.25}, RELEASE_5, 3),
        ({"warmup_steps": 1}, RELEASE_5, 1),
        ({"warmup_ratio": 0.25}, RELEASE_4, 3),
        ({"warmup_ratio": 0.25, "warmup_steps": 7}, RELEASE_4, 7),
        ({"warmup_ratio": 0.25}, RELEASE_5, 3),
        ({"warmup_ratio": 1.0}, RELEASE_4, 10),
        ({"warmup_ratio": 1.0}, "5.14", 1),
        ({"warmup_ratio": 1.0}, RELEASE_5, 10),
        ({"warmup_ratio": 0.5, "warmup_steps": 2}, "5.14", 5),
        ({"warmup_ratio": 0.5, "warmup_steps": 2}, RELEASE_5, 2),
        ({"warmup_ratio": 0.0, "warmup_steps": 2}, RELEASE_4, 2),
        ({"warmup_ratio": 0.0, "warmup_steps": 2}, "5.14", 0),
        ({"warmup_ratio": 0.0, "warmup_steps": 2}, RELEASE_5, 2),
        ({}, RELEASE_4, 0),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::hf_compat.errors.HFCompatWarning")
def test_warmup_steps(settings, semantics, expected):
    """Of 10 update steps a share is rounded up; what counts as a share, and what wins, depends on the release."""
    args = TrainingArguments("out", semantics=semantics, **settings)
    copied = dataclasses.replace(args)
    assert args.get_warmup_steps(10) == copied.get_warmup_steps(10) == expected
    assert TrainingArguments("out", semantics=semantics).set_lr_scheduler(**settings).get_warmup_steps(10) == expected


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_copy_may_change_either_field_of_warmup():
    """In a copy a new ratio replaces the old one, new steps replace both, and so do values assigned later."""
    args = TrainingArguments("out", semantics=RELEASE_5, warmup_ratio=0.5)
    assert dataclasses.replace(args, warmup_ratio=0.3).get_warmup_steps(10) == 3
    assert dataclasses.replace(args, warmup_steps=0.2).get_warmup_steps(10) == 2
    assert dataclasses.replace(args, warmup_steps=7).get_warmup_steps(10) == 7
    args.warmup_ratio = 1.0
    assert args.get_warmup_steps(10) == 10


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_ratio_that_releases_misread_warns():
    """5.0 to 5.14 read a ratio of 1.0 as one update step, and let it win; a run says so where that matters."""
    for given in ({"warmup_ratio": 1.0}, {"warmup_ratio": 0.5, "warmup_steps": 2}):
        with pytest.warns(HFCompatWarning, match=r"transformers 5\.14 replaces `warmup_steps=.*semantics='corrected'"):
            TrainingArguments("out", semantics="5.14", **given)
    with warnings.catch_warnings():
        warnings.simplefilter("error", HFCompatWarning)
        dataclasses.replace(TrainingArguments("out", semantics="5.14", warmup_ratio=0.5))
        TrainingArguments("out", semantics=RELEASE_5, warmup_ratio=1.0)
