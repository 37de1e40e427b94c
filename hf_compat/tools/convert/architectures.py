"""Which model of transformers a checkpoint holds: its configuration, its class, and where it is in the module."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hf_compat.atomic_files import read_json_object
from hf_compat.checkpoint import names
from hf_compat.errors import CheckpointError
from hf_compat.model_facts import unwrap_peft
from hf_compat.optim.groups import decay_parameter_names
from hf_compat.tools.convert.adapters import (
    Adapters,
    has_adapters,
    is_of_base,
    model_with_adapters,
    trainable_of_each,
)
from hf_compat.tools.convert.lightning_checkpoints import is_plain
from hf_compat.tools.model_classes import configured, model_class, named_classes, without_weights

__all__ = [
    "Architecture",
    "Place",
    "divided",
    "dotted",
    "find_configuration",
    "find_place",
    "generation_in",
    "named_architecture",
]

_CONFIG_NAME = "config.json"
_GENERATION_NAME = "generation_config.json"
_HINTS = ("model_name_or_path", "pretrained_model_name_or_path", "model_name", "model_path", "model", "config")
"""Hyperparameters that may name the folder of a model."""


class Architecture:
    """A model of transformers, perhaps with adapters of peft around it.

    Args:
        model: Without weights, on the meta device.
        adapters: The configurations of its adapters; None if it is no model of peft.
        base_names: The names of the base model's weights, if there are adapters.

    Attributes:
        model: The same.
        adapters: The same.
        shapes: Name → shape of each entry of its state dict, tied ones under each name.
        first: Name → first name of the same tensor; for tied entries, another one.
        parameters: The names of parameters in the order of ``named_parameters``.
        trained: The names of those that are trained; with adapters, for each of them.
        decayed: The names of parameters with weight decay in a Trainer.
        optional: The first names of weights that a checkpoint may do without: those of the model with adapters on it.
    """

    def __init__(
        self, model: nn.Module, adapters: Adapters | None = None, base_names: frozenset[str] = frozenset()
    ) -> None:
        self.model = model
        self.adapters = adapters
        state: Mapping[str, Any] = model.state_dict(keep_vars=True)
        self.shapes = {name: tuple(value.shape) for name, value in state.items()}
        firsts: dict[int, str] = {}
        self.first = {name: firsts.setdefault(id(value), name) for name, value in state.items()}
        self.parameters = tuple(name for name, _ in model.named_parameters())
        self.trained = [list(self.parameters)] if adapters is None else trainable_of_each(model, adapters)
        self.decayed = frozenset(decay_parameter_names(model))
        self.optional = frozenset(name for name in self.first.values() if is_of_base(name, base_names))

    @property
    def name(self) -> str:
        """The name of the class, without adapters."""
        return type(unwrap_peft(self.model)).__name__

    def complete(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return ``found``, the weights of this model, as its state dict: tied ones under each name.

        Those of the adapters' base model are missing if ``found`` has none.
        """
        first: dict[str, Tensor] = {}
        for name, value in found.items():
            first.setdefault(self.first[name], value)
        return {name: first[self.first[name]] for name in self.shapes if self.first[name] in first}

    def misfit(self, found: Mapping[str, Tensor]) -> str | None:
        """Return why ``found`` are not the weights of this model, None if they are."""
        present = {self.first[name] for name in found if name in self.first}
        needed = present | self.optional
        missing = [name for name in self.shapes if self.first[name] not in needed]
        unexpected = [name for name in found if name not in self.shapes]
        if missing or unexpected:
            return f"missing {_few(missing)}, unexpected {_few(unexpected)}"
        for name, value in found.items():
            if tuple(value.shape) != self.shapes[name]:
                return f"`{name}` is of shape {tuple(value.shape)}, the configuration's of {self.shapes[name]}"
        return None


@dataclass(frozen=True)
class Place:
    """Where the model is in a LightningModule."""

    prefix: str
    """What the names of its weights begin with in the module's state dict."""
    architecture: Architecture | None
    """None if the model is none of transformers, or its configuration is not known."""


