"""Reading a checkpoint of any Lightning run: one file, or a folder of FSDP, ModelParallelStrategy or DeepSpeed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_compat.checkpoint import distributed_files
from hf_compat.checkpoint.unpickle import Unread, load_known
from hf_compat.errors import CheckpointError
from hf_compat.tools.convert.deepspeed_folders import read_engine

__all__ = [
    "META_NAME",
    "VERSION_KEY",
    "LightningCheckpoint",
    "is_lightning_folder",
    "is_plain",
    "optimizers_in",
    "read_lightning_checkpoint",
]

VERSION_KEY = "pytorch-lightning_version"
META_NAME = "meta.pt"
"""The file with all but weights and optimizer states in a folder of Lightning's sharded strategies."""
_TAG = "checkpoint"
"""The folder with DeepSpeed's files in one of Lightning's."""
_WEIGHTS = ("state_dict", "model")
"""Name of the weights in a sharded folder of ModelParallelStrategy, and of FSDPStrategy."""
_WRAPPERS = re.compile(r"^_forward_module\.|(?<![^.])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""What wrappers of Lightning, torch.compile and FSDP put into the names of weights."""


@dataclass
class LightningCheckpoint:
    """Content of a Lightning run's checkpoint."""

    path: Path
    weights: dict[str, Tensor]
    """The LightningModule's state dict, without the names of wrappers; tied weights of a file share memory."""
    rest: dict[str, Any]
    """All other entries of the checkpoint but the states of optimizers."""
    optimizers: list[dict[str, Any]] | None
    """The states of optimizers, with indices or names for parameters; None if the checkpoint has weights only."""
    notes: list[str] = field(default_factory=list)
    """What could not be read, a sentence each."""
    problem: str | None = None
    """Why there are states of optimizers that are not in ``optimizers``."""

    @property
    def hyper_parameters(self) -> dict[str, Any]:
        """The arguments of the LightningModule and of the data module that were saved."""
        found: dict[str, Any] = {}
        for key in ("datamodule_hyper_parameters", "hyper_parameters"):
            value = self.rest.get(key)
            if isinstance(value, Mapping):
                found |= value
        return found


def is_lightning_folder(folder: Path) -> bool:
    """Return whether ``folder`` is a checkpoint of one of Lightning's strategies that save folders."""
    return (folder / META_NAME).is_file() or _is_deepspeed(folder)


def read_lightning_checkpoint(path: Path) -> LightningCheckpoint:
    """Return the checkpoint at ``path``; no code in it is run.

    Raises:
        CheckpointError: If it cannot be read, or is no checkpoint of Lightning.
    """
    if path.is_file():
        return _read_file(path)
    if (path / META_NAME).is_file():
        return _read_sharded(path)
    return _read_deepspeed(path)


def without_wrappers(name: str) -> str:
    """Return the name of a parameter without those of the wrappers around its modules."""
    return _WRAPPERS.sub("", name)


def _read_file(path: Path) -> LightningCheckpoint:
    content, unread = load_known(path)
    if (
        not isinstance(content, dict)
        or VERSION_KEY not in content
        or not isinstance(content.get("state_dict"), Mapping)
    ):
        raise CheckpointError(
            f"`{path}` is not a Lightning checkpoint: it has no entries `state_dict` and `{VERSION_KEY}`. Pass a file "
            "written by `ModelCheckpoint` or `trainer.save_checkpoint` of a Lightning run."
        )
    weights = content.pop("state_dict")
    optimizers = content.pop("optimizer_states", None)
    return _checkpoint(path, weights, content, optimizers, unread)


def _read_sharded(folder: Path) -> LightningCheckpoint:
    rest, unread = load_known(folder / META_NAME)
    if not isinstance(rest, dict) or VERSION_KEY not in rest:
        raise CheckpointError(
            f"`{folder}` is not a checkpoint of a Lightning run: `{META_NAME}` has no `{VERSION_KEY}`. Checkpoints "
            "written by `lightning.fabric` alone are not supported."
        )
    entries = distributed_files.read_full(folder)
    weights = {path[1]: value for path, value in entries.items() if path[0] in _WEIGHTS and len(path) == 2}
    found = {top: states for top, states in optimizers_in(entries).items() if top.startswith("optimizer_")}
    named = [
        _optimizer_unwrapped(found[top]) for top in sorted(found, key=lambda top: int(top.removeprefix("optimizer_")))
    ]
    return _checkpoint(folder, weights, rest, named if "lr_schedulers" in rest else None, unread)


def _read_deepspeed(folder: Path) -> LightningCheckpoint:
    engine = read_engine(folder / _TAG)
    if VERSION_KEY not in engine.run:
        raise CheckpointError(
            f"`{folder}` is not a checkpoint of a Lightning run: DeepSpeed's files have no `{VERSION_KEY}`. Pass a "
            "checkpoint written by Lightning's `DeepSpeedStrategy`."
        )
    optimizer = engine.optimizer
    if optimizer is not None and engine.has_names:
        optimizer = _optimizer_unwrapped(optimizer)
    optimizers = [optimizer] if optimizer is not None and "lr_schedulers" in engine.run else None
    checkpoint = _checkpoint(folder, engine.weights, engine.run, optimizers, list(engine.unread))
    checkpoint.notes += engine.notes
    checkpoint.problem = engine.problem
    return checkpoint


def _optimizer_unwrapped(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state dict by name without the names of wrappers."""
    return {
        "state": {without_wrappers(name): state for name, state in optimizer["state"].items()},
        "param_groups": [_unwrapped(group) for group in optimizer["param_groups"]],
    }


def _unwrapped(group: Mapping[str, Any]) -> dict[str, Any]:
    return {**group, "params": [without_wrappers(name) for name in group["params"]]}


def _is_deepspeed(folder: Path) -> bool:
    """Return whether DeepSpeed wrote ``folder`` in a Lightning run; a Trainer's has other names."""
    return any((folder / _TAG).glob("*model_states.pt"))


def _checkpoint(
    path: Path, weights: Mapping[str, Any], rest: dict[str, Any], optimizers: Any, unread: list[str]
) -> LightningCheckpoint:
    release = str(rest[VERSION_KEY])
    if release.startswith(("0.", "1.")):
        raise CheckpointError(
            f"`{path}` was written by Lightning {release}. Upgrade it first: `python -m "
            f"lightning.pytorch.utilities.upgrade_checkpoint {path}`."
        )
    tensors = {without_wrappers(name): value for name, value in weights.items() if isinstance(value, Tensor)}
    opaque = sorted(name for name, value in weights.items() if not isinstance(value, Tensor))
    notes = []
    if opaque:
        notes.append(f"entries of `state_dict` that are not tensors: {', '.join(opaque)}.")
    if unread:
        notes.append(f"objects of {', '.join(unread)}: only tensors and plain values are read, no code is run.")
    return LightningCheckpoint(path, tensors, rest, optimizers, notes)


def is_plain(value: object) -> bool:
    """Return whether nothing in ``value`` stands for an object that was not read."""
    if isinstance(value, Unread) or (isinstance(value, type) and issubclass(value, Unread)):  # an object, or its class
        return False
    if isinstance(value, Mapping):
        return all(is_plain(item) for item in value.values())
    return not isinstance(value, list | tuple | set) or all(is_plain(item) for item in value)


def optimizers_in(entries: Mapping[tuple[Any, ...], Any]) -> dict[str, dict[str, Any]]:
    """Return the state dict of each optimizer, by parameter name, under the first part of its entries' paths.

    Args:
        entries: Path → value, of a whole folder; paths that do not begin with ``"optimizer"`` are passed over.
    """
    states: dict[str, dict[str, Any]] = {}
    groups: dict[str, dict[int, dict[str, Any]]] = {}
    for path, value in entries.items():
        top = str(path[0])
        if not top.startswith("optimizer"):
            continue
        state, numbered = states.setdefault(top, {}), groups.setdefault(top, {})
        match path[1:]:
            case ("state", str(name), str(key)):
                state.setdefault(name, {})[key] = value
            case ("param_groups", int(number), str(key)):
                numbered.setdefault(number, {})[key] = value
            case ("param_groups",):
                groups[top] = dict(enumerate(value))
    return {
        top: {"state": state, "param_groups": [groups[top][number] for number in sorted(groups[top])]}
        for top, state in states.items()
    }
