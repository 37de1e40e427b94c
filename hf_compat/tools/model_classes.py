"""Model classes of transformers that a configuration names, and their models without weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hf_compat.errors import CheckpointError

_LONGEST = 300
"""Characters of a reason that are shown."""


def named_classes(configuration: Mapping[str, Any]) -> list[str]:
    """Return the names in a configuration's ``architectures``, of classes in transformers or elsewhere.

    Raises:
        CheckpointError: If it is anything else than a list of names.
    """
    found = configuration.get("architectures") or []
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise CheckpointError(
            f"`architectures` in the model's configuration is {_short(repr(found))}, not a list of names."
        )
    return found


def model_class(name: str) -> Any:
    """Return transformers' model class of that name, None if it has none."""
    import transformers

    try:
        found = getattr(transformers, name, None)
    except (ImportError, RuntimeError):  # a package that the class needs is missing
        return None
    is_model = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    return found if is_model and getattr(found, "config_class", None) is not None else None


def configured(config_class: Any, content: Mapping[str, Any]) -> Any:
    """Return the configuration of a class of transformers with the ``content`` of a ``config.json``.

    Raises:
        CheckpointError: If transformers cannot read it.
    """
    with _naming("read the model's configuration"):
        return config_class.from_dict(dict(content))


def without_weights(kind: Any, config: Any) -> nn.Module:
    """Return a model on the meta device.

    Raises:
        CheckpointError: If transformers cannot build it from ``config``.
    """
    with _naming(f"build {kind.__name__} from its configuration"), torch.device("meta"):
        model: nn.Module = kind(config)
    return model


def generation_config(content: Mapping[str, Any]) -> Any:
    """Return the configuration of generation with the ``content`` of a ``generation_config.json``.

    Raises:
        CheckpointError: If transformers cannot read it, or would not save it.
    """
    from transformers import GenerationConfig

    with _naming("use the configuration of generation"):
        made = GenerationConfig.from_dict(dict(content))
        made.validate(strict=True)
    return made


@contextmanager
def _naming(act: str) -> Iterator[None]:
    """Name what transformers cannot do with a file: it computes with its values before it checks them."""
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise CheckpointError(f"transformers cannot {act}: {_short(reason)}") from error


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
