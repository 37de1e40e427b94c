"""``HFModule``, the LightningModule around a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self
from weakref import WeakSet

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hf_compat.data.windows import Window
from hf_compat.engine.internals.exceptions import wraps_stop_iteration
from hf_compat.errors import TrainerSetupError
from hf_compat.memory import WeakAttribute
from hf_compat.optim.prepared import unwrap_optimizer

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments
    from hf_compat.overriding import WarnOnce

_PROBED = frozenset(
    {"batch_size", "datamodule", "hparams", "hparams_initial", "learning_rate", "lr", "qconfig", "saved_models"}
)
"""Attributes of a module by which Lightning decides what to do; a model's of the same name mean other things."""
_PROBED_PREFIXES, _PROBED_SUFFIXES = ("_", "on_", "configure_"), ("_dataloader", "_step", "_hook")

_MISSING = (
    "HFModule only works in a run with hf_compat's callbacks. Pass `hf_compat.lightning.callbacks(args)` to "
    "`lightning.Trainer(callbacks=...)`; its `fit`, `validate`, `test` and `predict` then accept it."
)


class Optimization(Protocol):
    """Creates optimizer and schedule of a run."""

    num_training_steps: int
    """Update steps of the run, warm-up included."""

    def create_optimizer(self) -> Optimizer:
        """Create and return a new optimizer."""

    def create_scheduler(self, optimizer: Optimizer) -> LRScheduler:
        """Create and return a new schedule for ``optimizer``."""

    def create_both(self) -> tuple[Any, Any]:
        """Create and return optimizer and schedule."""


class Run(Protocol):
    """A run, by the members that the engine uses."""

    @property
    def optimization(self) -> Optimization:
        """Creates optimizer and schedule."""

    @property
    def warn_once(self) -> WarnOnce:
        """Gives each warning once."""

    def original(self, name: str) -> Callable[..., Any]:
        """Return the Trainer's method ``name``; where the module or the data stands in for it, the one before."""

    def take_wrapper(self, wrapped: nn.Module) -> None:
        """Train ``wrapped``, the model in the strategy's wrapper."""

    def take_optimizers(self, optimizer: Optimizer, scheduler: Any) -> None:
        """Use the optimizer and the schedule that the strategy has created."""


class Evaluation(Protocol):
    """An evaluation, by the members that the engine uses."""

    gradients: bool
    """Whether gradients are enabled in it."""

    @property
    def batches(self) -> Iterable[Any]:
        """The batches, to be iterated over once."""

    def step(self, inputs: dict[str, Any]) -> Any:
        """Evaluate one batch; return its predictions, None if they are not kept."""

    def finish(self) -> dict[str, Any]:
        """Return the metrics."""


