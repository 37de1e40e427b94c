"""``RunCallback``, a Lightning callback with hooks inside a window, and ``CallbackGroup``, several of them as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor

from hf_compat.data.windows import Window
from hf_compat.engine.stop_iterations import StopIterationError

__all__ = ["HOOKS", "CallbackGroup", "FirstCallback", "RunCallback"]


class RunCallback(pl.Callback):
    """A Lightning callback with four more hooks inside a window, and ``end``, called however a fit ends."""

    def on_next_batch(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: dict[str, Any]) -> None:
        """Called before each batch of a window but the first, for which there is ``on_train_batch_start``."""

    def on_batch_trained(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor, batch: dict[str, Any]
    ) -> None:
        """Called after the forward and backward pass of each batch of a window.

        Args:
            trainer: The Lightning trainer.
            pl_module: The module.
            loss: The batch's share of the window's loss, ``()``, detached.
            batch: The batch.
        """

    def on_substep_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called after a batch that does not end an update step."""

    def on_optimizer_step_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, window: Window) -> None:
        """Called after ``optimizer.step()``; one of the run's callbacks steps the learning-rate schedule here."""

    def end(self) -> None:
        """Undo ``setup``. Called after a fit and after an error in it; a second call has no effect."""

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Call ``end``, of a callback outside a group."""
        self.end()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Call ``end``, of a callback outside a group."""
        self.end()


HOOKS = (
    "setup",
    "on_fit_start",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_next_batch",
    "on_batch_trained",
    "on_substep_end",
    "on_before_optimizer_step",
    "on_optimizer_step_end",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_train_end",
)
"""The hooks that members of a group may define, in the order of an update step."""


class CallbackGroup(Checkpoint):
    """The callbacks of a run, called in order at each hook; the last callback of a ``lightning.Trainer``.

    It is a ``Checkpoint`` callback, so that Lightning calls it after all others and adds no ``ModelCheckpoint``: a
    checkpoint contains what the user's callbacks did in the same update step. Lightning sees one callback, since each
    one costs time at each hook. It has no state but the members.

    Args:
        members: The callbacks, in call order.
        run: The run; this reference keeps it alive, as the module holds only a weak one.
    """

    def __init__(self, members: Sequence[RunCallback] = (), run: object | None = None) -> None:
        self.take(members, run)

    def take(self, members: Sequence[RunCallback], run: object | None) -> None:
        """Call ``members`` from now on, the callbacks of ``run``."""
        self.members = tuple(members)
        self.run = run
        self._calls = {hook: tuple(getattr(one, hook) for one in self.members if _defines(one, hook)) for hook in HOOKS}

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Call ``end`` of every member."""
        self.end()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Call ``end`` of every member: Lightning does not call ``teardown`` after an error."""
        self.end()

    def on_next_batch(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: dict[str, Any]) -> None:
        """Call the members' hook."""
        for call in self._calls["on_next_batch"]:
            call(trainer, pl_module, batch)

    def on_batch_trained(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor, batch: dict[str, Any]
    ) -> None:
        """Call the members' hook."""
        for call in self._calls["on_batch_trained"]:
            call(trainer, pl_module, loss, batch)

    def on_substep_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Call the members' hook."""
        for call in self._calls["on_substep_end"]:
            call(trainer, pl_module)

    def on_optimizer_step_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, window: Window) -> None:
        """Call the members' hook."""
        for call in self._calls["on_optimizer_step_end"]:
            call(trainer, pl_module, window)

    def end(self) -> None:
        """Call ``end`` of every member, last one first, even if one of them raises."""
        with ExitStack() as stack:
            for member in self.members:
                stack.callback(member.end)


class FirstCallback(pl.Callback):
    """Begins a run before any callback is set up; the first callback of a ``lightning.Trainer``.

    Args:
        begin: Called with the Lightning trainer and the module when a fit or an evaluation is set up.
    """

    def __init__(self, begin: Callable[[pl.Trainer, pl.LightningModule], None]) -> None:
        self._begin = begin

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Begin."""
        self._begin(trainer, pl_module)


def _defines(member: RunCallback, hook: str) -> bool:
    return getattr(type(member), hook) is not getattr(RunCallback, hook)


def _forwarding(hook: str) -> Callable[..., None]:
    def forward(group: CallbackGroup, *given: Any, **named: Any) -> None:
        try:
            for call in group._calls[hook]:
                call(*given, **named)
        except StopIteration as stop:
            raise StopIterationError(stop) from stop

    forward.__doc__ = f"Call ``{hook}`` of the members that define it."
    return forward


for _hook in HOOKS:
    if hasattr(pl.Callback, _hook):  # the four others are defined above
        setattr(CallbackGroup, _hook, _forwarding(_hook))
