"""A model's weights in a checkpoint folder: saved so that ``from_pretrained`` loads them, loaded from any format."""

from __future__ import annotations

import copy
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from hf_compat.arguments.releases import SINCE, installed_release
from hf_compat.checkpoint import distributed_files, names
from hf_compat.checkpoint.completeness import adapter_file, adapter_folders, weight_files
from hf_compat.checkpoint.distributed_files import distribute_like
from hf_compat.checkpoint.unpickle import load_trusted
from hf_compat.errors import CheckpointError, MissingWeightsError
from hf_compat.model_facts import is_instance_of, is_peft_model, is_pretrained_model
from hf_compat.overriding import call_override

logger = logging.getLogger(__name__)


_PREFIXES = ("_orig_mod.", "module.")
"""What ``torch.compile`` and ``DataParallel`` put before the names of the model in them."""
_MOST_NAMED = 3
"""Weights of another shape that an error names."""
# Other classes have a `save_pretrained` too, but one that `load_state_dict` cannot undo.
_SAVE_THEMSELVES = ("transformers.modeling_utils.PreTrainedModel", "peft.PeftModel")


def save_weights(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    state_dict: Mapping[str, Any] | None = None,
    safe_serialization: bool = True,
    max_shard_size: int | str | None = None,
    **options: Any,
) -> None:
    """Save ``model``'s weights, and the configuration of a transformers or peft model, to ``folder``.

    Tied weights of other modules are saved once.

    Args:
        model: Unwrapped.
        folder: It exists.
        state_dict: The full state dict to save. Default: ``model.state_dict()``.
        safe_serialization: Whether to save safetensors; otherwise pickles, if the model's library still can.
        max_shard_size: Maximum size of a weight file of a transformers model, in bytes or as text such as ``"5GB"``.
            Default: the installed transformers'.
        **options: More keywords of ``save_pretrained``, which is called with those of these that it has.

    Raises:
        CheckpointError: If safetensors cannot hold an entry of the state dict.
    """
    if is_instance_of(model, *_SAVE_THEMSELVES):
        if max_shard_size is not None:
            options["max_shard_size"] = max_shard_size
        if installed_release() < SINCE["saves_safetensors_only"] or not safe_serialization:
            options["safe_serialization"] = safe_serialization
        with _as_whole(model) if state_dict is not None else nullcontext(), _by_plain_names(model):
            call_override(model.save_pretrained, "save_directory", str(folder), state_dict=state_dict, **options)  # type: ignore[arg-type]
        return
    logger.info("%s is not a `PreTrainedModel`, only saving its state dict.", type(model).__name__)
    state = dict(model.state_dict() if state_dict is None else state_dict)
    if not safe_serialization:
        torch.save(state, Path(folder, names.WEIGHTS_NAME))
        return
    save_safetensors(state, Path(folder, names.SAFE_WEIGHTS_NAME), of=f"{type(model).__name__}.state_dict()")


@contextmanager
def _as_whole(model: Any) -> Iterator[None]:
    """Context in which ``save_pretrained`` of a presharded model saves the full state dict it gets, on this rank."""
    config: Any = getattr(model, "config", None)
    distributed = getattr(config, "distributed_config", None)
    if distributed is None:
        yield
        return
    config.distributed_config = None
    try:
        yield
    finally:
        config.distributed_config = distributed


