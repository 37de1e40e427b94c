"""``HFDataModule``, the LightningDataModule with the loaders of transformers' Trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl

from hf_compat.errors import TrainerSetupError
from hf_compat.memory import WeakAttribute

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments
    from hf_compat.run.run import TrainingRun

__all__ = ["HFDataModule"]

_MISSING = (
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

    _run: WeakAttribute[TrainingRun | None] = WeakAttribute()

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

    def connect(self, run: TrainingRun) -> None:
        """Take the loaders from ``run``, the run."""
        self._run = run

    @property
    def run(self) -> TrainingRun:
        """The run of this data.

        Raises:
            TrainerSetupError: If it has none, or it is gone.
        """
        run = self._run
        if run is None:
            raise TrainerSetupError(_MISSING)
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
