"""The configuration of a run: ``TrainingArguments``, its enums, the rules of its fields, and upstream's releases."""

from hf_compat.arguments.accelerator_config import AcceleratorConfig
from hf_compat.arguments.convert import from_transformers
from hf_compat.arguments.enums import (
    DebugOption,
    EvaluationStrategy,
    ExplicitEnum,
    FSDPOption,
    HPSearchBackend,
    HubStrategy,
    IntervalStrategy,
    OptimizerNames,
    ParallelMode,
    SaveStrategy,
    SchedulerType,
)
from hf_compat.arguments.parser import HfArg, HfArgumentParser
from hf_compat.arguments.releases import Semantics, resolve_semantics
from hf_compat.arguments.training_arguments import Seq2SeqTrainingArguments, TrainingArguments

__all__ = [
    "AcceleratorConfig",
    "DebugOption",
    "EvaluationStrategy",
    "ExplicitEnum",
    "FSDPOption",
    "HPSearchBackend",
    "HfArg",
    "HfArgumentParser",
    "HubStrategy",
    "IntervalStrategy",
    "OptimizerNames",
    "ParallelMode",
    "SaveStrategy",
    "SchedulerType",
    "Semantics",
    "Seq2SeqTrainingArguments",
    "TrainingArguments",
    "from_transformers",
    "resolve_semantics",
]
