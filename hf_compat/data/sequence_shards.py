"""Batches whose sequences are shared out over the ranks of a sequence-parallel group."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.distributed import ProcessGroup

from hf_compat.distributed import collectives
from hf_compat.errors import DataError

_NEEDED = ("input_ids", "labels", "position_ids")
"""What each batch needs."""


def shifted_labels(labels: Tensor) -> Tensor:
    """Return the label of each token's successor, ``(batch, tokens)``; that of the last token is not scored."""
    return nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()


class SequenceShards:
    """This rank's chunks of the batches that the ranks of its group read, one rank's after the other.

    The ranks read different batches. In each round every rank reads one; then all train on the first rank's batch,
    each on its chunk of every sequence, on the second rank's, and so on. A group thus takes as many steps for a round
    as it has ranks. ``labels`` become ``shift_labels``: the label of the last token of a chunk is the next chunk's.

    Args:
        loader: The train loader of this rank.
        group: Returns the ranks that share sequences, consecutive ones; called when the first batch is read.
        rank: The rank of this process in the group.
        size: The number of ranks in the group.
        attends_across: Whether attention would reach from a packed document to those before it.
        warn_once: Warns of batches whose attention mask would be needed.
        carries_on: Go on with the pass over ``loader`` that is under way at each ``iter``, which ends with nothing
            once all its batches have been read before. Otherwise each ``iter`` begins a new pass.

    Attributes:
        carries_on: See above.

    References:
        Same batches as DeepSpeed ``runtime/sequence_parallel/ulysses_sp.py`` ``UlyssesSPDataLoaderAdapter``, which
        carries on.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        group: Callable[[], ProcessGroup | None],
        *,
        rank: int,
        size: int,
        attends_across: bool,
        warn_once: Callable[[str], object],
        carries_on: bool,
    ) -> None:
        self.loader = loader
        self._group = group
        self._rank = rank
        self._size = size
        self._attends_across = attends_across
        self._warn_once = warn_once
        self.carries_on = carries_on
        self._epoch = 0
        self._rest: Iterable[Any] | None = None
        self._skip = 0
        self._pass: Iterator[dict[str, Any]] | None = None

    def start_at(self, count: int, skip_batches: Callable[[Iterable[Any], int], Iterable[Any]]) -> None:
        """Begin the first pass with batch ``count``.

        Args:
            count: Batches to skip.
            skip_batches: Returns a loader without its first batches.
        """
        rounds, self._skip = divmod(count, self._size)
        self._rest = skip_batches(self.loader, rounds) if rounds else None

    def __len__(self) -> int:
        return len(self.loader) * self._size  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "loader" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.loader, name)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass; one that is carried on keeps its own."""
        if not (self.carries_on and self._pass is not None):
            self._epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self if self.carries_on else self._begin()

    def __next__(self) -> dict[str, Any]:
        if self._pass is None:
            self._pass = self._begin()
        try:
            return next(self._pass)
        except StopIteration:
            self._pass = None
            raise

    def _begin(self) -> Iterator[dict[str, Any]]:
        """Return an iterator over one pass."""
        loader, skip = (self.loader if self._rest is None else self._rest), self._skip
        self._rest, self._skip = None, 0
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(self._epoch)
        self._epoch += 1
        return itertools.islice(self._chunks(iter(loader)), skip, None)

    def _chunks(self, batches: Iterator[Any]) -> Iterator[dict[str, Any]]:
        group = self._group()
        assert group is not None, "made with the engine, before the first batch is read"
        while shared := collectives.gather_batches(next(batches, None), group):
            yield from [self._chunk(batch) for batch in shared]

    def _chunk(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return this rank's chunk of ``batch``, in host memory, where those of a whole round have room."""
        length = self._check(batch) // self._size
        self._warn_of_masks(batch)
        batch["shift_labels"] = shifted_labels(batch.pop("labels"))
        own = slice(length * self._rank, length * (self._rank + 1))
        return {
            name: value[:, own].cpu().contiguous() if isinstance(value, Tensor) else value
            for name, value in batch.items()
        }

    def _check(self, batch: dict[str, Any]) -> int:
        """Return the tokens of the sequences of ``batch``.

        Raises:
            DataError: If something is missing, or they cannot be shared out.
        """
        missing = [name for name in _NEEDED if not isinstance(batch.get(name), Tensor)]
        if missing:
            raise DataError(
                f"`train_dataset`: batches have no {', '.join(missing)}, which sequence parallelism requires: the "
                "positions tell a rank which chunk it has. Add them in the dataset or the collator; without packing "
                "`position_ids` are `torch.arange(length)`, with packing they start from 0 in each document."
            )
        length = batch["input_ids"].shape[1]
        for name, value in batch.items():
            if isinstance(value, Tensor) and (value.ndim < 2 or value.shape[1] != length):
                raise DataError(
                    f"`train_dataset`: `{name}` of shape {tuple(value.shape)} cannot be shared out like `input_ids` of "
                    f"shape {tuple(batch['input_ids'].shape)}: its second axis has to be that of the tokens. Remove it "
                    "from the batches."
                )
        if length % self._size:
            raise DataError(
                f"`train_dataset`: sequences of {length} tokens cannot be shared out over `sp_size={self._size}` "
                f"ranks. Pad them to a multiple of {self._size}, for instance by the collator's `pad_to_multiple_of`."
            )
        return int(length)

    def _warn_of_masks(self, batch: dict[str, Any]) -> None:
        """Warn if tokens of ``batch`` attend to what its attention mask hides, which is not used."""
        positions, mask = batch["position_ids"], batch.get("attention_mask")
        if self._attends_across and bool((positions[:, 1:] < positions[:, :-1]).any()):
            self._warn_once(
                "`train_dataset`: sequences are packed, as their `position_ids` start anew, but with sequence "
                "parallelism `sdpa` has no mask that keeps documents apart: tokens attend to the documents before "
                "their own, as under transformers. Load the model with `attn_implementation='flash_attention_2'`."
            )
        if mask is not None and bool((mask[:, 1:] > mask[:, :-1]).any()):
            self._warn_once(
                "`train_dataset`: sequences are padded on the left, but with sequence parallelism attention masks are "
                "not used: tokens attend to the padding before them, as under transformers. Pad on the right."
            )
