"""The states of a checkpoint: optimizer, schedule, gradient scaler and random generators, and what reads them."""

from __future__ import annotations

import copy
import itertools
import logging
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.optim import Optimizer

from hf_compat.checkpoint import distributed_files, names
from hf_compat.checkpoint.background import CheckpointFile, Put, as_it_is
from hf_compat.checkpoint.names import TRAINING_ARGS_NAME, rng_state_name
from hf_compat.checkpoint.unpickle import is_trusted, load_trusted
from hf_compat.distributed.accelerators import accelerator_module, accelerator_type
from hf_compat.errors import CheckpointError
from hf_compat.model_facts import is_peft_model
from hf_compat.optim.optimizers import LayerwiseOptimizer
from hf_compat.state import TrainerState

logger = logging.getLogger(__name__)


# The optimizer's state: by parameter name, for a run with another strategy, and what a file of it may lack.


_FILES = (names.OPTIMIZER_NAME, names.FULL_OPTIMIZER_NAME)


@dataclass(frozen=True)
class ParameterNames:
    """The names behind the indices of an optimizer's state, which a checkpoint's weight files do not keep in order."""

    model: list[str]
    """The model's parameters, in its order."""
    groups: list[list[str]]
    """Those of each group of the optimizer, in its order."""

    @classmethod
    def from_dict(cls, saved: object) -> Self:
        """Return the names that are saved in a checkpoint.

        Raises:
            ValueError: If ``saved`` is no such dict.
        """
        match saved:
            case {"model": list(model), "groups": list(groups)} if all(isinstance(group, list) for group in groups):
                if all(isinstance(name, str) for name in itertools.chain(model, *groups)):
                    return cls(model, groups)
        raise ValueError(f"not the names of parameters: {saved!r:.200}")


