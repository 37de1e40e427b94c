"""``TrainingArguments``: the configuration of a run, with every field since transformers 4.31."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from hf_compat.arguments.checking.checks import PRECISION_VARIABLE, find_problems
from hf_compat.arguments.checking.problems import raise_all
from hf_compat.arguments.checking.resolving import resolve
from hf_compat.arguments.deepspeed.asked import use_deepspeed
from hf_compat.arguments.fields.unknown import RefusesUnknown
from hf_compat.arguments.fsdp.settings import read_fsdp, set_loading_variables
from hf_compat.arguments.releases.semantics import resolve_semantics
from hf_compat.arguments.releases.versions import SINCE
from hf_compat.arguments.setters import Setters
from hf_compat.distributed.devices import gpu_lacks_tf32, set_tf32

__all__ = ["TrainingArguments"]


@dataclass
class TrainingArguments(Setters, RefusesUnknown):
    """The configuration of a run; the fields are documented where they are declared.

    Names, order, defaults and behaviour are those of transformers 5.23.0; the fields of older releases follow and work
    too. Fields may be assigned after construction.

    Attributes:
        mixed_precision: ``"no"``, ``"fp16"`` or ``"bf16"``.
        hf_deepspeed_config: The DeepSpeed config, its ``"auto"`` values filled in from the arguments; None without it.
        deepspeed_plugin: accelerate's view of that config; None without DeepSpeed.

    Raises:
        ArgumentsError: If fields contradict each other or have invalid values; it lists all problems.
        UnsupportedArgumentsError: If the only problems are values that are not supported.
        UnknownArgumentError: If no release of transformers has a field of that name.
        MissingPackageError: If ``deepspeed`` is set and not installed.
    """

    framework = "pt"

    def __post_init__(self) -> None:
        problems = resolve(self)
        semantics = resolve_semantics("corrected" if any(p.field == "semantics" for p in problems) else self.semantics)
        raise_all([*problems, *find_problems(self, semantics)])
        self.mixed_precision = self._precision()
        self._allow_tf32()
        self.hf_deepspeed_config, self.deepspeed_plugin = use_deepspeed(self)
        self._set_loading_variables()

    def _precision(self) -> str:
        if self.fp16:
            return "fp16"
        return "bf16" if self.bf16 else os.environ.get(PRECISION_VARIABLE, "no")

    def _allow_tf32(self) -> None:
        """Set TF32 for the process, as upstream does: if the field is set, and for compiled models."""
        if self.tf32 is not None:
            if not gpu_lacks_tf32():
                set_tf32(self.tf32)
        elif self.torch_compile and (self.bf16 or not self.fp16) and not gpu_lacks_tf32():
            set_tf32(True)

    def _set_loading_variables(self) -> None:
        """Let transformers load pretrained weights on rank 0 alone, if requested; that needs the process group."""
        settings = read_fsdp(self)
        set_loading_variables(settings)
        if settings is not None and settings.cpu_ram_efficient_loading:
            _ = self.device

    __repr__ = Setters.__str__

    @property
    def place_model_on_device(self) -> bool | None:
        """Whether the Trainer moves the model to the device; None for its default. Subclasses may override it."""
        return None if resolve_semantics(self.semantics).release >= SINCE["leaves_model_placement_open"] else True

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Return the number of warmup steps in a run of ``num_training_steps`` update steps."""
        if not resolve_semantics(self.semantics).warmup_below_one_is_ratio:
            if self.warmup_steps > 0:
                return int(self.warmup_steps)
            return math.ceil(num_training_steps * (self.warmup_ratio or 0.0))
        if self.warmup_steps >= 1:
            return int(self.warmup_steps)
        return math.ceil(num_training_steps * self.warmup_steps)
