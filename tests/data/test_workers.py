"""Workers of loaders."""

import gc

import pytest
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from hf_compat.data.loader import PreparedDataLoader
from tests.support.helpers import ListDataset, vector_rows


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_are_told_to_end_when_a_loader_is_garbage(persistent, monkeypatch):
    """A loader in a circle of references is freed as a whole: its workers' queues are still open when they are told."""
    told = []
    shut_down = _MultiProcessingDataLoaderIter._shutdown_workers

    def watched(self):
        if not self._shutdown:
            told.append([queue._close.still_active() for queue in self._index_queues])
        shut_down(self)

    monkeypatch.setattr(_MultiProcessingDataLoaderIter, "_shutdown_workers", watched)
    loader = PreparedDataLoader(ListDataset(vector_rows(8)), batch_size=2, num_workers=2, persistent_workers=persistent)
    batches = iter(loader)
    next(batches)
    loader.circle = [loader, batches]
    gc.collect()
    assert told == []
    del loader, batches
    gc.collect()
    assert told == [[True, True]]
