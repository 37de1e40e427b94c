"""``TrainingArguments.deepspeed``: the config and its values of ``"auto"``, read without torch and DeepSpeed."""

from __future__ import annotations

import base64
import copy
import importlib
import importlib.util
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.problems import Problem
from hf_compat.arguments.releases import Semantics, resolve_semantics
from hf_compat.distributed.processes import import_deepspeed, prepare_process
from hf_compat.environment import is_yes
from hf_compat.errors import ArgumentsError, require_package, warn_user

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hf_compat.arguments.training_arguments import TrainingArguments

# The arguments that keys of a DeepSpeed config correspond to: the values of `"auto"`, and what must agree.
#
# References:
#     As `HfTrainerDeepSpeedConfig` in transformers `integrations/deepspeed.py`.


@dataclass(frozen=True, slots=True)
class AutoRule:
    """One key that corresponds to an argument."""

    key: str
    """The key with its sections: ``"optimizer.params.lr"``."""
    argument: str | None
    """The argument's name in errors; None if the value is never compared."""
    value: Callable[[TrainingArguments], Any]
    """From the arguments to the value."""
    follows_batch_size: bool = False
    """Whether it is not compared during the search for a batch size."""
    applies: Callable[[Semantics], bool] = lambda semantics: True
    """Whether the release uses the key."""


@dataclass(frozen=True, slots=True)
class RunRule:
    """One key whose value depends on the length of the run."""

    key: str
    argument: str
    filled: Callable[[TrainingArguments, int], Any]
    """The value of ``"auto"``, from the arguments and the update steps of the run."""
    compared: Callable[[TrainingArguments, int, Semantics], Any]
    """The value that any other one must equal."""


@dataclass(frozen=True, slots=True)
class SizeRule:
    """One key whose ``"auto"`` depends on the model's hidden size."""

    key: str
    value: Callable[[int], int]
    """From the hidden size to the value."""
    stage_3_only: bool = True


def _samples_per_update_step(args: TrainingArguments) -> int:
    return int(args.world_size * args.per_device_train_batch_size * args.gradient_accumulation_steps)


def _computes_in(args: TrainingArguments, precision: str) -> bool:
    requested = getattr(args, precision) or getattr(args, f"{precision}_full_eval")
    return bool(requested or getattr(args, "mixed_precision", "no") == precision)  # also set by the launcher


def _had_apex(semantics: Semantics) -> bool:
    return not semantics.deepspeed_without_apex


def _warmup(args: TrainingArguments, steps: int) -> int:
    # DeepSpeed from 0.19.6 on rejects 0; earlier releases treat values below 2 as 2, so 1 is the same there.
    return max(1, int(args.get_warmup_steps(steps)))


def _warmup_compared(args: TrainingArguments, steps: int, semantics: Semantics) -> int:
    return _warmup(args, steps) if semantics.deepspeed_warms_up else int(args.get_warmup_steps(steps))


ARGUMENT_RULES: tuple[AutoRule, ...] = (
    AutoRule(
        "train_micro_batch_size_per_gpu",
        "per_device_train_batch_size",
        lambda args: args.per_device_train_batch_size,
        follows_batch_size=True,
    ),
    AutoRule(
        "gradient_accumulation_steps", "gradient_accumulation_steps", lambda args: args.gradient_accumulation_steps
    ),
    AutoRule(
        "train_batch_size",
        "world_size * per_device_train_batch_size * gradient_accumulation_steps",
        _samples_per_update_step,
        follows_batch_size=True,
    ),
    AutoRule("gradient_clipping", "max_grad_norm", lambda args: args.max_grad_norm),
    AutoRule("optimizer.params.lr", "learning_rate", lambda args: args.learning_rate),
    AutoRule("optimizer.params.betas", "[adam_beta1, adam_beta2]", lambda args: [args.adam_beta1, args.adam_beta2]),
    AutoRule("optimizer.params.eps", "adam_epsilon", lambda args: args.adam_epsilon),
    AutoRule("optimizer.params.weight_decay", "weight_decay", lambda args: args.weight_decay),
    AutoRule("scheduler.params.warmup_min_lr", None, lambda args: 0),
    AutoRule("scheduler.params.warmup_max_lr", "learning_rate", lambda args: args.learning_rate),
    AutoRule("fp16.enabled", "fp16 or fp16_full_eval", lambda args: _computes_in(args, "fp16")),
    AutoRule("amp.enabled", "half_precision_backend == 'apex'", lambda args: False, applies=_had_apex),
    AutoRule("amp.opt_level", "fp16_opt_level", lambda args: args.fp16_opt_level, applies=_had_apex),
    AutoRule("bf16.enabled", "bf16 or bf16_full_eval", lambda args: _computes_in(args, "bf16")),
)
"""Keys that depend on the arguments only."""

