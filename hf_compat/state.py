"""Where a run is and what it is told to do next; ``trainer_state.json`` is the first of the two, written down.

The same fields, defaults and file as transformers ``trainer_callback.py``: either library reads what the other wrote.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Self

from hf_compat.arguments.releases.semantics import Semantics, resolve_semantics
from hf_compat.errors import CheckpointError, HFCompatError, TrainerSetupError
from hf_compat.files import read_json_object, write_text

if TYPE_CHECKING:
    from hf_compat.arguments import TrainingArguments

__all__ = [
    "ExportableState",
    "NotExportableError",
    "TrainerControl",
    "TrainerState",
    "export_states",
    "is_exportable",
]

logger = logging.getLogger(__name__)


class NotExportableError(HFCompatError, TypeError):
    """Says that a callback was to be saved with the state but cannot say what to save."""


# Objects that are saved with the state


class ExportableState:
    """Base of callbacks whose state is saved in a checkpoint and given back on resume."""

    def state(self) -> dict[str, Any]:
        """Return ``{"args": ..., "attributes": ...}``: constructor keywords, and attributes to set afterwards.

        Raises:
            NotImplementedError: If a subclass does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} is to be saved with the run: define its method `state`.")

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Return a new object in the given state, a result of ``state()``."""
        instance = cls(**state["args"])
        for name, value in state["attributes"].items():
            setattr(instance, name, value)
        return instance


def is_exportable(candidate: Any) -> bool:
    """Return whether ``candidate`` is an ``ExportableState``, of this library, of transformers or by its methods."""
    return callable(getattr(candidate, "state", None)) and callable(getattr(type(candidate), "from_state", None))


def _export(callbacks: Iterable[Any]) -> dict[str, Any]:
    """Return class name → state; a list of states where several objects have the same class name."""
    states: dict[str, list[dict[str, Any]]] = {}
    for callback in callbacks:
        if not is_exportable(callback):
            raise NotExportableError(
                f"`stateful_callbacks` holds a {type(callback).__name__}, which has no state to save: "
                "derive it from ExportableState, or leave it out."
            )
        states.setdefault(type(callback).__name__, []).append(callback.state())
    return {name: found[0] if len(found) == 1 else found for name, found in states.items()}


def export_states(kept: dict[str, Any], callbacks: Iterable[object]) -> None:
    """Bring ``kept``, ``TrainerState.stateful_callbacks``, up to date with those of ``callbacks`` that have a state.

    References:
        As transformers ``trainer.py`` ``Trainer._save_checkpoint``: a list, of callbacks of one class, grows with each
        call.
    """
    for callback in callbacks:
        if not is_exportable(callback):
            continue
        name, state = type(callback).__name__, callback.state()  # type: ignore[attr-defined]
        if isinstance(kept.get(name), list):
            kept[name].append(state)
        else:
            kept[name] = state


@dataclass
class TrainerControl(ExportableState):
    """The switches by which callbacks steer a run."""

    should_training_stop: bool = False
    """End the run once the current update step, or epoch, is dealt with. Cleared as training begins."""
    should_epoch_stop: bool = False
    """End the current epoch after the current update step. Cleared as an epoch begins."""
    should_save: bool = False
    """Save a checkpoint after the current update step. Cleared by the save and as a step begins."""
    should_evaluate: bool = False
    """Evaluate after the current update step. Cleared by the evaluation and as a step begins."""
    should_log: bool = False
    """Log after the current update step. Cleared by the log and as a step begins."""

    def _new_training(self) -> None:
        self.should_training_stop = False

    def _new_epoch(self) -> None:
        self.should_epoch_stop = False

    def _new_step(self) -> None:
        self.should_save = False
        self.should_evaluate = False
        self.should_log = False

    def state(self) -> dict[str, Any]:
        """Return the five switches as constructor keywords."""
        return {"args": {item.name: getattr(self, item.name) for item in fields(TrainerControl)}, "attributes": {}}


# The state


def _initial_epoch(semantics: Semantics | None = None) -> float | None:
    # An integer: the file then says 0, as upstream's does.
    return 0 if (semantics or resolve_semantics()).state_epoch_starts_at_zero else None


@dataclass
class TrainerState:
    """Where a run is. Saved in every checkpoint and shown to every callback."""

    epoch: float | None = field(default_factory=_initial_epoch)
    """Epochs done, with the share of the current one. Before training 0, or None in releases before 5.3."""
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
    """Samples per process in a batch, the one found under ``auto_find_batch_size``."""
    num_train_epochs: int = 0
    """Epochs that the run begins."""
    num_input_tokens_seen: int = 0
    """Input tokens trained on, if they are counted."""
    total_flos: float = 0
    """Floating point operations of the run so far."""
    log_history: list[dict[str, Any]] = field(default_factory=list)
    """Every log so far, each with its update step under ``step``."""
    best_metric: float | None = None
    """Best value of ``metric_for_best_model`` so far."""
    best_global_step: int | None = None
    """Update step of the best evaluation."""
    best_model_checkpoint: str | None = None
    """Folder of the best checkpoint."""
    is_local_process_zero: bool = True
    """Whether this is the first process of its machine."""
    is_world_process_zero: bool = True
    """Whether this is the first process of all."""
    is_hyper_param_search: bool = False
    """Whether the run is a trial of a search."""
    trial_name: str | None = None
    """What ``hp_name`` calls the trial."""
    trial_params: dict[str, str | float | int | bool] | None = None
    """The values that the trial tries."""
    stateful_callbacks: Any = None
    """Class name → state. The constructor also takes the objects themselves, see :class:`ExportableState`."""

    def __post_init__(self) -> None:
        if self.log_history is None:  # a caller's or a file's way to say that there is none
            self.log_history = []
        if not isinstance(self.stateful_callbacks, dict):
            self.stateful_callbacks = _export(self.stateful_callbacks or ())

    @classmethod
    def initial(cls, semantics: Semantics, **given: Any) -> Self:
        """Return the state before training under ``semantics``; ``given`` are further fields."""
        return cls(epoch=_initial_epoch(semantics), **given)

    def save_to_json(self, json_path: str | os.PathLike[str]) -> None:
        """Write the state to the file ``json_path``, whole or not at all."""
        # Not dataclasses.asdict: it copies a long log history value by value.
        content = {item.name: getattr(self, item.name) for item in fields(self)}
        write_text(json_path, json.dumps(content, indent=2, sort_keys=True, default=_plain) + "\n")

    @classmethod
    def load_from_json(cls, json_path: str | os.PathLike[str]) -> Self:
        """Return the state in the file ``json_path``, of any release.

        A field that the file does not have keeps its default; one that only another release knows is left out with a
        warning.

        Raises:
            CheckpointError: If the file is not a trainer state.
            FileNotFoundError: If there is no such file.
        """
        content = read_json_object(json_path)
        for name, fits in _FITS.items():
            if name in content and not fits(content[name]):
                raise CheckpointError(f"`{json_path}` is not a trainer state: `{name}` is {content[name]!r:.200}.")
        known = {item.name for item in fields(cls)}
        unknown = sorted(content.keys() - known)
        if unknown:
            logger.warning("%s: left out %s, written by another release.", json_path, ", ".join(unknown))
        return cls(**{name: value for name, value in content.items() if name in known})

    def compute_steps(self, args: TrainingArguments, max_steps: int) -> None:
        """Set the three intervals from ``args``, in update steps; a value below 1 is a share of ``max_steps``."""
        for name in ("logging_steps", "eval_steps", "save_steps"):
            interval = getattr(args, name)
            if interval is not None:
                setattr(self, name, math.ceil(max_steps * interval) if interval < 1 else interval)

    def init_training_references(self, trainer: Any, max_steps: int, num_train_epochs: int, trial: Any) -> None:
        """Set what a ``train`` call knows before its first update step.

        Raises:
            TrainerSetupError: If ``trial`` is neither an optuna trial nor a dict of values.
        """
        hp_name, named_trial = getattr(trainer, "hp_name", None), getattr(trainer, "_trial", None)
        if hp_name is not None and named_trial is not None:
            self.trial_name = hp_name(named_trial)
        self.trial_params = None if trial is None else _trial_values(trial)
        self.max_steps = max_steps
        self.num_train_epochs = num_train_epochs
        self.is_local_process_zero = trainer.is_local_process_zero()
        self.is_world_process_zero = trainer.is_world_process_zero()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_interval(value: Any) -> bool:
    return value is None or (_is_number(value) and value > 0)


def _is_history(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(log, dict) for log in value))


def _or_none(kind: type) -> Callable[[Any], bool]:
    return lambda value: value is None or isinstance(value, kind)


_FITS: Mapping[str, Callable[[Any], bool]] = {
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
"""What a field of a file has to be; those that are missing here are set anew before they are used."""


def _plain(value: Any) -> Any:
    """Return what a dataclass in a log is written as; json asks for what it cannot write itself."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _trial_values(trial: Any) -> dict[str, Any]:
    values = trial if isinstance(trial, dict) else getattr(trial, "params", None)
    if not isinstance(values, dict):
        raise TrainerSetupError(
            f"`trial` is a {type(trial).__name__}: an optuna trial or a dict of values is expected."
        )
    return values