class HFModule(pl.LightningModule):
    """Wraps a model for Lightning: one training step is one window, that is, one update step.

    The order of an update step, and what is before and after it, is in ``trainer/loop.py``. Validation and test steps
    call the current evaluation session.

    A subclass may override ``compute_loss`` and ``configure_optimizers``. The arguments besides the model are
    for a module that a person builds; see ``docs/taking_apart.md``.

    Args:
        model: The model; ``self.model`` is the same object.
        args: The training arguments. Default: those of the callbacks.
        compute_loss_func: As of the Trainer.
        compute_metrics: As of the Trainer.
        preprocess_logits_for_metrics: As of the Trainer.

    Attributes:
        session: The current evaluation, None outside one.
    """

    # A Lightning callback that copies the module must not copy the Trainer and its data.
    _run: WeakAttribute[Run | None] = WeakAttribute()

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments | None = None,
        *,
        compute_loss_func: Callable[..., Tensor] | None = None,
        compute_metrics: Callable[..., dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.args = args
        self.compute_loss_func = compute_loss_func
        self.compute_metrics = compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.session: Evaluation | None = None

    def connect(self, run: Run) -> Self:
        """Let the module train and evaluate for ``run``; return it."""
        self._run = run
        return self

    @property
    def run(self) -> Run:
        """The run of this module.

        Raises:
            TrainerSetupError: If it has none, or it is gone.
        """
        run = self._run
        if run is None:
            raise TrainerSetupError(_MISSING)
        return run

    def belongs_to(self, run: Run) -> bool:
        """Return whether ``run`` is the run of this module, which may be gone."""
        return self._run is run

    def __getattr__(self, name: str) -> Any:
        """Return the model's attribute of this name, such as ``backbone``, for Lightning callbacks."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in _PROBED or name.startswith(_PROBED_PREFIXES) or name.endswith(_PROBED_SUFFIXES):
                raise
            model = self.__dict__.get("_modules", {}).get("model")
            if model is None or not hasattr(model, name):
                raise
            return getattr(model, name)

    def setup(self, stage: str) -> None:
        """Check that there is a run.

        Raises:
            TrainerSetupError: If there is none.
        """
        _ = self.run

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero the gradients, but not before an evaluation, as Lightning does: they may be of a script's own loop."""
        if self._trainer is None or not self._trainer.evaluating:
            super().zero_grad(set_to_none)

    def configure_optimizers(self) -> Any:
        """Return the run's optimizer and its schedule, which Lightning callbacks can read."""
        optimizer, scheduler = self.run.optimization.create_both()
        if isinstance(scheduler, LRScheduler | ReduceLROnPlateau):
            of_schedule: Any = scheduler.optimizer
            if unwrap_optimizer(of_schedule) is unwrap_optimizer(optimizer):
                return {"optimizer": of_schedule, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
        return optimizer

    def transfer_batch_to_device(self, batch: object, device: torch.device, dataloader_idx: int) -> object:
        """Return ``batch`` unchanged: the Trainer's loader and ``_prepare_inputs`` move batches."""
        return batch

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the loss of one batch, ``()``; with ``return_outputs`` also the model's outputs.

        Args:
            model: The model, wrapped.
            inputs: One batch, keyword arguments of the model's forward.
            return_outputs: Return ``(loss, outputs)``.
            num_items_in_batch: Scored items in the window.
        """
        return self.run.original("compute_loss")(
            model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
        )

    def training_step(self, window: Window, batch_idx: int) -> Mapping[str, Tensor]:
        """Train on ``window``, one update step, and return the loss summed over its batches, ``()``."""
        loop: Any = self.trainer.fit_loop.epoch_loop
        return loop.train(window)  # type: ignore[no-any-return]

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Pass ``batch`` to the current evaluation session."""
        self._evaluate(batch)

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> Any:
        """Pass ``batch`` to the current evaluation session; return its predictions, of all ranks.

        None under ``prediction_loss_only``.
        """
        return self._evaluate(batch)

    @wraps_stop_iteration
    def _evaluate(self, batch: dict[str, Any]) -> Any:
        if self.session is None:
            raise TrainerSetupError(_MISSING)
        with torch.set_grad_enabled(self.session.gradients):
            return self.session.step(batch)

    def on_predict_epoch_end(self) -> None:
        """Compute the session's metrics; Lightning logs nothing in a prediction."""
        self._finish()

    def _finish(self) -> dict[str, Any]:
        assert self.session is not None, "an evaluation has a session"
        with torch.set_grad_enabled(self.session.gradients):
            return self.session.finish()

    def on_validation_epoch_end(self) -> None:
        """Compute the session's metrics and log them for Lightning callbacks with a monitor."""
        metrics = self._finish()
        if self.trainer.barebones:
            return
        # Tensors of the CPU: Lightning would copy numbers to the module's device and, several times each, back.
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
        numbers = {
            name: torch.tensor(float(value), dtype=dtype, device="cpu")
            for name, value in metrics.items()
            if isinstance(value, int | float)
        }
        self.log_dict(numbers, logger=False, batch_size=1)

    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    def on_validation_model_eval(self) -> None:
        """Do nothing: an evaluation puts the model that it evaluates, perhaps another one, in evaluation mode."""

    def on_validation_model_train(self) -> None:
        """Keep the model in evaluation mode, as transformers does; the next training step changes it."""

    on_test_model_eval = on_predict_model_eval = on_validation_model_eval
    on_test_model_train = on_validation_model_train

    def cpu(self) -> HFModule:
        """Return the module without moving it: Lightning would move the model to the CPU after every run."""
        return self


# `HFDataModule`, the LightningDataModule with the loaders of transformers' Trainer.


_MISSING_DATA = (
    "HFDataModule only works in a run with hf_compat's callbacks, which determine the columns it keeps and the "
    "batches of each rank. Pass `hf_compat.lightning.callbacks(args)` to `lightning.Trainer(callbacks=...)` and call "
    "`fit` with an `HFModule`."
)


class HFDataModule(pl.LightningDataModule):
    """The data of ``HFModule``: batches in the order, and with the columns, of transformers' Trainer.

    A subclass may set the datasets in ``setup``, and override ``train_dataloader``, ``val_dataloader``,
    ``test_dataloader`` and ``predict_dataloader``: each returns a loader of batches. The run puts the batches of an
    update step together, and gives each rank its own.

    Args:
        args: The training arguments. Default: those of the callbacks.
        train_dataset: The training dataset; one without length needs ``max_steps``.
        eval_dataset: The evaluation dataset, or a dict of several; of ``validate`` and of evaluations in a fit.
        test_dataset: The dataset of ``test`` and ``predict``.
        data_collator: A list of samples to a batch. Default: with padding if ``processing_class`` is a tokenizer.
        processing_class: A tokenizer or processor, saved with the model.
    """

    _run: WeakAttribute[Run | None] = WeakAttribute()

    def __init__(
        self,
        args: TrainingArguments | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        test_dataset: Any = None,
        *,
        data_collator: Callable[[list[Any]], Any] | None = None,
        processing_class: Any = None,
    ) -> None:
        super().__init__()
        self.args = args
        self.train_dataset, self.eval_dataset, self.test_dataset = train_dataset, eval_dataset, test_dataset
        self.data_collator, self.processing_class = data_collator, processing_class

    def connect(self, run: Run) -> None:
        """Take the loaders from ``run``, the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run of this data.

        Raises:
            TrainerSetupError: If it has none, or it is gone.
        """
        run = self._run
        if run is None:
            raise TrainerSetupError(_MISSING_DATA)
        return run

    def train_dataloader(self) -> Any:
        """Return the train loader, shuffled by seed and epoch."""
        return self.run.original("get_train_dataloader")()

    def val_dataloader(self) -> Any:
        """Return the evaluation loader."""
        return self.run.original("get_eval_dataloader")()

    def test_dataloader(self) -> Any:
        """Return the loader of ``test_dataset``."""
        return self.run.original("get_test_dataloader")(self.test_dataset)

    def predict_dataloader(self) -> Any:
        """Return the loader of ``test_dataset``."""
        return self.run.original("get_test_dataloader")(self.test_dataset)


# The train and evaluation loaders currently in use.


@dataclass(slots=True)
class Loaders:
    """The current loaders; ``gather_for_metrics`` drops the duplicates in their last batch.

    Attributes:
        train: The train loader of the current or last fit.
        evaluation: The loader of the evaluation under way.
        prepared: The loaders that the Trainer's accelerator has prepared, as long as something else holds them; a copy
            of upstream's loop, or a script beside the Trainer's, reads those.
    """

    train: object = None
    evaluation: object = None
    prepared: WeakSet[Any] = field(default_factory=WeakSet)
    _latest: int = 0
    """Number of the last pass that had begun before the evaluation under way."""

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()  # a pickle has no loaders, and weak references cannot be pickled

    @property
    def _in_use(self) -> list[Any]:
        return [loader for loader in (self.train, *self.prepared) if getattr(loader, "in_pass", False)]

    @property
    def current(self) -> object:
        """The evaluation loader inside an evaluation, else the loader whose pass began last; None without either.

        As in accelerate, a loader counts as in use until a pass over it is exhausted or it is freed.
        """
        if self.evaluation is not None:
            return self.evaluation
        return max(self._in_use, key=lambda loader: loader.pass_number, default=None)

    def watch_evaluation(self, loader: object) -> object:
        """Set the evaluation loader, None at the end of the evaluation; return the previous one."""
        before, self.evaluation = self.evaluation, loader
        if before is None:
            self._latest = max((each.pass_number for each in self._in_use), default=0)
        if loader is None:  # the evaluation has read what it needs, without asking for a batch after the last
            for each in self.prepared:
                each.in_pass = each.in_pass and each.pass_number <= self._latest
        return before
