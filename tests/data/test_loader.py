"""The prepared loader: same batches and same random draws as accelerate's, one batch ahead."""

import pytest
import torch
from torch.utils.data import DataLoader

from hf_compat.data.loader import prepare_dataloader
from tests.support.helpers import shuffled


def upstream_loader(loader, data_seed=None):
    """Return ``loader`` as accelerate prepares it for transformers' Trainer."""
    accelerate = pytest.importorskip("accelerate")
    config = accelerate.utils.DataLoaderConfiguration(use_seedable_sampler=True)
    config.data_seed = data_seed
    return accelerate.Accelerator(cpu=True, dataloader_config=config).prepare(loader)


def noisy_collate(samples):
    """Collate with a random number, so that the order of draws shows."""
    return torch.tensor(samples), torch.rand(1)


def go_through(loader, epochs=2):
    """Return batches and interleaved draws of some epochs, and the generator's state after."""
    seen = []
    for _ in range(epochs):
        for batch in loader:
            numbers = batch[0] if isinstance(batch, list | tuple) else batch
            seen.append((numbers.tolist(), torch.rand(1).item()))
    return seen, torch.get_rng_state()


@pytest.mark.parametrize("data_seed", [None, 7])
@pytest.mark.parametrize("workers", [0, 2])
def test_equals_accelerate(workers, data_seed):
    """Order over epochs and the global generator's draws equal accelerate's, with workers too."""
    torch.manual_seed(3)
    expected, expected_state = go_through(upstream_loader(shuffled(workers), data_seed))
    torch.manual_seed(3)
    found, state = go_through(prepare_dataloader(shuffled(workers), data_seed=data_seed))
    assert found == expected
    assert torch.equal(state, expected_state)


def test_loads_one_batch_ahead():
    """A collator that draws random numbers and the training loop take turns as under accelerate."""
    data = list(range(7))
    torch.manual_seed(0)
    expected, _ = go_through(upstream_loader(DataLoader(data, batch_size=2, collate_fn=noisy_collate)), epochs=1)
    torch.manual_seed(0)
    found, _ = go_through(prepare_dataloader(DataLoader(data, batch_size=2, collate_fn=noisy_collate)), epochs=1)
    assert found == expected


def test_last_batch_and_remainder_are_known():
    """The loader knows which batch is the last while it is being used, and how many samples it holds."""
    loader = prepare_dataloader(DataLoader(list(range(5)), batch_size=2))
    assert [(loader.end_of_dataloader, loader.remainder) for _ in loader] == [(False, 1), (False, 1), (True, 1)]


@pytest.mark.parametrize("drop_last", [False, True])
def test_sizes_equal_accelerates(drop_last):
    """A loader tells the sizes that accelerate's does: of a full batch, and of the data set."""
    expected, found = upstream_loader(shuffled(drop_last=drop_last)), prepare_dataloader(shuffled(drop_last=drop_last))
    assert found.total_batch_size == expected.total_batch_size == 3
    assert found.total_dataset_length == expected.total_dataset_length == 10
