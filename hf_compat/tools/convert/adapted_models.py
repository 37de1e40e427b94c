"""A model with the adapters of a peft folder, and with the weights of its base model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_compat.checkpoint.unpickle import load_trusted
from hf_compat.checkpoint.weight_files import adapter_file, weight_files
from hf_compat.errors import CheckpointError, require_package
from hf_compat.tools.convert.adapters import adapters_in, refuse_importing
from hf_compat.tools.convert.architectures import Architecture

__all__ = ["load_adapted"]

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
