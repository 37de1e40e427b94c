"""Votes of the ranks: a number that all of them learn, and attempts that all of them give up together.

A rank that runs out of memory must not leave the others waiting in a collective. While an attempt is running, every
collective is preceded by a vote on whether any rank has failed. The failed rank only takes part in the next vote of the
others, wherever they are, and all ranks give up there. No collective is left half done, so the process group can be
used again, whatever its backend.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import distributed

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


_all_reduce: Any = getattr(distributed, "all_reduce", None)
"""torch's, also where the collectives of a library begin with a vote, which calls it."""


def max_over_ranks(number: int, timeout: timedelta | None = None) -> int:
    """Return the maximum of ``number`` over all ranks; every rank has to call it.

    It is one all-reduce of eight bytes between CPUs, some 0.1 ms on one machine, without synchronising devices.

    Args:
        number: This rank's number, 0 or more.
        timeout: Timeout of the all-reduce. Default: torch's for the backend.

    Raises:
        RuntimeError: If another rank has exited, or does not call it in time.
    """
    if not has_other_ranks():
        return number
    return _max_over_ranks([number], timeout)[0]


def has_other_ranks() -> bool:
    """Return whether this process is one of several that communicate."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _max_over_ranks(numbers: list[int], timeout: timedelta | None) -> list[int]:
    ballot = torch.tensor(numbers, dtype=torch.int64)
    over_cpus = None if distributed.get_backend() == "gloo" else gloo_group("votes", timeout)
    _all_reduce(ballot, op=distributed.ReduceOp.MAX, group=over_cpus)
    most: list[int] = ballot.tolist()
    return most


class PacedVotes:
    """Votes after update steps, about twice a second: after each slow step, after every 16th fast one.

    Every rank is asked after every update step, and all of them know which steps have a vote: how long the steps take
    is part of the vote before.

    Args:
        seconds: The time from one vote to the next.
        steps: The most update steps from one vote to the next, in case they become slower.
    """

    def __init__(self, seconds: float = 0.5, steps: int = 16) -> None:
        self._seconds = seconds
        self._most = steps
        self._last_step = self._next_step = 0
        self._last_time: float | None = None

    def max_over_ranks(self, step: int, number: int, timeout: timedelta | None = None) -> int:
        """Return the maximum of ``number`` over all ranks if there is a vote after update step ``step``, otherwise 0.

        One process by itself always gets ``number``.

        Args:
            step: The update step.
            number: This rank's number, 0 or more.
            timeout: Timeout of the vote.

        Raises:
            GivenUpError: If there is an attempt under way and another rank has failed.
            RuntimeError: If another rank has exited, or does not vote in time.
        """
        if not has_other_ranks():
            return number
        if self._last_time is not None and step < self._next_step:
            return 0
        vote()
        now = time.monotonic()
        elapsed = 0.0 if self._last_time is None else now - self._last_time
        number, microseconds = _max_over_ranks([number, int(1e6 * elapsed)], timeout)
        steps = 1
        if self._last_time is not None:  # at most twice as many as the time was measured over
            passed = step - self._last_step
            steps = int(min(passed * self._seconds * 1e6 / max(microseconds, 1), 2 * passed, self._most))
        self._last_time, self._last_step, self._next_step = now, step, step + max(steps, 1)
        return number


_gloo_groups: WeakKeyDictionary[ProcessGroup, dict[str, ProcessGroup]] = WeakKeyDictionary()
"""The default process group → the groups made beside it, by their purpose; they live as long as their key."""


def gloo_group(purpose: str, timeout: timedelta | None) -> ProcessGroup:
    """Return the gloo group of all ranks for ``purpose``, made at the first call; every rank calls it.

    Args:
        purpose: What it is for; groups of different purposes can be used at the same time.
        timeout: The timeout of its operations. Default: torch's for gloo.
    """
    world = distributed.group.WORLD
    assert world is not None, "there is a default group"
    groups = _gloo_groups.setdefault(world, {})
    if purpose not in groups:
        groups[purpose] = distributed.new_group(backend="gloo", timeout=timeout)
    return groups[purpose]


class GivenUpError(RuntimeError):
    """Another rank has failed, so that this one gives up its attempt too."""


class OomConsensus:
    """An attempt of all ranks together: if one fails, all give up.

    Args:
        is_failure: Whether an exception is one that all ranks give up for.
        timeout: Timeout of a vote.

    Attributes:
        is_given_up: Whether a rank has failed, as far as this one knows.
    """

    def __init__(self, is_failure: Callable[[BaseException], bool], timeout: timedelta | None = None) -> None:
        self.is_given_up = False
        self._is_failure = is_failure
        self._timeout = timeout
        self._handled_before = sys.exception()

    def vote(self) -> None:
        """Go on if no rank has failed; every rank has to call it, or :meth:`ends_by`.

        Raises:
            GivenUpError: If one has. Further votes raise it too, without the other ranks.
        """
        error = sys.exception()  # a failure that is on its way out, through a block that has the last word
        failed = error is not None and error is not self._handled_before and self._is_failure(error)
        if not self.is_given_up:
            self.is_given_up = bool(max_over_ranks(int(failed), self._timeout))
        if self.is_given_up:
            raise GivenUpError("Another rank ran out of memory; restarting with a smaller batch size.")

    def ends_by(self, error: BaseException) -> bool:
        """Return whether ``error`` ends the attempt for all ranks; the others learn of it in their next vote."""
        if not self.is_given_up and self._is_failure(error):
            self.is_given_up = bool(max_over_ranks(1, self._timeout))
        return self.is_given_up


_current: list[OomConsensus] = []
"""The attempts under way, the innermost last."""


@contextmanager
def oom_consensus(
    is_failure: Callable[[BaseException], bool], timeout: timedelta | None = None
) -> Iterator[OomConsensus]:
    """Context of an attempt, in which collective operations begin with a vote; every rank has to enter it.

    Args:
        is_failure: Whether an exception is one that all ranks give up for.
        timeout: Timeout of a vote.
    """
    _current.append(OomConsensus(is_failure, timeout))
    try:
        yield _current[-1]
    finally:
        _current.pop()


def is_attempting() -> bool:
    """Return whether an attempt is under way."""
    return bool(_current)


def vote() -> None:
    """Vote in the attempt under way, if any; called ahead of what waits for the other ranks.

    Raises:
        GivenUpError: If a rank has failed.
    """
    if _current:
        _current[-1].vote()


def give_up(error: BaseException) -> None:
    """Wait for the others' next vote if they give up for ``error``: what it leaves behind may still be in their use."""
    if _current:
        _current[-1].ends_by(error)
