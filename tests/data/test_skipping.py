"""Going on in the middle of an epoch."""

import torch

from hf_compat.data.loader import prepare_dataloader
from hf_compat.data.skipping import skip_batches
from tests.support.helpers import shuffled


def test_skipping_starts_in_the_middle_of_the_same_epoch():
    """Skipping two batches of epoch 1 gives the rest of epoch 1's order, without loading the ones before."""
    torch.manual_seed(0)
    loader = prepare_dataloader(shuffled())
    loader.set_epoch(1)
    whole = [batch.tolist() for batch in loader]
    rest = skip_batches(loader, 2)
    rest.set_epoch(1)
    assert [batch.tolist() for batch in rest] == whole[2:]
