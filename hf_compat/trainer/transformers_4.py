"""Methods that only transformers 4 has, for subclasses and scripts that call them."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from hf_compat.checkpoint.finding import list_checkpoints
from hf_compat.checkpoint.names import PREFIX_CHECKPOINT_DIR
from hf_compat.checkpoint.rotation import by_age
from hf_compat.errors import CheckpointError, DataError, NotSupportedError, TrainerSetupError, UnknownArgumentError
from hf_compat.metrics import has_length
from hf_compat.nested import Nested
from hf_compat.trainer.evaluation_session import EvaluationSession
from hf_compat.trainer.outputs import EvalAccumulator

if TYPE_CHECKING:
    from hf_compat.arguments.deepspeed import DeepSpeedPlugin
    from hf_compat.arguments.training_arguments import TrainingArguments
    from hf_compat.trainer.trainer import Trainer


logger = logging.getLogger(__name__)


def by_old_name(processing_class: Any) -> Any:
    """Return ``processing_class``, which was read or set as ``tokenizer``."""
    logger.warning("Trainer.tokenizer is now deprecated: use `Trainer.processing_class`.")
    return processing_class


def resume_argument(kwargs: dict[str, Any], resume_from_checkpoint: str | bool | None) -> str | bool | None:
    """Return ``model_path`` of ``train``'s keyword arguments, by default ``resume_from_checkpoint``."""
    if "model_path" in kwargs:
        warnings.warn("`model_path` is deprecated: pass `resume_from_checkpoint`.", FutureWarning, stacklevel=3)
        resume_from_checkpoint = kwargs.pop("model_path")
    if kwargs:
        raise UnknownArgumentError(f"train() got unexpected keyword arguments: {', '.join(kwargs)}.")
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


class LegacySession(EvaluationSession):
    """An evaluation that always keeps predictions as the model returned them, and concatenates them.

    So ``preprocess_logits_for_metrics`` and ``eval_do_concat_batches`` have no effect, ``batch_eval_metrics`` gets the
    main input only, and the mean loss includes infinite losses in all releases.

    Raises:
        DataError: If the loader has no length or no batch size.

    References:
        Same numbers as transformers 4.57 ``Trainer.prediction_loop``.
    """

    gathers_for_metrics = False

    def __init__(self, trainer: Trainer, model: nn.Module, loader: Iterable[Any], **settings: Any) -> None:
        length_is_known = has_length(loader)
        if not length_is_known:
            raise DataError(
                "`use_legacy_prediction_loop=True`: the dataloader must implement a working __len__. Set it to False "
                "for data without length."
            )
        size = getattr(loader, "total_batch_size", None) or getattr(loader, "batch_size", None)
        if size is None:
            raise DataError(
                "`use_legacy_prediction_loop=True`: Batch size cannot be None in the loader. Set it to False."
            )
        super().__init__(trainer, model, loader, **{**settings, "keeps_predictions": True})
        self.batch_size = size
        self._losses, self._predictions, self._labels, self._inputs = (EvalAccumulator() for _ in range(4))

    def _preprocess(self, logits: Nested, labels: Nested | None) -> Nested:
        return logits

    def _batch_inputs(self, inputs: Nested, main_inputs: Nested | None) -> Nested | None:
        return main_inputs

    def _mean_loss(self, losses: np.ndarray[Any, Any] | list[np.ndarray[Any, Any]] | None) -> float | None:
        return float(losses.mean().item()) if isinstance(losses, np.ndarray) else None

    def _count_samples(self) -> int:
        assert self.examples is not None, "a loader without length is refused"
        return self.examples