def find_configuration(
    given: Path | None, hyper_parameters: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, Path | None]:
    """Return the model's configuration, and the folder of the model; None for each that is not known.

    Args:
        given: A folder with ``config.json``, or such a file alone; None to look into the hyperparameters.
        hyper_parameters: A configuration as a dict in them is taken, or the path of a folder.

    Raises:
        CheckpointError: If there is no configuration at ``given``.
    """
    if given is not None:
        file = given / _CONFIG_NAME if given.is_dir() else given
        if not file.is_file():
            raise CheckpointError(
                f"`--model {given}` has no `{_CONFIG_NAME}`: pass a model's folder or its configuration."
            )
        return read_json_object(file), given if given.is_dir() else None
    for value in hyper_parameters.values():
        if isinstance(value, Mapping) and isinstance(value.get("model_type"), str) and is_plain(value):
            return dict(value), None
    for name in _HINTS:
        folder = hyper_parameters.get(name)
        if isinstance(folder, str) and Path(folder, _CONFIG_NAME).is_file():
            return read_json_object(Path(folder, _CONFIG_NAME)), Path(folder)
    return None, None


def generation_in(folder: Path | None) -> dict[str, Any] | None:
    """Return the configuration of a model's generation in ``folder``, None if there is none."""
    file = None if folder is None else folder / _GENERATION_NAME
    return read_json_object(file) if file is not None and file.is_file() else None


def find_place(
    weights: Mapping[str, Tensor],
    configuration: Mapping[str, Any] | None,
    prefix: str | None,
    class_name: str | None,
    adapters: Adapters | None,
) -> Place:
    """Return where in ``weights``, a module's state dict, the model is.

    Args:
        weights: The state dict.
        configuration: The model's configuration, None if it is not known.
        prefix: What the names of its weights begin with; None to find it.
        class_name: The class of transformers; None to find it.
        adapters: The configurations of adapters on it; None if there are none, or they are not known.

    Raises:
        CheckpointError: If there is no such model, or more than one.
    """
    chosen = None if prefix is None else _chosen_prefix(weights, prefix)
    if has_adapters(weights) and adapters is None:
        raise CheckpointError(
            "The checkpoint contains PEFT adapters, but not their configuration: pass an "
            f"`{names.ADAPTER_CONFIG_NAME}`, or the folder of one, as `--adapter`."
        )
    if configuration is None or not _knows(configuration):
        if adapters is not None:
            raise CheckpointError(
                "The checkpoint contains PEFT adapters, which can only be placed in a model that the installed "
                "transformers knows. Pass the base model's configuration as `--model`."
            )
        if class_name is not None:
            raise CheckpointError(f"`--architecture {class_name}` needs a configuration: pass `--model`.")
        return Place(_only_part(weights) if chosen is None else chosen, None)
    return _find_class(weights, configuration, chosen, class_name, adapters)


def dotted(prefix: str) -> str:
    """Return ``prefix`` with the dot that ends it, unless it is empty."""
    return prefix if not prefix or prefix.endswith(".") else f"{prefix}."


def divided(weights: Mapping[str, Tensor], prefix: str) -> tuple[dict[str, Tensor], list[str]]:
    """Return the weights below ``prefix``, without it, and the names of the others."""
    own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    return own, [name for name in weights if not name.startswith(prefix)]


def named_architecture(configuration: Mapping[str, Any], class_name: str | None) -> Architecture | None:
    """Return the model that the configuration names; None if the installed transformers, or none, does not know it.

    Args:
        configuration: The content of ``config.json``.
        class_name: Another class of transformers; None for the configuration's.

    Raises:
        CheckpointError: If transformers has no class of that name.
    """
    if not _knows(configuration) or not (class_name or named_classes(configuration)):
        return None
    return next(_architectures(configuration, class_name), None)


def _knows(configuration: Mapping[str, Any]) -> bool:
    """Return whether the installed transformers, if there is one, knows the model; no code beside it is used."""
    if importlib.util.find_spec("transformers") is None:
        return False
    from transformers import CONFIG_MAPPING

    model_type = configuration.get("model_type")
    return isinstance(model_type, str) and model_type in CONFIG_MAPPING


def _chosen_prefix(weights: Mapping[str, Tensor], prefix: str) -> str:
    chosen = dotted(prefix)
    if not any(name.startswith(chosen) for name in weights):
        raise CheckpointError(
            f"`--prefix {prefix}`: no weight name starts with it. Available prefixes: {_list(_parts(weights))}."
        )
    return chosen


