"""``CallbackHandler``: the list of callbacks, and the calls to their events."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from hf_compat.callbacks.default_callbacks import DefaultFlowCallback
from hf_compat.callbacks.trainer_callback import TrainerCallback, is_kind_of
from hf_compat.errors import CallbackError, described
from hf_compat.state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from hf_compat.arguments import TrainingArguments


logger = logging.getLogger("transformers.trainer_callback")
"""Upstream's: scripts set its level, and look there for these warnings."""

_BASE_MODULES = (TrainerCallback.__module__, "transformers.trainer_callback")

_EVENTS = tuple(name for name in vars(TrainerCallback) if name.startswith("on_"))


def misspelt_events(callback: object, base: type = TrainerCallback) -> Iterator[str]:
    """Yield what to say of methods that are named almost like one of ``base``, so that no run calls them.

    Where ``callback`` has the one that is meant too, the other is a help for it, or for an older release.
    """
    kind, known = type(callback), [name for name in dir(base) if name.startswith("on_")]
    for name in dir(kind):
        if name.startswith("on_") and name not in known and callable(getattr(kind, name)):
            of_training = name.replace("on_", "on_train_", 1)  # as hooks of Lightning 1 are called in 2
            near = [of_training] if of_training in known else difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            if near and getattr(getattr(kind, near[0], None), "__module__", None) in (base.__module__, *_BASE_MODULES):
                yield (
                    f"`callbacks`: no run calls `{kind.__name__}.{name}`. Rename it to `{near[0]}`, unless your own "
                    "code calls it."
                )


class _EventMethod(NamedTuple):
    """A callback's method for one event."""

    function: Callable[..., object]
    does_nothing: bool
    """Whether it is the empty method of the base class, ours or transformers'."""
    wants_tokenizer: bool
    """Whether it has a parameter ``tokenizer``, the name of ``processing_class`` until 4.45."""


def _inspect_method(function: Callable[..., object]) -> _EventMethod:
    # A wrapper around the base method has the same name, but also __wrapped__.
    of_base = getattr(function, "__module__", None) in _BASE_MODULES and not hasattr(function, "__wrapped__")
    does_nothing = of_base and getattr(function, "__qualname__", "").startswith("TrainerCallback.")
    try:
        parameter = inspect.signature(function).parameters.get("tokenizer")
    except (TypeError, ValueError):  # not written in Python
        parameter = None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return _EventMethod(function, does_nothing, parameter is not None and parameter.kind in by_name)


def _note_parameters(error: TypeError, callback: object, event: str) -> None:
    """Add to ``error`` what the method of ``callback`` has to take, if it was raised by the call and not in it."""
    if error.__traceback__ is not None and error.__traceback__.tb_next is None:
        error.add_note(
            f"`callbacks`: define `{type(callback).__name__}.{event}(self, args, state, control, **kwargs)`. The "
            "model, the optimizer and others are passed by name."
        )


def new_instance(kind: type[Any]) -> Any:
    """Return an instance of the class of callbacks ``kind``.

    Raises:
        CallbackError: If that takes arguments.
    """
    try:
        inspect.signature(kind).bind()
    except TypeError as error:
        raise CallbackError(
            f"`callbacks`: {kind.__name__} cannot be created without arguments ({error}). Pass an instance of it."
        ) from None
    return kind()