@contextmanager
def _by_plain_names(model: nn.Module) -> Iterator[None]:
    """Context in which peft finds the layers of ``model``, a peft model, by the names that its state dict has.

    peft selects an adapter's weights by the names of its layers, since 0.21. Those in a unit of FSDP 1 have the
    wrapper's in them, so that nothing would be saved and nothing loaded.
    """
    if not is_peft_model(model):
        yield
        return

    def named_modules(*args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        for name, module in type(model).named_modules(model, *args, **kwargs):
            yield names.name_outside_units(name), module

    vars(model)["named_modules"] = named_modules
    try:
        yield
    finally:
        del vars(model)["named_modules"]


def adapter_in(model: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return the active adapter's part of the full state dict of ``model``, a peft model, by peft's names in files."""
    from peft import get_peft_model_state_dict

    with _by_plain_names(model):
        return get_peft_model_state_dict(model, state_dict, adapter_name=model.active_adapter)  # type: ignore[no-any-return]


def save_safetensors(state: object, path: str | os.PathLike[str], *, of: str) -> None:
    """Save a state dict to the safetensors file ``path``; tied weights are saved once, by their first name.

    Args:
        state: Names and tensors.
        path: The file.
        of: What ``state`` is, for the error.

    Raises:
        CheckpointError: If ``state`` is no mapping, or has an entry that safetensors cannot hold.
    """
    file = Path(path).name
    if not isinstance(state, Mapping):
        raise CheckpointError(
            f"{of} is a {type(state).__name__}, but `{file}` can only contain a dict of tensors. Pass one, or save it "
            "without safetensors."
        )
    opaque = [str(name) for name, value in state.items() if not isinstance(value, Tensor)]
    if opaque:
        raise CheckpointError(
            f"{of} has entries that are not tensors, which `{file}` cannot contain: {', '.join(opaque)}. Convert them "
            "to tensors (`register_buffer`), or remove them."
        )
    save_file(without_aliases(state), path, metadata={"format": "pt"})


def save_configuration(model: Any, folder: str | os.PathLike[str]) -> None:
    """Save the configuration of a transformers model, for weights that are saved sharded."""
    if is_pretrained_model(model):
        config = copy.deepcopy(model.config)
        # The class of a sharded model is derived from this one.
        config.architectures = [type(model).__name__.removeprefix("FSDP")]
        config.dtype = str(model.dtype).removeprefix("torch.")
        config.save_pretrained(folder)
        if getattr(model, "generation_config", None) is not None and model.can_generate():
            model.generation_config.save_pretrained(folder)


def remove_weights(folder: str | os.PathLike[str]) -> None:
    """Remove the weights in one file that ``folder`` may have, so that none contradict what is saved sharded there."""
    for name in (names.WEIGHTS_NAME, names.SAFE_WEIGHTS_NAME):
        Path(folder, name).unlink(missing_ok=True)


def reads_state_dict_alone(model: nn.Module) -> bool:
    """Return whether ``save_weights`` reads only configuration and state dict of ``model``, by code of libraries alone.

    Not of a model with adapters, whose prompts and settings are read, and set for a while, as they are saved; nor of a
    quantized model, or one of a class that overrides ``save_pretrained``.
    """
    if not is_instance_of(model, *_SAVE_THEMSELVES):
        return True
    if getattr(model, "hf_quantizer", None) is not None or getattr(model, "_hf_peft_config_loaded", False):
        return False
    base = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    method = getattr(base, "save_pretrained", None)
    return getattr(model.save_pretrained, "__func__", None) is method


def _memory(tensor: Tensor) -> tuple[object, ...]:
    """Return a key that is equal for two tensors if they are views of the same memory."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    storage = tensor.untyped_storage()
    return (tensor.device, storage.data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)


def without_aliases(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``state`` with the first name of each tied tensor, contiguous, no two sharing memory."""
    kept: dict[str, Tensor] = {}
    tensors: set[tuple[object, ...]] = set()
    storages: set[tuple[torch.device, int]] = set()
    for name, tensor in state.items():
        if tensor.numel() > 0 and _memory(tensor) in tensors:
            continue
        storage = (tensor.device, tensor.untyped_storage().data_ptr())
        overlaps = storage in storages
        tensors.add(_memory(tensor))
        storages.add(storage)
        kept[name] = tensor.detach().clone().contiguous() if overlaps else tensor.detach().contiguous()
    return kept


def load_weights(
    model: nn.Module, folder: str | os.PathLike[str], *, trains_on: bool = True
) -> tuple[list[str], list[str]]:
    """Load the weights in ``folder`` into ``model``; return the names that were missing and the unexpected ones.

    A name tied to a loaded one is not missing. The files may be transformers', peft's or hf_compat's: safetensors or
    pickles, in one file or several, adapters, or sharded state dicts.

    Args:
        model: Unwrapped; of a sharded one each rank loads its shards.
        folder: A checkpoint.
        trains_on: Whether training continues; a peft model is otherwise left in evaluation mode.

    Raises:
        CheckpointError: If the weights are missing, cannot be read, or do not fit the model.
    """
    path = Path(folder)
    if not path.is_dir():
        raise CheckpointError(f"The checkpoint folder `{path}` does not exist.")
    files = weight_files(path)
    if files:
        return _load_files(model, files)
    adapters = adapter_folders(path)
    if is_peft_model(model) and (adapters or adapter_file(path) is not None):
        _load_adapters(model, path, adapters, trains_on=trains_on)
        return [], []
    sharded = distributed_files.sharded_weights(path)
    if sharded is not None:
        return distributed_files.load_model(model, sharded)
    raise MissingWeightsError(
        f"Can't find a valid checkpoint at `{path}`: it has no weights for {type(model).__name__}, neither "
        f"`{names.SAFE_WEIGHTS_NAME}` nor `{names.WEIGHTS_NAME}`, nor an index of shards. To resume, pass a folder "
        f"`{names.PREFIX_CHECKPOINT_DIR}-<update step>`, or True for the newest in `output_dir`."
    )


def _load_files(model: nn.Module, files: tuple[Path, ...]) -> tuple[list[str], list[str]]:
    missing: list[str] | None = None
    unexpected: list[str] = []
    targets = model.state_dict()
    for file in files:
        named = ((_own_name(name, targets), value) for name, value in read_weights(file))
        state = {name: distribute_like(targets.get(name), value) for name, value in named}
        with _naming(file, model, state):
            result = model.load_state_dict(state, strict=False)
        missing = [name for name in result.missing_keys if missing is None or name in missing]
        unexpected.extend(result.unexpected_keys)
    missing = _not_aliased(model, missing or [])
    if missing and unexpected:
        if is_instance_of(model, *_SAVE_THEMSELVES):
            return _load_renamed(model, files[0])
        if set(missing) == set(targets):
            raise MissingWeightsError.also(AttributeError)(
                f"No weight in `{files[0]}` is one of {type(model).__name__}: the file has `{unexpected[0]}`, the "
                f"model `{missing[0]}`. If an override of `_save` writes other names, override "
                "`_load_from_checkpoint`, and `_load_best_model` for the best checkpoint, to load what it writes."
            )
    if missing and set(missing) == set(getattr(model, "_keys_to_ignore_on_save", None) or ()):
        model.tie_weights()  # type: ignore[operator]
        missing = []
    return missing, unexpected


def _own_name(name: str, targets: Mapping[str, object]) -> str:
    """Return the name that the model has for a weight, of which ``name`` may begin with those of wrappers.

    transformers writes them for a plain module that a script has compiled or replicated.
    """
    own = name
    while own not in targets and own.startswith(_PREFIXES):
        own = own.partition(".")[2]
    return own if own in targets else name


def read_weights(file: Path) -> Iterator[tuple[str, Any]]:
    """Yield the names and values in ``file``, of safetensors one at a time.

    Raises:
        CheckpointError: If it cannot be read, contains code, or is no state dict.
    """
    if file.suffix == ".safetensors":
        try:
            with safe_open(file, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no mapping
                    yield name, opened.get_tensor(name)
            return
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise CheckpointError.also(type(error))(f"`{file}` cannot be read: {error}") from error
    state = load_trusted(file)
    if not isinstance(state, dict):
        raise CheckpointError.also(TypeError)(f"`{file}` contains a {type(state).__name__}, not a state dict.")
    yield from state.items()


@contextmanager
def _naming(file: Path, model: nn.Module, state: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Name ``file`` and ``model`` in the error if weights, those of ``state``, cannot be loaded into the model."""
    try:
        yield
    except (AttributeError, LookupError, OSError, RuntimeError, SafetensorError, TypeError, ValueError) as error:
        told = _differences(model, state or {}) or error
        raise CheckpointError.also(type(error))(
            f"The weights in `{file}` do not fit {type(model).__name__}: {told}"
        ) from error


def _differences(model: nn.Module, state: Mapping[str, Any]) -> str:
    """Return how the weights of ``state`` differ from those of ``model``, a line each; empty if no shape does."""
    own = {name: tuple(value.shape) for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    shapes = {name: tuple(value.shape) for name, value in state.items() if isinstance(value, Tensor)}
    other = [name for name, shape in shapes.items() if own.get(name, shape) != shape]
    if not other:
        return ""
    lines = [f"{len(other)} of {len(shapes)} have another shape (size mismatch)."]
    lines += [f"`{name}`: {shapes[name]} in the file, {own[name]} in the model" for name in other[:_MOST_NAMED]]
    lines += [f"and {len(other) - _MOST_NAMED} more"] if len(other) > _MOST_NAMED else []
    alone = shapes.keys() - own.keys()
    lines += [f"only in the file: {len(alone)}, such as `{min(alone)}`"] if alone else []
    lines.append("Resume with the model that the checkpoint was written with, of the same `config.json`.")
    return "\n  ".join(lines)


def _not_aliased(model: nn.Module, missing: list[str]) -> list[str]:
    """Return those of ``missing`` that are not tied to a weight that was loaded."""
    state = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    loaded = {_memory(value) for name, value in state.items() if name not in missing}
    return [name for name in missing if name not in state or _memory(state[name]) not in loaded]


def _load_renamed(model: Any, file: Path) -> tuple[list[str], list[str]]:
    """Load weights that ``save_pretrained`` saved under other names or in other shapes than the model has.

    transformers 5 fuses a mixture's experts in memory, but not in files; only its ``from_pretrained`` fuses them.
    """
    logger.info("%s: weight names differ from those of %s; converting them.", file.parent, type(model).__name__)
    # The random numbers that initialise the new model must not change those of the run.
    with torch.random.fork_rng(devices=[]), _naming(file, model):
        source, report = type(model).from_pretrained(
            str(file.parent), config=model.config, dtype=model.dtype, local_files_only=True, output_loading_info=True
        )
        targets = model.state_dict()
        state = {name: distribute_like(targets.get(name), value) for name, value in source.state_dict().items()}
        model.load_state_dict(state, strict=False)
    return sorted(report["missing_keys"]), sorted(report["unexpected_keys"])


def _load_adapters(model: Any, folder: Path, children: tuple[Path, ...], *, trains_on: bool) -> None:
    """Load the adapter in ``folder``, the default one, and those in ``children``, each named like its folder.

    Those that were active stay so, also where they are several, of which transformers resumes with the first alone.

    Raises:
        CheckpointError: If a file cannot be read, has no weight, or does not fit.
    """
    active = list(getattr(model, "active_adapters", ())) or [model.active_adapter]
    own = [(folder, "default" if children else active[0])] if adapter_file(folder) is not None else []
    if not trains_on:  # as in transformers, the best model gets no new adapters, while a run that resumes does
        children = tuple(child for child in children if child.name in model.peft_config)
    for path, name in (*own, *((child, child.name) for child in children)):
        file = adapter_file(path)
        assert file is not None, "adapter folders hold one"
        # peft refuses code in pickles, too, but does not name the file; it takes one without a weight.
        if next(read_weights(file), None) is None:
            raise CheckpointError(
                f"`{file}` has no weight of the adapter, as transformers writes it under FSDP 1 with peft 0.21: "
                "what was trained is lost. Resume from another checkpoint."
            )
        with _naming(file, model), _by_plain_names(model):
            model.load_adapter(str(path), name, is_trainable=trains_on and name in active)
    if len(active) > 1:
        logger.warning("Multiple active adapters detected: %s stay active, not the first alone.", ", ".join(active))
        model.base_model.set_adapter(active)  # the model's own method takes one name
    elif children:
        model.set_adapter(active[0])
