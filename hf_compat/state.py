"""``TrainerState``, saved as ``trainer_state.json``, and ``TrainerControl``.

Fields, defaults and file format are those of transformers ``trainer_callback.py``: either library reads both files.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeGuard

from hf_compat.arguments.releases import Semantics, resolve_semantics
from hf_compat.atomic_files import read_json_object, write_text
from hf_compat.errors import CheckpointError, HFCompatError, StateValueError, TrainerSetupError
from hf_compat.upstream_names import CountsCounterparts

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments


logger = logging.getLogger(__name__)


class NotExportableError(HFCompatError, TypeError):
    """A callback in ``stateful_callbacks`` that has no method to return its state."""


# Objects saved with the state


class ExportableState(metaclass=CountsCounterparts):
    """Base class of callbacks whose state is saved in checkpoints and restored on resume."""

    def state(self) -> dict[str, Any]:
        """Return ``{"args": ..., "attributes": ...}``: constructor keywords, and attributes to set afterwards.

        Raises:
            NotImplementedError: If a subclass does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} is an ExportableState without a method `state`: define it.")

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Return a new object with the given state, a result of ``state()``."""
        instance = cls(**state["args"])
        for name, value in state["attributes"].items():
            setattr(instance, name, value)
        return instance


def is_exportable(candidate: object) -> bool:
    """Return whether ``candidate`` has the methods of ``ExportableState``, ours or transformers'."""
    return callable(getattr(candidate, "state", None)) and callable(getattr(type(candidate), "from_state", None))


def _export(callbacks: Iterable[Any]) -> dict[str, Any]:
    """Return class name → state; a list of states, in order, where several objects have the same class name."""
    states: dict[str, list[dict[str, Any]]] = {}
    for callback in callbacks:
        if not is_exportable(callback):
            raise NotExportableError(
                f"`stateful_callbacks` contains a {type(callback).__name__}, which has no state to save: "
                "all callbacks passed to be saved must inherit `ExportableState`. Remove it, or derive it from that."
            )
        states.setdefault(type(callback).__name__, []).append(callback.state())
    return {name: found[0] if len(found) == 1 else found for name, found in states.items()}


def export_states(kept: dict[str, Any], callbacks: Iterable[object]) -> None:
    """Bring ``kept``, ``TrainerState.stateful_callbacks``, up to date with those of ``callbacks`` that have a state.

    Of several callbacks of one class, the list has their current states. In transformers it also has, before them,
    those of all earlier saves.
    """
    kept.update(_export(callback for callback in callbacks if is_exportable(callback)))


@dataclass
class TrainerControl(ExportableState):
    """The flags with which callbacks control a run."""

    should_training_stop: bool = False
    """Stop training after the current update step or epoch. Cleared when training begins."""
    should_epoch_stop: bool = False
    """End the current epoch after the current update step. Cleared when an epoch begins."""
    should_save: bool = False
    """Save a checkpoint after the current update step. Cleared by the save and when an update step begins."""
    should_evaluate: bool = False
    """Evaluate after the current update step. Cleared by the evaluation and when an update step begins."""
    should_log: bool = False
    """Log after the current update step. Cleared by the log and when an update step begins."""

    def _new_training(self) -> None:
        self.should_training_stop = False

    def _new_epoch(self) -> None:
        self.should_epoch_stop = False

    def _new_step(self) -> None:
        self.should_save = False
        self.should_evaluate = False
        self.should_log = False

    def state(self) -> dict[str, Any]:
        """Return the five flags as constructor keywords."""
        return {"args": {item.name: getattr(self, item.name) for item in fields(TrainerControl)}, "attributes": {}}


# The state


def _initial_epoch(semantics: Semantics | None = None) -> float | None:
    # An integer: upstream's file has 0, not 0.0.
    return 0 if (semantics or resolve_semantics()).state_epoch_starts_at_zero else None


