"""The Trainer's training step and loss."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hf_compat.data.loader import move_to_device
from hf_compat.errors import DataError, ModelError
from hf_compat.model_facts import ignores_item_count, is_causal_lm
from hf_compat.nested import map_nested
from hf_compat.optim.in_backward import UPDATED_IN_BACKWARD
from hf_compat.overriding import call_as_defined
from hf_compat.trainer.optimization import OptimizerMethods

__all__ = ["StepMethods"]

_SWITCH = "Set `TrainingArguments(semantics='corrected')` for the right ones."


class StepMethods(OptimizerMethods):
    """What happens to one batch in training: draw, forward, loss, backward, count."""

    _tr_loss: Tensor
    _total_loss_scalar: float = 0.0
    _globalstep_last_logged: int = 0

    # ---- drawing a window ----

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor | int | None]:
        """Return the next ``num_batches`` batches, fewer at the end, and the items they hold together.

        Args:
            epoch_iterator: The batches of the epoch under way.
            num_batches: Batches of the window.
            device: Where the item count is put.
        """
        batches = []
        for _ in range(num_batches):
            try:
                batches.append(next(epoch_iterator))
            except StopIteration:
                break
        return batches, self._get_num_items_in_batch(batches, device)

    def draw_window(self, batches: Iterator[Any], count: int) -> tuple[list[Any], Any]:
        """Return the batches of the next window, and its items."""
        return self.get_batch_samples(batches, count, self.args.device)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Tensor | int | None:
        """Return the labels that are scored in ``batch_samples``, ``()``; None if nobody asks or they have none."""
        asked = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        if not batch_samples or "labels" not in batch_samples[0] or not asked:
            return None
        try:
            count = sum(self._scored_labels(batch).ne(-100).sum() for batch in batch_samples)
        except (TypeError, AttributeError):  # labels that are no tensors, as in object detection
            return None
        if torch.is_tensor(count):
            scored: Tensor = count.to(device)
            if self.args.average_tokens_across_devices:
                scored = self.accelerator.gather(scored).sum()
            return scored / 1 if self.semantics.item_count_is_float else scored
        return int(count)

    def _scored_labels(self, batch: Mapping[str, Any]) -> Any:
        if not self.semantics.counts_shifted_labels:
            return batch["labels"]
        if "shift_labels" in batch:
            return batch["shift_labels"]
        return batch["labels"][..., 1:] if self._loss_shifts_labels else batch["labels"]

    _loss_shifts_labels: bool = False

    # ---- one batch ----

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Run forward and backward on one batch and return its share of the window's loss, ``()``, detached.

        Args:
            model: The model to train.
            inputs: One batch, keyword arguments of the model's forward.
            num_items_in_batch: Scored items in the whole window.
        """
        context, inputs = self._prepare_context_parallel_inputs(model, inputs)
        with context():
            return self._forward_and_backward(model, inputs, num_items_in_batch)

    def _prepare_context_parallel_inputs(
        self, model: nn.Module, inputs: dict[str, Any]
    ) -> tuple[Callable[[], contextlib.AbstractContextManager[Any]], dict[str, Any]]:
        """Return the context to run one batch in, and the batch: no context and the whole batch.

        No sequence is split over processes here; a subclass may have a context of its own.
        """
        return contextlib.nullcontext, inputs

    def _forward_and_backward(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any) -> Tensor:
        model.train()
        if callable(getattr(self.optimizer, "train", None)):  # a schedule-free optimizer
            self.optimizer.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss: Tensor = call_as_defined(
                self.compute_loss, ("model", model), ("inputs", inputs), num_items_in_batch=num_items_in_batch
            )
        del inputs
        every = self.args.torch_empty_cache_steps
        if every is not None and self.state.global_step % every == 0 and torch.cuda.is_available():
            torch.cuda.empty_cache()
        if not self._loss_is_scaled(num_items_in_batch):
            loss = loss / self.current_gradient_accumulation_steps
        again = self.args.gradient_accumulation_steps if self.semantics.divides_gradients_twice else 1
        given = {"learning_rate": self._get_learning_rate()} if self.args.optim in UPDATED_IN_BACKWARD else {}
        self.accelerator.backward(loss if again == 1 else loss / again, **given)
        detached: Tensor = loss.detach()
        return detached

    def _loss_is_scaled(self, num_items_in_batch: Any) -> bool:
        """Return whether the loss already is an average over the window."""
        if self.loss_is_scaled_for_ga is not None:
            return self.loss_is_scaled_for_ga
        by_model = self.model_accepts_loss_kwargs and num_items_in_batch is not None
        return by_model or self.compute_loss_func is not None

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of one batch, ``()``; with ``return_outputs`` also what the model returned.

        Args:
            model: The model.
            inputs: One batch; ``labels`` are taken out of it if a loss function or label smoothing scores them.
            return_outputs: Return ``(loss, outputs)``.
            num_items_in_batch: Scored items in the whole window, handed to a model or loss function that takes it.

        Raises:
            ModelError: If the model returns no loss.
        """
        own_loss = self.label_smoother is not None or self.compute_loss_func is not None
        labels = inputs.pop("labels") if own_loss and "labels" in inputs else None
        if self.model_accepts_loss_kwargs and num_items_in_batch is not None:
            inputs = {**inputs, "num_items_in_batch": num_items_in_batch}
        outputs = model(**inputs)
        self._remember(outputs, self.args.past_index)
        if self.compute_loss_func is not None:
            loss = self.compute_loss_func(outputs, labels, num_items_in_batch=num_items_in_batch)
        elif labels is not None:
            loss = self._smoothed_loss(model, outputs, labels, num_items_in_batch)
        else:
            loss = self._loss_of(outputs, inputs)
        by_count = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        if self.args.average_tokens_across_devices and by_count and num_items_in_batch is not None:
            loss = loss * self.accelerator.data_parallel_size  # the mean over processes will divide by it
        return (loss, outputs) if return_outputs else loss

    def _smoothed_loss(self, model: nn.Module, outputs: Any, labels: Tensor, num_items_in_batch: Any) -> Tensor:
        count = num_items_in_batch if self.semantics.smoother_takes_item_count else None
        shift = is_causal_lm(self.accelerator.unwrap_model(model))
        loss: Tensor = self.label_smoother(outputs, labels, shift_labels=shift, num_items_in_batch=count)
        return loss

    def _loss_of(self, outputs: Any, inputs: Mapping[str, Any]) -> Any:
        if isinstance(outputs, dict):
            if outputs.get("loss") is not None:
                return outputs["loss"]
            returned, given = ", ".join(outputs), ", ".join(inputs)
            raise ModelError(
                f"`model`: {type(self.model).__name__} returned no loss, only: {returned}. It was given: {given}. "
                "Give it labels under a name its forward takes, pass `compute_loss_func`, or override `compute_loss`."
            )
        if isinstance(outputs, Tensor) and outputs.numel() != 1:
            raise ModelError(
                f"`model`: {type(self.model).__name__} returned a tensor of shape {tuple(outputs.shape)}, not a loss. "
                "Return a dict with `loss` or a tuple that starts with it, or override `compute_loss`."
            )
        return outputs.squeeze() if isinstance(outputs, Tensor) else outputs[0]

    def compute_loss_context_manager(self) -> contextlib.ExitStack:
        """Return the context that the loss is computed in; autocast is around the model's forward already."""
        stack = contextlib.ExitStack()
        context = self.autocast_smart_context_manager()
        if not isinstance(context, contextlib.nullcontext):
            stack.enter_context(context)
        return stack

    def autocast_smart_context_manager(
        self, cache_enabled: bool | None = True
    ) -> contextlib.AbstractContextManager[Any]:
        """Return the autocast that ``compute_loss`` runs in besides the model's own; a subclass may want one."""
        on_cpu = self.args.device.type == "cpu" and self.args.mixed_precision == "bf16"
        own_precision = self._placement.facts.own_precision
        if on_cpu and not own_precision and not self.semantics.leaves_loss_out_of_cpu_autocast:
            return torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=bool(cache_enabled))
        return contextlib.nullcontext()

    def _prepare_input(self, data: Any) -> Any:
        """Return ``data`` with its tensors on the training device; a mapping as a new one, to be taken apart."""
        if isinstance(data, Mapping):
            return type(data)({name: self._prepare_input(value) for name, value in data.items()})  # type: ignore[call-arg]
        data = move_to_device(data, self.args.device)
        dtype = self._placement.facts.input_dtype(self.args)
        return data if dtype is None else _in_dtype(data, dtype)

    def _prepare_inputs(self, inputs: Any) -> Any:
        """Return one batch on the training device, with what the model remembers of the one before as ``mems``.

        Raises:
            DataError: If it is empty.
        """
        inputs = self._prepare_input(inputs)
        if len(inputs) == 0:
            raise DataError(
                f"`train_dataset`: a batch is empty. {type(self.model).__name__} takes: "
                f"{', '.join(self._signature_columns or ['anything'])}; give samples at least one of these columns, or "
                "set `remove_unused_columns=False`."
            )
        if self._past is not None:
            inputs["mems"] = self._past
        return inputs

    _past: Any = None
    """What a model with memory returned for the last batch, to be given the next."""

    def _remember(self, outputs: Any, index: int) -> None:
        """Keep output ``index`` of a model with memory, one for which ``past_index`` is set."""
        if self.args.past_index < 0:
            return
        values = outputs if isinstance(outputs, tuple) else tuple(outputs.values())
        try:
            self._past = values[index]
        except IndexError:
            raise ModelError(
                f"`past_index={self.args.past_index}`: {type(self.model).__name__} returned only {len(values)} values; "
                "set it to the place of the memory among them, counted from 0 with the loss."
            ) from None

    # ---- counting ----

    def _track_batch(self, loss: Tensor, inputs: Any) -> None:
        """Add a batch's loss, floating-point operations and tokens to what the next log reports."""
        if self._tr_loss.device != loss.device:
            raise ModelError(f"`model`: its loss is on {loss.device}, but training runs on {self._tr_loss.device}.")
        if self.args.logging_nan_inf_filter:
            # A select instead of a branch: asking whether the loss is finite would wait for the device.
            mean = self._tr_loss / (1 + self.state.global_step - self._globalstep_last_logged)
            loss = torch.where(torch.isfinite(loss), loss, mean)
        self._tr_loss = self._tr_loss + loss
        self.current_flos += float(self.floating_point_ops(inputs))
        self._track_num_input_tokens(inputs)

    def floating_point_ops(self, inputs: Any) -> int:
        """Return the floating-point operations of forward and backward on one batch; 0 if they cannot be told."""
        model = self.model
        if not self.semantics.counts_flops_per_token:
            return int(model.floating_point_ops(inputs)) if hasattr(model, "floating_point_ops") else 0
        name = getattr(model, "main_input_name", "input_ids")
        if name in inputs and hasattr(model, "num_parameters"):
            return 6 * int(inputs[name].numel()) * self._parameters_outside_embeddings()
        return 0

    def _parameters_outside_embeddings(self) -> int:
        # What a rank holds of a sharded model may change from step to step, and so does transformers' count.
        if self._counted_model is not self.model or self._placement.facts.recounts_parameters:
            self._counted_model = self.model
            self._parameter_count = self.model.num_parameters(exclude_embeddings=True)
        return self._parameter_count

    _counted_model: Any = None
    _parameter_count: int = 0

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Add the tokens of one batch to ``state.num_input_tokens_seen`` if they are counted."""
        kind = self.args.include_num_input_tokens_seen
        if kind == "no":
            return
        name = getattr(self.model, "main_input_name", "input_ids")
        if name not in inputs:
            self._warn_once(
                f"`include_num_input_tokens_seen={kind!r}`: batches have no `{name}`, so no tokens are counted. "
                "Set the model's `main_input_name` to the column that holds them."
            )
            return
        tokens: Any = inputs[name].numel()
        pad = getattr(self.processing_class, "pad_token_id", None)
        if kind == "non_padding" and "attention_mask" in inputs:
            tokens = inputs["attention_mask"].sum()
        elif kind == "non_padding" and pad is not None:
            tokens = (inputs[name] != pad).sum()
        counted = torch.as_tensor(tokens, device=self.args.device, dtype=torch.int64)
        self.state.num_input_tokens_seen += int(self.accelerator.gather(counted).sum())

    # ---- numbers known to be wrong upstream ----

    def _settle_loss_scaling(self) -> None:
        """Decide who divides the loss by the window, and warn where upstream's answer is known to be wrong."""
        steps = self.args.gradient_accumulation_steps
        if self.semantics.divides_gradients_twice and steps > 1:
            self._warn_once(
                f"transformers {self.semantics.release} divides accumulated gradients by `gradient_accumulation_steps="
                f"{steps}` twice, and so does this run: they are {steps} times too small. {_SWITCH}"
            )
        if steps < 2 or self.compute_loss_func is not None:
            return
        if self.loss_is_scaled_for_ga is not None or not ignores_item_count(self.model):
            return
        name = type(self.model).__name__
        if self.semantics.corrected:
            self.model_accepts_loss_kwargs = False
        elif self.model_accepts_loss_kwargs:
            self._warn_once(
                f"{name} takes `num_items_in_batch` but averages its loss over each batch, so transformers "
                f"{self.semantics.release} trains it on losses and gradients up to {steps} times too large "
                f"(`gradient_accumulation_steps={steps}`), and so does this run. {_SWITCH}"
            )


def _in_dtype(data: Any, dtype: torch.dtype) -> Any:
    """Return ``data`` with its floating-point and complex tensors in ``dtype``."""

    def cast(leaf: Any) -> Any:
        floating = isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())
        return leaf.to(dtype) if floating else leaf

    return map_nested(cast, data)
