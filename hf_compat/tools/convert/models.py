"""The model of transformers in a checkpoint: its configuration, class and adapters, and its place in the module."""

from __future__ import annotations

import importlib.util
import json
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hf_compat.atomic_files import read_json_object
from hf_compat.checkpoint import names
from hf_compat.checkpoint.completeness import adapter_file, weight_files
from hf_compat.checkpoint.unpickle import Unread, load_trusted
from hf_compat.errors import CheckpointError, require_package
from hf_compat.model_facts import unwrap_peft
from hf_compat.optim.prepared import decay_parameter_names
from hf_compat.tools.convert.lightning_checkpoints import is_plain
from hf_compat.tools.model_classes import configured, model_class, named_classes, without_weights

# Adapters of peft: which ones a checkpoint has, and their base model.


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


def find_adapters(path: Path | None, hyper_parameters: Mapping[str, Any], weights: Collection[str]) -> Adapters | None:
    """Return the configurations of the adapters in a checkpoint; None if they are not known.

    Args:
        path: A folder or file with them; None to look into the hyperparameters if the weights are of a peft model.
        hyper_parameters: A configuration of peft in them is taken, an object, a dict, or a dict of these by name.
        weights: The names of the checkpoint's weights.

    Raises:
        CheckpointError: If there are none at ``path``, or others than in the weights.
    """
    found: Adapters = {}
    if path is not None:
        found = adapters_in(path)
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


# Finding the model of transformers in a checkpoint: its configuration, its class and its place in the module.


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

    def complete(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return ``weights``, the weights of this model, as its state dict: tied ones under each name.

        Those of the adapters' base model are missing if ``weights`` has none.
        """
        first: dict[str, Tensor] = {}
        for name, value in weights.items():
            first.setdefault(self.first[name], value)
        return {name: first[self.first[name]] for name in self.shapes if self.first[name] in first}

    def misfit(self, weights: Mapping[str, Tensor]) -> str | None:
        """Return why ``weights`` are not the weights of this model, None if they are."""
        present = {self.first[name] for name in weights if name in self.first}
        needed = present | self.optional
        missing = [name for name in self.shapes if self.first[name] not in needed]
        unexpected = [name for name in weights if name not in self.shapes]
        if missing or unexpected:
            return f"missing {_few(missing)}, unexpected {_few(unexpected)}"
        for name, value in weights.items():
            if tuple(value.shape) != self.shapes[name]:
                return f"`{name}` is of shape {tuple(value.shape)}, the configuration's of {self.shapes[name]}"
        return None


@dataclass(frozen=True)
class Place:
    """Place of the model in a LightningModule."""

    prefix: str
    """What the names of its weights begin with in the module's state dict."""
    architecture: Architecture | None
    """None if the model is none of transformers, or its configuration is not known."""


def find_configuration(
    path: Path | None, hyper_parameters: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, Path | None]:
    """Return the model's configuration, and the folder of the model; None for each that is not known.

    Args:
        path: A folder with ``config.json``, or such a file alone; None to look into the hyperparameters.
        hyper_parameters: A configuration as a dict in them is taken, or the path of a folder.

    Raises:
        CheckpointError: If there is no configuration at ``path``.
    """
    if path is not None:
        file = path / _CONFIG_NAME if path.is_dir() else path
        if not file.is_file():
            raise CheckpointError(
                f"`--model {path}` has no `{_CONFIG_NAME}`: pass a model's folder or its configuration."
            )
        return read_json_object(file), path if path.is_dir() else None
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
        named = named_classes(configuration) or (class_name,)
        if places and architecture.name in named:
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


# A model with the adapters of a peft folder, and with the weights of its base model.


_AUTO_CLASSES = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "FEATURE_EXTRACTION": "AutoModel",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
}
"""peft's name of a task → the classes for it."""


def load_adapted(folder: Path, base: Path | None, class_name: str | None) -> tuple[dict[str, Any], Architecture]:
    """Return the configuration of the base model of the adapters in ``folder``, and the model with all of them.

    Args:
        folder: As peft's ``save_pretrained`` writes it.
        base: The base model's folder; None for the one that the adapters name.
        class_name: Its class in transformers; None for the one that the adapters name.

    Raises:
        CheckpointError: If the base model is not here, or the adapters do not fit it.
        MissingPackageError: If transformers or peft is not installed.
    """
    peft: Any = require_package("peft", extra="peft", purpose="a folder with adapters")
    adapters = adapters_in(folder)
    refuse_importing(adapters)
    model: Any = _base_model(folder, next(iter(adapters.values())), base, class_name)
    configuration, base_names = model.config.to_dict(), frozenset(model.state_dict())
    adapted: Any = None
    for name in adapters:
        source = folder if name == "default" else folder / name
        file = adapter_file(source)
        if file is None:
            raise CheckpointError(f"`{source}` has no weights of the adapter `{name}`.")
        if file.suffix == ".bin":
            load_trusted(file)  # peft is as strict, but its error would not name the file
        try:
            if adapted is None:
                adapted = peft.PeftModel.from_pretrained(model, str(source), name, autocast_adapter_dtype=False)
            else:
                adapted.load_adapter(str(source), name, autocast_adapter_dtype=False)
        except Exception as error:  # peft computes with what the files say before it checks it
            raise CheckpointError(f"`{file}` does not fit {type(model).__name__}: {error}") from error
    return configuration, Architecture(adapted, adapters, base_names)


def _base_model(folder: Path, adapter: Mapping[str, Any], base: Path | None, class_name: str | None) -> Any:
    """Return the base model of ``adapter``, with its weights."""
    transformers: Any = require_package("transformers", extra="transformers", purpose="a folder with adapters")
    place = adapter.get("base_model_name_or_path") if base is None else str(base)
    remedy = "Pass the base model's folder as `--model`."
    if place is None:
        raise CheckpointError(f"`{folder}` has adapters that do not name their base model. {remedy}")
    if Path(place).is_dir() and not weight_files(Path(place)):
        raise CheckpointError(f"`{folder}` has adapters; their base model `{place}` has no weights. {remedy}")
    mapping = adapter.get("auto_mapping")
    named = class_name or (mapping.get("base_model_class") if isinstance(mapping, Mapping) else None)
    named = named or _AUTO_CLASSES.get(str(adapter.get("task_type")))
    model_class = getattr(transformers, str(named), None)
    if model_class is None:
        raise CheckpointError(
            f"`{folder}` has adapters whose base model class is "
            f"{'not named' if named is None else f'`{named}`, which transformers does not have'}. Pass "
            "`--architecture`."
        )
    try:
        return model_class.from_pretrained(place, local_files_only=True, trust_remote_code=False, dtype="auto")
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"`{folder}` has adapters; their base model `{place}`: {error} {remedy}") from error