class HasRank(Protocol):
    """A Trainer, by the methods that a state calls."""

    def is_local_process_zero(self) -> bool:
        """Return whether this is local rank 0."""

    def is_world_process_zero(self) -> bool:
        """Return whether this is rank 0."""


@dataclass
class TrainerState(metaclass=CountsCounterparts):
    """The progress of a run, saved in every checkpoint and passed to every callback."""

    epoch: float | None = field(default_factory=_initial_epoch)
    """Epochs done, including the fraction of the current one. Before training 0, or None before release 5.3."""
    global_step: int = 0
    """Update steps done."""
    max_steps: int = 0
    """Update steps of the whole run."""
    logging_steps: int = 500
    """Update steps between logs."""
    eval_steps: int = 500
    """Update steps between evaluations."""
    save_steps: int = 500
    """Update steps between saves."""
    train_batch_size: int | None = None
    """Samples per device in a batch; the size found under ``auto_find_batch_size``."""
    num_train_epochs: int = 0
    """Epochs of the run, a last incomplete one included."""
    num_input_tokens_seen: int = 0
    """Number of input tokens trained on, if they are counted."""
    total_flos: float = 0
    """Floating point operations of the run so far."""
    log_history: list[dict[str, Any]] = field(default_factory=list)
    """All logs so far, each with its update step as ``step``."""
    best_metric: float | None = None
    """Best value of ``metric_for_best_model`` so far."""
    best_global_step: int | None = None
    """Update step of the best evaluation."""
    best_model_checkpoint: str | None = None
    """Folder of the best checkpoint."""
    is_local_process_zero: bool = True
    """Whether this is local rank 0."""
    is_world_process_zero: bool = True
    """Whether this is rank 0."""
    is_hyper_param_search: bool = False
    """Whether the run is a trial of a hyperparameter search."""
    trial_name: str | None = None
    """Name of the trial, from ``hp_name``."""
    trial_params: dict[str, str | float | int | bool] | None = None
    """Hyperparameters of the trial."""
    stateful_callbacks: Any = None
    """Class name → state. The constructor also takes the objects themselves, see :class:`ExportableState`."""

    def __post_init__(self) -> None:
        if self.log_history is None:  # None in a call or a file means an empty history
            self.log_history = []
        if not isinstance(self.stateful_callbacks, dict):
            self.stateful_callbacks = _export(self.stateful_callbacks or ())

    @classmethod
    def initial(cls, semantics: Semantics, **others: Any) -> Self:
        """Return the state before training with ``semantics``; ``others`` are other fields."""
        return cls(epoch=_initial_epoch(semantics), **others)

    def save_to_json(self, json_path: str | os.PathLike[str]) -> None:
        """Write the state to the file ``json_path``, atomically."""
        # Not dataclasses.asdict: it would copy a long log history value by value.
        content = {item.name: getattr(self, item.name) for item in fields(self)}
        write_text(json_path, json.dumps(content, indent=2, sort_keys=True, default=_to_json) + "\n")

    @classmethod
    def load_from_json(cls, json_path: str | os.PathLike[str]) -> Self:
        """Return the state in the file ``json_path``, of any release.

        Fields that the file does not have keep their default; unknown fields, of another release, are ignored with a
        warning.

        Raises:
            CheckpointError: If the file is not a valid trainer state.
            FileNotFoundError: If there is no such file.
        """
        return cls.load_with_missing(json_path)[0]

    @classmethod
    def load_with_missing(cls, json_path: str | os.PathLike[str]) -> tuple[Self, list[str]]:
        """Return what :meth:`load_from_json` does, and which fields set by a run the file of an older release lacks.

        Args:
            json_path: The file.

        Raises:
            CheckpointError: If the file is not a valid trainer state.
            FileNotFoundError: If there is no such file.
        """
        content = read_json_object(json_path)
        for name, is_valid in _VALIDATORS.items():
            if name in content and not is_valid(content[name]):
                raise CheckpointError.also(TypeError)(
                    f"`{json_path}` is not a valid trainer state: `{name}` is {content[name]!r:.200}. "
                    "Use another checkpoint."
                )
        known = {item.name for item in fields(cls)}
        unknown = sorted(content.keys() - known)
        if unknown:
            logger.warning(
                "%s: ignored the unknown fields %s, written by another release.", json_path, ", ".join(unknown)
            )
        state = cls(**{name: value for name, value in content.items() if name in known})
        return state, [name for name in _SET_BY_RUN if content.get(name) is None]

    def compute_steps(self, args: TrainingArguments, max_steps: int) -> None:
        """Set the three intervals from ``args``, in update steps; a value below 1 is a fraction of ``max_steps``."""
        for name in ("logging_steps", "eval_steps", "save_steps"):
            interval = getattr(args, name)
            if interval is not None:
                setattr(self, name, math.ceil(max_steps * interval) if interval < 1 else interval)

    def init_training_references(self, trainer: HasRank, max_steps: int, num_train_epochs: int, trial: object) -> None:
        """Set the fields that are known before the first update step of a ``train`` call.

        Args:
            trainer: It has the trial of a search, if ``trial`` is None.
            max_steps: Update steps of the run.
            num_train_epochs: Passes over the data.
            trial: The trial of a search, or its values; None outside of one.

        Raises:
            TrainerSetupError: If ``trial`` is neither an optuna trial nor a dict.
        """
        hp_name, named_trial = getattr(trainer, "hp_name", None), getattr(trainer, "_trial", None)
        if hp_name is not None and named_trial is not None:
            self.trial_name = hp_name(named_trial)
        self.trial_params = None if trial is None else _trial_values(trial)
        self.max_steps = max_steps
        self.num_train_epochs = num_train_epochs
        self.is_local_process_zero = trainer.is_local_process_zero()
        self.is_world_process_zero = trainer.is_world_process_zero()


