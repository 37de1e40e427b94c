"""Reading the files of a DeepSpeed engine, of any number of ranks, without DeepSpeed and without running their code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_compat.checkpoint.unpickle import Unread, load_known
from hf_compat.checkpoint.zero_partitions import Partitions, joined, state_files
from hf_compat.errors import CheckpointError

__all__ = ["EngineStates", "read_engine"]

_OF_THE_ENGINE = frozenset(
    {
        *("module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "frozen_param_fragments"),
        *("shared_params", "lr_scheduler", "data_sampler", "random_ltd", "sparse_tensor_module_names", "skipped_steps"),
        *("global_steps", "global_samples", "dp_world_size", "mp_world_size", "ds_config", "ds_version"),
        *("checkpoint_parallel_dimensions", "universal_checkpoint_info"),
    }
)
"""Entries of DeepSpeed's own in a file of the model's states; all others are those of the run."""


@dataclass(frozen=True)
class EngineStates:
    """The saved states of all ranks of a DeepSpeed engine, consolidated."""

    weights: dict[str, Tensor]
    """The module's state dict, trainable parameters in full precision; tied ones share memory."""
    optimizer: dict[str, Any] | None
    """The optimizer's state dict; None if there is none, or none that can be consolidated."""
    run: dict[str, Any]
    """The entries that the run has added."""
    unread: tuple[str, ...]
    """The classes in these entries that were not read."""
    notes: tuple[str, ...]
    """What could not be read, a sentence each."""
    problem: str | None
    """Why there is a state of the optimizer that is not in ``optimizer``."""
    has_names: bool
    """Whether the parameters have names in ``optimizer``."""


def read_engine(folder: Path) -> EngineStates:
    """Return what DeepSpeed has saved in ``folder``, which contains ``*_model_states.pt``.

    Raises:
        CheckpointError: If files are missing, damaged, contain code, or parts of a model that is not whole on a rank.
    """
    files = state_files(folder)
    contents, unread = _contents(files.models)
    run = {name: value for name, value in contents[0].items() if name not in _OF_THE_ENGINE}
    known = tuple(name for name in unread if not name.startswith("deepspeed."))
    if contents[0].get("param_shapes") is None:
        return _without_zero(contents[0], run, known)
    states = [rank["optimizer_state_dict"] for rank in _contents(files.optimizers)[0]]
    _check_ranks(folder, contents[0], states)
    return _with_zero(contents, states, run, known)


def _without_zero(first: Mapping[str, Any], run: dict[str, Any], unread: tuple[str, ...]) -> EngineStates:
    weights = {name: value for name, value in first["module"].items() if isinstance(value, Tensor)}
    optimizer, problem, notes = first.get("optimizer"), None, []
    if optimizer is not None and "param_groups" not in optimizer:
        optimizer, problem = (
            None,
            "without ZeRO, DeepSpeed saves the float32 weights without the names of the parameters",
        )
        notes.append("the float32 weights: those of the folder are in half precision, as the model's are.")
    return EngineStates(weights, optimizer, run, unread, tuple(notes), problem, has_names=False)


def _with_zero(
    contents: Sequence[Mapping[str, Any]],
    states: Sequence[Mapping[str, Any]],
    run: dict[str, Any],
    unread: tuple[str, ...],
) -> EngineStates:
    partitions = Partitions(states, [_shapes(group) for group in contents[0]["param_shapes"]])
    weights = _weights(contents, partitions.weights(), whole=not partitions.are_of_each_parameter)
    problem = partitions.problem
    notes = []
    scaler = states[0].get("loss_scaler")
    if isinstance(scaler, Unread) and type(scaler).__name__.endswith("DynamicLossScaler"):
        notes.append("the loss scale: DeepSpeed uses its own scaler, so a Trainer starts with the initial scale.")
    optimizer = None if problem else partitions.optimizer()
    return EngineStates(weights, optimizer, run, unread, tuple(notes), problem, has_names=True)


def _contents(files: Sequence[Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what is in the files, and the classes of objects in them that were not read."""
    contents, unread = [], set()
    for path in files:
        content, names = load_known(path, mmap=True)
        expected = "module" if "_model_" in path.name else "optimizer_state_dict"
        if not isinstance(content, dict) or not isinstance(content.get(expected), Mapping):
            raise CheckpointError(f"`{path}` is damaged: it has no entry `{expected}`.")
        contents.append(content)
        unread |= set(names)
    return contents, sorted(unread)


def _check_ranks(folder: Path, first: Mapping[str, Any], states: Sequence[Mapping[str, Any]]) -> None:
    count = first.get("dp_world_size")
    if len(states) != count:
        raise CheckpointError(
            f"`{folder}` was written by {count} ranks, but contains the optimizer states of {len(states)}. Each node "
            "writes the files of its own ranks. Copy the files of all nodes into one folder."
        )
    if "ds_zero_partition_groups" in states[0]:
        raise CheckpointError(f"`{folder}` has expert parallelism, which is not supported.")


def _shapes(group: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for name, shape in group.items()}


def _weights(contents: Sequence[Mapping[str, Any]], trained: Mapping[str, Tensor], *, whole: bool) -> dict[str, Tensor]:
    """Return the module's state dict, in its order.

    Args:
        contents: What each rank has saved of the model; one for all ranks if each had all of it.
        trained: The trainable parameters.
        whole: Whether each rank had the whole model.
    """
    first = contents[0]
    module, shared = first["module"], first.get("shared_params") or {}
    buffers = set(first.get("buffer_names") or ())
    frozen = {} if whole else _frozen(contents)
    found: dict[str, Tensor] = {}
    for name, value in module.items():
        source = name
        while source in shared and source not in trained:
            source = shared[source]
        if source in trained or source in frozen:
            found[name] = trained[source] if source in trained else frozen[source]
        elif isinstance(value, Tensor) and (whole or name in buffers):
            found[name] = value
        elif isinstance(value, Tensor):
            raise CheckpointError(f"No file of DeepSpeed has the values of `{name}`: the checkpoint is damaged.")
    return found


def _frozen(contents: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Return the parameters that were not trained, of which each rank has a part."""
    shapes = contents[0].get("frozen_param_shapes") or {}
    parts = [content.get("frozen_param_fragments") or {} for content in contents]
    found = {name: joined([own[name] for own in parts], math.prod(shape)) for name, shape in shapes.items()}
    return {name: value.view(tuple(shapes[name])) for name, value in found.items()}
