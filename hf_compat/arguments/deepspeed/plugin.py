"""``args.deepspeed_plugin``: the DeepSpeed config by accelerate's names, and the launcher's settings."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hf_compat.arguments.deepspeed.config import AUTO, HfTrainerDeepSpeedConfig, register_config, unregister_config
from hf_compat.environment import is_yes
from hf_compat.errors import HFCompatWarning

__all__ = ["LAUNCHER_SETTINGS", "DeepSpeedPlugin", "LauncherSetting", "fill_from_launcher", "launcher_config"]

_NONE = "none"


def _number_or_auto(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda word: AUTO if word == AUTO else kind(word)


@dataclass(frozen=True, slots=True)
class LauncherSetting:
    """One DeepSpeed setting of ``accelerate launch``."""

    name: str
    """Attribute of the plugin."""
    variable: str
    default: str
    """Value if the variable is not set."""
    read: Callable[[str], Any]
    key: str
    """Its key in the config."""


LAUNCHER_SETTINGS: tuple[LauncherSetting, ...] = (
    LauncherSetting(
        "gradient_accumulation_steps",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
        AUTO,
        _number_or_auto(int),
        "gradient_accumulation_steps",
    ),
    LauncherSetting(
        "gradient_clipping", "ACCELERATE_GRADIENT_CLIPPING", AUTO, _number_or_auto(float), "gradient_clipping"
    ),
    LauncherSetting("zero_stage", "ACCELERATE_DEEPSPEED_ZERO_STAGE", "2", int, "zero_optimization.stage"),
    LauncherSetting(
        "offload_optimizer_device",
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
        _NONE,
        str,
        "zero_optimization.offload_optimizer.device",
    ),
    LauncherSetting(
        "offload_param_device",
        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
        _NONE,
        str,
        "zero_optimization.offload_param.device",
    ),
    LauncherSetting(
        "offload_optimizer_nvme_path",
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH",
        _NONE,
        str,
        "zero_optimization.offload_optimizer.nvme_path",
    ),
    LauncherSetting(
        "offload_param_nvme_path",
        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH",
        _NONE,
        str,
        "zero_optimization.offload_param.nvme_path",
    ),
    LauncherSetting(
        "zero3_save_16bit_model",
        "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
        "false",
        is_yes,
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    ),
)
"""The launcher's settings, used for keys that are ``"auto"`` and depend on no argument."""


def _launcher_values() -> dict[str, Any]:
    return {row.name: row.read(os.environ.get(row.variable, row.default)) for row in LAUNCHER_SETTINGS}


def launcher_config() -> dict[str, Any] | str:
    """Return the config file named by the launcher, or a config from its variables."""
    given = os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", _NONE)
    if given != _NONE:
        return given
    values = _launcher_values()
    offloads = {
        f"offload_{what}": {
            "device": values[f"offload_{what}_device"],
            "nvme_path": values[f"offload_{what}_nvme_path"] if values[f"offload_{what}_device"] == "nvme" else None,
        }
        for what in ("optimizer", "param")
    }
    config: dict[str, Any] = {
        "train_batch_size": AUTO,
        "train_micro_batch_size_per_gpu": AUTO,
        "gradient_accumulation_steps": values["gradient_accumulation_steps"],
        "zero_optimization": {
            "stage": values["zero_stage"],
            **offloads,
            "stage3_gather_16bit_weights_on_model_save": values["zero3_save_16bit_model"],
        },
    }
    return {**config, "gradient_clipping": values["gradient_clipping"]} if values["gradient_clipping"] else config


def fill_from_launcher(config: HfTrainerDeepSpeedConfig) -> None:
    """Set the keys of ``config`` that are ``"auto"`` to the launcher's values."""
    values = _launcher_values()
    for row in LAUNCHER_SETTINGS:
        node, key = config.find_config_node(row.key)
        if node is not None and node.get(key) == AUTO:
            node[key] = values[row.name]
    config.set_stage_and_offload()


class DeepSpeedPlugin:
    """The DeepSpeed config by the names of accelerate's plugin.

    Args:
        hf_ds_config: The config; remaining ``"auto"`` values are set to the launcher's.

    Attributes:
        deepspeed_config: The config as a dict.
        zero_stage: ZeRO stage: 0 partitions nothing, 1 the optimizer state, 2 also gradients, 3 also parameters.
        gradient_accumulation_steps: Batches per update step.
        gradient_clipping: Maximum gradient norm.
        offload_optimizer_device: Offload target of the optimizer state: ``"none"``, ``"cpu"`` or ``"nvme"``.
        offload_param_device: Offload target of the parameters.
        zero3_init_flag: Whether models are partitioned while they are built.
        zero3_save_16bit_model: Whether ZeRO-3 gathers the weights to save the model.
    """

    zero_stage: int
    gradient_accumulation_steps: int | str
    gradient_clipping: float | str | None
    offload_optimizer_device: str
    offload_optimizer_nvme_path: str
    offload_param_device: str
    offload_param_nvme_path: str
    zero3_save_16bit_model: bool

    def __init__(self, hf_ds_config: HfTrainerDeepSpeedConfig) -> None:
        self.hf_ds_config = hf_ds_config
        fill_from_launcher(hf_ds_config)
        vars(self).update(_launcher_values())
        for row in LAUNCHER_SETTINGS:
            value = hf_ds_config.get_value(row.key)
            if value is not None and value != AUTO:
                setattr(self, row.name, value)
        hf_ds_config.config["steps_per_print"] = math.inf  # the Trainer logs
        self.zero3_init_flag = self._init_flag()

    @property
    def deepspeed_config(self) -> dict[str, Any]:
        """The config as a dict; changes apply to it."""
        return self.hf_ds_config.config

    def _init_flag(self) -> bool:
        is_zero3 = self.hf_ds_config.is_zero3()
        requested = is_yes(os.environ.get("ACCELERATE_DEEPSPEED_ZERO3_INIT", str(is_zero3)))
        if requested and not is_zero3:
            stage = f"the ZeRO stage is {self.zero_stage}"
            text = f"ACCELERATE_DEEPSPEED_ZERO3_INIT has no effect: {stage}, and only stage 3 partitions models."
            warnings.warn(text, HFCompatWarning, stacklevel=4)
        return requested and is_zero3

    def is_auto(self, ds_key_long: str) -> bool:
        """Return whether a key of the config exists and is ``"auto"``."""
        return self.hf_ds_config.is_auto(ds_key_long)

    def get_value(self, ds_key_long: str, default: object = None) -> Any:
        """Return the value of a key of the config, ``default`` if it does not exist."""
        return self.hf_ds_config.get_value(ds_key_long, default)

    def is_zero3_init_enabled(self) -> bool:
        """Return whether models are partitioned while they are built."""
        return self.zero3_init_flag

    def set_deepspeed_weakref(self) -> None:
        """Register or unregister the config with transformers, by ``zero3_init_flag``."""
        if self.zero3_init_flag or not self.hf_ds_config.is_zero3():
            register_config(self.hf_ds_config)
        else:
            unregister_config()

    @contextmanager
    def zero3_init_context_manager(self, enable: bool = False) -> Iterator[None]:
        """Build and load full models within the block, or partitioned ones with ``enable=True`` under ZeRO-3."""
        before = self.zero3_init_flag
        self.zero3_init_flag = enable and self.hf_ds_config.is_zero3()
        self.set_deepspeed_weakref()
        try:
            yield
        finally:
            self.zero3_init_flag = before
            self.set_deepspeed_weakref()
