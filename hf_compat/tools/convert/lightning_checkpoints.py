"""Reading a checkpoint of any Lightning run: one file, or a folder of FSDP, ModelParallelStrategy or DeepSpeed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_compat.checkpoint import distributed_files
from hf_compat.checkpoint.unpickle import Unread, load_known
from hf_compat.checkpoint.zero_partitions import Partitions, joined, state_files
from hf_compat.errors import CheckpointError

# Reading the files of a DeepSpeed engine, of any number of ranks, without DeepSpeed and without running their code.


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
    weights = _weights(contents, partitions.weights(), is_whole=not partitions.are_of_each_parameter)
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


def _weights(
    contents: Sequence[Mapping[str, Any]], trained: Mapping[str, Tensor], *, is_whole: bool
) -> dict[str, Tensor]:
    """Return the module's state dict, in its order.

    Args:
        contents: What each rank has saved of the model; one for all ranks if each had all of it.
        trained: The trainable parameters.
        is_whole: Whether each rank had the whole model.
    """
    first = contents[0]
    module, shared = first["module"], first.get("shared_params") or {}
    buffers = set(first.get("buffer_names") or ())
    frozen = {} if is_whole else _frozen(contents)
    found: dict[str, Tensor] = {}
    for name, value in module.items():
        source = name
        while source in shared and source not in trained:
            source = shared[source]
        if source in trained or source in frozen:
            found[name] = trained[source] if source in trained else frozen[source]
        elif isinstance(value, Tensor) and (is_whole or name in buffers):
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
    path: Path, weights: Mapping[str, Any], entries: dict[str, Any], optimizers: Any, unread: list[str]
) -> LightningCheckpoint:
    release = str(entries[VERSION_KEY])
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
    return LightningCheckpoint(path, tensors, entries, optimizers, notes)


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


# Lightning's counters of epochs, batches and update steps, and the epoch in a Trainer's state that they mean.


@dataclass(frozen=True)
class Counters:
    """Progress of a run."""

    update_steps: int
    epochs: int
    """Completed epochs."""
    batches: int
    """Batches per device of the current epoch; 0 at the end of one."""
    batches_per_epoch: int
    """Batches per device of an epoch."""


def epochs_done(loops: Any, epoch: int) -> float:
    """Return the epochs that a run has done by its loops' counters, with the fraction of the current one.

    Args:
        loops: The entry of a Lightning checkpoint; None in one without it.
        epoch: The number of the epoch under way, for a checkpoint without counters.
    """
    try:
        fit = loops["fit_loop"]
        done = fit["epoch_progress"]["total"]["processed"]
        started = fit["epoch_progress"]["total"]["started"]
        batches = fit["epoch_loop.batch_progress"]
        current, total = batches["current"]["processed"], batches["total"]["processed"]
        is_last = batches["is_last_batch"]
    except (KeyError, TypeError):
        return float(epoch)
    if started == done:  # an epoch has just ended
        return float(done)
    if is_last:
        return float(done + 1)
    # The length of an epoch is known when one has been completed.
    per_epoch = (total - current) / done if done else 0.0
    return float(done + (current / per_epoch if per_epoch else 0.0))


def loops_state(progress: Counters) -> dict[str, Any]:
    """Return the entry ``loops`` of a checkpoint saved at the end of an epoch, or after a batch in one."""
    steps, epochs = progress.update_steps, progress.epochs
    is_end = progress.batches == 0 and epochs > 0
    batches = progress.batches_per_epoch if is_end else progress.batches
    total = epochs * progress.batches_per_epoch + progress.batches
    # In the middle of an epoch Lightning saves while the last batch is not counted as completed.
    behind = 0 if is_end else 1
    started = epochs if is_end else epochs + 1
    epoch_counts = {"ready": started, "started": started, "processed": epochs, "completed": epochs - is_end}
    step_counts = {"ready": steps, "completed": steps}
    in_epoch = {"ready": batches, "completed": batches}
    fit = {
        "state_dict": {},
        "epoch_progress": {"total": dict(epoch_counts), "current": dict(epoch_counts)},
        "epoch_loop.state_dict": {"_batches_that_stepped": steps - behind},
        "epoch_loop.batch_progress": {
            "total": _batch_counts(total, behind),
            "current": _batch_counts(batches, behind),
            "is_last_batch": is_end,
        },
        "epoch_loop.scheduler_progress": {"total": dict(step_counts), "current": dict(in_epoch)},
        "epoch_loop.automatic_optimization.state_dict": {},
        "epoch_loop.automatic_optimization.optim_progress": {
            "optimizer": {
                "step": {"total": dict(step_counts), "current": dict(in_epoch)},
                "zero_grad": {
                    "total": {**step_counts, "started": steps},
                    "current": {**in_epoch, "started": batches},
                },
            }
        },
        "epoch_loop.manual_optimization.state_dict": {},
        "epoch_loop.manual_optimization.optim_step_progress": {
            "total": dict(step_counts),
            "current": dict(in_epoch),
        },
    }
    return {"fit_loop": fit, "validate_loop": {}, "test_loop": {}, "predict_loop": {}}


def _batch_counts(batches: int, behind: int) -> dict[str, int]:
    return {"ready": batches, "started": batches, "processed": batches, "completed": max(batches - behind, 0)}
