"""``TrainingArguments``: what a run is asked to do, in every spelling since transformers 4.31."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from hf_compat.arguments.checking.checks import PRECISION_VARIABLE, find_problems
from hf_compat.arguments.checking.problems import raise_all
from hf_compat.arguments.checking.resolving import resolve
from hf_compat.arguments.deepspeed.asked import use_deepspeed
from hf_compat.arguments.fields.unknown import RefusesUnknown
from hf_compat.arguments.fsdp.settings import announce_loading, read_fsdp
from hf_compat.arguments.releases.semantics import resolve_semantics
from hf_compat.arguments.releases.versions import SINCE
from hf_compat.arguments.setters import Setters
from hf_compat.distributed.devices import gpu_lacks_tf32, set_tf32

__all__ = ["TrainingArguments"]


@dataclass
class TrainingArguments(Setters, RefusesUnknown):
    """What a run is asked to do; the fields are described where they are declared.

    Names, order, defaults and behaviour are those of transformers 5.23.0; older releases' fields come after
    them and work. Fields may be assigned after construction.

    Attributes:
        mixed_precision: ``"no"``, ``"fp16"`` or ``"bf16"``.
        hf_deepspeed_config: The DeepSpeed config, filled in as far as the arguments decide it; None without DeepSpeed.
        deepspeed_plugin: What scripts ask of DeepSpeed; None without it.

    Raises:
        ArgumentsError: If fields contradict each other or hold what no run could use; all that is wrong is told.
        UnsupportedArgumentsError: If fields ask for what cannot be carried out, and nothing else is wrong.
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
        self._announce_loading()

    def _precision(self) -> str:
        if self.fp16:
            return "fp16"
        return "bf16" if self.bf16 else os.environ.get(PRECISION_VARIABLE, "no")

    def _allow_tf32(self) -> None:
        """Set TF32 for the process, as upstream does: where the field says so, and for compiled models."""
        if self.tf32 is not None:
            if not gpu_lacks_tf32():
                set_tf32(self.tf32)
        elif self.torch_compile and (self.bf16 or not self.fp16) and not gpu_lacks_tf32():
            set_tf32(True)

    def _announce_loading(self) -> None:
        """Tell transformers which process reads a pretrained model's weights; they have to know each other for it."""
        settings = read_fsdp(self)
        announce_loading(settings)
        if settings is not None and settings.cpu_ram_efficient_loading:
            _ = self.device

    __repr__ = Setters.__str__

    @property
    def place_model_on_device(self) -> bool | None:
        """Whether the Trainer moves the model to the device; None lets it decide. Subclasses may override it."""
        return None if resolve_semantics(self.semantics).release >= SINCE["leaves_model_placement_open"] else True

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Return the update steps of warmup in a run of ``num_training_steps`` update steps."""
        if not resolve_semantics(self.semantics).warmup_below_one_is_ratio:
            if self.warmup_steps > 0:
                return int(self.warmup_steps)
            return math.ceil(num_training_steps * (self.warmup_ratio or 0.0))
        if self.warmup_steps >= 1:
            return int(self.warmup_steps)
        return math.ceil(num_training_steps * self.warmup_steps)
