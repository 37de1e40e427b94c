"""Adapters of peft: which ones a checkpoint has, and their base model."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from hf_compat.atomic_files import read_json_object
from hf_compat.checkpoint import names
from hf_compat.checkpoint.unpickle import Unread
from hf_compat.errors import CheckpointError, require_package
from hf_compat.tools.convert.lightning_checkpoints import is_plain

__all__ = [
    "Adapters",
    "adapters_in",
    "find_adapters",
    "has_adapters",
    "is_of_base",
    "model_with_adapters",
    "refuse_importing",
    "trainable_of_each",
    "with_base",
]

Adapters = Mapping[str, Mapping[str, Any]]
"""Name → configuration, as in ``adapter_config.json``."""
_DEFAULT = "default"
"""The adapter whose files are in the folder itself; those of the others are in folders of their names."""
_INIT_FIELDS: Mapping[str, Any] = {"init_lora_weights": False, "prompt_tuning_init": "RANDOM"}
"""Fields by which an adapter may begin with something computed or loaded → the value for one that does not."""
_PARTS = (".lora_", "base_model.model.", "prompt_encoder.")
"""What is in the names of weights of a peft model alone."""
_NAME = re.compile(r"\.lora_(?:A|B|embedding_A|embedding_B|magnitude_vector)\.([^.]+)(?:\.|$)")
_INSERTED = re.compile(r"\.(?:base_layer|original_module)(?=\.)")
"""What peft puts into the names of the weights that it leaves as they are."""


def has_adapters(weights: Iterable[str]) -> bool:
    """Return whether among the names of weights are those of a peft model."""
    return any(part in name for name in weights for part in _PARTS)


def find_adapters(given: Path | None, hyper_parameters: Mapping[str, Any], weights: Collection[str]) -> Adapters | None:
    """Return the configurations of the adapters in a checkpoint; None if they are not known.

    Args:
        given: A folder or file with them; None to look into the hyperparameters if the weights are of a peft model.
        hyper_parameters: A configuration of peft in them is taken, an object, a dict, or a dict of these by name.
        weights: The names of the checkpoint's weights.

    Raises:
        CheckpointError: If there are none at ``given``, or others than in the weights.
    """
    found: Adapters = {}
    if given is not None:
        found = adapters_in(given)
    elif has_adapters(weights):
        found = _in_hyper_parameters(hyper_parameters)
    if not found:
        return None
    held = sorted({match[1] for name in weights for match in _NAME.finditer(name)})
    if list(found) == [_DEFAULT] and len(held) == 1:
        return {held[0]: found[_DEFAULT]}
    if held and sorted(found) != held:
        raise CheckpointError(
            f"The checkpoint has the adapters {', '.join(held)}, but there are configurations of "
            f"{', '.join(sorted(found))}. Pass a folder as `--adapter` that has one for each: "
            f"`{names.ADAPTER_CONFIG_NAME}` of {_DEFAULT} in it, those of others in folders of their names, as peft's "
            "`save_pretrained` writes them."
        )
    return found


def adapters_in(path: Path) -> Adapters:
    """Return the configurations in a folder that peft wrote, or in one file.

    Raises:
        CheckpointError: If there are none.
    """
    if path.is_file():
        return {_DEFAULT: read_json_object(path)}
    files = {_DEFAULT: path / names.ADAPTER_CONFIG_NAME}
    if path.is_dir():
        files |= {child.name: child / names.ADAPTER_CONFIG_NAME for child in sorted(path.iterdir()) if child.is_dir()}
    found = {name: read_json_object(file) for name, file in files.items() if file.is_file()}
    if not found:
        raise CheckpointError(f"`{path}` has no `{names.ADAPTER_CONFIG_NAME}`, neither directly nor in a subfolder.")
    return found


def refuse_importing(adapters: Adapters) -> None:
    """Refuse configurations by which peft would import or load what a file names.

    Raises:
        CheckpointError: If there are any.
    """
    for name, content in adapters.items():
        for field, wrong in (
            ("megatron_config", content.get("megatron_config")),
            ("peft_type", content.get("peft_type") == "XLORA"),
        ):
            if wrong:
                raise CheckpointError(
                    f"The adapter `{name}` has `{field}={content[field]!r}`, with which peft would import or load "
                    "what the file names. Load it in your script, and save the model that `merge_and_unload` returns."
                )


def with_base(adapters: Adapters, base: str) -> Adapters:
    """Return ``adapters`` with ``base`` as their base model, where they name none."""
    key = "base_model_name_or_path"
    return {name: {**content, key: content.get(key) or base} for name, content in adapters.items()}


def model_with_adapters(base: nn.Module, adapters: Adapters) -> nn.Module:
    """Return a peft model around ``base`` with adapters that are not trained yet, the first one active.

    Args:
        base: On the meta device.
        adapters: At least one.

    Raises:
        CheckpointError: If peft cannot make one of them.
        MissingPackageError: If peft is not installed.
    """
    peft: Any = require_package("peft", extra="peft", purpose="a checkpoint with adapters")
    model: Any = base
    for number, (name, content) in enumerate(adapters.items()):
        try:
            config = _config(peft, content)
            kept = {"base_model_name_or_path": config.base_model_name_or_path}
            config.base_model_name_or_path, config.inference_mode = None, False
            for field, plain in _INIT_FIELDS.items():
                if isinstance(getattr(config, field, None), str):
                    kept[field] = getattr(config, field)
                    setattr(config, field, plain)
            if number:
                model.add_adapter(name, config)
            else:
                model = peft.get_peft_model(base, config, adapter_name=name)
        except (TypeError, ValueError, KeyError, AttributeError, ImportError, RuntimeError) as error:
            raise CheckpointError(
                f"peft cannot load the adapter `{name}` into {type(base).__name__}: {error}"
            ) from error
        for field, value in kept.items():
            setattr(model.peft_config[name], field, value)
    made: nn.Module = model
    return made


def _config(peft: Any, content: Mapping[str, Any]) -> Any:
    """Return the configuration of peft's class; entries of newer releases are passed over as peft does it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, names.ADAPTER_CONFIG_NAME).write_text(json.dumps(content), encoding="utf-8")
        return peft.PeftConfig.from_pretrained(folder)