def parameter_names(optimizer: object, model: nn.Module) -> ParameterNames | None:
    """Return the names of ``model``'s parameters and ``optimizer``'s; None if it has no groups, or updates others."""
    if not hasattr(optimizer, "param_groups"):
        return None
    known = {id(parameter): names.name_outside_units(name) for name, parameter in model.named_parameters()}
    try:
        groups = [[known[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]
    except KeyError:
        return None
    return ParameterNames(list(known.values()), groups)


def has_optimizer_state(folder: Path) -> bool:
    """Return whether the checkpoint ``folder`` contains an optimizer's state dict, full or sharded."""
    return any((folder / name).is_file() for name in _FILES) or distributed_files.is_sharded(
        folder / names.SHARDED_OPTIMIZER_NAME
    )


def optimizer_state_by_name(optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """Return ``optimizer.state_dict()`` with the names of ``model``'s parameters in place of their indices."""
    return _renamed(optimizer.state_dict(), dict(enumerate(_parameter_names(optimizer, model))))


def weights_for_resuming(model: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """Return what transformers resumes FSDP 2 from of ``model``'s full state dict: of a peft model, what is not frozen.

    As from torch's ``get_model_state_dict(ignore_frozen_params=True)``, a frozen weight that is tied stays under each
    of its names but the first.
    """
    if not is_peft_model(model):
        return state
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    return {name: value for name, value in state.items() if name not in frozen}


def _parameter_names(optimizer: Optimizer, model: nn.Module) -> list[str]:
    """Return the names of the parameters in the order of their indices in ``optimizer``."""
    known = parameter_names(optimizer, model)
    if known is None:
        raise CheckpointError(
            f"`optimizer`: the {type(optimizer).__name__} updates parameters that are not {type(model).__name__}'s, so "
            "its state cannot be saved by parameter name. Create it in `create_optimizer`, from the model of the run."
        )
    return list(itertools.chain(*known.groups))


@contextmanager
def load_errors(optimizer: Optimizer, folder: Path) -> Iterator[None]:
    """Context that raises errors of ``optimizer.load_state_dict`` as ``CheckpointError``."""
    try:
        yield
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        found = (folder / name for name in (*_FILES, names.SHARDED_OPTIMIZER_NAME))
        source = next(path for path in found if path.exists())
        raise CheckpointError.also(type(error))(
            f"`{source}` does not fit this run's {type(optimizer).__name__}: {error or type(error).__name__}. Resume "
            "with the model and arguments that the checkpoint was written with."
        ) from error


def load_optimizer_state(optimizer: Optimizer, model: nn.Module, folder: Path) -> None:
    """Load the state in ``folder``, full or sharded, into ``optimizer``; of sharded parameters each rank its shards.

    Raises:
        CheckpointError: If the state cannot be read, or is that of other parameters.
    """
    saved = read_full_optimizer_state(optimizer, model, folder)
    if saved is None:
        saved = read_sharded_optimizer_state(folder / names.SHARDED_OPTIMIZER_NAME, dict(model.named_parameters()))
    with load_errors(optimizer, folder):
        saved = _by_index(saved, optimizer, model)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state = {
            number: {
                key: distributed_files.distribute_like(parameters[number], value) if torch.is_tensor(value) else value
                for key, value in entry.items()
            }
            for number, entry in saved["state"].items()
        }
        optimizer.load_state_dict({"state": state, "param_groups": saved["param_groups"]})


def read_full_optimizer_state(optimizer: Optimizer, model: nn.Module, folder: Path) -> dict[str, Any] | None:
    """Return the full state dict in ``folder`` by parameter name, None if there is only a sharded one.

    Raises:
        CheckpointError: If the state cannot be read, or is that of other parameters.
    """
    numbered, named = folder / names.OPTIMIZER_NAME, folder / names.FULL_OPTIMIZER_NAME
    if not numbered.is_file():
        return load_trusted(named, mmap=True) if named.is_file() else None
    saved = load_trusted(numbered, mmap=True)
    with load_errors(optimizer, folder):
        return _renamed(saved, dict(enumerate(_parameter_names(optimizer, model))))


def _by_index(saved: Mapping[str, Any], optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    return _renamed(saved, {name: number for number, name in enumerate(_parameter_names(optimizer, model))})


def _renamed(saved: Mapping[str, Any], new: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the state dict ``saved`` with ``new`` names or indices of parameters in place of the old ones."""
    groups = [{**group, "params": [new[old] for old in group.get("params", ())]} for group in saved["param_groups"]]
    return {"state": {new[old]: entry for old, entry in saved["state"].items()}, "param_groups": groups}


def read_sharded_optimizer_state(folder: Path, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sharded state dict in ``folder`` by the names of ``parameters``; of DTensors this rank's shards.

    Raises:
        CheckpointError: If it cannot be read.
    """
    metadata = distributed_files.read_metadata(folder)
    state: dict[str, Any] = {}
    groups: dict[int, dict[str, Any]] = {}
    for path, entry in distributed_files.contents(metadata).items():
        match path:
            case ("optimizer", "state", name, key) if isinstance(entry, TensorStorageMetadata):
                state.setdefault(name, {})[key] = _empty_tensor(entry, parameters.get(name))
            case ("optimizer", "state", name, key):
                state.setdefault(name, {})[key] = None
            case ("optimizer", "param_groups", int(number), key):
                groups.setdefault(number, {})[key] = None
    read = {"state": state, "param_groups": [groups[number] for number in sorted(groups)]}
    distributed_files.load({"optimizer": read}, folder, metadata)
    return read


def _empty_tensor(entry: TensorStorageMetadata, parameter: torch.Tensor | None) -> torch.Tensor:
    dtype = entry.properties.dtype
    if parameter is not None and parameter.shape == entry.size:
        return torch.empty_like(parameter.detach(), dtype=dtype)
    return torch.empty(entry.size, dtype=dtype)


# What a file lacks


def warning_of_unsaved_state(optimizer: Optimizer) -> str | None:
    """Return what a run that resumes from a file of ``optimizer``'s state lacks or meets; None if all is in it."""
    name = type(_stepped(optimizer)[0]).__name__
    if isinstance(optimizer, LayerwiseOptimizer) and not optimizer.saves_all:
        return (
            f"The saved state of the optimizer has nothing of the {name}s of the layers, as with transformers: a run "
            "that resumes from this checkpoint starts with new averages and ends with other weights. Set "
            "`TrainingArguments(semantics='corrected')` to save and restore them, or train without a break."
        )
    if any(_names_by_parameter(group) for group in optimizer.param_groups):
        return (
            f"{name} keeps its averages in `param_groups`, by parameter, where a resumed run does not find them, as "
            "with transformers: one that resumes from this checkpoint starts with new averages and ends with other "
            "weights. Set `TrainingArguments(semantics='corrected')` to restore them, or train without a break."
        )
    if unread := _unread_classes(optimizer):
        return (
            f"The state of {name} contains objects of {', '.join(unread)}. Like transformers, a run that resumes from "
            "this checkpoint does not load them, since they may be code, and raises an UnpicklingError. Set "
            "`TrainingArguments(semantics='corrected')` to load objects of the optimizer's own package, or train "
            "without a break."
        )
    return None


def parameters_outside(optimizer: Optimizer, model: torch.nn.Module) -> int:
    """Return how many parameters that ``optimizer`` trains are not ``model``'s.

    Those that have no state were never updated, as a model that only guides a loss, unless no parameter has one.
    """
    if isinstance(optimizer, LayerwiseOptimizer):  # it has a parameter that stands for those of the layers
        return 0
    own = {id(parameter) for parameter in model.parameters()}
    held = getattr(optimizer, "state", None)
    trained = (parameter for group in optimizer.param_groups for parameter in group["params"])
    others = [parameter for parameter in trained if parameter.requires_grad and id(parameter) not in own]
    return sum(bool(held.get(parameter)) for parameter in others) if held else len(others)


@contextmanager
def loads_all(optimizer: Optimizer, file: Path) -> Iterator[None]:
    """Context in which a load of ``file`` into ``optimizer`` restores what ``warning_of_unsaved_state`` warns of.

    The weights are to be those of the checkpoint: by them parameters that the file has as keys are found again. Objects
    are loaded of classes of the optimizer's own package, if that is imported.
    """
    classes: list[Any] = _own_classes(optimizer, file) if file.is_file() else []
    with torch.serialization.safe_globals(classes):
        yield
    for group in optimizer.param_groups:
        for name in _names_by_parameter(group):
            group[name] = _of_these_parameters(group[name], group["params"])


@contextmanager
def notes_casts(optimizer: Optimizer, *, undoes: bool) -> Iterator[set[str]]:
    """Context of a load into ``optimizer``, whose value has at its end which states torch has cast.

    Torch gives all but ``step`` the dtype of their parameter: averages in float32 of one in bfloat16 are rounded.

    Args:
        optimizer: The optimizer. One that has a ``load_state_dict`` of its own may cast nothing, or what it likes.
        undoes: Whether the states get the values that were saved.
    """
    found: set[str] = set()
    read: list[dict[str, Any]] = []
    hook = None
    with suppress(AttributeError):  # of an optimizer that has not called torch's constructor
        hook = optimizer.register_load_state_dict_pre_hook(lambda _, state: read.append(state))
    try:
        yield found
    finally:
        if hook is not None:
            hook.remove()
    for saved in read:
        numbers, parameters = (
            [one for group in groups for one in group["params"]]
            for groups in (saved["param_groups"], optimizer.param_groups)
        )
        for number, parameter in zip(numbers, parameters, strict=True):
            for name, state, value in _cast(optimizer.state.get(parameter), saved["state"].get(number)):
                found.add(f"`{name}`")
                if undoes:
                    state[name] = value.to(state[name].device, copy=True)


def _cast(loaded: object, saved: object) -> Iterator[tuple[Any, Any, torch.Tensor]]:
    """Yield where ``loaded`` has a tensor of another dtype than ``saved``, as a name in a dict, and the saved one."""
    if isinstance(loaded, dict) and isinstance(saved, Mapping):
        for name, value in saved.items():
            own = loaded.get(name)
            if isinstance(value, torch.Tensor) and isinstance(own, torch.Tensor):
                if own.dtype != value.dtype:
                    yield name, loaded, value
            else:
                yield from _cast(own, value)


def _stepped(optimizer: Optimizer) -> list[Optimizer]:
    """Return ``optimizer``, or those that it has for the layers."""
    inside = list(optimizer.optimizer_dict.values()) if isinstance(optimizer, LayerwiseOptimizer) else []
    return inside or [optimizer]


def _names_by_parameter(group: dict[str, Any]) -> list[str]:
    """Return the names in ``group`` of what it has by parameter."""
    return [
        name
        for name, value in group.items()
        if isinstance(value, dict) and value and all(isinstance(key, torch.Tensor) for key in value)
    ]


def _of_these_parameters(saved: dict[torch.Tensor, Any], parameters: list[torch.Tensor]) -> dict[torch.Tensor, Any]:
    """Return ``saved`` by those of ``parameters`` that equal its keys, in their order; as it is if one has none."""
    remaining, found = iter(parameters), {}
    for key, value in saved.items():
        same = (one for one in remaining if one.shape == key.shape and torch.equal(one, key.to(one)))
        parameter = next(same, None)
        if parameter is None:
            return saved
        found[parameter] = value
    return found


def _unread_classes(optimizer: Optimizer) -> list[str]:
    """Return the names of the classes in ``optimizer``'s state that ``load_trusted`` does not load."""
    found: dict[type, Any] = {}
    for one in _stepped(optimizer):
        entries = itertools.chain(one.state.values(), one.param_groups)
        for entry in entries:
            values = entry.items() if isinstance(entry, Mapping) else ()
            found.update({type(value): value for name, value in values if name != "params"})
    return [
        f"`{kind.__module__}.{kind.__qualname__}`"
        for kind, value in found.items()
        if not _is_plain(value) and not is_trusted(value)
    ]


def _is_plain(value: object) -> bool:
    """Return whether ``value`` is a tensor, a number or a text, or a tuple or list of these, as most of a state is."""
    if type(value) in (tuple, list):
        return all(map(_is_plain, value))  # type: ignore[call-overload]
    return type(value) in (torch.Tensor, bool, float, int, str, type(None))


def _own_classes(optimizer: Optimizer, file: Path) -> list[type]:
    """Return the classes of which ``file`` has objects that are of the package of ``optimizer``."""
    packages = {type(one).__module__.partition(".")[0] for one in _stepped(optimizer)} - {"torch"}
    try:
        named = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except Exception:  # a damaged file makes torch raise any kind of error; reading it says what is wrong
        return []
    found = []
    for name in named:
        module, _, attribute = name.rpartition(".")
        kind = getattr(sys.modules.get(module), attribute, None)
        if module.partition(".")[0] in packages and isinstance(kind, type):
            found.append(kind)
    return found


# The state dicts of optimizer, scheduler and gradient scaler as files, and `training_args.bin`.


class Stateful(Protocol):
    """An optimizer, scheduler or gradient scaler."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state dict."""

    def load_state_dict(self, state_dict: Any, /) -> object:
        """Load a state dict."""


def save_state_file(
    source: Stateful, folder: str | os.PathLike[str], name: str, put: Put = CheckpointFile.write
) -> None:
    """Save ``source.state_dict()`` to ``folder/name``, at once or as ``put`` does."""
    put(CheckpointFile(torch.save, source.state_dict(), Path(folder, name)))


def load_state_file(target: Stateful, folder: str | os.PathLike[str], name: str) -> None:
    """Load the state dict in ``folder/name`` into ``target``.

    An optimizer moves what it loads to its parameters' devices by itself.

    Raises:
        CheckpointError: If the file cannot be read, or is the state of another kind of object.
    """
    path = Path(folder, name)
    state = load_trusted(path)
    try:
        target.load_state_dict(state)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        also = ", and the same parameters frozen" if "parameter group" in str(error) else ""
        raise CheckpointError.also(type(error))(
            f"`{path}` does not fit this run's {type(target).__name__}: {error or type(error).__name__}. Resume with "
            f"the model and arguments that the checkpoint was written with{also}."
        ) from error


def save_training_args(args: object, folder: str | os.PathLike[str]) -> None:
    """Write the pickled ``args``, without their tokens, to ``folder/training_args.bin``.

    Tools look for that file; it is never read here, because unpickling it would run code. It is pushed to the Hub with
    the model, and transformers writes its tokens in plain text.
    """
    shown = copy.copy(args)
    for name in vars(args):
        if name.endswith("_token"):
            setattr(shown, name, None)
    torch.save(shown, Path(folder, TRAINING_ARGS_NAME))


# The states of the random generators of python, numpy and torch, in memory and as a file.


def host_rng_state() -> dict[str, Any]:
    """Return the states of the global CPU generators."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.random.get_rng_state(),
    }


def set_host_rng_state(state: dict[str, Any]) -> None:
    """Set the states of the global CPU generators."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.random.set_rng_state(state["cpu"])


def rng_state(*, distributed: bool = False) -> dict[str, Any]:
    """Return the states of the global generators.

    Args:
        distributed: Whether to return a list with the states of all GPUs of this process, not the current GPU's.
            Those of another accelerator are likewise by its device type.
    """
    state, kind = host_rng_state(), accelerator_type()
    if kind is not None:
        generators = _generators(kind)
        has_several = distributed and hasattr(generators, "get_rng_state_all")
        state[kind] = generators.get_rng_state_all() if has_several else generators.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Set the global generators to ``state``; GPUs without a state in it keep theirs, with a logged warning."""
    set_host_rng_state(state)
    kind = accelerator_type()
    if kind is not None:
        _set_device_state(kind, state.get(kind))


def _set_device_state(kind: str, saved: object) -> None:
    generators = _generators(kind)
    if isinstance(saved, torch.Tensor):
        generators.set_rng_state(saved)
    elif isinstance(saved, list) and len(saved) == accelerator_module(kind).device_count():
        generators.set_rng_state_all(saved)
    else:
        logger.warning(
            "The checkpoint has no %s random states for these devices; dropout will differ from the original run.",
            kind.upper(),
        )


def _generators(kind: str) -> Any:
    """Return the module with the functions for the random states of a device type."""
    module = accelerator_module(kind)
    return module if hasattr(module, "get_rng_state") else module.random


def save_rng_state(
    folder: str | os.PathLike[str],
    put: Put = CheckpointFile.write,
    *,
    rank: int = 0,
    world_size: int = 1,
    distributed: bool = False,
) -> None:
    """Save the states of the global generators of ``rank`` into ``folder``; ``distributed`` as in ``rng_state``."""
    path = Path(folder, rng_state_name(rank, world_size))
    put(CheckpointFile(torch.save, rng_state(distributed=distributed), path, copy=as_it_is))


def load_rng_state(folder: str | os.PathLike[str], *, rank: int = 0, world_size: int = 1) -> None:
    """Set the global generators to the states in ``folder``; warn if there are none for ``rank``.

    Raises:
        CheckpointError: If the file cannot be read or contains something else.
    """
    path = Path(folder, rng_state_name(rank, world_size))
    if not path.is_file():
        logger.warning("`%s` is missing: random numbers will differ from those of an uninterrupted run.", path)
        return
    state = load_trusted(path)
    try:
        set_rng_state(state)
    except (AttributeError, LookupError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError.also(type(error))(
            f"`{path}` does not hold random states: {error or type(error).__name__}."
        ) from error


# `CheckpointReader`: the checkpoint that a run resumes from, each of whose files is read once.


_T = TypeVar("_T")

_MISFITS: dict[str, str] = {
    "callbacks": (
        "`{path}` does not fit this run's Lightning callbacks: {reason}. Resume with the callbacks that the checkpoint "
        "was written with."
    ),
}
"""An entry of ``lightning.pt`` → the message if it cannot be read; by default that the file is damaged."""


class CheckpointReader:
    """A checkpoint folder to resume from.

    Weights and the optimizer's state are read by the strategy, which knows how they are sharded.

    Args:
        folder: The checkpoint. Missing files are not resumed.

    Attributes:
        path: The folder as it was given.
        folder: The folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = os.fspath(folder)
        self.folder = Path(folder)
        self._state: tuple[TrainerState, list[str]] | None = None
        self._lightning: dict[str, Any] | None = None

    def trainer_state(self) -> TrainerState:
        """Return the content of ``trainer_state.json``, a new object each time.

        Raises:
            CheckpointError: If the file is not a trainer state, or missing.
        """
        return copy.deepcopy(self._read_state()[0])

    def missing_from_state(self) -> list[str]:
        """Return the fields that a run sets and ``trainer_state.json``, of an older release, does not have.

        Raises:
            CheckpointError: If the file is not a trainer state, or missing.
        """
        return self._read_state()[1]

    def _read_state(self) -> tuple[TrainerState, list[str]]:
        if self._state is None:
            path = self.folder / names.TRAINER_STATE_NAME
            if not path.is_file():
                raise CheckpointError.also(FileNotFoundError)(
                    f"`{path}` is missing: no run can be resumed without it. For a new run from the weights alone, "
                    "pass the folder to `from_pretrained`."
                )
            self._state = TrainerState.load_with_missing(path)
        return self._state

    def lightning(self, name: str, read: Callable[[Any], _T]) -> _T | None:
        """Return the entry ``name`` of ``lightning.pt``, converted by ``read``.

        Args:
            name: ``"callbacks"``, ``"position"``, ``"stream"``, ...
            read: Called with the entry, which is cached, so it must not change it.

        Returns:
            The result of ``read``; None without such a file or entry.

        Raises:
            CheckpointError: If the file cannot be read or is damaged, or the entry does not fit this run.
        """
        content = self.lightning_state()
        if name not in content:
            return None
        try:
            return read(content[name])
        except CheckpointError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            path, reason = self.folder / names.LIGHTNING_STATE_NAME, error or type(error).__name__
            message = _MISFITS.get(name, "`{path}` is damaged: {reason}")
            raise CheckpointError.also(type(error))(message.format(path=path, reason=reason)) from error

    def lightning_state(self) -> dict[str, Any]:
        """Return the content of ``lightning.pt``, empty if there is no such file.

        Raises:
            CheckpointError: If it cannot be read, or is not a dict.
        """
        if self._lightning is None:
            content = self.read(names.LIGHTNING_STATE_NAME)
            if content is not None and not isinstance(content, dict):
                path = self.folder / names.LIGHTNING_STATE_NAME
                raise CheckpointError(f"`{path}` is damaged: it contains a {type(content).__name__}, not a dict.")
            self._lightning = content or {}
        return dict(self._lightning)

    def read(self, file_name: str) -> Any:
        """Return the content of a ``torch.save`` file, None if it does not exist; it is not cached.

        Raises:
            CheckpointError: If it cannot be read, or contains code.
        """
        path = self.folder / file_name
        return load_trusted(path) if path.is_file() else None

    def drop_caches(self) -> None:
        """Free the cached content; later calls read the files again."""
        self._state = self._lightning = None
