"""What the Trainer asks of a strategy beyond what Lightning does; the answers where each rank has the whole model."""

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


class _BatchContext:
    """Sets ``ends_update`` of a strategy for one batch; entered once a batch, so without a generator."""

    __slots__ = ("_before", "_ends_update", "_held", "_strategy")

    def __init__(self, strategy: ModelStrategy, ends_update: bool, held: AbstractContextManager[object] | None) -> None:
        self._strategy = strategy
        self._ends_update = ends_update
        self._held = held
        self._before = True

    def __enter__(self) -> None:
        self._before, self._strategy.ends_update = self._strategy.ends_update, self._ends_update
        if self._held is not None:
            self._held.__enter__()

    def __exit__(self, *error: Any) -> None:
        try:
            if self._held is not None:
                self._held.__exit__(*error)
        finally:
            self._strategy.ends_update = self._before


class ModelStrategy:
    """Mixed into a Lightning strategy that wraps the raw model, not the LightningModule around it.

    What a strategy does otherwise, it overrides here; nothing else of the Trainer needs to know. Optimizer and schedule
    are made in Lightning's ``setup_optimizers``: by ``HFModule.configure_optimizers``, which asks the run for both,
    unless a strategy overrides it to ask ``module.host.optimization`` itself. One strategy belongs to one
    ``lightning.Trainer``; whoever builds the next calls :meth:`close` before.

    "Every rank" below means that ranks exchange something: one that does not call would leave the others waiting.
    """

    engine: Any = None
    """What trains in place of model, optimizer and schedule: DeepSpeed's engine. None without one."""
    ends_update: bool = True
    """Whether the backward pass under way is the last of its update step; :meth:`accumulating` sets it."""
    gathers_weights = False
    """Whether ``full_state_dict`` has to be asked on every rank for the model's weights to be saved."""
    saves_sharded_weights = False
    """Whether checkpoints hold each rank's part of the weights, written by ``save_sharded_weights``."""
    syncs_each_batch: bool = False
    """Whether ranks exchange gradients after every batch, as ``sync_each_batch`` asks; set where it is built."""
    saves_scheduler = False
    """Whether ``save_optimizer`` and ``load_optimizer`` take the learning-rate schedule with them."""

    lightning_module: Any
    """The module of the run under way, or of the last one."""

    # ---- a fit: called by the host and the module ----

    def compiled(self, wrapped: nn.Module, *, backend: str, mode: str | None) -> nn.Module:
        """Return ``wrapped`` compiled as the arguments ask; the host calls it on what ``take_wrapper`` is given.

        Args:
            wrapped: The model in what the strategy put around it.
            backend: A back end of ``torch.compile``.
            mode: A mode of ``torch.compile``; None for its default.
        """
        return torch.compile(wrapped, backend=backend, mode=mode)  # type: ignore[return-value]

    def accumulating(
        self, model: nn.Module, *, ends_update: bool, syncs: bool | None = None
    ) -> AbstractContextManager[None]:
        """Return the context of one batch of a window, in which its forward and backward pass run.

        ``HFModule`` enters it for each batch.

        Args:
            model: What is trained, wrapped.
            ends_update: Whether the backward pass is the last of its update step.
            syncs: Whether ranks exchange gradients in it. Default: if it ends the update step.
        """
        exchanges = (ends_update if syncs is None else syncs) or self.syncs_each_batch
        return _BatchContext(self, ends_update, None if exchanges else self.without_sync(model))

    def without_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Return a context in which backward passes through the wrapped ``model`` leave gradients on their rank."""
        held: Any = getattr(model, "no_sync", nullcontext)
        return held()  # type: ignore[no-any-return]

    def clip_grad_norm(self, parameters: Iterable[Tensor], max_norm: float, norm_type: float) -> Tensor:
        """Clip the gradients of ``parameters`` to ``max_norm`` together; every rank calls it before an update step.

        Args:
            parameters: Those of the wrapped model.
            max_norm: The norm that is not exceeded; infinite to measure alone.
            norm_type: The power that is summed, 2 for the Euclidean norm.

        Returns:
            The norm of the gradients of all ranks before, ``()``.
        """
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=norm_type)

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last update step left the weights as they were, because a gradient was infinite."""
        return False

    # ---- evaluating ----

    def prepare_evaluation(self, model: nn.Module) -> nn.Module | None:
        """Return what the host has to take as wrapper before ``model`` is evaluated, or saved; None if it is ready.

        Every rank calls it, before each evaluation and before a model that was sharded as it was loaded is saved.
        """
        return None

    def evaluation_model(self, model: nn.Module) -> nn.Module:
        """Return what evaluations call of the wrapped ``model``: a copy per rank needs no wrapper then."""
        return model.module if isinstance(model, DistributedDataParallel) else model

    def gathered(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Return a context in which the unwrapped ``model`` can be called itself; every rank enters it."""
        return nullcontext()

    # ---- weights ----

    def full_state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Return the full state dict of the unwrapped ``model``; every rank calls it.

        Returns:
            Names to tensors of the shapes of the unsharded model. A strategy that shards gives rank 0 alone the
            tensors, in host memory, and the others an empty dict.
        """
        return model.state_dict()

    def load_weights(self, model: nn.Module, folder: str, *, trains_on: bool) -> tuple[list[str], list[str]]:
        """Give the unwrapped ``model`` the weights of a checkpoint, full or sharded; every rank calls it.

        Args:
            model: The model itself; one that is sharded is wrapped by now.
            folder: The checkpoint.
            trains_on: Whether training goes on with them.

        Returns:
            The names that the checkpoint lacks, and those that the model does not know.
        """
        return weights.load_weights(model, folder, trains_on=trains_on)

    def save_sharded_weights(self, model: nn.Module, folder: str) -> None:
        """Write this rank's part of the unwrapped ``model`` into ``folder``; every rank calls it.

        Nothing where ``saves_sharded_weights`` is False: no rank has a part.
        """

    # ---- the optimizer's state ----

    def save_optimizer(self, optimizer: Any, folder: str, *, writes: Writes | None) -> None:
        """Write the optimizer's state into ``folder``; every rank calls it.

        Args:
            optimizer: The run's.
            folder: A checkpoint being written.
            writes: What makes the calls that write; None where this rank does not write what is the same on all.
        """
        if writes is not None:
            state_dict_files.save_state_file(optimizer, folder, names.OPTIMIZER_NAME, writes=writes)

    def has_optimizer(self, folder: str) -> bool:
        """Return whether a run can go on with optimizer and schedule in ``folder``; without both it has new ones."""
        return optimizer_states.is_there(Path(folder)) and Path(folder, names.SCHEDULER_NAME).is_file()

    def load_optimizer(self, optimizer: Any, folder: str) -> None:
        """Give the optimizer the state in ``folder``, by whichever strategy it was written; every rank calls it."""
        if Path(folder, names.OPTIMIZER_NAME).is_file():
            state_dict_files.load_state_file(optimizer, folder, names.OPTIMIZER_NAME)
        else:
            optimizer_states.load(optimizer, self.lightning_module.model, Path(folder))

    def resume_engine(self, folder: str) -> None:
        """Give the engine the weights, optimizer and schedule in ``folder``; nothing without one.

        Every rank calls it once the host has taken wrapper and optimizer, before ``load_optimizer``.
        """

    # ---- the end ----

    def close(self) -> None:
        """Let go of the engine and take its hooks off the model; nothing without one, and nothing a second time.

        Called before the strategy of the next ``lightning.Trainer`` is set up; every rank calls it.
        """