RUN_RULES: tuple[RunRule, ...] = (
    RunRule(
        "scheduler.params.total_num_steps",
        "max_steps, or the update steps of num_train_epochs",
        lambda args, steps: steps,
        lambda args, steps, semantics: steps,
    ),
    RunRule("scheduler.params.warmup_num_steps", "warmup_steps", _warmup, _warmup_compared),
)
"""Keys that depend on the length of the run, in update steps."""

HIDDEN_SIZE_RULES: tuple[SizeRule, ...] = (
    SizeRule("zero_optimization.reduce_bucket_size", lambda hidden: hidden * hidden, stage_3_only=False),
    SizeRule("zero_optimization.stage3_prefetch_bucket_size", lambda hidden: int(0.9 * hidden * hidden)),
    SizeRule("zero_optimization.stage3_param_persistence_threshold", lambda hidden: 10 * hidden),
)
"""Keys that depend on the model; they are never compared."""


# `HfDeepSpeedConfig`: a DeepSpeed config and access to its values.
#
# Reading a config imports neither DeepSpeed nor transformers. If transformers is installed, the config is registered
# there, so that `from_pretrained` partitions models under ZeRO-3 while loading.


_OFFLOADS = ("zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device")
_INTEGRATION = "transformers.integrations.deepspeed"
_UNREADABLE = "is not a dict, an existing JSON file, or a JSON object as text or in base64"

AUTO = "auto"
"""The value of keys that are filled in from the arguments."""

_FP16_CASTS = {"auto_cast": True}


def read_config(source: Mapping[str, Any] | str | os.PathLike[str]) -> dict[str, Any]:
    """Return a DeepSpeed config as a new dict.

    Args:
        source: A dict, the path of a JSON file, JSON, or JSON in URL-safe base64.

    Raises:
        ArgumentsError: If it is none of these.
    """
    if isinstance(source, Mapping):
        return copy.deepcopy(dict(source))
    try:
        config = json.loads(_text_of(source))
    except (OSError, RecursionError, TypeError, ValueError) as error:
        problem = f"`deepspeed={source!r}`: {_UNREADABLE} ({error})."
        raise ArgumentsError.also(type(error))([problem], fields=["deepspeed"]) from error
    if not isinstance(config, dict):
        raise ArgumentsError([f"`deepspeed={source!r}`: {_UNREADABLE}."], fields=["deepspeed"])
    return config


def _text_of(source: str | os.PathLike[str]) -> str:
    if os.path.exists(source):
        return Path(source).read_text(encoding="utf-8")
    if str(source).lstrip().startswith("{"):
        return str(source)
    return base64.urlsafe_b64decode(os.fspath(source)).decode("utf-8")


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


