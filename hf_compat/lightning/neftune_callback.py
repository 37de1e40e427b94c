"""``NEFTune``: noise in the embeddings during training, for any LightningModule with a ``model``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import lightning.pytorch as pl
from torch import nn
from torch.utils.hooks import RemovableHandle

from hf_compat.optim.neftune import activate_neftune, deactivate_neftune

__all__ = ["NEFTune"]


class NEFTune(pl.Callback):
    """Adds noise to the embeddings of the module's ``model`` during a fit.

    See :meth:`with_alpha`.

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

    def setup(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Activate it."""
        if stage == "fit":
            self._model = self._activate(pl_module.model)  # type: ignore[arg-type]
            pl_module.model = self._model

    def teardown(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Deactivate it."""
        self._end()

    def on_exception(self, pl_trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Deactivate it: Lightning does not call ``teardown`` after an error."""
        self._end()

    def _end(self) -> None:
        model, self._model = self._model, None
        if model is not None:
            self._deactivate(model)
