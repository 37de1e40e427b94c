"""Log records and warnings of a Trainer that is made or evaluates: the facts that transformers logs, at level info."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch.utils.data import IterableDataset

from hf_compat.arguments.fields.redeclared import for_run
from hf_compat.arguments.parallelism import unused_handler_texts
from hf_compat.arguments.run_precision import amp_backend

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
    config = trainer.args.accelerator_config
    if getattr(config, "non_blocking", False) and not trainer.args.dataloader_pin_memory:
        logger.warning(
            "`non_blocking` is enabled but `dataloader_pin_memory` is not: batches are copied synchronously. Set both."
        )
    given = trainer.optimizer is not None or trainer.lr_scheduler is not None
    if given and trainer.lightning_backend.traits.has_engine:
        trainer.warn_once(
            "`optimizers`: with `deepspeed` transformers trains without the optimizer and the schedule that are passed "
            "to the Trainer, and so does this run, by the config or the training arguments. Override "
            "`create_optimizer` and `create_scheduler`, or pass `optimizer_cls_and_kwargs`."
        )
    for text in unused_handler_texts(trainer.args):
        trainer.warn_once(text)
    for line in _setup(trainer):
        logger.info(line)


def _setup(trainer: Trainer) -> Iterator[str]:
    args = for_run(trainer.args)
    if args.max_steps > 0 and args.num_train_epochs > 0:
        yield (
            f"max_steps is given ({args.max_steps}), it will override any value given in num_train_epochs "
            f"({args.num_train_epochs})"
        )
    is_old = trainer.semantics.release.major < 5
    if is_old and (args.fp16 or args.bf16):
        yield f"Using {amp_backend(args)} half precision backend"
    if not is_old and isinstance(trainer.train_dataset, IterableDataset):
        yield (
            f"`train_sampling_strategy={args.train_sampling_strategy!r}` is ignored when using an `IterableDataset`: "
            "it decides its order itself."
        )


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
