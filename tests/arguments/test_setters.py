"""Setters of arguments."""

import pytest

from hf_compat.arguments import TrainingArguments
from hf_compat.errors import ArgumentsError
from tests.support.helpers import RELEASE_4


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("set_lr_scheduler", ["cosine", 3, -1, 0.1], "`warmup_steps=0.1`.*set `warmup_ratio`"),
        ("set_dataloader", [8, 8, False, 0, True, False, None, True], "`dataloader_multiprocessing_context=True`"),
        ("set_training", [5e-5, 0], "`per_device_train_batch_size=0`"),
        ("set_save", ["steps", 5, 1.5], "`save_total_limit=1.5`"),
    ],
)
def test_setters_check_what_they_set(name, given, message):
    """What a method sets is checked, as parameters in the order of an older release may land in another field."""
    args = TrainingArguments("out", semantics=RELEASE_4)
    with pytest.raises(ArgumentsError, match=message):
        getattr(args, name)(*given)


@pytest.mark.parametrize("name", [name for name in dir(TrainingArguments) if name.startswith("set_")])
def test_setters_set_fields(name):
    """Each parameter of a method that sets the fields of a topic is a field, by its own name or by the table's."""
    args = TrainingArguments("out")
    before = vars(args).keys() - {"_setup_devices"}
    getattr(args, name)(**({"model_id": "m"} if name == "set_push_to_hub" else {}))
    assert vars(args).keys() - {"_setup_devices"} == before
