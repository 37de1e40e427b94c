"""Log records and warnings of a Trainer that is made or evaluates: the facts that transformers logs, at level info."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from torch.utils.data import IterableDataset

from hf_compat.arguments.checking.with_data import setup_notes, setup_warnings
from hf_compat.arguments.parallelism import unused_handler_texts

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer

__all__ = ["announce_evaluation", "announce_setup"]

logger = logging.getLogger(__name__)


def announce_setup(trainer: Trainer, *, has_args: bool) -> None:
    """Log which arguments have no effect, and what replaces them; warn of what the user would not expect.

    Args:
        trainer: The Trainer.
        has_args: Whether it was given ``args``.
    """
    if not has_args:
        logger.info("No `TrainingArguments` passed, using `output_dir=%s`.", trainer.args.output_dir)
    for text in setup_warnings(trainer.args):
        logger.warning(text)
    given = trainer.optimizer is not None or trainer.lr_scheduler is not None
    if given and trainer.lightning_backend.traits.has_engine:
        trainer.warn_once(
            "`optimizers`: with `deepspeed` transformers trains without the optimizer and the schedule that are passed "
            "to the Trainer, and so does this run, by the config or the training arguments. Override "
            "`create_optimizer` and `create_scheduler`, or pass `optimizer_cls_and_kwargs`."
        )
    for text in unused_handler_texts(trainer.args):
        trainer.warn_once(text)
    is_stream = isinstance(trainer.train_dataset, IterableDataset)
    for text in setup_notes(trainer.args, trainer.semantics, is_stream=is_stream):
        logger.info(text)


def announce_evaluation(description: str, examples: int | None, batch_size: int | None) -> None:
    """Log what is evaluated.

    Args:
        description: ``"Evaluation"`` or ``"Prediction"``.
        examples: Samples in the data loader; None if unknown.
        batch_size: Samples of a batch on one device.
    """
    logger.info("***** Running %s *****", description)
    logger.info("  Num examples: Unknown" if examples is None else f"  Num examples = {examples}")
    logger.info("  Batch size = %s", batch_size)
