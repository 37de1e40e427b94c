"""The current or last run of a Trainer, and its counts as attributes of the Trainer with transformers' names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_compat.engine.loggers import open_loggers
from hf_compat.run.progress import RunCounters
from hf_compat.run.run import TrainingRun

if TYPE_CHECKING:
    from hf_compat.trainer.trainer import Trainer
    from hf_compat.tuning.spaces import Trial

__all__ = ["View", "counts_of", "current_run", "keep_views", "new_run", "prepare_strategy"]

_UNSET = object()


def new_run(trainer: Trainer, trial: Trial | None = None, ignore_keys: list[str] | None = None) -> TrainingRun:
    """Create a run, set it as the current one of ``trainer`` and return it.

    Args:
        trainer: The Trainer.
        trial: The trial of a hyperparameter search, None outside one.
        ignore_keys: Model outputs excluded from the predictions of evaluations during training.
    """
    parts = (trainer.lightning_backend, counts_of(trainer), trainer.checkpoint_writer, trainer.warn_once)
    run = trainer.training_run = TrainingRun(trainer, *parts, trial=trial, ignore_keys=ignore_keys)
    return run


def current_run(trainer: Trainer) -> TrainingRun:
    """Return the current or last run; before the first, a new one."""
    return new_run(trainer) if trainer.training_run is None else trainer.training_run


def prepare_strategy(trainer: Trainer) -> None:
    """Let the strategy wrap the model if it needs a wrapper to be evaluated or saved."""
    backend, callbacks = trainer.lightning_backend, trainer.callback_handler.callbacks
    # Opening them begins a new run of each tracker in a search: only where a Lightning trainer is about to be built.
    loggers = open_loggers(callbacks, trainer.args, trainer.state) if backend.pl_trainer is None else ()
    wrapped = backend.prepare_evaluation(trainer.args, trainer.model, loggers)
    if wrapped is not None:
        current_run(trainer).take_wrapper(wrapped)


class View:
    """An attribute of the Trainer that reads and writes a field of its counts.

    Args:
        field: The field's name in :class:`~hf_compat.run.progress.RunCounters`.
        initial: Its first value. Default: that of ``RunCounters``.
    """

    def __init__(self, field: str, initial: object = _UNSET) -> None:
        self.field = field
        self.initial = initial

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, trainer: Trainer | None, owner: type) -> Any:
        if trainer is None:
            return self
        try:
            return getattr(counts_of(trainer), self.field)
        except AttributeError:
            raise AttributeError(f"{type(trainer).__name__!r} object has no attribute {self.name!r}") from None

    def __set__(self, trainer: Trainer, value: object) -> None:
        setattr(counts_of(trainer), self.field, value)

    def __delete__(self, trainer: Trainer) -> None:
        delattr(counts_of(trainer), self.field)


def counts_of(trainer: Trainer) -> RunCounters:
    """Return the counts of ``trainer``, created on first use, which may be before ``super().__init__()``."""
    counters: RunCounters | None = vars(trainer).get("run_counters")
    if counters is None:
        counters = vars(trainer)["run_counters"] = RunCounters()
        kind = type(trainer)
        for view in (getattr(kind, name) for name in _views(kind)):
            if isinstance(view, View) and view.initial is not _UNSET:  # it may have been overridden by a property
                setattr(counters, view.field, view.initial)
    return counters


def keep_views(kind: type) -> None:
    """Make each plain value that the class ``kind`` has under the name of a view that view's first value."""
    for name, value in list(vars(kind).items()):
        inherited = next((vars(base)[name] for base in kind.__mro__[1:] if name in vars(base)), None)
        if isinstance(inherited, View) and not hasattr(value, "__get__"):
            view = View(inherited.field, value)
            view.__set_name__(kind, name)
            setattr(kind, name, view)


def _views(kind: type) -> list[str]:
    return [name for base in kind.__mro__ for name, value in vars(base).items() if isinstance(value, View)]
