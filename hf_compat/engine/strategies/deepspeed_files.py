"""DeepSpeed's checkpoint files, also those of another number of ranks."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from hf_compat.checkpoint.background import CheckpointFile, Put
from hf_compat.checkpoint.unpickle import load_trusted
from hf_compat.checkpoint.zero_partitions import (
    LATEST_NAME,
    Partitions,
    Piece,
    engine_folder,
    filled,
    is_partitioned,
    joined,
    pieces_in_a_row,
    pieces_of_each,
    range_of_each,
    state_files,
)
from hf_compat.distributed import collectives
from hf_compat.distributed.launch import Launch
from hf_compat.errors import CheckpointError, warn_user

logger = logging.getLogger(__name__)


# DeepSpeed's files: putting off that they are written, and checks before they are loaded.
#
# DeepSpeed's own loading would run any code in them.


_T = TypeVar("_T")


class _CheckpointEngine:
    """DeepSpeed's checkpoint engine, whose files go to ``put``."""

    def __init__(self, engine: Any, put: Put) -> None:
        self._engine, self._put = engine, put

    def save(self, state_dict: Any, path: str) -> None:
        self._put(CheckpointFile(self._save, state_dict, Path(path)))

    def _save(self, state_dict: Any, path: Path) -> None:
        self._engine.save(state_dict, str(path))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


@contextmanager
def putting_files(engine: Any, put: Put) -> Iterator[None]:
    """Context in which ``put`` takes the files of a checkpoint that the ``DeepSpeedEngine`` ``engine`` saves."""
    before = engine.checkpoint_engine
    engine.checkpoint_engine = _CheckpointEngine(before, put)
    try:
        yield
    finally:
        engine.checkpoint_engine = before


def check_files(checkpoint: str, *, launch: Launch, universal: bool, tensor: int = 1) -> int | None:
    """Check that DeepSpeed may load ``checkpoint``, and return the world size that wrote it; every rank calls it.

    On each node, one rank loads each file, allowing only tensors and plain values.

    Args:
        checkpoint: The checkpoint folder.
        launch: Rank and world size.
        universal: Whether it is a universal checkpoint, for any world size.
        tensor: Number of ranks that share each matrix.

    Returns:
        The world size if the files depend on it, as under ZeRO; else None.

    Raises:
        CheckpointError: On every rank, if files are missing or contain code, or other ranks shared each matrix.
    """
    found = raise_together(lambda: _check(checkpoint, launch, universal, tensor))
    known = [each for each in collectives.gather_objects([found]) if each is not None]  # a node may lack the file
    return known[0] if known else None