def _only_part(weights: Mapping[str, Tensor]) -> str:
    parts = _parts(weights)
    if len(parts) == 1 and parts[0]:
        return parts[0]
    raise CheckpointError(
        f"Cannot tell which part of the LightningModule is the model. Weight names start with {_list(parts)}. Pass "
        "one of them as `--prefix` (`--prefix ''` for all), or the model's configuration as `--model`."
    )


def _parts(weights: Mapping[str, Tensor]) -> list[str]:
    """Return the first component of each name, with its dot; empty for parameters of the module itself."""
    heads = (name.partition(".") for name in weights)
    return list(dict.fromkeys(head + dot if dot else "" for head, dot, _ in heads))


def _find_class(
    weights: Mapping[str, Tensor],
    configuration: Mapping[str, Any],
    chosen: str | None,
    class_name: str | None,
    adapters: Adapters | None,
) -> Place:
    places: dict[str, Place] = {}
    reasons: list[str] = []
    for architecture in _architectures(configuration, class_name, adapters):
        prefixes = _prefixes(weights, architecture) if chosen is None else [chosen]
        for prefix in prefixes:
            reason = architecture.misfit(divided(weights, prefix)[0])
            if reason is None:
                places[f"{architecture.name} at `{prefix}`"] = Place(prefix, architecture)
            else:
                reasons.append(f"{architecture.name} at `{prefix}`: {reason}")
        if places and architecture.name in {class_name, *named_classes(configuration)}:
            break  # the configuration names this class
    # A model with a head contains the one without, which is not what was trained.
    inner = {place.prefix for place in places.values()}
    places = {
        told: place
        for told, place in places.items()
        if not any(place.prefix.startswith(outer) and place.prefix != outer for outer in inner)
    }
    if len(places) == 1:
        return next(iter(places.values()))
    if places:
        raise CheckpointError(
            f"Several models match: {'; '.join(places)}. Choose with `--prefix` and `--architecture`."
        )
    raise CheckpointError(
        f"No weights in the checkpoint match the {configuration['model_type']} model of its configuration. "
        f"{reasons[0] if reasons else 'No name fits'}. Weight names start with {_list(_parts(weights))}. Pass the "
        "configuration used for training (including the number of labels and tokens) as `--model`."
    )


def _architectures(
    configuration: Mapping[str, Any], class_name: str | None, adapters: Adapters | None = None
) -> Iterator[Architecture]:
    """Yield the models that the configuration may be of: those that it names, then all of its type."""
    import transformers

    config = configured(transformers.CONFIG_MAPPING[configuration["model_type"]], configuration)
    named = named_classes(configuration) if class_name is None else [class_name]
    classes = [model_class(name) for name in named]
    if class_name is not None and classes == [None]:
        raise CheckpointError(f"`--architecture {class_name}` is not a model class of the installed transformers.")
    if class_name is None:
        classes += _classes_of(type(config))
    failed: CheckpointError | None = None
    found = False
    for kind in dict.fromkeys(each for each in classes if each is not None):
        try:
            yield _architecture(kind, config, adapters)
            found = True
        except CheckpointError as error:  # the configuration or the adapters are for another class
            failed = failed or error
    if failed is not None and not found:
        raise failed


def _architecture(kind: Any, config: Any, adapters: Adapters | None) -> Architecture:
    model = without_weights(kind, config)
    if adapters is None:
        return Architecture(model)
    base_names = frozenset(model.state_dict())
    with torch.device("meta"):
        return Architecture(model_with_adapters(model, adapters), adapters, base_names)


def _classes_of(config_class: type) -> Iterator[Any]:
    from transformers.models.auto import modeling_auto

    for name, mapping in vars(modeling_auto).items():
        if name.startswith("MODEL_") and name.endswith("MAPPING") and config_class in mapping:
            found = mapping[config_class]
            yield from found if isinstance(found, tuple) else (found,)


def _prefixes(weights: Mapping[str, Tensor], architecture: Architecture) -> list[str]:
    """Return what may stand before the model's names, by its first name that has to be there."""
    first = next(name for name in architecture.shapes if architecture.first[name] not in architecture.optional)
    found = (name.removesuffix(first) for name in weights if name.endswith(first))
    return [prefix for prefix in found if not prefix or prefix.endswith(".")]


def _few(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:3]) + (", ..." if len(names) > 3 else "") if names else "none"


def _list(parts: list[str]) -> str:
    return ", ".join(f"`{part}`" for part in parts)
