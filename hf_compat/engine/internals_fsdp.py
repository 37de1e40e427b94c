"""The private names of Lightning's ``FSDPStrategy`` that hf_compat touches, with the contract it relies on.

Beside ``internals``, which would be too long with it.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.strategies import FSDPStrategy, Strategy
from lightning.pytorch.trainer.states import TrainerFn

__all__ = ["RawModelFSDPStrategy"]


class RawModelFSDPStrategy(FSDPStrategy):
    """Lightning's FSDP with the wrapper around the model inside the LightningModule, in processes that run already.

    Contract: only the exact class is refused on a CPU; ``kwargs``, ``sharding_strategy``, ``cpu_offload`` and
    ``mixed_precision`` are what the wrapper is made with, in ``_setup_model``, which only ``setup`` calls;
    ``setup_optimizers`` asks the module for its optimizer; ``_configure_launcher`` makes what starts processes.
    """

    # Lightning's own takes its FSDPPrecision alone, which brings what the wrapper is told here anyway.
    precision_plugin = Strategy.precision_plugin  # type: ignore[assignment]

    def _configure_launcher(self) -> None:
        self._launcher = None

    def wrapped(self, model: Any) -> Any:
        """Return ``model`` in its wrapper, the one that it has if there is one."""
        raise NotImplementedError

    def setup(self, trainer: pl.Trainer) -> None:
        """Wrap the model, for evaluations alone too, and hand the wrapper to the module; a fit needs an optimizer."""
        assert self.accelerator is not None, "a trainer has given it"
        module: Any = self.lightning_module
        self.accelerator.setup(trainer)
        self.model = self.wrapped(module.model)
        module._take_wrapper(self.model)
        if trainer.state.fn is TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module itself: the wrapper is inside it."""
        assert self.lightning_module is not None, "called during a fit"
        with self.precision_plugin.train_step_context():
            return self.lightning_module.training_step(*args, **kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module itself."""
        assert self.lightning_module is not None, "called during an evaluation"
        with self.precision_plugin.val_step_context():
            return self.lightning_module.validation_step(*args, **kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module itself."""
        assert self.lightning_module is not None, "called during an evaluation"
        with self.precision_plugin.test_step_context():
            return self.lightning_module.test_step(*args, **kwargs)
