"""``Assembly``: the Trainer made from the user's ``lightning.Trainer``, module and data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hf_compat.callbacks import ProgressCallback
from hf_compat.engine.lightning_callbacks import FirstCallback
from hf_compat.engine.loggers import open_loggers
from hf_compat.engine.module import HFModule
from hf_compat.engine.user_trainer import join, user_keywords
from hf_compat.errors import TrainerSetupError
from hf_compat.run.hooks import RunHooks
from hf_compat.trainer.trainer import Trainer
from hf_compat.trainer.user_data import Evaluated, data_of, dataset_behind

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hf_compat.arguments import TrainingArguments

__all__ = ["Assembly"]


class Assembly:
    """Makes a Trainer of what a ``lightning.Trainer`` was built with and is called with.

    Args:
        args: The training arguments.
        user_callbacks: ``TrainerCallback`` classes or instances.
    """

    def __init__(self, args: TrainingArguments, user_callbacks: Sequence[Any]) -> None:
        self._args = args
        self._user_callbacks = tuple(user_callbacks)
        self._built: tuple[pl.Trainer, dict[str, Any], list[Any]] | None = None

    def __call__(self, pl_trainer: pl.Trainer, evaluated: Evaluated | None = None) -> Trainer:
        """Return a new Trainer.

        Args:
            pl_trainer: The Lightning trainer, inside a call.
            evaluated: What ``validate``, ``test`` or ``predict`` reads; None in a fit.

        Raises:
            TrainerSetupError: If the pieces do not fit together.
        """
        module, data = pl_trainer.lightning_module, data_of(pl_trainer)
        assert isinstance(module, HFModule), "checked before"
        self._check_arguments(module, data)
        keywords, loggers = self._built_with(pl_trainer)
        train_dataset, callbacks = None, list(self._user_callbacks)
        if evaluated is None:
            train_dataset = dataset_behind(pl_trainer, "train_dataloader")
            eval_dataset = dataset_behind(pl_trainer, "val_dataloader")
            callbacks += _own_callbacks(pl_trainer)
        else:
            eval_dataset = evaluated.dataset
        trainer = Trainer(
            module.model,
            self._args,
            getattr(data, "data_collator", None),
            train_dataset,
            eval_dataset,
            getattr(data, "processing_class", None),
            compute_loss_func=module.compute_loss_func,
            compute_metrics=module.compute_metrics,
            callbacks=callbacks,
            preprocess_logits_for_metrics=module.preprocess_logits_for_metrics,
            lightning=keywords,
        )
        if pl_trainer.progress_bar_callback is not None:
            trainer.pop_callback(ProgressCallback)
        pl_trainer.loggers = [*open_loggers(trainer.callback_handler.callbacks, trainer.args, trainer.state), *loggers]
        join(trainer.lightning_backend, pl_trainer, trainer.args)
        return trainer

    def _built_with(self, pl_trainer: pl.Trainer) -> tuple[dict[str, Any], list[Any]]:
        """Return keywords and loggers of ``pl_trainer`` as it was before it was joined."""
        if self._built is None or self._built[0] is not pl_trainer:
            self._built = pl_trainer, user_keywords(pl_trainer), list(pl_trainer.loggers)
        return dict(self._built[1]), self._built[2]

    def _check_arguments(self, *pieces: Any) -> None:
        for piece in pieces:
            other = getattr(piece, "args", None)
            if other is not None and other is not self._args and other.to_dict() != self._args.to_dict():
                raise TrainerSetupError(
                    f"`args`: those of {type(piece).__name__} differ from those of the callbacks. Pass the same ones."
                )


def _own_callbacks(pl_trainer: pl.Trainer) -> list[Any]:
    """Return the callbacks of ``pl_trainer`` that are not the run's."""
    callbacks = pl_trainer.callbacks  # type: ignore[attr-defined]
    return [one for one in callbacks if not isinstance(one, RunHooks | FirstCallback)]
