"""The list of a run's callbacks, and the calls that reach them."""

from __future__ import annotations

import inspect
import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from hf_compat.callbacks.default_flow import DefaultFlowCallback
from hf_compat.callbacks.trainer_callback import TrainerCallback, is_kind_of
from hf_compat.state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = ["CallbackHandler"]

logger = logging.getLogger(__name__)

_BASE_MODULES = (TrainerCallback.__module__, "transformers.trainer_callback")


class _Reading(NamedTuple):
    """What is known of a function that handles an event."""

    function: Any
    does_nothing: bool
    """Whether it is the one that the base class, ours or transformers', has for the event."""
    wants_tokenizer: bool
    """Whether it names ``tokenizer``, what ``processing_class`` was called until 4.45."""


def _read(function: Any) -> _Reading:
    # A wrapper put around the base's function has its name too, and __wrapped__.
    of_base = getattr(function, "__module__", None) in _BASE_MODULES and not hasattr(function, "__wrapped__")
    does_nothing = of_base and getattr(function, "__qualname__", "").startswith("TrainerCallback.")
    try:
        parameter = inspect.signature(function).parameters.get("tokenizer")
    except (TypeError, ValueError):  # not written in Python
        parameter = None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return _Reading(function, does_nothing, parameter is not None and parameter.kind in by_name)


