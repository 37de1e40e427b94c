"""The keywords of data loaders, and the seed of their order."""

from torch.utils.data import DataLoader

from hf_compat import TrainingArguments
from hf_compat.arguments.derived import loader_keywords, order_seed


def test_keywords_are_those_of_a_data_loader():
    """Each field of the workers is the keyword of its name, without the prefix; a loader takes them all."""
    args = TrainingArguments(
        "out",
        use_cpu=True,
        dataloader_num_workers=2,
        dataloader_pin_memory=False,
        dataloader_persistent_workers=True,
        dataloader_multiprocessing_context="spawn",
        dataloader_prefetch_factor=3,
        dataloader_in_order=False,
    )
    keywords = loader_keywords(args)
    assert keywords == {
        "num_workers": 2,
        "pin_memory": False,
        "persistent_workers": True,
        "multiprocessing_context": "spawn",
        "prefetch_factor": 3,
        "in_order": False,
    }
    assert DataLoader([0, 1], **keywords).prefetch_factor == 3


def test_seed_of_the_order():
    """``data_seed`` decides, 0 too; without it ``seed``."""
    assert order_seed(TrainingArguments("out", use_cpu=True, seed=7)) == 7
    assert order_seed(TrainingArguments("out", use_cpu=True, seed=7, data_seed=0)) == 0