class CallbackHandler(TrainerCallback):
    """Calls every callback on every event, in the order of its list.

    Args:
        callbacks: Callbacks, or callback classes, ours or transformers'.
        model: The model, without any wrapper.
        processing_class: The tokenizer or processor.
        optimizer: The optimizer.
        lr_scheduler: The learning-rate scheduler.

    Attributes:
        callbacks: The list, in the order of calls; may be changed in place.
        train_dataloader: The training data loader, once there is one.
        eval_dataloader: The data loader of the current evaluation, once there is one.
        returned: Class of a callback, event, and what it last returned in place of the control that it was given.
    """

    def __init__(
        self,
        callbacks: Iterable[Any],
        model: nn.Module | None,
        processing_class: object,
        optimizer: Optimizer | None,
        lr_scheduler: LRScheduler | None,
    ) -> None:
        self.callbacks: list[Any] = []
        self.model = model
        self.processing_class = processing_class
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.train_dataloader: Any = None
        self.eval_dataloader: Any = None
        self.returned: tuple[str, str, object] | None = None
        self._methods: defaultdict[str, dict[type, _EventMethod]] = defaultdict(dict)  # by event and callback class
        for callback in callbacks:
            self.add_callback(callback)
        if not any(is_kind_of(callback, DefaultFlowCallback) for callback in self.callbacks):
            text = (
                f"The Trainer will not work properly without a DefaultFlowCallback among its callbacks ({self._names()}"
                "): unless another one requests it, nothing is logged, evaluated or saved, and training does not stop. "
                "Add one."
            )
            logger.warning(text)

    def add_callback(self, callback: object) -> None:
        """Append ``callback``, an instance or a class, of which an instance is created.

        Raises:
            CallbackError: If it has no method for any event.
        """
        if not any(callable(getattr(callback, event, None)) for event in _EVENTS):
            shown = described(callback) if type(callback).__repr__ is object.__repr__ else repr(callback)
            raise CallbackError(f"{shown} is not a callback: pass an instance or a subclass of TrainerCallback.")
        kind = callback if isinstance(callback, type) else type(callback)
        if any(type(present) is kind for present in self.callbacks):
            text = (
                f"You are adding a {kind} to the callbacks of this Trainer, but there is already one. The current list "
                f"of callbacks is: {self._names()}. Remove one if that is not intended."
            )
            logger.warning(text)
        self.callbacks.append(new_instance(callback) if isinstance(callback, type) else callback)

    def pop_callback(self, callback: object) -> Any:
        """Remove and return the first callback that equals ``callback`` or is of that class; None if there is none."""
        position = self._find(callback)
        return None if position is None else self.callbacks.pop(position)

    def remove_callback(self, callback: object) -> None:
        """Remove the first callback that equals ``callback`` or is of that class, if there is one.

        Raises:
            CallbackError: If ``callback`` is an instance that is not in the list.
        """
        position = self._find(callback)
        if position is not None:
            del self.callbacks[position]
        elif not isinstance(callback, type):
            raise CallbackError(
                f"{callback!r} is not one of the callbacks {self._names()}; pass one of them, or a class."
            )

    def _find(self, wanted: object) -> int | None:
        if not isinstance(wanted, type):
            return next((at for at, callback in enumerate(self.callbacks) if callback == wanted), None)
        found = [at for at, callback in enumerate(self.callbacks) if is_kind_of(callback, wanted)]
        # Prefer a callback of this class to one of the other library's class of the same name.
        return min(found, key=lambda at: not isinstance(self.callbacks[at], wanted), default=None)

    @property
    def callback_list(self) -> str:
        """Class names of the callbacks, one per line."""
        return "\n".join(type(callback).__name__ for callback in self.callbacks)

    def _names(self) -> str:
        return self.callback_list.replace("\n", ", ")

    def call_event(
        self, event: str, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Call the method ``event`` of every callback that overrides it, and return the resulting control.

        Args:
            event: Name of the method.
            args: The arguments of the run.
            state: The state of the run.
            control: The control; a callback may return another one, which is passed on.
            **kwargs: Additional arguments of this event.
        """
        methods = self._methods[event]
        for callback in self.callbacks:
            method = getattr(callback, event, None)
            if method is None:  # its base class is of a release without this event
                continue
            # Looked up on every call: an instance or a class may be patched.
            try:
                function = method.__func__
            except AttributeError:
                function = method
            kind = type(callback)
            known = methods[kind] if kind in methods else None  # noqa: SIM401 - at each event, which this halves
            if known is None or known.function is not function:
                known = methods[kind] = _inspect_method(function)
            if known.does_nothing:
                continue
            former = {"tokenizer": self.processing_class} if known.wants_tokenizer else {}
            try:
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
            except TypeError as error:
                _note_parameters(error, callback, event)
                raise
            if result is not None:
                if result is not control:
                    self.returned = (type(callback).__name__, event, result)
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
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **kwargs: Any,
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


@runtime_checkable
class _HasBars(Protocol):
    """A callback that draws on the terminal."""

    def close_progress_bars(self, *, evaluation_only: bool = False) -> None: ...


def close_progress_bars(handler: CallbackHandler, *, evaluation_only: bool = False) -> None:
    """Close the bars that the callbacks of ``handler`` have left open, so that the traceback starts on a new line.

    Args:
        handler: The callbacks.
        evaluation_only: Leave the bars of the training.
    """
    for callback in handler.callbacks:
        if isinstance(callback, _HasBars):
            callback.close_progress_bars(evaluation_only=evaluation_only)
