"""The numbers of a run: update steps, epochs, windows."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hf_compat.errors import DataError
from hf_compat.plan import DataPosition, ResumeOffset, build_plan
from hf_compat.plan.plan import epochs_for, from_values, to_values, update_steps_for, update_steps_per_epoch


def plan(*, batches, accumulate=1, epochs=3.0, max_steps=-1, examples=100):
    """Return the plan of a run with 8 samples a batch on one device."""
    args = SimpleNamespace(gradient_accumulation_steps=accumulate, max_steps=max_steps, num_train_epochs=epochs)
    return build_plan(args, batches=batches, examples=examples, samples_per_update_step=8 * accumulate)


@pytest.mark.parametrize(
    ("batches", "accumulate", "expected"),
    [
        pytest.param(6, 2, 3, id="whole windows only"),
        pytest.param(5, 2, 3, id="a short last window still steps"),
        pytest.param(1, 4, 1, id="epoch shorter than one window"),
    ],
)
def test_update_steps_per_epoch(batches, accumulate, expected):
    """An epoch takes one update step per window of batches, the last window full or not."""
    assert update_steps_per_epoch(batches, accumulate) == expected


@pytest.mark.parametrize(("epochs", "per_epoch", "expected"), [(3, 5, 15), (1.3, 5, 7), (0.1, 5, 1), (0, 5, 0)])
def test_update_steps_of_fractional_epochs(epochs, per_epoch, expected):
    """A fraction of an epoch is rounded up to a whole update step."""
    assert update_steps_for(epochs, per_epoch) == expected


@pytest.mark.parametrize(("steps", "per_epoch", "expected"), [(10, 5, 2), (11, 5, 3), (1, 5, 1)])
def test_epochs_of_update_steps(steps, per_epoch, expected):
    """As many epochs are begun as it takes to make the update steps."""
    assert epochs_for(steps, per_epoch) == expected


def test_plan_by_epochs():
    """Without ``max_steps`` the epochs decide; 1.3 epochs of 5 update steps are 7, in two epochs."""
    result = plan(batches=10, accumulate=2, epochs=1.3)
    assert (result.max_steps, result.num_train_epochs, result.update_steps_per_epoch) == (7, 2, 5)
    assert result.num_train_samples == pytest.approx(130)


def test_plan_by_max_steps():
    """``max_steps`` wins over the epochs."""
    result = plan(batches=10, accumulate=3, epochs=9, max_steps=6)
    assert (result.max_steps, result.num_train_epochs, result.num_train_samples) == (6, 2, 6 * 24)


def test_plan_without_a_batch():
    """With ``max_steps`` a loader of length 0 is asked for a batch in each of as many epochs as it takes."""
    result = plan(batches=0, accumulate=2, max_steps=4, examples=3)
    assert (result.max_steps, result.update_steps_per_epoch, result.batches_per_epoch) == (4, 4, 0)
    assert result.num_train_epochs == sys.maxsize


def test_plan_without_length():
    """A loader without length is gone through until ``max_steps`` update steps are made."""
    result = plan(batches=None, accumulate=2, max_steps=4, examples=None)
    assert (result.max_steps, result.update_steps_per_epoch, result.batches_per_epoch) == (4, 4, 8)
    assert result.num_train_epochs == sys.maxsize


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        pytest.param({"batches": 0}, "train_dataset", id="no batch"),
        pytest.param({"batches": None}, "max_steps=-1", id="no length and no max_steps"),
    ],
)
def test_nothing_to_train_on(settings, named):
    """A run without a batch, or without an end, is refused with the argument's name."""
    with pytest.raises(DataError, match=named):
        plan(**settings)


@pytest.mark.parametrize("plans_by_batches", [True, False], ids=["since 5.3", "before"])
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"batches": 10, "accumulate": 3, "epochs": 1.3}, id="by epochs"),
        pytest.param({"batches": 10, "accumulate": 2, "max_steps": 7}, id="by max_steps"),
        pytest.param({"batches": None, "accumulate": 2, "max_steps": 4, "examples": None}, id="without length"),
    ],
)
def test_values_of_either_release_stand_for_the_plan(settings, plans_by_batches):
    """`from_values` gives back the plan that `to_values` was given, and the values agree with each release's order."""
    original, accumulate = plan(**settings), settings["accumulate"]
    epochs_decide = settings.get("max_steps", -1) < 0
    semantics = SimpleNamespace(plans_by_batches=plans_by_batches)
    values = to_values(original, batches=settings["batches"], epochs_decide=epochs_decide, semantics=semantics)
    if plans_by_batches:
        assert values[4:6] == (8 * accumulate, original.batches_per_epoch)
    else:
        assert values[4:6] == (epochs_decide, settings["batches"])
    samples = None if plans_by_batches else 8 * accumulate
    assert from_values(values, accumulate=accumulate, samples_per_update_step=samples) == original


def test_a_batch_that_ranks_share_is_counted_once():
    """Two ranks share each batch of four, for which transformers counts eight: three of them are twelve samples."""
    shared = replace(plan(batches=10, accumulate=2), ranks_of_batch=2)
    position = DataPosition.after(shared, 1, 3, ResumeOffset())
    assert (position.samples, position.samples_per_batch) == (12, 4)
    assert DataPosition.from_dict(position.to_dict()) == position.counted_once(shared) == position
    assert DataPosition.after(shared, 1, 4, ResumeOffset()).agrees(shared, global_step=5 + 2)


def test_a_position_of_the_first_release_counts_a_shared_batch_for_each_rank():
    """Without the number of ranks they are taken to be those that go on; where each has its own nothing changes."""
    own = plan(batches=10, accumulate=2)
    before = DataPosition.from_dict({"epoch": 1, "samples": 32, "samples_per_batch": 8, "accumulate": 2})
    once = before.counted_once(replace(own, ranks_of_batch=2))
    assert (once.samples, once.samples_per_batch) == (16, 4)
    assert before.counted_once(own) == before
