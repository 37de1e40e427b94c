"""The Trainer's numbers of a run, and what readies a model and a resumed state for it."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

from hf_compat.data.rank_batches import check_even
from hf_compat.metrics import has_length
from hf_compat.optim.neftune import activate_neftune, deactivate_neftune
from hf_compat.overriding import call_as_defined
from hf_compat.plan import RunPlan, build_plan
from hf_compat.plan.upstream import from_values, to_values
from hf_compat.special_tokens import align_special_tokens
from hf_compat.state import TrainerState
from hf_compat.trainer.flow import FlowMethods

__all__ = ["PlanningMethods"]

logger = logging.getLogger(__name__)


class PlanningMethods(FlowMethods):
    """How long a run is, the noise of its embeddings, and where it differs from the run it goes on from."""

    def get_tp_size(self) -> int:
        """Return over how many processes each matrix of the model is split."""
        return self._placement.tensor_parallel

    def get_cp_size(self) -> int:
        """Return over how many processes each sequence is split by its context: 1."""
        return 1

    def get_sp_size(self) -> int:
        """Return over how many processes each sequence is split by position: 1."""
        return 1

    def get_total_train_batch_size(self, args: Any) -> int:
        """Return the samples that one update step sees, over all devices and the window."""
        return int(self._train_batch_size * args.gradient_accumulation_steps * self.accelerator.data_parallel_size)

    def set_initial_training_values(
        self, args: Any, dataloader: Any, total_train_batch_size: int | None = None
    ) -> tuple[Any, ...]:
        """Return the numbers of a run over ``dataloader``, as the release that is followed lists them.

        Args:
            args: The training arguments.
            dataloader: The train loader.
            total_train_batch_size: Samples per update step. Default: counted.

        Returns:
            Epochs, update steps per epoch, samples per epoch, samples of the run; then, since transformers 5.3, samples
            per update step and batches per epoch, before it whether epochs decide and the loader's length; and the
            update steps of the run.
        """
        batches = len(dataloader) if has_length(dataloader) else None
        samples = self.get_total_train_batch_size(args) if total_train_batch_size is None else total_train_batch_size
        examples = self.num_examples(dataloader) if batches else None
        plan = build_plan(args, batches=batches, examples=examples, samples_per_update_step=samples)
        return to_values(plan, batches=batches, epochs_decide=args.max_steps < 0, semantics=self.semantics)

    def _plan(self, train_dataloader: Any) -> RunPlan:
        """Return every number of the run.

        Raises:
            DataError: If processes would get different numbers of batches.
        """
        check_even(train_dataloader)
        args, by_batches = self.args, self.semantics.plans_by_batches
        samples = None if by_batches else self.get_total_train_batch_size(args)
        values = call_as_defined(
            self.set_initial_training_values,
            ("args", args),
            ("dataloader", train_dataloader),
            *(() if by_batches else (("total_train_batch_size", samples),)),
        )
        return from_values(values, accumulate=args.gradient_accumulation_steps, samples_per_update_step=samples)

    def compare_trainer_and_checkpoint_args(self, training_args: Any, trainer_state: TrainerState) -> None:
        """Warn where the checkpoint's cadences, which win, or its batch size differ from the arguments'."""
        for name in ("logging_steps", "eval_steps", "save_steps"):
            given, kept = getattr(training_args, name), getattr(trainer_state, name)
            if given is not None and given != kept:
                logger.warning("`%s=%s` differs from the checkpoint's %s, which is kept.", name, given, kept)
        if trainer_state.train_batch_size not in (None, training_args.train_batch_size):
            logger.warning(
                "`per_device_train_batch_size=%s` differs from the checkpoint's %s.",
                training_args.per_device_train_batch_size,
                trainer_state.train_batch_size,
            )

    def _align_special_tokens(self) -> None:
        """Give the model's configurations the special tokens of the processing class."""
        align_special_tokens(self.model, self.processing_class, self.semantics)

    def _activate_neftune(self, model: nn.Module) -> nn.Module:
        """Add noise to the embeddings of ``model`` in training, by the hook ``neftune_hook_handle``; return it."""
        assert self.neftune_noise_alpha is not None, "only called with a magnitude"
        self.neftune_hook_handle = activate_neftune(model, self.neftune_noise_alpha)
        return model

    def _deactivate_neftune(self, model: nn.Module) -> None:
        """Undo :meth:`_activate_neftune`.

        Raises:
            ValueError: If it was not called before.
        """
        if self.neftune_hook_handle is None:
            raise ValueError("NEFTune is not active: call `_activate_neftune` first.")
        deactivate_neftune(model, self.neftune_hook_handle)
        self.neftune_hook_handle = None
