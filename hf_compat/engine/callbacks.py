"""The callbacks of a run: Lightning's hooks, three more inside a window, and the group that Lightning sees as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor

from hf_compat.data.windows import Window

__all__ = ["HOOKS", "CallbackGroup", "RunCallback"]


class RunCallback(pl.Callback):
    """A Lightning callback with three hooks more, for what happens inside a window, and one end however a fit ends."""

    def on_batch_trained(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor, batch: Any) -> None:
        """Called after forward and backward of each batch of a window.

        Args:
            trainer: The Lightning trainer.
            pl_module: The module.
            loss: The batch's share of the window's loss, ``()``, detached.
            batch: The batch.
        """

    def on_substep_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called after a batch that does not end an update step."""

    def on_optimizer_step_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, window: Window) -> None:
        """Called after ``optimizer.step()``, before the learning-rate schedule is stepped by a member of the run."""

    def end(self) -> None:
        """Undo what ``setup`` did. Called after a fit and after an error in it; a further call has no effect."""


HOOKS = (
    "setup",
    "on_fit_start",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_batch_trained",
    "on_substep_end",
    "on_before_optimizer_step",
    "on_optimizer_step_end",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_train_end",
)
"""The hooks that members of a group may define, in the order in which an update step comes to them."""


class CallbackGroup(Checkpoint):
    """The members of a run, called in their order at each hook; the last callback of a ``lightning.Trainer``.

    A ``Checkpoint`` callback, so that Lightning runs it after all others and adds none of its own: a save holds what
    the user's callbacks did on the same update step. One entry for Lightning, as each costs time at each hook. It
    has no state of its own.

    Args:
        members: In the order in which they are called.
        run: Kept alive as long as the group is: the module refers to its run weakly.
    """

    def __init__(self, members: Sequence[RunCallback] = (), run: object | None = None) -> None:
        self.members = tuple(members)
        self.run = run
        # Each member is asked once which hooks it defines.
        self._calls = {hook: tuple(getattr(one, hook) for one in self.members if _defines(one, hook)) for hook in HOOKS}

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """End every member."""
        self.end()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """End every member: Lightning calls no ``teardown`` after an error."""
        self.end()

    def on_batch_trained(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor, batch: Any) -> None:
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
        """End every member, the last one first; also those that come after one that raises."""
        with ExitStack() as stack:
            for member in self.members:
                stack.callback(member.end)


def _defines(member: RunCallback, hook: str) -> bool:
    return getattr(type(member), hook) is not getattr(RunCallback, hook)


def _forwarding(hook: str) -> Callable[..., None]:
    def forward(group: CallbackGroup, *given: Any, **named: Any) -> None:
        for call in group._calls[hook]:
            call(*given, **named)

    forward.__doc__ = f"Call ``{hook}`` of the members that define it."
    return forward


for _hook in HOOKS:
    if hasattr(pl.Callback, _hook):  # Lightning's own; the three others are there
        setattr(CallbackGroup, _hook, _forwarding(_hook))