def _check(checkpoint: str, launch: Launch, universal: bool, tensor: int) -> int | None:
    folder = _states_folder(checkpoint, universal)
    files = sorted(folder.rglob("*.pt"))
    if not files:
        raise CheckpointError(f"`{folder}` contains no files of DeepSpeed.")
    for path in files[launch.local_rank :: launch.local_world_size]:
        load_states(path)
    models = sorted(folder.glob("*_model_states.pt"))
    if universal or not models:
        return None
    model = load_states(models[0], mmap=True)
    if isinstance(model, dict):
        _check_sizes(checkpoint, model, launch.world_size // tensor, tensor)
    return model.get("dp_world_size") if isinstance(model, dict) and model.get("param_shapes") else None


def _check_sizes(checkpoint: str, model: dict[str, Any], data: int, tensor: int) -> None:
    """Raise if the ranks that saved ``model`` shared matrices otherwise than ``data`` times ``tensor`` ranks do."""
    depends_on_data = model.get("param_shapes")  # under ZeRO
    written = (model.get("dp_world_size", data) if depends_on_data else data, model.get("mp_world_size") or 1)
    if max(written[1], tensor) > 1 and written != (data, tensor):
        raise CheckpointError(
            f"`{checkpoint}` was written by {written[0] * written[1]} processes with "
            f"`tensor_parallel.autotp_size={written[1]}` in the DeepSpeed config, but this run has {data * tensor} "
            f"with {tensor}, for which DeepSpeed cannot join the parts. Use the same numbers, or start anew from the "
            "whole weights that a run saves with `zero_optimization.stage3_gather_16bit_weights_on_model_save=true`."
        )


def raise_together(read: Callable[[], _T]) -> _T:
    """Return what ``read`` returns; every rank calls it.

    Raises:
        CheckpointError: On every rank, if ``read`` raises it on one.
    """
    found: Any = None
    problem: str | None = None
    try:
        found = read()
    except CheckpointError as error:
        problem = str(error)
    problems = [text for text in collectives.gather_objects([problem]) if text is not None]
    if problems:
        raise CheckpointError(problems[0])
    return found  # type: ignore[no-any-return]


def load_states(path: Path, *, mmap: bool = False) -> Any:
    """Return the content of one of DeepSpeed's files; ``mmap`` maps it into memory.

    Raises:
        CheckpointError: If it cannot be read, or contains code, which is not run.
    """
    return load_trusted(path, mmap=mmap, allowed=list(_value_classes()))


def _states_folder(checkpoint: str, universal: bool) -> Path:
    name = f"{LATEST_NAME}_universal" if universal else LATEST_NAME
    folder = engine_folder(Path(checkpoint), name)
    if folder is None:
        remedy = (
            " Convert the checkpoint with DeepSpeed's `ds_to_universal.py`, or remove `checkpoint.load_universal` from "
            "the config."
        )
        raise CheckpointError(
            f"Can't find a valid checkpoint at `{checkpoint}`: DeepSpeed's `{name}` is missing."
            f"{remedy if universal else ''}"
        )
    return folder


def _value_classes() -> Iterator[Any]:
    """Yield the classes in DeepSpeed's files that are safe: creating them runs no code."""
    from deepspeed.runtime.fp16 import loss_scaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    yield from (loss_scaler.LossScaler, loss_scaler.DynamicLossScaler, ZeroStageEnum, fragment_address)


# Checkpoints of DeepSpeed saved by another number of ranks: converted, or read as universal ones.
#
# DeepSpeed reads such a checkpoint only with the world size that wrote it. Here its engine gets states where it would
# read files. The checkpoint is mapped into memory, so a rank reads no more of it than it keeps, and is never written
# to.


MISFITS = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of DeepSpeed and torch about states that do not fit."""
_LAYOUT = frozenset({"group_paddings", "partition_count", "param_slice_mappings", "param_alignment_paddings"})
"""Entries of a ZeRO optimizer's state dict that describe how its parameters are cut."""


@contextmanager
def readable_by(engine: Any, checkpoint: str, written: int | None) -> Iterator[str]:
    """Context in which the ``DeepSpeedEngine`` ``engine`` can load the folder that it yields; every rank enters it.

    Args:
        engine: The engine.
        checkpoint: The checkpoint.
        written: The world size that wrote it; None if any other can load it.

    Raises:
        CheckpointError: On every rank, if files are missing or their states cannot be cut for this world size.
    """
    if written in (None, engine.seq_dp_world_size):
        yield checkpoint
        return
    logger.info(
        "`%s` was written by DeepSpeed with world size %s; this run, with world size %s, resumes from it all the same.",
        checkpoint,
        written,
        engine.seq_dp_world_size,
    )
    model, optimizer = raise_together(lambda: _states(engine, checkpoint, written))
    before = engine.checkpoint_engine
    with TemporaryDirectory(prefix="hf_compat_zero_") as folder:
        # The engine looks for the file of its rank before it reads it.
        Path(folder, LATEST_NAME).write_text("states", encoding="utf-8")
        file = Path(engine._get_ckpt_name(folder, "states"))
        file.parent.mkdir()
        file.touch()
        engine.checkpoint_engine = _StatesInMemory(before, model, optimizer)
        try:
            yield folder
        finally:
            engine.checkpoint_engine = before


class _StatesInMemory:
    """Checkpoint engine of DeepSpeed that returns states where it would read files."""

    def __init__(self, engine: Any, model: dict[str, Any], optimizer: dict[str, Any]) -> None:
        self._engine = engine
        self._model = model
        self._optimizer = optimizer

    def load(self, path: str, map_location: Any = None) -> dict[str, Any]:
        if path.endswith("_model_states.pt"):
            return self._model
        return {"optimizer_state_dict": self._optimizer}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def _states(engine: Any, checkpoint: str, written: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what this rank would have saved of the model and of the optimizer with the world size of ``engine``."""
    folder = engine_folder(Path(checkpoint))
    assert folder is not None, "checked before"
    files = state_files(folder)
    if len(files.optimizers) != written:
        raise CheckpointError(
            f"`{checkpoint}` was written by DeepSpeed with world size {written}, but contains the optimizer states of "
            f"{len(files.optimizers)} ranks, and this run has world size {engine.seq_dp_world_size}. Copy the files of "
            f"all nodes into one folder, or start {written} processes."
        )
    models = [load_states(path, mmap=True) for path in files.models]
    optimizers = [load_states(path, mmap=True)["optimizer_state_dict"] for path in files.optimizers]
    group = engine.optimizer.dp_process_group
    rank, ranks = distributed.get_rank(group), distributed.get_world_size(group)
    try:
        model = {**models[rank if rank < len(models) else 0], "dp_world_size": ranks}
        if len(models) > 1 and model.get("frozen_param_fragments") is not None:
            model["frozen_param_fragments"] = _frozen_parts(models, rank, ranks)
        saved = Partitions(optimizers, models[0]["param_shapes"])
        return model, _optimizer_state(engine, saved, rank, ranks)
    except MISFITS as error:
        raise CheckpointError(
            f"`{checkpoint}` was written by DeepSpeed with world size {written}, and its states cannot be divided for "
            f"world size {ranks}: {error or type(error).__name__}. Resume with the model, the arguments and the "
            f"DeepSpeed config that the checkpoint was written with, or start {written} processes."
        ) from error


def _frozen_parts(models: Sequence[Mapping[str, Any]], rank: int, ranks: int) -> dict[str, Tensor]:
    """Return this rank's parts of the parameters that are not trained, which ZeRO-3 divides too."""
    parts = {}
    for name, shape in models[0]["frozen_param_shapes"].items():
        old, size = [model["frozen_param_fragments"][name] for model in models], math.prod(shape)
        start, stop = range_of_each(size, rank, ranks)
        parts[name] = old[0].new_zeros(math.ceil(size / ranks))
        parts[name][: stop - start] = joined(old, size, start, stop)
    return parts


def _optimizer_state(engine: Any, saved: Partitions, rank: int, ranks: int) -> dict[str, Any]:
    """Return the state dict that the optimizer of this rank would have saved."""
    shapes, made = engine._get_zero_param_shapes(), engine.optimizer.state_dict()
    _check_fits(engine, saved, shapes)
    weights, state = [], {}
    for number, (size, pieces) in enumerate(_layout(engine.optimizer, saved, shapes, rank, ranks)):
        name = next(iter(shapes[number]))  # the others of its group have the same entries
        weights.append(filled(size, pieces, saved.weight, dtype=saved.weight(name, 0, 0).dtype))
        state[number] = dict(saved.common_state(name))
        for key, value in state[number].items():
            if is_partitioned(value):
                state[number][key] = filled(size, pieces, partial(saved.state, key), dtype=value.dtype)
    groups = made[saved.optimizer_key]["param_groups"]
    options = [{**old, "params": new["params"]} for old, new in zip(saved.options, groups, strict=True)]
    own = {name: value for name, value in saved.ranks[0].items() if name not in _LAYOUT}
    base = {**own[saved.optimizer_key], "state": state, "param_groups": options}
    return {**made, **own, saved.weights_key: weights, saved.optimizer_key: base}


def _check_fits(engine: Any, saved: Partitions, shapes: Sequence[Mapping[str, Any]]) -> None:
    """Raise one of ``MISFITS`` unless ``engine`` has the parameters and the stage of what is saved."""
    if saved.problem is not None:
        raise TypeError(saved.problem)
    if saved.are_of_each_parameter != bool(engine.zero_optimization_partition_weights()):
        raise TypeError("only one of the checkpoint and this run has ZeRO-3")
    differing = {name for group in shapes for name in group} ^ {name for group in saved.shapes for name in group}
    if differing:
        raise LookupError(f"trainable parameters differ: {', '.join(sorted(differing)[:3])}")


def _layout(
    optimizer: Any, saved: Partitions, shapes: Sequence[Mapping[str, Any]], rank: int, ranks: int
) -> Iterator[tuple[int, list[Piece]]]:
    """Yield for each group the size of this rank's part, and what lies in it."""
    if saved.are_of_each_parameter:
        for group, part in zip(shapes, optimizer.fp32_partitioned_groups_flat, strict=True):
            yield part.numel(), pieces_of_each(group, rank=rank, ranks=ranks)
        return
    # `BF16_Optimizer` has them under another name.
    parts = getattr(optimizer, saved.weights_key, None) or optimizer.fp32_groups_flat_partition
    paddings = getattr(optimizer, "round_robin_bit16_padding", None) or [[0] * len(group) for group in shapes]
    for group, padding, part in zip(shapes, paddings, parts, strict=True):
        yield part.numel(), pieces_in_a_row(group, padding, size=part.numel(), rank=rank)


def warn_of_buffers(model: nn.Module) -> None:
    """Warn of buffers in the state dict of ``model``, which DeepSpeed does not read from a universal checkpoint."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    buffers = [name for name in model.state_dict() if name not in parameters]
    if buffers:
        warn_user(
            f"The buffers {', '.join(buffers)} keep their values: DeepSpeed does not restore buffers from a universal "
            "checkpoint, with transformers' Trainer either. Load them into the model before training."
        )


def differing_settings(groups: list[dict[str, Any]]) -> list[str]:
    """Return the names of the settings in which parameter groups differ."""
    first = groups[0]
    return [name for name in first if name != "params" and any(first[name] != group[name] for group in groups)]


def warn_of_shared_settings(optimizer: Optimizer, differing: list[str]) -> None:
    """Warn of what parameter groups have in common after DeepSpeed has read a universal checkpoint under ZeRO-3.

    Args:
        optimizer: The optimizer inside ZeRO's.
        differing: The settings in which its groups differed before.
    """
    steps = [state["step"] for state in optimizer.state.values() if isinstance(state.get("step"), Tensor)]
    effects = [f"continue with the {', '.join(differing)} of the first"] if differing else []
    if len({id(step) for step in steps}) < len(steps):
        effects.append(f"share one step counter, which goes up {len(steps)} times an update step")
    if effects:
        warn_user(
            f"All parameter groups {' and '.join(effects)}: that is how DeepSpeed reads a universal checkpoint under "
            "ZeRO-3, also with transformers' Trainer. Use ZeRO-1 or 2 to continue as the checkpoint's run would have."
        )