def is_of_base(name: str, base_names: frozenset[str]) -> bool:
    """Return whether the weight ``name`` of a peft model is one of its base model's."""
    plain = _INSERTED.sub("", name)
    return any(plain.removeprefix(prefix) in base_names for prefix in ("base_model.model.", "base_model."))


def trainable_of_each(model: Any, adapters: Iterable[str]) -> list[list[str]]:
    """Return the names of the parameters that are trained with each of a peft model's adapters active, in order."""
    found = []
    for name in adapters:
        model.set_adapter(name)
        found.append([name for name, value in model.named_parameters() if value.requires_grad])
    model.set_adapter(next(iter(adapters)))
    return found


# ---- in hyperparameters ----


def _in_hyper_parameters(hyper_parameters: Mapping[str, Any]) -> Adapters:
    for value in hyper_parameters.values():
        single = _content(value)
        if single is not None:
            return {_DEFAULT: single}
        if isinstance(value, Mapping):
            several = {str(name): _content(item) for name, item in value.items()}
            if several and all(content is not None for content in several.values()):
                return {name: content for name, content in several.items() if content is not None}
    return {}


def _content(value: Any) -> dict[str, Any] | None:
    """Return the configuration that ``value``, perhaps an object that was not read, is; None if it is none."""
    entries = value
    if isinstance(value, Unread):
        entries = getattr(value, "state", None)
        if not (type(value).__name__.startswith("peft.") and isinstance(entries, Mapping)):
            return None
    if not isinstance(entries, Mapping) or "peft_type" not in entries:
        return None
    plain = {str(name): _plain(item) for name, item in entries.items() if not str(name).startswith("_")}
    return {name: item for name, item in plain.items() if is_plain(item)}


def _plain(value: Any) -> Any:
    """Return a list for a set, and the text of a member of one of peft's enumerations."""
    if isinstance(value, Unread) and type(value).__name__.startswith("peft."):
        arguments = value.arguments
        return arguments[0] if len(arguments) == 1 and isinstance(arguments[0], str) else value
    return sorted(value) if isinstance(value, set) else value
