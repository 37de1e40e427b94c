"""``args.deepspeed_plugin``: what scripts and libraries ask of DeepSpeed, and what a launcher said of it."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hf_compat.arguments.deepspeed.config import forget_config, show_config
from hf_compat.arguments.deepspeed.filling import AUTO, HfTrainerDeepSpeedConfig
from hf_compat.distributed.devices import is_yes
from hf_compat.errors import HFCompatWarning

__all__ = ["LAUNCHED", "DeepSpeedPlugin", "LauncherSetting", "fill_from_launcher", "launched_config"]

_NOTHING = "none"


def _number(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda word: AUTO if word == AUTO else kind(word)


@dataclass(frozen=True, slots=True)
class LauncherSetting:
    """One thing that ``accelerate launch`` says of DeepSpeed."""

    name: str
    """Attribute of the plugin."""
    variable: str
    default: str
    """What is taken if the variable is not set."""
    read: Callable[[str], Any]
    key: str
    """Where it belongs in the config."""


LAUNCHED: tuple[LauncherSetting, ...] = (
    LauncherSetting(
        "gradient_accumulation_steps",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
        AUTO,
        _number(int),
        "gradient_accumulation_steps",
    ),
    LauncherSetting("gradient_clipping", "ACCELERATE_GRADIENT_CLIPPING", AUTO, _number(float), "gradient_clipping"),
    LauncherSetting("zero_stage", "ACCELERATE_DEEPSPEED_ZERO_STAGE", "2", int, "zero_optimization.stage"),
    LauncherSetting(
        "offload_optimizer_device",
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
        _NOTHING,
        str,
        "zero_optimization.offload_optimizer.device",
    ),
    LauncherSetting(
        "offload_param_device",
        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
        _NOTHING,
        str,
        "zero_optimization.offload_param.device",
    ),
    LauncherSetting(
        "offload_optimizer_nvme_path",
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH",
        _NOTHING,
        str,
        "zero_optimization.offload_optimizer.nvme_path",
    ),
    LauncherSetting(
        "offload_param_nvme_path",
        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH",
        _NOTHING,
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
"""What the launcher says, for keys that are ``"auto"`` and no argument decides; a config's own value goes before it."""


def _said() -> dict[str, Any]:
    return {row.name: row.read(os.environ.get(row.variable, row.default)) for row in LAUNCHED}


def launched_config() -> dict[str, Any] | str:
    """Return what the launcher's variables say: the config file, or a config made of them."""
    given = os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", _NOTHING)
    if given != _NOTHING:
        return given
    said = _said()
    offloads = {
        f"offload_{what}": {
            "device": said[f"offload_{what}_device"],
            "nvme_path": said[f"offload_{what}_nvme_path"] if said[f"offload_{what}_device"] == "nvme" else None,
        }
        for what in ("optimizer", "param")
    }
    config: dict[str, Any] = {
        "train_batch_size": AUTO,
        "train_micro_batch_size_per_gpu": AUTO,
        "gradient_accumulation_steps": said["gradient_accumulation_steps"],
        "zero_optimization": {
            "stage": said["zero_stage"],
            **offloads,
            "stage3_gather_16bit_weights_on_model_save": said["zero3_save_16bit_model"],
        },
    }
    return {**config, "gradient_clipping": said["gradient_clipping"]} if said["gradient_clipping"] else config


def fill_from_launcher(config: HfTrainerDeepSpeedConfig) -> None:
    """Give the keys of ``config`` that are ``"auto"`` what the launcher says of them."""
    said = _said()
    for row in LAUNCHED:
        node, key = config.find_config_node(row.key)
        if node is not None and node.get(key) == AUTO:
            node[key] = said[row.name]
    config.set_stage_and_offload()


class DeepSpeedPlugin:
    """What a run under DeepSpeed is asked about, by the names of accelerate's plugin.

    Args:
        hf_ds_config: The config; keys left at ``"auto"`` are given what the launcher says of them.

    Attributes:
        deepspeed_config: The config as a dict.
        zero_stage: What is partitioned: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too.
        gradient_accumulation_steps: Batches in an update step.
        gradient_clipping: The norm that gradients are clipped to.
        offload_optimizer_device: Where the optimizer's state is kept: ``"none"``, ``"cpu"`` or ``"nvme"``.
        offload_param_device: Where parameters are kept.
        zero3_init_flag: Whether models are partitioned while they are built.
        zero3_save_16bit_model: Whether ZeRO-3 gathers its weights when the model is saved.
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
        vars(self).update(_said())
        for row in LAUNCHED:
            value = hf_ds_config.get_value(row.key)
            if value is not None and value != AUTO:
                setattr(self, row.name, value)
        hf_ds_config.config["steps_per_print"] = math.inf  # the Trainer logs
        self.zero3_init_flag = self._init_flag()

    @property
    def deepspeed_config(self) -> dict[str, Any]:
        """The config as a dict, which may be changed."""
        return self.hf_ds_config.config

    def _init_flag(self) -> bool:
        is_zero3 = self.hf_ds_config.is_zero3()
        wanted = is_yes(os.environ.get("ACCELERATE_DEEPSPEED_ZERO3_INIT", str(is_zero3)))
        if wanted and not is_zero3:
            text = f"ACCELERATE_DEEPSPEED_ZERO3_INIT is set, but only ZeRO-3 partitions models, not {self.zero_stage}."
            warnings.warn(text, HFCompatWarning, stacklevel=4)
        return wanted and is_zero3

    def is_auto(self, ds_key_long: str) -> bool:
        """Return whether a key of the config is there and still ``"auto"``."""
        return self.hf_ds_config.is_auto(ds_key_long)

    def get_value(self, ds_key_long: str, default: Any = None) -> Any:
        """Return the value of a key of the config, ``default`` if it is not there."""
        return self.hf_ds_config.get_value(ds_key_long, default)

    def is_zero3_init_enabled(self) -> bool:
        """Return whether models are partitioned while they are built."""
        return self.zero3_init_flag

    def set_deepspeed_weakref(self) -> None:
        """Let transformers build and load models as ``zero3_init_flag`` says."""
        if self.zero3_init_flag or not self.hf_ds_config.is_zero3():
            show_config(self.hf_ds_config)
        else:
            forget_config()

    @contextmanager
    def zero3_init_context_manager(self, enable: bool = False) -> Iterator[None]:
        """Build and load models whole within the block, or partitioned with ``enable=True`` under ZeRO-3."""
        before = self.zero3_init_flag
        self.zero3_init_flag = enable and self.hf_ds_config.is_zero3()
        self.set_deepspeed_weakref()
        try:
            yield
        finally:
            self.zero3_init_flag = before
            self.set_deepspeed_weakref()
