"""``HfDeepSpeedConfig``: a DeepSpeed config and access to its values.

Reading a config imports neither DeepSpeed nor transformers. If transformers is installed, the config is registered
there, so that ``from_pretrained`` partitions models under ZeRO-3 while loading.
"""

from __future__ import annotations

import base64
import copy
import importlib
import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_compat.errors import ArgumentsError

__all__ = ["HfDeepSpeedConfig", "read_config", "register_config", "unregister_config"]

_OFFLOADS = ("zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device")
_INTEGRATION = "transformers.integrations.deepspeed"
_UNREADABLE = "is not a dict, an existing JSON file, or a JSON object as text or in base64"


def read_config(given: Mapping[str, Any] | str | os.PathLike[str]) -> dict[str, Any]:
    """Return a DeepSpeed config as a new dict.

    Args:
        given: A dict, the path of a JSON file, JSON, or JSON in URL-safe base64.

    Raises:
        ArgumentsError: If it is none of these.
    """
    if isinstance(given, Mapping):
        return copy.deepcopy(dict(given))
    try:
        config = json.loads(_text_of(given))
    except (OSError, TypeError, ValueError) as error:
        raise ArgumentsError([f"`deepspeed={given!r}`: {_UNREADABLE} ({error})."], fields=["deepspeed"]) from error
    if not isinstance(config, dict):
        raise ArgumentsError([f"`deepspeed={given!r}`: {_UNREADABLE}."], fields=["deepspeed"])
    return config


def _text_of(given: str | os.PathLike[str]) -> str:
    if os.path.exists(given):
        return Path(given).read_text(encoding="utf-8")
    if str(given).lstrip().startswith("{"):
        return str(given)
    return base64.urlsafe_b64decode(os.fspath(given)).decode("utf-8")


def register_config(config: HfDeepSpeedConfig) -> None:
    """Register ``config`` with transformers, if installed, for building and loading models; it is weakly referenced."""
    if importlib.util.find_spec("transformers") is not None:
        importlib.import_module(_INTEGRATION).set_hf_deepspeed_config(config)


def unregister_config() -> None:
    """Unregister the DeepSpeed config from transformers, if installed."""
    if importlib.util.find_spec("transformers") is not None:
        importlib.import_module(_INTEGRATION).unset_hf_deepspeed_config()


class HfDeepSpeedConfig:
    """A DeepSpeed config and access to its values.

    While the object exists, transformers' ``from_pretrained`` partitions models under ZeRO-3 while loading.

    Args:
        config_file_or_dict: A dict, which is copied, the path of a JSON file, or JSON as text or in base64.

    Attributes:
        config: The config as a dict.

    Raises:
        ArgumentsError: If the config cannot be read.

    References:
        transformers and accelerate have classes of this name.
    """

    def __init__(self, config_file_or_dict: dict[str, Any] | str | os.PathLike[str]) -> None:
        self.config = read_config(config_file_or_dict)
        self.set_stage_and_offload()
        register_config(self)

    def set_stage_and_offload(self) -> None:
        """Update the ZeRO stage and the offloading after a change of ``config``."""
        self._stage = self.get_value("zero_optimization.stage", -1)
        self._offload = self._stage in (2, 3) and any(self.get_value(key) in ("cpu", "nvme") for key in _OFFLOADS)

    def find_config_node(self, ds_key_long: str) -> tuple[dict[str, Any] | None, str]:
        """Return the section of a key, None if it does not exist, and the last part of the key.

        Args:
            ds_key_long: The key with its sections: ``"optimizer.params.lr"``.
        """
        *sections, key = ds_key_long.split(".")
        node: dict[str, Any] | None = self.config
        for section in sections:
            node = node.get(section) if isinstance(node, dict) else None
        return (node, key) if isinstance(node, dict) else (None, key)

    def get_value(self, ds_key_long: str, default: object = None) -> Any:
        """Return the value of the key ``ds_key_long``, ``default`` if it does not exist."""
        node, key = self.find_config_node(ds_key_long)
        return default if node is None else node.get(key, default)

    def del_config_sub_tree(self, ds_key_long: str, must_exist: bool = False) -> None:
        """Delete the key or section ``ds_key_long``.

        Raises:
            ArgumentsError: If it does not exist and ``must_exist`` is set.
        """
        node, key = self.find_config_node(ds_key_long)
        if node is not None and node.get(key) is not None:
            del node[key]
        elif must_exist:
            raise ArgumentsError([f"`deepspeed`: the config has no `{ds_key_long}`."], fields=["deepspeed"])

    def is_true(self, ds_key_long: str) -> bool:
        """Return whether the key ``ds_key_long`` exists and its value is true."""
        return bool(self.get_value(ds_key_long))

    def is_false(self, ds_key_long: str) -> bool:
        """Return whether the key ``ds_key_long`` exists and its value is false."""
        value = self.get_value(ds_key_long)
        return value is not None and not value

    def is_zero2(self) -> bool:
        """Return whether the ZeRO stage is 2: optimizer state and gradients are partitioned."""
        return bool(self._stage == 2)

    def is_zero3(self) -> bool:
        """Return whether the ZeRO stage is 3: parameters are partitioned too."""
        return bool(self._stage == 3)

    def is_offload(self) -> bool:
        """Return whether optimizer state or parameters are offloaded, under ZeRO-2 or 3."""
        return bool(self._offload)
