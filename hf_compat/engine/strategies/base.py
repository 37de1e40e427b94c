"""What the Trainer asks of a strategy beyond what Lightning does; the answers of one process, and of DDP."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hf_compat.checkpoint import names, optimizer_states, state_dict_files, weights
from hf_compat.checkpoint.background import Writes

__all__ = ["ModelStrategy"]


class ModelStrategy:
    """Mixed into a Lightning strategy that wraps the raw model, not the LightningModule around it.

    What a strategy that shards the model does otherwise, it overrides here; nothing else of the Trainer needs to know.
    """

    gathers_weights = False
    """Whether ``full_state_dict`` has to be asked on every process for the model's weights to be saved."""
    saves_sharded_weights = False
    """Whether checkpoints hold each process's part of the weights, written by ``save_sharded_weights``."""

    saves_scheduler = False
    """Whether ``save_optimizer`` and ``load_optimizer`` take the learning-rate schedule with them."""
    ends_update_step = True
    """Whether the backward pass under way is the last of its update step."""

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last update step left the weights as they were, because a gradient was infinite."""
        return False

    def no_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Return a context in which backward passes through ``model`` leave gradients on their process."""
        held: Any = getattr(model, "no_sync", nullcontext)
        return held()  # type: ignore[no-any-return]

    def clip_grad_norm(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float) -> Tensor:
        """Clip the gradients of ``parameters`` to ``max_norm`` together; return their norm before, ``()``."""
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=norm_type)

    def full_state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Return the whole state of the unwrapped ``model``; every process has to call it."""
        return model.state_dict()

    def evaluation_model(self, model: nn.Module) -> nn.Module:
        """Return what evaluations call of the wrapped ``model``: a copy per process needs no wrapper then."""
        return model.module if isinstance(model, DistributedDataParallel) else model

    def gathered(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Return a context in which the unwrapped ``model`` can be called; every process has to enter it."""
        return nullcontext()

    def load_weights(self, model: nn.Module, folder: str, *, trains_on: bool) -> tuple[list[str], list[str]]:
        """Give the unwrapped ``model`` the weights of a checkpoint; every process has to call it.

        Args:
            model: The model itself; one that is sharded is wrapped by now.
            folder: The checkpoint.
            trains_on: Whether training goes on with them.

        Returns:
            The names that the checkpoint lacks, and those that the model does not know.
        """
        return weights.load_weights(model, folder, trains_on=trains_on)

    def save_sharded_weights(self, model: nn.Module, folder: str) -> None:
        """Write this process's part of the unwrapped ``model``; every process has to call it."""
        raise NotImplementedError

    def save_optimizer(self, optimizer: Any, folder: str, *, writes: Writes | None) -> None:
        """Write the optimizer's state into ``folder``; every process has to call it.

        Args:
            optimizer: The run's.
            folder: A checkpoint being written.
            writes: What makes the calls that write; None where this process does not write what is the same on all.
        """
        if writes is not None:
            state_dict_files.save_state_file(optimizer, folder, names.OPTIMIZER_NAME, writes=writes)

    def load_optimizer(self, optimizer: Any, folder: str) -> None:
        """Give the optimizer the state in ``folder``; every process has to call it."""
        if Path(folder, names.OPTIMIZER_NAME).is_file():
            state_dict_files.load_state_file(optimizer, folder, names.OPTIMIZER_NAME)
        else:
            optimizer_states.load(optimizer, self.lightning_module.model, Path(folder))

    lightning_module: Any
    """The module of the run under way."""

    def has_optimizer(self, folder: str) -> bool:
        """Return whether ``folder`` holds the state of an optimizer that ``load_optimizer`` can read."""
        return optimizer_states.is_there(Path(folder))