# `args.deepspeed_plugin`: the DeepSpeed config by accelerate's names, and the launcher's settings.


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
        enable_msamp: False; read by an ``Accelerator`` that a script makes beside the Trainer.
    """

    enable_msamp = False
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
            warn_user(text)
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


# DeepSpeed requested by `TrainingArguments(deepspeed=...)` or by a launcher: its config and its problems.


_SECTIONS = ("amp", "bf16", "checkpoint", "fp16", "optimizer", "scheduler", "zero_optimization")


def _requested_config(args: TrainingArguments) -> dict[str, Any] | str | None:
    """Return the DeepSpeed config given by the arguments or the launcher; None without DeepSpeed."""
    given: dict[str, Any] | str | None = args.deepspeed
    launched = is_yes(os.environ.get("ACCELERATE_USE_DEEPSPEED", "false"))
    return given or (launcher_config() if launched else None)


def requests_deepspeed(args: TrainingArguments) -> bool:
    """Return whether ``args`` or the launcher request DeepSpeed."""
    return _requested_config(args) is not None


def deepspeed_problems(args: TrainingArguments, semantics: Semantics) -> Iterator[Problem]:
    """Yield the problems of a DeepSpeed config; contradictions to the arguments are raised when training starts."""
    given = _requested_config(args)
    if given is None:
        return
    try:
        config = read_config(given)
    except ArgumentsError as error:
        if not str(given).startswith("{"):  # else it was reported when the fields were resolved
            text = error.problems[0].partition("`: ")[2]
            yield Problem("deepspeed", given, text, wrong_type=isinstance(error, TypeError))
        return
    if "zero_optimization" not in config:
        yield Problem("deepspeed", given, "has no section `zero_optimization`; add it, with a `stage` from 0 to 3.")
    for name in _SECTIONS:
        if not isinstance(config.get(name, {}), dict | None):
            yield Problem(
                "deepspeed", given, f"`{name}` is {config[name]!r}, not a section; write it as an object in braces."
            )
    yield from _duplicate_settings(given)


def _duplicate_settings(config_file: object) -> Iterator[Problem]:
    """Yield the settings in accelerate's configuration that the DeepSpeed config file overrides."""
    names = {row.variable.removeprefix("ACCELERATE_").removeprefix("DEEPSPEED_").lower() for row in LAUNCHER_SETTINGS}
    given_names = set(os.environ.get("ACCELERATE_CONFIG_DS_FIELDS", "").split(","))
    duplicates = sorted(given_names & {*names, "mixed_precision"})
    if duplicates and isinstance(config_file, str):
        text = f"overrides {', '.join(duplicates)} of accelerate's configuration; set them in this file only."
        yield Problem("deepspeed", config_file, text)


def use_deepspeed(args: TrainingArguments) -> tuple[HfTrainerDeepSpeedConfig | None, DeepSpeedPlugin | None]:
    """Return the DeepSpeed config, filled in from the arguments, and its plugin.

    Raises:
        MissingPackageError: If DeepSpeed is not installed.
    """
    given = _requested_config(args)
    if given is None:
        return None, None
    if importlib.util.find_spec("deepspeed") is None:
        require_package("deepspeed", extra="deepspeed", purpose="`deepspeed`")
    config = HfTrainerDeepSpeedConfig(given)
    if not args.deepspeed:
        fill_from_launcher(config)  # first, so that contradictions to the arguments are found
    config.trainer_config_process(args)
    config.complete(args)
    plugin = DeepSpeedPlugin(config)
    plugin.set_deepspeed_weakref()
    return config, plugin


def uses_deepspeed(args: TrainingArguments) -> bool:
    """Return whether runs use DeepSpeed, at the request of ``args``, of the launcher, or of a keyword."""
    return args.hf_deepspeed_config is not None


def config_in_use(args: TrainingArguments) -> HfTrainerDeepSpeedConfig:
    """Return the config of arguments that are known to use DeepSpeed."""
    config = args.hf_deepspeed_config
    assert config is not None, "the strategy is DeepSpeed"
    return config


def autotp_size(args: TrainingArguments) -> int:
    """Return the number of ranks among which DeepSpeed splits each matrix; 1 without DeepSpeed."""
    return 1 if args.hf_deepspeed_config is None else args.hf_deepspeed_config.tensor_parallel_size


def partition_from_now_on(args: TrainingArguments) -> None:
    """Under ZeRO-3 initialize the process group: models are partitioned from then on while they are built.

    Partitioning is collective, and may come before there is a Trainer.
    """
    if args.hf_deepspeed_config is not None and args.hf_deepspeed_config.is_zero3():
        import_deepspeed(args.device)
        prepare_process(args.launch, args.device)