class CallbackHandler(TrainerCallback):
    """Calls every callback on every event, in the order of its list.

    Args:
        callbacks: Callbacks, or classes to make them of, ours or transformers'.
        model: The model, without any wrapper.
        processing_class: The tokenizer or processor.
        optimizer: The optimizer.
        lr_scheduler: The learning rate scheduler.

    Attributes:
        callbacks: The list, in the order of calls; may be changed in place.
        train_dataloader: The train loader, once there is one.
        eval_dataloader: The loader of the current evaluation, once there is one.
    """

    def __init__(
        self, callbacks: Iterable[Any], model: Any, processing_class: Any, optimizer: Any, lr_scheduler: Any
    ) -> None:
        self.callbacks: list[Any] = []
        self.model = model
        self.processing_class = processing_class
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.train_dataloader: Any = None
        self.eval_dataloader: Any = None
        self._readings: defaultdict[str, dict[type, _Reading]] = defaultdict(dict)  # by event and class of callback
        for callback in callbacks:
            self.add_callback(callback)
        if not any(is_kind_of(callback, DefaultFlowCallback) for callback in self.callbacks):
            logger.warning(
                "No DefaultFlowCallback among the callbacks (%s): nothing will be logged, evaluated or saved, and "
                "training will not stop, unless another callback sees to it.",
                self._names(),
            )

    def add_callback(self, callback: Any) -> None:
        """Append ``callback``, an object or the class to make one of."""
        kind = callback if isinstance(callback, type) else type(callback)
        if any(type(present) is kind for present in self.callbacks):
            logger.warning("A %s is added to callbacks that have one already: %s.", kind.__name__, self._names())
        self.callbacks.append(callback() if isinstance(callback, type) else callback)

    def pop_callback(self, callback: Any) -> Any:
        """Take out and return the first callback that is ``callback``, or of that class; None if there is none."""
        position = self._find(callback)
        return None if position is None else self.callbacks.pop(position)

    def remove_callback(self, callback: Any) -> None:
        """Take out the first callback that is ``callback``, or of that class if there is one.

        Raises:
            ValueError: If ``callback`` is an object that is not in the list.
        """
        position = self._find(callback)
        if position is not None:
            del self.callbacks[position]
        elif not isinstance(callback, type):
            raise ValueError(f"{callback!r} is not among the callbacks: {self._names()}.")

    def _find(self, wanted: Any) -> int | None:
        if not isinstance(wanted, type):
            return next((at for at, callback in enumerate(self.callbacks) if callback == wanted), None)
        found = [at for at, callback in enumerate(self.callbacks) if is_kind_of(callback, wanted)]
        # A callback of the very class comes before one of its counterpart.
        return min(found, key=lambda at: not isinstance(self.callbacks[at], wanted), default=None)

    @property
    def callback_list(self) -> str:
        """Names of the callbacks' classes, one a line."""
        return "\n".join(type(callback).__name__ for callback in self.callbacks)

    def _names(self) -> str:
        return self.callback_list.replace("\n", ", ")

    def call_event(
        self, event: str, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Call the method ``event`` of every callback that has one of its own, and return the control they leave.

        Args:
            event: Name of the method.
            args: The arguments of the run.
            state: The state of the run.
            control: The control; a callback that returns another one replaces it for those after it.
            **kwargs: What this event has beyond the model and its companions.
        """
        readings = self._readings[event]
        for callback in self.callbacks:
            method = getattr(callback, event, None)
            if method is None:  # derived from the base class of a release without this event
                continue
            # Looked up anew on every call: an object may get a method of its own, a class may be patched.
            function = getattr(method, "__func__", method)
            reading = readings.get(type(callback))
            if reading is None or reading.function is not function:
                reading = readings[type(callback)] = _read(function)
            if reading.does_nothing:
                continue
            former = {"tokenizer": self.processing_class} if reading.wants_tokenizer else {}
            result = method(
                args,
                state,
                control,
                model=self.model,
                processing_class=self.processing_class,
                optimizer=self.optimizer,
                lr_scheduler=self.lr_scheduler,
                train_dataloader=self.train_dataloader,
                eval_dataloader=self.eval_dataloader,
                **former,
                **kwargs,
            )
            if result is not None:
                control = result
        return control

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Call every callback once the trainer is built."""
        return self.call_event("on_init_end", args, state, control, **kwargs)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Clear ``should_training_stop``, then call every callback."""
        control.should_training_stop = False
        return self.call_event("on_train_begin", args, state, control, **kwargs)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Call every callback once training is over."""
        return self.call_event("on_train_end", args, state, control, **kwargs)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Clear ``should_epoch_stop``, then call every callback."""
        control.should_epoch_stop = False
        return self.call_event("on_epoch_begin", args, state, control, **kwargs)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Call every callback after an epoch."""
        return self.call_event("on_epoch_end", args, state, control, **kwargs)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Clear the log, evaluation and save switches, then call every callback."""
        control.should_log = False
        control.should_evaluate = False
        control.should_save = False
        return self.call_event("on_step_begin", args, state, control, **kwargs)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Call every callback between clipping and the optimizer's step."""
        return self.call_event("on_pre_optimizer_step", args, state, control, **kwargs)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Call every callback after the optimizer's step."""
        return self.call_event("on_optimizer_step", args, state, control, **kwargs)

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Call every callback after a batch that does not end its update step."""
        return self.call_event("on_substep_end", args, state, control, **kwargs)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Call every callback once an update step is counted."""
        return self.call_event("on_step_end", args, state, control, **kwargs)

    def on_evaluate(  # type: ignore[override]
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **kwargs: Any,
    ) -> TrainerControl:
        """Clear ``should_evaluate``, then call every callback."""
        control.should_evaluate = False
        return self.call_event("on_evaluate", args, state, control, metrics=metrics, **kwargs)

    def on_predict(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any, **kwargs: Any
    ) -> TrainerControl:
        """Call every callback after a prediction."""
        return self.call_event("on_predict", args, state, control, metrics=metrics, **kwargs)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Clear ``should_save``, then call every callback."""
        control.should_save = False
        return self.call_event("on_save", args, state, control, **kwargs)

    def on_log(  # type: ignore[override]
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, Any], **kwargs: Any
    ) -> TrainerControl:
        """Clear ``should_log``, then call every callback."""
        control.should_log = False
        return self.call_event("on_log", args, state, control, logs=logs, **kwargs)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Call every callback after a batch of an evaluation or prediction."""
        return self.call_event("on_prediction_step", args, state, control, **kwargs)

    def on_push_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Call every callback before a push to the Hub."""
        return self.call_event("on_push_begin", args, state, control, **kwargs)
