"""``HfTrainerDeepSpeedConfig``: a DeepSpeed config whose ``"auto"`` values are filled in from the arguments."""

from __future__ import annotations

import os
from functools import partialmethod
from typing import TYPE_CHECKING, Any

from hf_compat.arguments.deepspeed.auto_values import ARGUMENT_RULES, HIDDEN_SIZE_RULES, RUN_RULES
from hf_compat.arguments.deepspeed.config import HfDeepSpeedConfig
from hf_compat.arguments.releases.semantics import resolve_semantics
from hf_compat.errors import ArgumentsError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hf_compat.arguments.training_arguments import TrainingArguments

__all__ = ["AUTO", "HfTrainerDeepSpeedConfig"]

AUTO = "auto"
"""The value of keys that are filled in from the arguments."""

_FP16_CASTS = {"auto_cast": True}


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
