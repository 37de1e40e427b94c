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
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.deepspeed.auto_values import ARGUMENT_RULES, HIDDEN_SIZE_RULES, RUN_RULES
from hf_compat.arguments.releases.semantics import resolve_semantics
from hf_compat.errors import ArgumentsError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = [
    "AUTO",
    "HfDeepSpeedConfig",
    "HfTrainerDeepSpeedConfig",
    "read_config",
    "register_config",
    "unregister_config",
]

_OFFLOADS = ("zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device")
_INTEGRATION = "transformers.integrations.deepspeed"
_UNREADABLE = "is not a dict, an existing JSON file, or a JSON object as text or in base64"

AUTO = "auto"
"""The value of keys that are filled in from the arguments."""

_FP16_CASTS = {"auto_cast": True}


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
    except (OSError, RecursionError, TypeError, ValueError) as error:
        problem = f"`deepspeed={given!r}`: {_UNREADABLE} ({error})."
        raise ArgumentsError.also(type(error))([problem], fields=["deepspeed"]) from error
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


class HfTrainerDeepSpeedConfig(HfDeepSpeedConfig):
    """A DeepSpeed config whose ``"auto"`` values are filled in from the training arguments.

    Attributes:
        mismatches: One sentence per value that contradicts an argument; all are raised when training starts.
    """

    def __init__(self, config_file_or_dict: dict[str, Any] | str | os.PathLike[str]) -> None:
        super().__init__(config_file_or_dict)
        self.mismatches: list[str] = []
        self._filled: dict[str, Any] = {}
        self._added: set[str] = set()
        self._dtype_name: str | None = None
        self._searches_batch_size = False

    def dtype(self) -> torch.dtype:
        """Return the dtype of the model's weights in the engine.

        Raises:
            ArgumentsError: If the arguments have not been filled in yet.
        """
        import torch

        if self._dtype_name is None:
            raise ArgumentsError(["`deepspeed`: the dtype is not set yet; call `trainer_config_process(args)` first."])
        dtype: torch.dtype = getattr(torch, self._dtype_name)
        return dtype

    @property
    def tensor_parallel_size(self) -> int:
        """Number of ranks over which DeepSpeed splits each matrix, and which get the same batches (its AutoTP)."""
        return int((self.config.get("tensor_parallel") or {}).get("autotp_size") or 1)

    def is_auto(self, ds_key_long: str) -> bool:
        """Return whether a key exists and its value is ``"auto"``."""
        return bool(self.get_value(ds_key_long) == AUTO)

    def fill_match(self, ds_key_long: str, hf_val: object, hf_key: str | None = None, must_match: bool = True) -> None:
        """Set a key to the value of an argument if it is ``"auto"``, else record a contradiction.

        A value that was filled in before is updated if the argument has changed. Missing keys are not added.

        Args:
            ds_key_long: The key with its sections.
            hf_val: The argument's value.
            hf_key: The argument's name.
            must_match: Whether a contradiction is added to ``mismatches``.
        """
        node, key = self.find_config_node(ds_key_long)
        value = None if node is None else node.get(key)
        if node is not None and value is not None and value in (AUTO, self._filled.get(ds_key_long, AUTO)):
            node[key] = self._filled[ds_key_long] = hf_val
        elif must_match and value is not None and value != hf_val:
            self.mismatches.append(f"`deepspeed`: `{ds_key_long}` is {value!r}, but `{hf_key}` is {hf_val!r}.")

    fill_only = partialmethod(fill_match, must_match=False)

    def trainer_config_process(self, args: TrainingArguments, auto_find_batch_size: bool = False) -> None:
        """Fill in the keys that depend on the arguments only.

        Args:
            args: The training arguments.
            auto_find_batch_size: Whether the batch size is being searched, so that it may differ from the config.
        """
        semantics = resolve_semantics(getattr(args, "semantics", None))
        self.mismatches = []
        self._searches_batch_size = auto_find_batch_size
        for rule in ARGUMENT_RULES:
            if rule.applies(semantics):
                is_searched = rule.follows_batch_size and auto_find_batch_size
                compared = rule.argument is not None and rule.key not in self._added and not is_searched
                self.fill_match(rule.key, rule.value(args), rule.argument, compared)
        if args.save_on_each_node:
            self.config["checkpoint"] = {**(self.config.get("checkpoint") or {}), "use_node_local_storage": True}
        self._dtype_name = self._choose_dtype(semantics.deepspeed_starts_from_float32)

    def complete(self, args: TrainingArguments) -> None:
        """Add keys that DeepSpeed needs and the config lacks: precision and gradient accumulation.

        Args:
            args: The training arguments.
        """
        for precision in ("fp16", "bf16"):
            if precision not in self.config:
                is_on = args.mixed_precision == precision
                self.config[precision] = {"enabled": is_on, **(_FP16_CASTS if is_on and precision == "fp16" else {})}
                self._added.add(f"{precision}.enabled")
        if "gradient_accumulation_steps" not in self.config:
            self.config["gradient_accumulation_steps"] = AUTO
            self.fill_only("gradient_accumulation_steps", args.gradient_accumulation_steps)
        self._dtype_name = self._choose_dtype(starts_from_float32=True)

    def _choose_dtype(self, starts_from_float32: bool) -> str:
        if self.is_true("bf16.enabled"):
            return "bfloat16"
        is_half = self.is_true("fp16.enabled") if starts_from_float32 else not self.is_false("fp16.enabled")
        return "float16" if is_half else "float32"

    def trainer_config_finalize(self, args: TrainingArguments, model: nn.Module, num_training_steps: int) -> None:
        """Fill in the keys that depend on the model and the length of the run; ``config`` is then complete.

        Values whose arguments have changed since are updated.

        Args:
            args: The training arguments.
            model: The model; its ``config`` has the hidden size.
            num_training_steps: Update steps of the run.

        Raises:
            ArgumentsError: If the config contradicts the arguments; it lists all contradictions.
        """
        if self._dtype_name is not None:
            self.trainer_config_process(args, self._searches_batch_size)
        self._fill_sizes(model)
        semantics = resolve_semantics(getattr(args, "semantics", None))
        for rule in RUN_RULES:
            self.fill_only(rule.key, rule.filled(args, num_training_steps))
            if rule.key not in self._filled:
                self.fill_match(rule.key, rule.compared(args, num_training_steps, semantics), rule.argument)
        if self.mismatches:
            advice = 'Use the same values, or "auto" in the config.'
            raise ArgumentsError([*self.mismatches[:-1], f"{self.mismatches[-1]} {advice}"], fields=["deepspeed"])
        if not self.config.get("optimizer"):
            self.config["zero_allow_untested_optimizer"] = True  # the optimizer is created outside of DeepSpeed

    def _fill_sizes(self, model: nn.Module) -> None:
        rules = [rule for rule in HIDDEN_SIZE_RULES if self.is_auto(rule.key)]
        if not rules:
            return
        hidden = _hidden_size(getattr(model, "config", None))
        if hidden is None:
            keys = ", ".join(f"`{rule.key}`" for rule in rules)
            problem = (
                f"`deepspeed`: {keys} cannot be computed, as the model's config has neither `hidden_size` nor "
                '`hidden_sizes`; write numbers instead of "auto".'
            )
            raise ArgumentsError([problem], fields=["deepspeed"])
        for rule in rules:
            if self.is_zero3() or not rule.stage_3_only:
                self.fill_only(rule.key, rule.value(hidden))


def _hidden_size(config: object) -> int | None:
    """Return the hidden size in a model's config, the largest of several; else that of its text model."""
    parts: tuple[Any, ...] = (config, getattr(config, "text_config", None))
    for part in parts:
        if hasattr(part, "hidden_size"):
            return int(part.hidden_size)
        if hasattr(part, "hidden_sizes"):
            return int(max(part.hidden_sizes))
    return None
