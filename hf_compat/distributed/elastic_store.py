"""The store by which the ranks that torchrun has started find one another, without what is left of an earlier start.

torchrun's agent has one store for all restarts of its workers, in which the addresses of ended workers remain: a rank
that reads such an address before it is overwritten cannot connect. Here each start has its own prefix in the store.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]


_PAUSE = 0.02
"""Seconds between two rounds in which rank 0 answers the others."""


def uses_agent_store(environment: Mapping[str, str]) -> bool:
    """Return whether the agent of torchrun has started this process and keeps the store, also for a restart."""
    return environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def store_of_this_start(rank: int, world_size: int, *, timeout: timedelta) -> Store:
    """Return the agent's store, seen through a name that the ranks of this start agree on; every rank calls it.

    Raises:
        RuntimeError: If the agent or a rank does not answer within ``timeout``.
    """
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=timeout)
    return PrefixStore(agree_on_name(store, rank, world_size, timeout=timeout), store)


def agree_on_name(store: Store, rank: int, world_size: int, *, timeout: timedelta) -> str:
    """Return a name that is the same on all ranks of this start, and new; every rank calls it.

    A rank writes a random word and waits for rank 0 to answer this very word. Rank 0 may find a word of an earlier
    start first, and so answers until each rank has confirmed the name.

    Raises:
        RuntimeError: If a rank does not answer within ``timeout``.
    """
    word = uuid4().hex
    if rank != 0:
        store.set(f"hf_compat/word/{rank}", word)
        name = store.get(f"hf_compat/answer/{word}").decode()
        store.set(f"hf_compat/confirmed/{name}/{rank}", "")
        return name
    waiting, deadline = list(range(1, world_size)), time.monotonic() + timeout.total_seconds()
    while waiting:
        for other in waiting:
            found = store.get(f"hf_compat/word/{other}").decode()
            store.set(f"hf_compat/answer/{found}", word)
        waiting = [other for other in waiting if not store.check([f"hf_compat/confirmed/{word}/{other}"])]
        if waiting and time.monotonic() > deadline:
            raise RuntimeError(f"ranks {', '.join(map(str, waiting))} did not answer within {timeout}")
        time.sleep(_PAUSE)
    return word
