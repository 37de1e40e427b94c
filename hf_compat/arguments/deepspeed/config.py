"""A DeepSpeed config that can be read and asked.

Neither DeepSpeed nor transformers is imported to read a config. transformers, where it is installed, is told of it, so
that ``from_pretrained`` can partition a model under ZeRO-3 while it loads it.
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

__all__ = ["HfDeepSpeedConfig", "forget_config", "read_config", "show_config"]

_OFFLOADS = ("zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device")
_INTEGRATION = "transformers.integrations.deepspeed"
_UNREADABLE = "is neither a dict nor an existing JSON file, nor a JSON object as text or in base64"


def read_config(given: Any) -> dict[str, Any]:
    """Return a DeepSpeed config as a dict of its own.

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


def _text_of(given: Any) -> str:
    if os.path.exists(given):
        return Path(given).read_text(encoding="utf-8")
    if str(given).lstrip().startswith("{"):
        return str(given)
    return base64.urlsafe_b64decode(given).decode("utf-8")


def show_config(config: HfDeepSpeedConfig) -> None:
    """Let transformers, if it is installed, build and load models as ``config`` says, as long as that object lives."""
    if importlib.util.find_spec("transformers") is not None:
        importlib.import_module(_INTEGRATION).set_hf_deepspeed_config(config)


def forget_config() -> None:
    """Let transformers, if it is installed, build and load models as if there were no DeepSpeed config."""
    if importlib.util.find_spec("transformers") is not None:
        importlib.import_module(_INTEGRATION).unset_hf_deepspeed_config()


class HfDeepSpeedConfig:
    """A DeepSpeed config that can be asked for values.

    While the object lives, transformers' ``from_pretrained`` partitions models under ZeRO-3 as it loads them.

    Args:
        config_file_or_dict: A dict, which is copied, the path of a JSON file, or JSON as text or in base64.

    Attributes:
        config: The config, sections as dicts.

    Raises:
        ArgumentsError: If there is no config to be read.

    References:
        transformers and accelerate have classes of this name.
    """

    def __init__(self, config_file_or_dict: dict[str, Any] | str | os.PathLike[str]) -> None:
        self.config = read_config(config_file_or_dict)
        self.set_stage_and_offload()
        show_config(self)

    def set_stage_and_offload(self) -> None:
        """Read the ZeRO stage and the offloading anew, after ``config`` was changed."""
        self._stage = self.get_value("zero_optimization.stage", -1)
        self._offload = self._stage in (2, 3) and any(self.get_value(key) in ("cpu", "nvme") for key in _OFFLOADS)

    def find_config_node(self, ds_key_long: str) -> tuple[dict[str, Any] | None, str]:
        """Return the section that holds a key, None if it is not there, and the last part of the key.

        Args:
            ds_key_long: The key with its sections: ``"optimizer.params.lr"``.
        """
        *sections, key = ds_key_long.split(".")
        node: dict[str, Any] | None = self.config
        for section in sections:
            node = node.get(section) if isinstance(node, dict) else None
        return (node, key) if isinstance(node, dict) else (None, key)

    def get_value(self, ds_key_long: str, default: Any = None) -> Any:
        """Return the value of a key, ``default`` if it or a section is not there."""
        node, key = self.find_config_node(ds_key_long)
        return default if node is None else node.get(key, default)

    def del_config_sub_tree(self, ds_key_long: str, must_exist: bool = False) -> None:
        """Take a key or section out.

        Raises:
            ArgumentsError: If it is not there and ``must_exist`` is set.
        """
        node, key = self.find_config_node(ds_key_long)
        if node is not None and node.get(key) is not None:
            del node[key]
        elif must_exist:
            raise ArgumentsError([f"`deepspeed`: the config has no `{ds_key_long}`."], fields=["deepspeed"])

    def is_true(self, ds_key_long: str) -> bool:
        """Return whether a key is there and its value is true."""
        return bool(self.get_value(ds_key_long))

    def is_false(self, ds_key_long: str) -> bool:
        """Return whether a key is there and its value is false."""
        value = self.get_value(ds_key_long)
        return value is not None and not value

    def is_zero2(self) -> bool:
        """Return whether gradients and the optimizer's state are partitioned."""
        return bool(self._stage == 2)

    def is_zero3(self) -> bool:
        """Return whether parameters are partitioned too."""
        return bool(self._stage == 3)

    def is_offload(self) -> bool:
        """Return whether the optimizer's state or the parameters leave the device, under ZeRO-2 or 3."""
        return bool(self._offload)
