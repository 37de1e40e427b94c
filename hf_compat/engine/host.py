"""What the engine asks of the Trainer whose run it carries out, and of an evaluation."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from hf_compat.data.windows import Window

__all__ = ["EvaluationSession", "Host"]


class Host(Protocol):
    """The part of :class:`hf_compat.Trainer` that the module and the bridge call, at upstream's points."""

    args: Any
    state: Any
    control: Any
    callback_handler: Any
    accelerator: Any
    model_wrapped: Any
    optimizer: Any
    lr_scheduler: Any
    current_gradient_accumulation_steps: int

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor: ...

    def _take_wrapper(self, wrapped: nn.Module) -> None: ...

    def _build_optimizer_and_scheduler(self) -> None: ...

    def _begin_training(self) -> None: ...

    def _begin_epoch(self) -> None: ...

    def _track_batch(self, loss: Tensor, inputs: Any) -> None: ...

    def _clip_gradients(self) -> None: ...

    def _count_update(self, window: Window) -> None: ...

    def _log_evaluate_save(self) -> None: ...

    def _leave_if_preempted(self) -> None: ...

    def should_stop(self) -> bool: ...

    def _finish_training(self) -> None: ...


class EvaluationSession(Protocol):
    """One pass over an evaluation loader."""

    batches: Any

    def step(self, inputs: Any) -> None: ...

    def finish(self) -> dict[str, Any]: ...