_SET_BY_RUN = ("logging_steps", "eval_steps", "save_steps", "train_batch_size", "is_hyper_param_search")
"""Fields that arguments determine; those before release 4.31 are in no file of an older one."""


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_interval(value: object) -> bool:
    # Zero or less is written by a run whose strategy is not "steps".
    return value is None or _is_number(value)


def _is_history(value: object) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(log, dict) for log in value))


def _or_none(kind: type) -> Callable[[object], bool]:
    return lambda value: value is None or isinstance(value, kind)


_VALIDATORS: Mapping[str, Callable[[object], bool]] = {
    "epoch": lambda value: value is None or (_is_number(value) and value >= 0),
    "global_step": _is_count,
    "logging_steps": _is_interval,
    "eval_steps": _is_interval,
    "save_steps": _is_interval,
    "train_batch_size": lambda value: value is None or (_is_count(value) and value > 0),
    "num_input_tokens_seen": _is_number,
    "total_flos": _is_number,
    "log_history": _is_history,
    "best_metric": lambda value: value is None or _is_number(value),
    "best_global_step": lambda value: value is None or _is_count(value),
    "best_model_checkpoint": _or_none(str),
    "trial_name": _or_none(str),
    "trial_params": _or_none(dict),
    "stateful_callbacks": _or_none(dict),
}
"""Field of a file to its check; the other fields are set again before they are used."""


def _to_json(value: object) -> object:
    """Return a dataclass in a log as a dict; called by ``json`` for objects that it cannot serialize."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise StateValueError(
        f"`trainer_state.json`: Object of type {type(value).__name__} is not JSON serializable. It is in `log_history` "
        "or in the state of a callback. Log numbers and texts, and lists and dicts of them."
    )


def _trial_values(trial: object) -> dict[str, Any]:
    values = trial if isinstance(trial, dict) else getattr(trial, "params", None)
    if not isinstance(values, dict):
        raise TrainerSetupError(
            f"`trial` is a {type(trial).__name__}: pass an optuna trial or a dict of hyperparameters."
        )
    return values
