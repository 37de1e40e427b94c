"""NEFTune: noise in the embeddings during training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from torch import nn
from torch.utils.hooks import RemovableHandle

from hf_compat.engine.callbacks import RunCallback
from hf_compat.optim.neftune import activate_neftune, deactivate_neftune

if TYPE_CHECKING:
    import lightning.pytorch as pl

__all__ = ["NEFTune"]


class NEFTune(RunCallback):
    """Adds noise to the embeddings of the module's ``model`` during a fit.

    Hooks: ``setup``. Works in any Lightning trainer whose module has a ``model``: see :meth:`with_alpha`.

    Args:
        activate: Activates the noise of a model and returns the model.
        deactivate: Deactivates it.
    """

    def __init__(self, activate: Callable[[nn.Module], nn.Module], deactivate: Callable[[nn.Module], None]) -> None:
        self._activate = activate
        self._deactivate = deactivate
        self._model: nn.Module | None = None

    @classmethod
    def with_alpha(cls, noise_alpha: float) -> Self:
        """Return the callback for noise of magnitude ``noise_alpha``, 5 to 15 in the paper."""
        handles: list[RemovableHandle] = []

        def activate(model: nn.Module) -> nn.Module:
            handles.append(activate_neftune(model, noise_alpha))
            return model

        return cls(activate, lambda model: deactivate_neftune(model, handles.pop()))

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Activate it."""
        if stage == "fit":
            self._model = self._activate(pl_module.model)  # type: ignore[arg-type]
            pl_module.model = self._model

    def end(self) -> None:
        """Deactivate it."""
        model, self._model = self._model, None
        if model is not None:
            self._deactivate(model)
