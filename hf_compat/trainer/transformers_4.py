"""Methods that only transformers 4 has, for subclasses and scripts that call them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_compat.checkpoint.finding import list_checkpoints
from hf_compat.checkpoint.names import PREFIX_CHECKPOINT_DIR
from hf_compat.checkpoint.rotation import by_age
from hf_compat.errors import CheckpointError, NotSupportedError, TrainerSetupError, UnknownArgumentError, warn_user

if TYPE_CHECKING:
    from hf_compat.arguments.deepspeed import DeepSpeedPlugin
    from hf_compat.arguments.training_arguments import TrainingArguments


logger = logging.getLogger(__name__)


def by_old_name(processing_class: Any) -> Any:
    """Return ``processing_class``, which was read or set as ``tokenizer``."""
    logger.warning("Trainer.tokenizer is now deprecated: use `Trainer.processing_class`.")
    return processing_class


def resume_argument(kwargs: dict[str, Any], resume_from_checkpoint: str | bool | None) -> str | bool | None:
    """Return ``model_path`` of ``train``'s keyword arguments, by default ``resume_from_checkpoint``."""
    if "model_path" in kwargs:
        warn_user("`model_path` is deprecated: pass `resume_from_checkpoint`.", FutureWarning)
        resume_from_checkpoint = kwargs.pop("model_path")
    if kwargs:
        remedy = " Pass the checkpoint as `resume_from_checkpoint`." if "ckpt_path" in kwargs else ""
        raise UnknownArgumentError(f"train() got unexpected keyword arguments: {', '.join(kwargs)}.{remedy}")
    return resume_from_checkpoint


def propagate_args_to_deepspeed(
    plugin: DeepSpeedPlugin | None, args: TrainingArguments, auto_find_batch_size: bool
) -> None:
    """Set the values of ``plugin``'s config that are ``"auto"`` to those of ``args``, and compare the others.

    Args:
        plugin: The DeepSpeed plugin; None without DeepSpeed.
        args: The arguments. A value of the config that differs from theirs is an error at the start of a run.
        auto_find_batch_size: Whether the batch size of the config may differ.

    Raises:
        TrainerSetupError: Without DeepSpeed.
    """
    if plugin is None:
        raise TrainerSetupError("`propagate_args_to_deepspeed`: the run has no DeepSpeed config. Set `deepspeed`.")
    plugin.hf_ds_config.trainer_config_process(args, auto_find_batch_size)


def save_on_tpu(self: object, output_dir: str | None = None) -> None:
    """Raise: upstream saves the model on a TPU; an override is called there alone, so it may stay.

    Raises:
        NotSupportedError: Always.
    """
    raise NotSupportedError("`Trainer._save_tpu`: TPUs are not supported. Call `save_model`.")


def count_tokens(loader: Iterable[Mapping[str, Any]], max_steps: int | None) -> int:
    """Return the number of tokens in ``input_ids`` in one pass over ``loader``, 0 without ``input_ids``.

    Args:
        loader: The loader.
        max_steps: Return the tokens of the first batch times this number instead.
    """
    total = 0
    for batch in loader:
        if "input_ids" not in batch:
            logger.warning("Cannot get num_tokens from dataloader: its batches have no `input_ids`.")
            return total
        tokens = int(batch["input_ids"].numel())
        if max_steps is not None:
            return tokens * max_steps
        total += tokens
    return total


def sorted_checkpoints(
    folder: str | os.PathLike[str], best: str | None, *, checkpoint_prefix: str, use_mtime: bool
) -> list[str]:
    """Return the checkpoint folders in ``folder``, oldest first, the best one next to last.

    Args:
        folder: The folder with the checkpoints.
        best: The best checkpoint, None if there is none.
        checkpoint_prefix: Prefix of the names; only ``"checkpoint"`` is supported.
        use_mtime: Sort by modification time instead of update step.

    Raises:
        CheckpointError: If ``checkpoint_prefix`` is not supported.
    """
    if checkpoint_prefix != PREFIX_CHECKPOINT_DIR:
        raise CheckpointError(
            f"`checkpoint_prefix={checkpoint_prefix!r}` is not supported. Use {PREFIX_CHECKPOINT_DIR!r}."
        )
    found = list_checkpoints(folder)
    paths = by_age(found) if use_mtime else [item.path for item in found]
    if best is not None and Path(best) in paths[:-1]:
        paths.remove(Path(best))
        paths.insert(len(paths) - 1, Path(best))
    return [str(path) for path in paths]
